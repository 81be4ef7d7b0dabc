"""Builds a classifier with its weights, its training input and the engine that trains it."""

import functools
from collections.abc import Sequence
from contextlib import nullcontext

import tensorflow as tf

from tpudet.classification.build_classifier import build_task
from tpudet.classification.config import ExperimentConfig
from tpudet.classification.data.pipeline import train_dataset
from tpudet.classification.modeling.classifier import ClassifierTask
from tpudet.classification.modeling.config import SigmoidLossConfig
from tpudet.classification.modeling.head_names import head_recipe
from tpudet.trainkit.class_list import ClassEntry
from tpudet.trainkit.record_splits import Split
from tpudet.trainkit.training.build_training import Training, build_training, training_records
from tpudet.trainkit.training.checkpoints import Checkpoint
from tpudet.trainkit.training.devices import Devices
from tpudet.trainkit.training.model_dir import Run, restore_model
from tpudet.trainkit.weights.pretrained import Pretrained


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
