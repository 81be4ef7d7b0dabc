"""Builds an experiment's classifier: network and task, weights, training input and engine."""

import dataclasses
import functools
from collections.abc import Callable, Sequence
from contextlib import nullcontext

import keras
import tensorflow as tf

from tpudet.classification.config import ExperimentConfig
from tpudet.classification.data.pipeline import train_dataset
from tpudet.classification.modeling.classifier import (
    Classifier,
    ClassifierHead,
    ClassifierTask,
    ClassLoss,
)
from tpudet.classification.modeling.config import ClassifierConfig, SigmoidLossConfig
from tpudet.classification.modeling.head_names import head_recipe
from tpudet.classification.modeling.losses import sigmoid_loss, softmax_loss
from tpudet.trainkit.backbones.build import build_backbone, norm_factory
from tpudet.trainkit.backbones.config import (
    BackboneConfig,
    EfficientNetConfig,
    MobileNetV3Config,
    resolve_backbone,
)
from tpudet.trainkit.backbones.efficientnet import VARIANTS, round_filters
from tpudet.trainkit.backbones.layers import Activation, ConvNorm
from tpudet.trainkit.class_list import ClassEntry
from tpudet.trainkit.config.decode import ConfigError
from tpudet.trainkit.keras_ops import ops
from tpudet.trainkit.record_splits import Split
from tpudet.trainkit.training.build_training import Training, build_training, training_records
from tpudet.trainkit.training.checkpoints import Checkpoint
from tpudet.trainkit.training.devices import Devices
from tpudet.trainkit.training.model_dir import Run, restore_model
from tpudet.trainkit.types import Tensor
from tpudet.trainkit.weights.families import NORMALIZATIONS, TPUDET, Family
from tpudet.trainkit.weights.pretrained import Pretrained

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
    elif isinstance(model.backbone, MobileNetV3Config):
        activation = "hard_silu"
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


def build_classifier_training(
    config: ExperimentConfig,
    *,
    classes: Sequence[ClassEntry],
    train_split: Split | None,
    devices: Devices,
    pretrained: Pretrained | None = None,
) -> Training[ClassifierTask]:
    """Builds model, optimizer and input.

    Args:
        config: the experiment, without `auto`.
        classes: rows of the class list.
        train_split: the training data; without it the engine can only restore.
        devices: those that train.
        pretrained: weights to load.

    Raises:
        ConfigError: a value that the parts do not accept.
        WeightsError: the weights do not fit the model.
    """
    return build_training(
        config.train,
        devices=devices,
        make_task=functools.partial(make_task, config, len(classes), devices),
        make_dataset=functools.partial(build_train_dataset, config, train_split, devices=devices),
        pretrained=pretrained,
        normalization=config.model.normalization,
        classes=classes,
        other_parts=head_recipe,
        settings=config.weights_settings,
    )


def make_task(config: ExperimentConfig, num_classes: int, devices: Devices) -> ClassifierTask:
    """Builds the classifier that is trained on the devices, with the weights it starts with.

    Args:
        config: the experiment, without `auto`.
        num_classes: rows of the class list.
        devices: those that train; this is called in their scope.
    """
    return build_task(
        config,
        num_classes=num_classes,
        synchronized=devices.num_replicas > 1,
        sum_over_replicas=devices.sum_over_replicas,
    )


def build_train_dataset(
    config: ExperimentConfig,
    split: Split | None,
    start_record: int,
    *,
    devices: Devices | None = None,
) -> tf.data.Dataset:
    """Builds the training input from record number `start_record` on.

    Args:
        config: the experiment.
        split: the training data; None is an error.
        start_record: records consumed since the beginning of the run.
        devices: their process reads its part of each batch; None: whole batches.
    """
    if split is None:
        raise ValueError("this engine was built without training data")
    records = training_records(split, config.train, devices)
    return train_dataset(
        config.data,
        records,
        num_classes=split.num_classes,
        batch_size=config.train.batch_size // records.process_count,
        start_record=start_record,
        is_multi_label=isinstance(config.model.loss, SigmoidLossConfig),
    )


def restore_task(
    run: Run[ExperimentConfig], checkpoint: Checkpoint, *, devices: Devices | None = None
) -> ClassifierTask:
    """Builds a trained classifier with the weights of a checkpoint.

    Args:
        run: of the model_dir.
        checkpoint: which weights.
        devices: those that predict; None means the default device.
    """
    with devices.scope() if devices else nullcontext():
        task = build_task(run.config, num_classes=len(run.classes))
        restore_model(task.model, checkpoint.prefix)
    return task
