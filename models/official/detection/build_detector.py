"""Resolves the `model` section of an experiment and builds the detector and its task."""

import dataclasses
from collections.abc import Callable
from typing import Any

import keras

from tpudet.detection.config import ExperimentConfig, ModelConfig
from tpudet.detection.modeling.build_mask_rcnn import build_mask_rcnn
from tpudet.detection.modeling.build_retinanet import build_retinanet
from tpudet.detection.modeling.config import RetinaNetConfig
from tpudet.detection.modeling.mask_rcnn_config import MaskRCNNConfig
from tpudet.detection.modeling.mask_rcnn_task import MaskRCNNTask
from tpudet.detection.modeling.retinanet import RetinaNetTask
from tpudet.trainkit.backbones.config import resolve_backbone, resolve_epsilon
from tpudet.trainkit.types import Tensor
from tpudet.trainkit.weights.families import TPUDET, Family

DetectorTask = RetinaNetTask | MaskRCNNTask

_NECK_AND_HEAD_EPSILON = 1e-4


def resolve_auto(model: ModelConfig, expected: Family = TPUDET) -> ModelConfig:
    """Replaces every `auto` of a model; leaves chosen values alone.

    Args:
        model: the config.
        expected: what the pretrained weights expect. Where it says nothing, pixels are normalised
            for ImageNet, strides and padding are TensorFlow's, and epsilon is that of the kind of
            backbone.
    """
    return dataclasses.replace(
        model,
        normalization=(
            expected.normalization or "imagenet"
            if model.normalization == "auto"
            else model.normalization
        ),
        backbone=resolve_backbone(
            model.backbone, style=expected.style, epsilon=expected.batch_norm_epsilon
        ),
        batch_norm=model.batch_norm and resolve_epsilon(model.batch_norm, _NECK_AND_HEAD_EPSILON),
    )


def build_task(
    config: ExperimentConfig,
    *,
    num_classes: int,
    canvas_size: tuple[int, int],
    synchronized: bool = False,
    sum_over_replicas: Callable[[Tensor], Tensor] = lambda value: value,
) -> DetectorTask:
    """Builds the detector; call it in the scope of the devices.

    Args:
        config: the experiment; values that are still `auto` become those without pretrained
            weights.
        num_classes: rows of classes.csv.
        canvas_size: height and width in pixels; `config.data.canvas_size`, or another for export.
        synchronized: whether batch statistics span all replicas.
        sum_over_replicas: adds up a scalar over all replicas.
    """
    keras.utils.set_random_seed(config.train.seed)
    model = resolve_auto(config.model)
    settings: dict[str, Any] = {
        "num_classes": num_classes,
        "canvas_size": canvas_size,
        "seed": config.train.seed,
        "synchronized": synchronized,
        "sum_over_replicas": sum_over_replicas,
    }
    match model:
        case RetinaNetConfig():
            return build_retinanet(model, **settings)
        case MaskRCNNConfig():
            return build_mask_rcnn(model, **settings)
