"""Weights of others to begin a run with, and what they make of a config's `auto` values."""

import dataclasses
import functools
import logging
import os
from collections.abc import Callable, Collection, Sequence
from typing import NamedTuple, TypeVar

import keras

from tpudet.detection.config import ExperimentConfig
from tpudet.detection.modeling.tensorflow_names import tensorflow_detector_part
from tpudet.trainkit.backbones.config import (
    AUTO_EPSILON,
    BACKBONE_AUTO_EPSILON,
    BatchNormConfig,
    EfficientNetConfig,
    ResNetConfig,
)
from tpudet.trainkit.class_list import ClassEntry, first_difference, read_class_list
from tpudet.trainkit.config.decode import load_config
from tpudet.trainkit.files.storage import read_text, write_text
from tpudet.trainkit.training.best_checkpoint import DIRECTORY_NAME
from tpudet.trainkit.training.config import WeightsConfig
from tpudet.trainkit.weights.families import OWN, Family, recognize
from tpudet.trainkit.weights.load import load_weights
from tpudet.trainkit.weights.read import read_weights
from tpudet.trainkit.weights.report import LoadReport
from tpudet.trainkit.weights.tensorflow_checkpoints import find_checkpoint

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
        except (ValueError, OSError) as error:
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


REPORT_NAME = "weights.txt"
_CLASS_LAYER = "head/class_predict/"
_LOGGED_NAMES = 5  # of each kind; the file in model_dir has them all

logger = logging.getLogger(__name__)


def settle(config: ExperimentConfig, model_dir: str) -> ExperimentConfig:
    """Replaces `auto` in `model` by what the weights expect, or by what the run began with.

    A run that goes on keeps what its config.yaml says, so it needs the weights no more. Without
    weights pixels are normalised as ImageNet's, strides and padding are TensorFlow's, and epsilon
    is that of the kind of backbone.

    Args:
        config: as read from its file.
        model_dir: of the run; may not exist yet.

    Raises:
        WeightsError: the weights cannot be read, or are of no known system.
    """
    begun, weights = f"{model_dir}/config.yaml", config.train.weights
    if read_text(begun) is not None:
        return _settled(config, expected_by(load_config(ExperimentConfig, begun)))
    if weights is None:
        return _settled(config, OWN)
    return _settled(config, origin_of(weights, read_weights(weights.path).tensors.keys()).family)


def load_pretrained(
    model: keras.Model,
    weights: WeightsConfig,
    *,
    normalization: str,
    anchors_per_location: int,
    classes: Sequence[ClassEntry],
) -> LoadReport:
    """Loads `train.weights` into a detector and logs what became of every variable.

    Of a run of ours with other classes the class layer is left out, also where it would fit.

    Args:
        model: the detector.
        weights: which ones.
        normalization: of the model's pixels, for the report.
        anchors_per_location: of the model's head.
        classes: of the model.

    Raises:
        WeightsError: too little of the backbone is there, or the file is not usable.
    """
    stored = read_weights(weights.path)
    origin = origin_of(weights, stored.tensors.keys())
    changed, exclude = origin.difference(classes), weights.exclude
    if changed:
        exclude = (*exclude, _CLASS_LAYER)
    report = load_weights(
        model,
        stored,
        prefix=weights.prefix,
        exclude=exclude,
        min_backbone_share=weights.min_backbone_share,
        path=weights.path,
        normalization=normalization,
        own=origin.family,
        other_parts=functools.partial(
            tensorflow_detector_part, anchors_per_location=anchors_per_location
        ),
    )
    left_out = (f"{_CLASS_LAYER} was left out: {changed}.",) if changed else ()
    report = report._replace(notes=(*report.notes, *origin.notes, *left_out))
    logger.info("%s: %s", weights.path, report.text(_LOGGED_NAMES).rstrip())
    for difference in report.differences:
        logger.warning("%s: %s", weights.path, difference)
    return report


def write_report(model_dir: str, path: str, report: LoadReport) -> None:
    """Writes the whole account of the loading into the model_dir."""
    write_text(f"{model_dir}/{REPORT_NAME}", f"{path}\n{report.text()}")


def _fitting_style(config: ExperimentConfig, family: Family) -> str:
    """The family's, where this kind of backbone has it; else a mismatch that loading reports."""
    is_resnet = isinstance(config.model.backbone, ResNetConfig)
    style = family.style or "tensorflow"
    return style if is_resnet or style != "keras" else "tensorflow"


def _settled(config: ExperimentConfig, family: Family) -> ExperimentConfig:
    """Puts what the weights expect in the place of `auto`, and leaves alone what the user chose."""
    model, backbone = config.model, config.model.backbone
    if isinstance(backbone, ResNetConfig | EfficientNetConfig) and backbone.style == "auto":
        backbone = dataclasses.replace(backbone, style=_fitting_style(config, family))
    epsilon = family.batch_norm_epsilon
    epsilon = BACKBONE_AUTO_EPSILON[backbone.kind] if epsilon is None else epsilon
    backbone = dataclasses.replace(backbone, batch_norm=_norm_with(backbone.batch_norm, epsilon))
    model = dataclasses.replace(
        model,
        backbone=backbone,
        batch_norm=_norm_with(model.batch_norm, AUTO_EPSILON),
        normalization=(
            family.normalization or "imagenet"
            if model.normalization == "auto"
            else model.normalization
        ),
    )
    return dataclasses.replace(config, model=model)


def _norm_with(batch_norm: BatchNormConfig, epsilon: float) -> BatchNormConfig:
    if batch_norm.epsilon != "auto":
        return batch_norm
    return dataclasses.replace(batch_norm, epsilon=epsilon)
