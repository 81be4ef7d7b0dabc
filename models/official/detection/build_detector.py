"""Resolves the `model` section of an experiment and builds the detector and its task."""

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import keras

from tpudet.detection.config import ExperimentConfig, load_experiment
from tpudet.detection.modeling.bifpn import BiFPN
from tpudet.detection.modeling.config import (
    ArgmaxIoUConfig,
    ATSSConfig,
    BiFPNConfig,
    BoxLossConfig,
    ClassLossConfig,
    FocalLossConfig,
    FPNConfig,
    HuberLossConfig,
    IdentityNeckConfig,
    ModelConfig,
    NASFPNConfig,
    OverlapLossConfig,
    PyramidConfig,
    QualityFocalLossConfig,
    RetinaNetConfig,
    SmoothL1LossConfig,
    VarifocalLossConfig,
)
from tpudet.detection.modeling.fpn import COARSEST_BACKBONE_LEVEL, FPN, IdentityNeck
from tpudet.detection.modeling.heads import RetinaNetHead
from tpudet.detection.modeling.losses import (
    focal_loss,
    huber_box_loss,
    overlap_box_loss,
    quality_focal_loss,
    smooth_l1_box_loss,
    varifocal_loss,
)
from tpudet.detection.modeling.nas_fpn import NASFPN
from tpudet.detection.modeling.postprocess import postprocess
from tpudet.detection.modeling.retinanet import BoxLoss, ClassLoss, Match, RetinaNet, RetinaNetTask
from tpudet.detection.modeling.tensorflow_names import tensorflow_detector_part
from tpudet.detection.ops.anchors import anchors_for_canvas, locations_per_level
from tpudet.detection.ops.atss import match_atss
from tpudet.detection.ops.matching import match_argmax_iou
from tpudet.trainkit.backbones.build import build_backbone, drop_block_factory, norm_factory
from tpudet.trainkit.backbones.config import resolve_backbone, resolve_epsilon
from tpudet.trainkit.files.storage import read_text
from tpudet.trainkit.training.checkpoints import list_checkpoints
from tpudet.trainkit.types import Tensor
from tpudet.trainkit.weights.families import NORMALIZATIONS, TPUDET, Family
from tpudet.trainkit.weights.load import OtherParts
from tpudet.trainkit.weights.pretrained import Pretrained, describe_family, open_pretrained

DetectorTask = RetinaNetTask  # a union once there are more kinds of model

_NECK_AND_HEAD_EPSILON = 1e-4
_NECK_SEED = 1 << 20  # added to the seed, or backbone and neck would drop the same units


def resolve_config(
    config: ExperimentConfig, model_dir: str, *, loads_weights: bool
) -> tuple[ExperimentConfig, Pretrained | None]:
    """Opens `train.weights` if they are needed, and replaces every `auto` of the model.

    A run that resumes keeps what its config.yaml says, and needs the weights no more. Only one
    with a checkpoint does: an attempt that saved nothing leaves a config.yaml that binds nobody.

    Args:
        config: as decoded.
        model_dir: of the run; may not exist yet.
        loads_weights: whether the run will load the weights.

    Returns:
        The config without `auto`, and the opened weights; None if the run does not load any.

    Raises:
        WeightsError: the weights cannot be read, or are of no known family.
    """
    earlier, weights = f"{model_dir}/config.yaml", config.train.weights
    resumes = bool(list_checkpoints(model_dir)) and read_text(earlier) is not None
    expected = read_family(earlier) if resumes else None
    pretrained = None
    if weights and (loads_weights or expected is None):
        pretrained = open_pretrained(weights, read_family=read_family)
        expected = expected or pretrained.family
    model = resolve_auto(config.model, expected or TPUDET)
    config = dataclasses.replace(config, model=model)
    return config, pretrained if loads_weights else None


def read_family(path: str) -> Family:
    """Reads from a `config.yaml` what weights of that run expect."""
    model = load_experiment(path).model
    return describe_family(model.normalization, model.backbone)


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
        batch_norm=resolve_epsilon(model.batch_norm, _NECK_AND_HEAD_EPSILON),
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
    match model:
        case RetinaNetConfig():
            return _build_retinanet(
                model,
                num_classes=num_classes,
                canvas_size=canvas_size,
                seed=config.train.seed,
                synchronized=synchronized,
                sum_over_replicas=sum_over_replicas,
            )


def tensorflow_parts(model: ModelConfig) -> OtherParts:
    """Returns the name map for necks and heads in checkpoints of tensorflow/tpu."""
    match model:
        case RetinaNetConfig():
            return functools.partial(
                tensorflow_detector_part, anchors_per_location=model.anchors.per_location
            )


