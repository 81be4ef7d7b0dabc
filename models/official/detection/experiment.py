"""The one place where a config becomes objects: data, model, task, engine, evaluation."""

import functools
import json
from collections.abc import Sequence
from typing import NamedTuple

import keras
import tensorflow as tf

from tpudet.detection.build_detector import build_task
from tpudet.detection.config import ExperimentConfig
from tpudet.detection.data.augmentations.build import build_augmentations
from tpudet.detection.data.config import DataConfig
from tpudet.detection.data.pipeline import eval_dataset, train_dataset
from tpudet.detection.evaluation.ground_truth import load_ground_truth
from tpudet.detection.evaluation.split import SplitEvaluation, build_rules
from tpudet.detection.modeling.retinanet import RetinaNetTask
from tpudet.trainkit.class_list import ClassEntry
from tpudet.trainkit.config.decode import ConfigError
from tpudet.trainkit.files.storage import read_text
from tpudet.trainkit.records import count_records, find_shards
from tpudet.trainkit.training import optimizers
from tpudet.trainkit.training.build_optimizer import build_optimizer, l2_in_loss
from tpudet.trainkit.training.config import TrainConfig
from tpudet.trainkit.training.devices import default_precision, sum_over_replicas
from tpudet.trainkit.training.freezing import Frozen, freeze
from tpudet.trainkit.training.tensorflow_engine import TensorFlowEngine
from tpudet.trainkit.weights.pretrained import load_pretrained
from tpudet.trainkit.weights.report import LoadReport


class Split(NamedTuple):
    """The TFRecord files of one split."""

    shards: list[str]
    records_per_shard: list[int]


def find_split(data: DataConfig, split: str) -> Split:
    """Finds the shards of a split of the data set in `data.directory`.

    Raises:
        ConfigError: they are not there, not all of them, or one is cut off.
    """
    directory = data.directory.rstrip("/")
    if not directory:
        raise ConfigError("data.directory is empty: name the folder that make_tfrecords.py wrote")
    part = directory.rpartition("/")[2]
    try:
        shards = find_shards(f"{directory}/{split}_{part}")
        return Split(shards, count_records(shards))
    except (FileNotFoundError, ValueError) as error:
        raise ConfigError(f"split `{split}` of {directory}: {error}") from error


def check_classes(data: DataConfig, split: str, class_names: Sequence[str]) -> None:
    """Compares classes.csv with the manifest of a split, where there is one.

    Raises:
        ConfigError: the records were written with other classes, or the manifest is no manifest.
    """
    directory = data.directory.rstrip("/")
    path = f"{directory}/{split}_{directory.rpartition('/')[2]}.manifest.json"
    text = read_text(path)
    if text is None:
        return
    try:
        written = list(json.loads(text)["boxes_per_class"])
    except (ValueError, KeyError, TypeError) as error:
        raise ConfigError(
            f"{path} is no manifest of make_tfrecords.py, or was cut off ({error!r}): copy the "
            "whole folder again, or convert again"
        ) from error
    if set(written) != set(class_names):
        different = sorted(set(written) ^ set(class_names))
        raise ConfigError(
            f"{directory}/classes.csv has {len(class_names)} classes, {path} was written with "
            f"{len(written)}; different are {', '.join(different[:10])}. They do not belong "
            "together: put back the classes.csv of the conversion, or convert again"
        )


def set_precision(train: TrainConfig, strategy: tf.distribute.Strategy) -> None:
    """Makes `train.precision` the precision of the layers built from here on."""
    wanted = train.precision
    keras.config.set_dtype_policy(default_precision(strategy) if wanted == "auto" else wanted)


class Training(NamedTuple):
    """What the loop needs: the detector, and the engine that trains it."""

    task: RetinaNetTask
    engine: TensorFlowEngine
    frozen: Frozen
    loaded: LoadReport | None  # of `train.weights`, where they were loaded


