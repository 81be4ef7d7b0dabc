"""Presets: the boxes, shard counts and balancing of each part's TFRecords."""

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple

from tpudet.trainkit.config.decode import decode
from tpudet.trainkit.config.find import load_tree, packaged_configs
from tpudet.trainkit.config.yaml_tree import Branch, ConfigError
from tpudet.trainkit.errors import UserError

HUMAN_PARTS = "human_parts"
SEGMENTATION = "segmentation"  # the track of that name: boxes of its own, with masks
_PART = re.compile(rf"{HUMAN_PARTS}|{SEGMENTATION}|part_\d+")
_FILE = "open_images/presets.yaml"  # below configs/


@dataclass(frozen=True, kw_only=True)
class PartPreset:
    """The training set of one part."""

    boxes: Literal["all", "no_groups", "no_groups_no_inside", "no_groups_no_depictions_no_inside"]
    num_shards: int  # files, at least 1
    min_images_per_class: int = 0  # reached by repeating images; 0: nothing is repeated

    def __post_init__(self) -> None:
        if self.num_shards < 1 or self.min_images_per_class < 0:
            raise ValueError("num_shards must be at least 1, min_images_per_class at least 0")


@dataclass(frozen=True, kw_only=True)
class PresetSettings:
    """The settings of all parts of a preset."""

    description: str
    max_copies: int | None = None  # of an image in balancing; None: no limit
    pseudo_label_confidence: float | None = None  # threshold; None: no pseudo-labels

    def __post_init__(self) -> None:
        if self.max_copies is not None and self.max_copies < 1:
            raise ValueError(f"max_copies must be at least 1, got {self.max_copies}")
        confidence = self.pseudo_label_confidence
        if confidence is not None and not 0 <= confidence < 1:
            raise ValueError(f"pseudo_label_confidence must be in 0..1, 1 excluded: {confidence}")


class Preset(NamedTuple):
    """One preset of a presets file."""

    settings: PresetSettings
    parts: Mapping[str, PartPreset]  # in the order of the file

    def choose(self, names: Sequence[str] | None) -> dict[str, PartPreset]:
        """Returns the parts `names`, or all if None.

        Raises:
            UserError: the preset has no such part.
        """
        unknown = [name for name in names or () if name not in self.parts]
        if unknown:
            raise UserError(
                f"--parts: this preset has no {', '.join(unknown)}; it has {', '.join(self.parts)}."
            )
        return {name: part for name, part in self.parts.items() if names is None or name in names}


def default_presets_path() -> str:
    """Returns the presets file in the working directory, else the one in the package."""
    own = Path("configs") / _FILE
    return str(own if own.is_file() else packaged_configs() / _FILE)


def read_preset(path: str | None, name: str) -> Preset:
    """Reads the preset `name` and checks the whole file; None means `default_presets_path`.

    Raises:
        UserError: there is no such file or preset; all mistakes in the file are listed.
    """
    path = path or default_presets_path()
    presets = _read_presets(path)
    if name not in presets:
        listed = "\n".join(
            f"  {known:8} {preset.settings.description}" for known, preset in presets.items()
        )
        raise UserError(f"{os.path.basename(path)} has no preset {name}. It has\n{listed}")
    return presets[name]


def _read_presets(path: str) -> dict[str, Preset]:
    mistakes: list[str] = []
    presets: dict[str, Preset] = {}
    try:
        tree = load_tree(path)
    except ConfigError as error:
        raise UserError(str(error)) from error
    for name, branch in tree.children.items():
        if not isinstance(branch, Branch):
            mistakes.append(f"{branch.place}: {name} must be a mapping, got {branch.value!r}")
            continue
        try:
            presets[name] = _decode_preset(name, branch)
        except ConfigError as error:
            mistakes.append(str(error))
    if mistakes or not presets:
        listed = "\n".join(mistakes) or "it is empty"
        raise UserError(f"The presets of {path} cannot be used: {listed}")
    return presets


def _decode_preset(name: str, branch: Branch) -> Preset:
    """Decodes the settings and each part separately, because the number of parts is open."""
    parts = {key: value for key, value in branch.children.items() if _PART.fullmatch(key)}
    rest = {key: value for key, value in branch.children.items() if key not in parts}
    mistakes: list[str] = []
    settings, decoded = None, {}
    try:
        settings = decode(PresetSettings, Branch(rest, branch.place))
    except ConfigError as error:
        mistakes.append(str(error))
    for key, value in parts.items():
        try:
            if not isinstance(value, Branch):
                raise ConfigError(f"{value.place}: {key} must be a mapping, got {value.value!r}")
            decoded[key] = decode(PartPreset, value)
            if key == SEGMENTATION and decoded[key].boxes != "all":
                raise ConfigError(
                    f"{value.place}: boxes of {key} must be all, got {decoded[key].boxes}; its "
                    "groups are regions to ignore"
                )
        except ConfigError as error:
            mistakes.append(str(error))
    if not parts:
        mistakes.append(
            f"{branch.place}: no parts; they are called {HUMAN_PARTS}, {SEGMENTATION}, part_0, ..."
        )
    if settings is None or mistakes:
        raise ConfigError(f"preset {name}: " + "\n".join(mistakes))
    return Preset(settings, decoded)
