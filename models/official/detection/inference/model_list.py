"""A list of exported models to predict with: `--models models.yml`.

Each entry is one SavedModel, named as tpudet export names it:

    - dataset: part_0        # PART
      version: '2.6.1'       # in quotes, because 2.6 would be a number
      step: 80000            # of the checkpoint; or best, latest
      resolution: 640        # or 512x768

It is read from `<storage>/final/<version>-<dataset>-<resolution>` and its predictions go to
`<storage>/predictions/<version>-<dataset>-<resolution>.parquet`.
"""

import dataclasses
import os
import re
from collections.abc import Callable
from typing import Literal, NamedTuple

from tpudet.detection.inference.saved_detector import read_saved_detector
from tpudet.trainkit.config.decode import ConfigError, load_list
from tpudet.trainkit.errors import UserError
from tpudet.trainkit.saved_model import SavedModel, SavedModelError, find_saved_model


class ModelListError(UserError):
    """The mistakes of a list of models, one per line."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class ModelEntry:
    """One model of the list."""

    dataset: str
    version: str
    step: int | Literal["best", "latest"]
    resolution: int | str  # canvas side in pixels, or HEIGHTxWIDTH

    def __post_init__(self) -> None:
        mistakes = [
            f"{name} {value!r} must be a name, without / and not empty"
            for name, value in (("dataset", self.dataset), ("version", self.version))
            if not value or "/" in value
        ]
        if not re.fullmatch(r"[1-9]\d*(x[1-9]\d*)?", str(self.resolution)):
            mistakes.append(f"resolution {self.resolution!r} must be pixels or HEIGHTxWIDTH")
        if isinstance(self.step, int) and self.step < 0:
            mistakes.append(f"step {self.step} is below 0")
        if mistakes:
            raise ValueError("; ".join(mistakes))

    @property
    def name(self) -> str:
        """The name of the SavedModel's folder and of the predictions."""
        return f"{self.version}-{self.dataset}-{self.resolution}"


class ListedModel(NamedTuple):
    """A model of the list, found."""

    name: str
    saved: SavedModel
    predictions_path: str


def read_model_list(
    path: str, storage: str, check: Callable[[ListedModel], object]
) -> list[ListedModel]:
    """Reads the list and finds every SavedModel in it.

    Args:
        path: the YAML file.
        storage: folder or bucket with `final` and `predictions`.
        check: called with each model; a ValueError that it raises is one more mistake.

    Raises:
        ModelListError: lists every mistake of the file and of its models.
    """
    try:
        entries, mistakes = load_list(ModelEntry, path)
    except ConfigError as error:
        raise ModelListError(str(error)) from error
    found: list[ListedModel] = []
    places: dict[str, str] = {}
    for entry, place in entries:
        if entry.name in places:
            mistakes.append(f"{place}: {entry.name} is listed in {places[entry.name]} already")
            continue
        places[entry.name] = place
        try:
            model = _find(entry, storage)
            check(model)
            found.append(model)
        except ValueError as error:
            mistakes.append(f"{place}: {entry.name}: {error}")
    if mistakes:
        raise ModelListError("\n  ".join([f"{path}, mistakes: {len(mistakes)}", *mistakes]))
    return found


def _find(entry: ModelEntry, storage: str) -> ListedModel:
    saved = read_saved_detector(find_saved_model(os.path.join(storage, "final", entry.name)))
    exported = saved.metadata.get("step")
    if isinstance(entry.step, int) and exported != entry.step:
        raise SavedModelError(
            f"{saved.directory} was exported from step {exported}, the list says {entry.step}. "
            "Export that step, or correct the list"
        )
    sides = [int(side) for side in str(entry.resolution).split("x")]
    height, width = sides[0], sides[-1]
    if list(saved.metadata["canvas_size"]) != [height, width]:
        raise SavedModelError(
            f"{saved.directory} has the canvas {saved.metadata['canvas_size']}, "
            f"the list says {[height, width]}"
        )
    target = os.path.join(storage, "predictions", f"{entry.name}.parquet")
    return ListedModel(entry.name, saved, target)
