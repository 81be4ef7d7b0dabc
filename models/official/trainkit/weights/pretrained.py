"""Loads pretrained weights, and tells what they expect of the model that takes them."""

import dataclasses
import logging
import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from types import MappingProxyType
from typing import Any, NamedTuple, TypeVar

import keras

from tpudet.trainkit.backbones.config import BackboneConfig, Normalization
from tpudet.trainkit.class_list import ClassEntry, first_difference, read_class_list
from tpudet.trainkit.config.decode import decode
from tpudet.trainkit.config.find import load_tree
from tpudet.trainkit.config.yaml_tree import Branch
from tpudet.trainkit.files.storage import read_text, write_text
from tpudet.trainkit.weights.config import WeightsConfig
from tpudet.trainkit.weights.families import EXPECTED_KEYS, TPUDET, Family
from tpudet.trainkit.weights.load import OtherParts, load_weights
from tpudet.trainkit.weights.read import read_weights
from tpudet.trainkit.weights.recognize import recognize
from tpudet.trainkit.weights.report import LoadReport
from tpudet.trainkit.weights.settings import Setting, unexpected_settings, values_by_key
from tpudet.trainkit.weights.sources import fetch_weights
from tpudet.trainkit.weights.stored_weights import StoredWeights
from tpudet.trainkit.weights.tensor_bundle import BEST_FOLDER
from tpudet.trainkit.weights.tensorflow_checkpoints import find_checkpoint

T = TypeVar("T")

REPORT_NAME = "weights.txt"
_LOGGED_NAMES = 5  # per section; the file in model_dir has them all

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class _ModelConfig:
    """The part of every task's `model` section that weights depend on."""

    normalization: Normalization = "auto"
    backbone: BackboneConfig


def read_family(path: str) -> Family:
    """Reads from the `config.yaml` of a run, of whichever task, what weights of that run expect.

    Values that are still `auto` become None.

    Raises:
        ConfigError: the file cannot be read, or has no backbone.
    """
    model = load_tree(path).children.get("model")
    children = model.children if isinstance(model, Branch) else {}
    names = [field.name for field in fields(_ModelConfig)]
    known = {name: children[name] for name in names if name in children}
    config = decode(_ModelConfig, Branch(known, f"{path}: model"))
    style = getattr(config.backbone, "style", "auto")
    epsilon = config.backbone.batch_norm.epsilon
    return Family(
        TPUDET.name,
        normalization=None if config.normalization == "auto" else config.normalization,
        style=None if style == "auto" else style,
        batch_norm_epsilon=None if epsilon == "auto" else epsilon,
    )


def _read_run(path: str) -> tuple[Family, dict[str, Any]]:
    """Reads what `read_family` reads, and all values of the file by key."""
    return read_family(path), dict(values_by_key(_plain(load_tree(path))))


def _plain(tree: Branch) -> dict[str, Any]:
    return {
        name: _plain(child) if isinstance(child, Branch) else child.value
        for name, child in tree.children.items()
    }


class Pretrained(NamedTuple):
    """Pretrained weights, opened: their tensors are read when they are loaded."""

    config: WeightsConfig
    stored: StoredWeights
    family: Family  # what they expect of the model
    classes: tuple[ClassEntry, ...] | None = None  # of the run that trained them, if known
    notes: tuple[str, ...] = ()  # sentences on what could not be found out
    # Of the run that trained them, by key, if known.
    settings: Mapping[str, Any] = MappingProxyType({})


