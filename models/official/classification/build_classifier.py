"""Resolves the `model` section of an experiment and builds the classifier and its task."""

import dataclasses
import functools
from collections.abc import Callable

import keras

from tpudet.classification.config import ExperimentConfig
from tpudet.classification.modeling.classifier import (
    Classifier,
    ClassifierHead,
    ClassifierTask,
    ClassLoss,
)
from tpudet.classification.modeling.config import ClassifierConfig, SigmoidLossConfig
from tpudet.classification.modeling.losses import sigmoid_loss, softmax_loss
from tpudet.trainkit.backbones.build import build_backbone, norm_factory
from tpudet.trainkit.backbones.config import BackboneConfig, EfficientNetConfig, resolve_backbone
from tpudet.trainkit.backbones.efficientnet import VARIANTS, round_filters
from tpudet.trainkit.backbones.layers import Activation, ConvNorm
from tpudet.trainkit.config.decode import ConfigError
from tpudet.trainkit.keras_ops import ops
from tpudet.trainkit.types import Tensor
from tpudet.trainkit.weights.families import NORMALIZATIONS, TPUDET, Family

_LEVEL = 5  # of the features that are pooled
_TOP_FILTERS = 1280  # of EfficientNet-b0
_HEAD_SEED = 1 << 20  # added to the seed, or backbone and head would drop the same units


def resolve_auto(model: ClassifierConfig, expected: Family = TPUDET) -> ClassifierConfig:
    """Replaces every `auto` of a model; leaves chosen values alone.

    Args:
        model: the config.
        expected: what the pretrained weights expect. Where it says nothing, pixels are normalised
            for ImageNet, strides and padding are TensorFlow's, and epsilon is that of the kind of
            backbone.
    """
    automatic = model.normalization == "auto"
    return dataclasses.replace(
        model,
        normalization=expected.normalization or "imagenet" if automatic else model.normalization,
        backbone=resolve_backbone(
            model.backbone, style=expected.style, epsilon=expected.batch_norm_epsilon
        ),
        top_filters=(
            _published_top(model.backbone) if model.top_filters == "auto" else model.top_filters
        ),
    )


def _published_top(backbone: BackboneConfig) -> int:
    if not isinstance(backbone, EfficientNetConfig):
        return 0
    width, _, lite = VARIANTS[backbone.variant]
    return _TOP_FILTERS if lite else round_filters(_TOP_FILTERS, width)


def build_task(
    config: ExperimentConfig,
    *,
    num_classes: int,
    synchronized: bool = False,
    sum_over_replicas: Callable[[Tensor], Tensor] = lambda value: value,
) -> ClassifierTask:
    """Builds the classifier; call it in the scope of the devices.

    Args:
        config: the experiment; values that are still `auto` become those without pretrained
            weights.
        num_classes: rows of the class list.
        synchronized: whether batch statistics span all replicas.
        sum_over_replicas: adds up a scalar over all replicas.

    Raises:
        ConfigError: another number of class weights than classes.
    """
    seed = config.train.seed
    keras.utils.set_random_seed(seed)
    model = resolve_auto(config.model)
    pixel_mean, pixel_std = NORMALIZATIONS[model.normalization]
    return ClassifierTask(
        model=Classifier(
            backbone=build_backbone(
                model.backbone, max_level=_LEVEL, synchronized=synchronized, seed=seed
            ),
            head=ClassifierHead(
                num_classes=num_classes,
                top=_build_top(model, synchronized=synchronized),
                dropout=model.dropout,
                seed=seed + _HEAD_SEED,
            ),
            pixel_mean=pixel_mean,
            pixel_std=pixel_std,
        ),
        class_loss=_build_loss(model, num_classes),
        to_probabilities=(
            ops.sigmoid if isinstance(model.loss, SigmoidLossConfig) else ops.softmax
        ),
        sum_over_replicas=sum_over_replicas,
    )


def _build_top(model: ClassifierConfig, *, synchronized: bool) -> Callable[..., ConvNorm] | None:
    assert isinstance(model.top_filters, int)  # no longer auto
    if not model.top_filters:
        return None
    activation: Activation = "relu"
    if isinstance(model.backbone, EfficientNetConfig):
        activation = "relu6" if VARIANTS[model.backbone.variant].lite else "silu"
    return functools.partial(
        ConvNorm,
        model.top_filters,
        1,
        activation=activation,
        make_norm=norm_factory(model.backbone.batch_norm, synchronized=synchronized),
    )


def _build_loss(model: ClassifierConfig, num_classes: int) -> ClassLoss:
    if not isinstance(model.loss, SigmoidLossConfig):
        return functools.partial(softmax_loss, label_smoothing=model.loss.label_smoothing)
    weights = model.loss.class_weights
    if weights and len(weights) != num_classes:
        raise ConfigError(
            f"model.loss.class_weights has {len(weights)} weights, and the class list has "
            f"{num_classes} rows: give one for each, or none"
        )
    return functools.partial(sigmoid_loss, class_weights=weights)
