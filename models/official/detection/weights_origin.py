"""Where weights come from: another system, or a run of ours, whose folder says what they expect."""

import os
from collections.abc import Callable, Collection, Sequence
from typing import NamedTuple, TypeVar

import tensorflow as tf

from detection.config import ExperimentConfig
from detection.submission.class_list import ClassEntry, first_difference, read_class_list
from detection.train_config import WeightsConfig
from trainkit.config import load_config
from trainkit.durable_files import read_text
from trainkit.training.best_checkpoint import DIRECTORY_NAME
from trainkit.weights.families import OWN, Family, recognize
from trainkit.weights.tensorflow_checkpoints import find_checkpoint

T = TypeVar("T")


class Origin(NamedTuple):
    """Whose weights they are, and what is known of the run, where it was one of ours."""

    family: Family
    classes: tuple[ClassEntry, ...] | None = None
    notes: tuple[str, ...] = ()  # sentences on what is not known

    def difference(self, classes: Sequence[ClassEntry]) -> str | None:
        """The first class that was another one in the run; None where none is known to be."""
        return first_difference(self.classes, classes) if self.classes else None


def origin_of(weights: WeightsConfig, names: Collection[str]) -> Origin:
    """Tells whose weights they are; of our own reads `config.yaml` and `classes.csv` beside them.

    These lie in the folder of the checkpoint, or above it where that is `best/`. What is missing or
    cannot be read is a note.

    Args:
        weights: where they are.
        names: of the tensors there.

    Raises:
        WeightsError: they are of no known system.
    """
    family = recognize(names, prefix=weights.prefix, path=weights.path).family
    if family != OWN:
        return Origin(family)
    notes: list[str] = []
    folders = _folders(weights.path)
    config = _beside(folders, "config.yaml", lambda p: load_config(ExperimentConfig, p), notes)
    classes = _beside(folders, "classes.csv", lambda p: read_class_list(read_text(p) or ""), notes)
    if config is None:
        notes.append(
            f"No config.yaml beside {weights.path} says what normalization, style and epsilon its "
            "weights expect."
        )
    return Origin(expected_by(config) if config else OWN, classes, tuple(notes))


def _beside(
    folders: Sequence[str], name: str, read: Callable[[str], T], notes: list[str]
) -> T | None:
    """Reads the first file of this name that can be read; notes the others."""
    for folder in folders:
        path = f"{folder}/{name}"
        try:
            if read_text(path) is not None:
                return read(path)
        except (ValueError, tf.errors.OpError) as error:
            notes.append(f"{path} was passed over, for it cannot be read: {error}")
    return None


def expected_by(config: ExperimentConfig) -> Family:
    """What weights of a run with this config expect; None for what is still `auto`."""
    normalization, backbone = config.model.normalization, config.model.backbone
    style, epsilon = getattr(backbone, "style", "auto"), backbone.batch_norm.epsilon
    return Family(
        OWN.name,
        None if normalization == "auto" else normalization,
        None if style == "auto" else style,
        None if epsilon == "auto" else epsilon,
    )


def _folders(path: str) -> list[str]:
    """The folder of a checkpoint, and the one above `best/`."""
    place = find_checkpoint(path) or path
    # A name without a folder lies in the current one, which may be `best/` too.
    folder = os.path.dirname(place if "://" in place else os.path.abspath(place))
    is_best = os.path.basename(folder) == DIRECTORY_NAME
    return [folder, os.path.dirname(folder)] if is_best else [folder]