def open_pretrained(weights: WeightsConfig) -> Pretrained:
    """Opens pretrained weights, fetched if they have a name, and detects where they come from.

    For weights of an earlier run, `config.yaml` and `classes.csv` are read from the folder of the
    checkpoint, or from the one above `best/`. Missing or unreadable files become notes.

    Args:
        weights: which ones.

    Raises:
        WeightsError: the weights cannot be read, or are of no known family.
        UserError: named weights cannot be fetched.
    """
    if weights.name:
        weights = dataclasses.replace(weights, name="", path=fetch_weights(weights.name))
    stored = read_weights(weights.path)
    family = recognize(
        stored.tensors.keys(), prefix=weights.prefix, path=weights.path, variant=stored.variant
    ).family
    if family != TPUDET:
        return Pretrained(weights, stored, family)
    notes: list[str] = []
    folders = _run_folders(weights.path)
    found, settings = _read_first(folders, "config.yaml", _read_run, notes) or (None, {})
    classes = _read_first(
        folders, "classes.csv", lambda path: read_class_list(read_text(path) or ""), notes
    )
    if found is None:
        notes.append(
            f"There is no config.yaml beside {weights.path}, so which normalization, style and "
            "epsilon its weights expect is not known."
        )
    return Pretrained(weights, stored, found or TPUDET, classes, tuple(notes), settings)


def _run_folders(path: str) -> list[str]:
    """The folder of a checkpoint and, if that is `best/`, the one above it."""
    place = find_checkpoint(path) or path
    # A name without a folder is in the current one, which may itself be `best/`.
    folder = os.path.dirname(place if "://" in place else os.path.abspath(place))
    is_best = os.path.basename(folder) == BEST_FOLDER
    return [folder, os.path.dirname(folder)] if is_best else [folder]


def _read_first(
    folders: Sequence[str], name: str, read: Callable[[str], T], notes: list[str]
) -> T | None:
    """Reads the first file of this name that is readable; adds a note for each that is not."""
    for folder in folders:
        path = f"{folder}/{name}"
        try:
            if read_text(path) is not None:
                return read(path)
        except (ValueError, OSError) as error:
            notes.append(f"{path} was skipped because it cannot be read: {error}")
    return None


def load_pretrained(
    model: keras.Model,
    pretrained: Pretrained,
    *,
    normalization: str,
    classes: Sequence[ClassEntry],
    class_layers: Sequence[str],
    other_parts: OtherParts,
    settings: Sequence[Setting] = (),
) -> LoadReport:
    """Loads pretrained weights into a model and logs which variables got values.

    If an earlier run had other classes, the class layers are left out even where they would fit.
    Other settings, such as of anchors, are only reported: what they concern is loaded.

    Args:
        model: the model.
        pretrained: the weights.
        normalization: of the model's pixels, for the report.
        classes: of the model.
        class_layers: paths of the layers whose weights belong to the class list.
        other_parts: as for `load_weights`.
        settings: of the model, which are compared with those of an earlier run.

    Raises:
        WeightsError: too little of the backbone is in the file, or the file is not usable.
    """
    weights, exclude, notes = pretrained.config, pretrained.config.exclude, pretrained.notes
    changed = first_difference(pretrained.classes, classes) if pretrained.classes else None
    if changed:
        exclude = (*exclude, *(f"{re.escape(layer)}/" for layer in class_layers))
        notes = (*notes, *(f"{layer}/ was left out: {changed}." for layer in class_layers))
    report = load_weights(
        model,
        pretrained.stored,
        prefix=weights.prefix,
        exclude=exclude,
        min_backbone_share=weights.min_backbone_share,
        path=weights.path,
        normalization=normalization,
        own=pretrained.family,
        other_parts=other_parts,
    )
    others = unexpected_settings(
        (setting for setting in settings if setting.key not in EXPECTED_KEYS),
        pretrained.settings,
        owner=report.family.name,
        loaded=report.loaded,
    )
    report = report._replace(
        notes=(*report.notes, *notes), differences=(*report.differences, *others)
    )
    logger.info("%s: %s", weights.path, report.text(_LOGGED_NAMES).rstrip())
    for difference in report.differences:
        logger.warning("%s: %s", weights.path, difference)
    return report


def write_load_report(model_dir: str, path: str, report: LoadReport) -> None:
    """Writes the complete report on the weights at `path` into the model_dir."""
    write_text(f"{model_dir}/{REPORT_NAME}", f"{path}\n{report.text()}")