def build_training(
    config: ExperimentConfig,
    *,
    classes: Sequence[ClassEntry],
    train_split: Split | None,
    strategy: tf.distribute.Strategy,
    begin: bool = True,
) -> Training:
    """Builds model, optimizer and input; without a split the engine can only restore.

    Args:
        config: the experiment, settled (see `pretrained.settle`).
        classes: rows of classes.csv.
        train_split: what to train on.
        strategy: whose devices train.
        begin: whether `train.weights` are loaded; a run that goes on has better ones.

    Raises:
        ConfigError: a value that the parts do not accept.
        WeightsError: the weights do not fit the model.
    """
    train = config.train
    set_precision(train, strategy)
    try:
        with strategy.scope():
            task = build_task(
                config,
                num_classes=len(classes),
                canvas_size=config.data.canvas_size,
                synchronized=strategy.num_replicas_in_sync > 1,
                sum_over_replicas=sum_over_replicas,
            )
            report = None
            if begin and train.weights is not None:
                report = load_pretrained(
                    task.model,
                    train.weights,
                    normalization=config.model.normalization,
                    anchors_per_location=config.model.anchors.per_location,
                    classes=classes,
                )
            frozen = freeze(task.model, train.freeze)
            decayed = optimizers.decayed_variables(task.model)
            optimizer = build_optimizer(train, task.model, decayed)
        engine = TensorFlowEngine(
            task=task,
            optimizer=optimizer,
            strategy=strategy,
            make_dataset=functools.partial(build_train_dataset, config, train_split),
            batch_size=train.batch_size,
            decayed=decayed,
            l2_weight_decay=l2_in_loss(train),
            gradient_clip_norm=train.gradient_clip_norm,
            ema_decay=train.ema_decay,
            records_of=lambda batch: batch.records,
        )
    except ValueError as error:
        raise ConfigError(str(error)) from error
    return Training(task, engine, frozen, report)


def build_train_dataset(
    config: ExperimentConfig, split: Split | None, start_record: int
) -> tf.data.Dataset:
    """Builds the training input from `start_record` on, see `train_dataset`.

    Raises:
        ConfigError: the records lack what the augmentations need.
    """
    if split is None:
        raise ValueError("this engine was built without training data")
    data, train = config.data, config.train
    try:
        return train_dataset(
            shards=split.shards,
            records_per_shard=split.records_per_shard,
            canvas_size=data.canvas_size,
            batch_size=train.batch_size,
            max_instances=data.max_instances,
            seed=train.seed,
            start_record=start_record,
            horizontal_flip=data.horizontal_flip,
            scale_range=data.scale_range,
            augmentations=build_augmentations(data),
        )
    except ValueError as error:
        raise ConfigError(str(error)) from error


def build_evaluation(
    config: ExperimentConfig,
    *,
    task: RetinaNetTask,
    classes: Sequence[ClassEntry],
    strategy: tf.distribute.Strategy,
    picture_path: str,
) -> SplitEvaluation:
    """Builds the evaluation of `data.eval_split`; reads its ground truth at once.

    Raises:
        ConfigError: the split is not there, its labels are not those of classes.csv, or a file of
            `evaluation` is not usable.
    """
    data, schedule = config.data, config.evaluation.schedule
    split = find_split(data, data.eval_split)
    class_names = [entry.name for entry in classes]
    try:
        truth = load_ground_truth(split.shards, class_names)
        rules = build_rules(config.evaluation.rules, truth, classes)
    except (ValueError, OSError, tf.errors.OpError) as error:
        raise ConfigError(str(error)) from error
    return SplitEvaluation(
        predict=task.predict,
        strategy=strategy,
        dataset=eval_dataset(
            shards=split.shards,
            canvas_size=data.canvas_size,
            batch_size=schedule.batch_size,
            max_instances=data.max_instances,
        ),
        truth=truth,
        class_names=class_names,
        rules=rules,
        num_images=schedule.num_images,
        picture_path=picture_path,
    )
