"""Weights of others to begin a run with, and what they make of a config's `auto` values."""

import dataclasses
import functools
import logging

import keras

from detection.config import ExperimentConfig
from detection.model_config import (
    AUTO_EPSILON,
    BACKBONE_AUTO_EPSILON,
    BatchNormConfig,
    EfficientNetConfig,
    ResNetConfig,
)
from detection.modeling.tensorflow_names import tensorflow_detector_part
from detection.train_config import WeightsConfig
from trainkit.config import load_config
from trainkit.durable_files import read_text, write_text
from trainkit.weights.families import OWN, Family, recognize
from trainkit.weights.load import load_weights
from trainkit.weights.read import read_weights
from trainkit.weights.report import LoadReport

REPORT_NAME = "weights.txt"
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
    begun = _config_beside(model_dir)
    if begun is not None:
        return _as(config, begun)
    weights = config.train.weights
    if weights is None:
        return _with(config)
    names = read_weights(weights.path).tensors.keys()
    family = recognize(names, prefix=weights.prefix, path=weights.path).family
    if family == OWN:
        return _as_own(config, weights.path)
    return _with(
        config,
        normalization=family.normalization or "imagenet",
        style=_fitting_style(config, family),
        epsilon=family.batch_norm_epsilon,
    )


def load_pretrained(
    model: keras.Model, weights: WeightsConfig, *, normalization: str, anchors_per_location: int
) -> LoadReport:
    """Loads `train.weights` into a detector and logs what became of every variable.

    Args:
        model: the detector.
        weights: which ones.
        normalization: of the model's pixels, for the report.
        anchors_per_location: of the model's head.

    Raises:
        WeightsError: too little of the backbone is there, or the file is not usable.
    """
    stored = read_weights(weights.path)
    report = load_weights(
        model,
        stored,
        prefix=weights.prefix,
        exclude=weights.exclude,
        min_backbone_share=weights.min_backbone_share,
        path=weights.path,
        normalization=normalization,
        other_parts=functools.partial(
            tensorflow_detector_part, anchors_per_location=anchors_per_location
        ),
    )
    for note in stored.notes:
        logger.info("%s: %s", weights.path, note)
    logger.info("%s: %s", weights.path, report.text(_LOGGED_NAMES).rstrip())
    return report


def write_report(model_dir: str, path: str, report: LoadReport) -> None:
    """Writes the whole account of the loading into the model_dir."""
    write_text(f"{model_dir}/{REPORT_NAME}", f"{path}\n{report.text()}")


def _as_own(config: ExperimentConfig, path: str) -> ExperimentConfig:
    """What the run that wrote a checkpoint of ours had: its config lies beside it or above it."""
    folder = path.rstrip("/")
    for _ in range(3):
        begun = _config_beside(folder)
        if begun is not None:
            return _as(config, begun)
        folder = folder.rpartition("/")[0]
    return _with(config)


def _config_beside(folder: str) -> ExperimentConfig | None:
    path = f"{folder}/config.yaml"
    return None if read_text(path) is None else load_config(ExperimentConfig, path)


def _fitting_style(config: ExperimentConfig, family: Family) -> str:
    """The family's, where this kind of backbone has it; else a mismatch that loading reports."""
    is_resnet = isinstance(config.model.backbone, ResNetConfig)
    style = family.style or "tensorflow"
    return style if is_resnet or style != "keras" else "tensorflow"


def _as(config: ExperimentConfig, begun: ExperimentConfig) -> ExperimentConfig:
    """Settles as another run's config was."""
    epsilon = begun.model.backbone.batch_norm.epsilon
    return _with(
        config,
        normalization=begun.model.normalization,
        style=getattr(begun.model.backbone, "style", "tensorflow"),
        epsilon=None if epsilon == "auto" else epsilon,
    )


def _with(
    config: ExperimentConfig,
    *,
    normalization: str = "imagenet",
    style: str = "tensorflow",
    epsilon: float | None = None,
) -> ExperimentConfig:
    """Puts these in the place of `auto`, and leaves alone what the user chose."""
    model, backbone = config.model, config.model.backbone
    if isinstance(backbone, ResNetConfig | EfficientNetConfig) and backbone.style == "auto":
        backbone = dataclasses.replace(backbone, style=style)
    epsilon = BACKBONE_AUTO_EPSILON[backbone.kind] if epsilon is None else epsilon
    backbone = dataclasses.replace(backbone, batch_norm=_norm_with(backbone.batch_norm, epsilon))
    model = dataclasses.replace(
        model,
        backbone=backbone,
        batch_norm=_norm_with(model.batch_norm, AUTO_EPSILON),
        normalization=normalization if model.normalization == "auto" else model.normalization,
    )
    return dataclasses.replace(config, model=model)


def _norm_with(batch_norm: BatchNormConfig, epsilon: float) -> BatchNormConfig:
    if batch_norm.epsilon != "auto":
        return batch_norm
    return dataclasses.replace(batch_norm, epsilon=epsilon)