def _build_retinanet(
    model: RetinaNetConfig,
    *,
    num_classes: int,
    canvas_size: tuple[int, int],
    seed: int,
    synchronized: bool,
    sum_over_replicas: Callable[[Tensor], Tensor],
) -> RetinaNetTask:
    pyramid = build_pyramid(model, synchronized=synchronized, seed=seed)
    return RetinaNetTask(
        model=RetinaNet(
            backbone=pyramid.backbone,
            neck=pyramid.neck,
            head=RetinaNetHead(
                num_classes=num_classes,
                anchors_per_location=model.anchors.per_location,
                min_level=model.min_level,
                max_level=model.max_level,
                num_convs=model.head.num_convs,
                num_filters=model.head.num_filters,
                separable=model.head.separable,
                activation=model.head.activation,
                make_norm=norm_factory(model.batch_norm, synchronized=synchronized),
            ),
            pixel_mean=pyramid.pixel_mean,
            pixel_std=pyramid.pixel_std,
        ),
        anchors=anchors_for_canvas(
            canvas_size=canvas_size,
            min_level=model.min_level,
            max_level=model.max_level,
            num_scales=model.anchors.num_scales,
            aspect_ratios=model.anchors.aspect_ratios,
            anchor_size=model.anchors.size,
        ),
        sum_over_replicas=sum_over_replicas,
        match=_build_match(model, canvas_size),
        class_loss=_build_class_loss(model.class_loss),
        box_loss=_build_box_loss(model.box_loss),
        box_loss_weight=model.box_loss.weight,
        postprocess=functools.partial(
            postprocess,
            score_threshold=model.postprocess.score_threshold,
            iou_threshold=model.postprocess.nms_iou_threshold,
            max_candidates=model.postprocess.max_candidates,
            max_detections=model.postprocess.max_detections,
        ),
    )


def _build_match(model: RetinaNetConfig, canvas_size: tuple[int, int]) -> Match:
    matching = model.matching
    match matching:
        case ArgmaxIoUConfig():
            return functools.partial(
                match_argmax_iou,
                match_threshold=matching.match_threshold,
                unmatched_threshold=matching.unmatched_threshold,
                force_match=matching.force_match,
            )
        case ATSSConfig():
            return functools.partial(
                match_atss,
                locations_per_level=locations_per_level(
                    canvas_size=canvas_size, min_level=model.min_level, max_level=model.max_level
                ),
                candidates_per_level=matching.candidates_per_level,
            )


def _build_class_loss(loss: ClassLossConfig) -> ClassLoss:
    match loss:
        case FocalLossConfig():
            return functools.partial(
                focal_loss,
                alpha=loss.alpha,
                gamma=loss.gamma,
                label_smoothing=loss.label_smoothing,
            )
        case QualityFocalLossConfig():
            return functools.partial(quality_focal_loss, beta=loss.beta)
        case VarifocalLossConfig():
            return functools.partial(varifocal_loss, alpha=loss.alpha, gamma=loss.gamma)


def _build_box_loss(loss: BoxLossConfig) -> BoxLoss:
    match loss:
        case HuberLossConfig():
            return functools.partial(huber_box_loss, delta=loss.delta)
        case SmoothL1LossConfig():
            return functools.partial(smooth_l1_box_loss, beta=loss.beta)
        case OverlapLossConfig():
            return functools.partial(overlap_box_loss, kind=loss.kind)


class Pyramid(NamedTuple):
    """The parts between image and feature pyramid."""

    backbone: keras.layers.Layer  # [B, H, W, 3] -> {level: features}
    neck: keras.layers.Layer  # {level: features} -> {level: features}
    pixel_mean: Sequence[float]  # of red, green, blue, of pixels in 0..1
    pixel_std: Sequence[float]


def build_pyramid(config: PyramidConfig, *, synchronized: bool, seed: int) -> Pyramid:
    """Builds backbone and neck.

    Args:
        config: of the detector, without `auto`.
        synchronized: whether batch statistics span all replicas.
        seed: of the layers that drop units.
    """
    pixel_mean, pixel_std = NORMALIZATIONS[config.normalization]
    backbone = build_backbone(
        config.backbone,
        max_level=min(config.max_level, COARSEST_BACKBONE_LEVEL),
        synchronized=synchronized,
        seed=seed,
    )
    neck = _build_neck(config, synchronized=synchronized, seed=seed + _NECK_SEED)
    return Pyramid(backbone, neck, pixel_mean, pixel_std)


def _build_neck(config: PyramidConfig, *, synchronized: bool, seed: int) -> keras.layers.Layer:
    neck = config.neck
    if isinstance(neck, IdentityNeckConfig):
        return IdentityNeck(level=config.min_level)
    settings: dict[str, Any] = {
        "num_filters": neck.num_filters,
        "min_level": config.min_level,
        "max_level": config.max_level,
        "make_norm": norm_factory(config.batch_norm, synchronized=synchronized),
    }
    match neck:
        case FPNConfig():
            return FPN(separable=neck.separable, **settings)
        case NASFPNConfig():
            return NASFPN(
                num_repeats=neck.num_repeats,
                separable=neck.separable,
                drop_block=drop_block_factory(neck.drop_block),
                seed=seed,
                **settings,
            )
        case BiFPNConfig():
            return BiFPN(num_repeats=neck.num_repeats, **settings)
