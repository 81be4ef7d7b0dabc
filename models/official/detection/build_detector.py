"""Builds an experiment's detector: network and task, weights, training input and engine."""

import dataclasses
import functools
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any

import keras
import tensorflow as tf

from tpudet.detection.config import ExperimentConfig, ModelConfig
from tpudet.detection.data.config import MixupConfig, MosaicConfig
from tpudet.detection.data.pipeline import train_dataset
from tpudet.detection.modeling.build_mask_rcnn import build_mask_rcnn
from tpudet.detection.modeling.build_retinanet import build_retinanet
from tpudet.detection.modeling.config import RetinaNetConfig
from tpudet.detection.modeling.foreign_parts import find_foreign_parts
from tpudet.detection.modeling.mask_rcnn_config import MaskRCNNConfig
from tpudet.detection.modeling.mask_rcnn_task import MaskRCNNTask
from tpudet.detection.modeling.retinanet import RetinaNetTask
from tpudet.trainkit.backbones.config import resolve_backbone, resolve_epsilon
from tpudet.trainkit.class_list import ClassEntry
from tpudet.trainkit.config.decode import ConfigError
from tpudet.trainkit.record_splits import Split
from tpudet.trainkit.training.build_training import Training, build_training, training_records
from tpudet.trainkit.training.checkpoints import Checkpoint
from tpudet.trainkit.training.devices import Devices
from tpudet.trainkit.training.model_dir import Run, restore_model
from tpudet.trainkit.types import Tensor
from tpudet.trainkit.weights.families import TPUDET, Family
from tpudet.trainkit.weights.pretrained import Pretrained

DetectorTask = RetinaNetTask | MaskRCNNTask

_NECK_AND_HEAD_EPSILON = 1e-4
_CLOSED = (MosaicConfig, MixupConfig)  # augmentations that data.close_mosaic_steps ends


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


def build_detector_training(
    config: ExperimentConfig,
    *,
    classes: Sequence[ClassEntry],
    train_split: Split | None,
    devices: Devices,
    pretrained: Pretrained | None = None,
) -> Training[DetectorTask]:
    """Builds model, optimizer and input.

    Args:
        config: the experiment, without `auto`.
        classes: rows of classes.csv.
        train_split: the training data; without it the engine can only restore.
        devices: those that train.
        pretrained: weights to load.

    Raises:
        ConfigError: a value that the parts do not accept, or data.close_mosaic_steps not below
            train.total_steps.
        WeightsError: the weights do not fit the model.
    """
    closed_steps, total_steps = config.data.close_mosaic_steps, config.train.total_steps
    is_mixed = any(isinstance(one, _CLOSED) for one in config.data.augmentations)
    if is_mixed and closed_steps >= total_steps:
        raise ConfigError(
            f"data.close_mosaic_steps is {closed_steps}, which must be below the {total_steps} "
            "steps of the run: mosaic and mixup would never be used"
        )
    tensors = pretrained.stored.tensors if pretrained else {}
    parts = find_foreign_parts(config.model, tensors, classes)
    if pretrained:
        pretrained = pretrained._replace(notes=(*pretrained.notes, *parts.notes))

    def make_dataset(start_record: int) -> tf.data.Dataset:
        return build_train_dataset(
            config,
            train_split,
            start_record,
            first_step=training.engine.step,  # where the engine begins to train
            class_names=[entry.name for entry in classes],
            devices=devices,
        )

    training = build_training(
        config.train,
        devices=devices,
        make_task=functools.partial(make_task, config, len(classes), devices),
        make_dataset=make_dataset,
        pretrained=pretrained,
        normalization=config.model.normalization,
        classes=classes,
        other_parts=parts.recipe,
        settings=config.weights_settings,
    )
    return training


def make_task(config: ExperimentConfig, num_classes: int, devices: Devices) -> DetectorTask:
    """Builds the detector that is trained on the devices, with the weights it starts with.

    Args:
        config: the experiment, without `auto`.
        num_classes: rows of the class list.
        devices: those that train; this is called in their scope.
    """
    return build_task(
        config,
        num_classes=num_classes,
        canvas_size=config.data.canvas_size,
        synchronized=devices.num_replicas > 1,
        sum_over_replicas=devices.sum_over_replicas,
    )


def build_train_dataset(
    config: ExperimentConfig,
    split: Split | None,
    start_record: int,
    *,
    first_step: int = 0,
    class_names: Sequence[str] = (),
    devices: Devices | None = None,
) -> tf.data.Dataset:
    """Builds the training input from record number `start_record` on.

    Args:
        config: the experiment.
        split: the training data; None is an error.
        start_record: records consumed since the beginning of the run.
        first_step: steps taken since then, whatever the batch sizes were.
        class_names: C names, for records that have no class ids.
        devices: their process reads its part of each batch; None: whole batches.
    """
    if split is None:
        raise ValueError("this engine was built without training data")
    data, train = config.data, config.train
    records = training_records(split, train, devices, whole_files=data.fraction == 1.0)
    build = functools.partial(
        train_dataset,
        records=records,
        num_classes=split.num_classes,
        class_names=class_names,
        batch_size=train.batch_size // records.process_count,
        with_masks=config.model.predicts_masks,
    )
    if not data.close_mosaic_steps:
        return build(data, start_record=start_record)
    unmixed = tuple(one for one in data.augmentations if not isinstance(one, _CLOSED))
    closed = dataclasses.replace(data, augmentations=unmixed)
    mixed_steps = train.total_steps - data.close_mosaic_steps - first_step
    if mixed_steps <= 0:
        return build(closed, start_record=start_record)
    mixed = build(data, start_record=start_record).take(mixed_steps)
    first_closed = start_record + mixed_steps * train.batch_size
    return mixed.concatenate(build(closed, start_record=first_closed))


def restore_task(
    run: Run[ExperimentConfig],
    checkpoint: Checkpoint,
    *,
    canvas_size: tuple[int, int] | None = None,
    devices: Devices | None = None,
) -> DetectorTask:
    """Builds a trained detector with the weights of a checkpoint.

    Args:
        run: of the model_dir.
        checkpoint: which weights.
        canvas_size: height and width in pixels; None means that of training.
        devices: those that predict; None means the default device.
    """
    with devices.scope() if devices else nullcontext():
        task = build_task(
            run.config,
            num_classes=len(run.classes),
            canvas_size=canvas_size or run.config.data.canvas_size,
        )
        restore_model(task.model, checkpoint.prefix)
    return task
