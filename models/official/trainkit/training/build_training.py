"""Builds a task with its weights, and the engine that trains it."""

from collections.abc import Callable, Sequence
from typing import Generic, NamedTuple, Protocol, TypeVar

import tensorflow as tf

from tpudet.trainkit.class_list import ClassEntry
from tpudet.trainkit.config.decode import ConfigError
from tpudet.trainkit.errors import UserError
from tpudet.trainkit.record_splits import Split
from tpudet.trainkit.shuffled_records import ShuffledRecords
from tpudet.trainkit.training.build_engine import build_engine, set_precision
from tpudet.trainkit.training.config import TrainConfig
from tpudet.trainkit.training.devices import Devices
from tpudet.trainkit.training.engine import Engine
from tpudet.trainkit.training.freezing import Frozen
from tpudet.trainkit.training.task import Task
from tpudet.trainkit.weights.load import OtherParts
from tpudet.trainkit.weights.pretrained import Pretrained, load_pretrained
from tpudet.trainkit.weights.report import LoadReport
from tpudet.trainkit.weights.settings import Setting


class ClassTask(Task, Protocol):
    """A task that predicts the classes of a class list."""

    @property
    def class_layers(self) -> tuple[str, ...]:
        """Paths of the layers whose weights belong to the class list."""
        ...


TaskT = TypeVar("TaskT", bound=ClassTask)


class Training(NamedTuple, Generic[TaskT]):
    """A task and the engine that trains it."""

    task: TaskT
    engine: Engine
    frozen: Frozen
    pretrained: Pretrained | None
    loaded: LoadReport | None  # on the pretrained weights, if there are any


def build_training(
    train: TrainConfig,
    *,
    devices: Devices,
    make_task: Callable[[], TaskT],
    make_dataset: Callable[[int], tf.data.Dataset],
    pretrained: Pretrained | None,
    normalization: str,
    classes: Sequence[ClassEntry],
    other_parts: OtherParts,
    settings: Sequence[Setting],
) -> Training[TaskT]:
    """Builds model, optimizer and input.

    Args:
        train: the config of the run, without `auto`.
        devices: those that train.
        make_task: builds the task with its model; called in the scope of the devices.
        make_dataset: as for the engine; its batches have `records`, their record numbers [B].
        pretrained: weights to load; None: what the model starts with.
        normalization: of the model's pixels, for the report.
        classes: of the model.
        other_parts: as for `load_weights`.
        settings: as for `load_pretrained`.

    Raises:
        ConfigError: a value that the parts do not accept.
        WeightsError: the weights do not fit the model.
    """
    set_precision(train, devices)
    try:
        with devices.scope():
            task = make_task()
            loaded = pretrained and load_pretrained(
                task.model,
                pretrained,
                normalization=normalization,
                classes=classes,
                class_layers=task.class_layers,
                other_parts=other_parts,
                settings=settings,
            )
        engine, frozen = build_engine(
            task,
            train,
            devices=devices,
            make_dataset=make_dataset,
            record_numbers=lambda batch: batch.records,
        )
    except UserError:
        raise
    except ValueError as error:
        raise ConfigError(str(error)) from error
    return Training(task, engine, frozen, pretrained, loaded)


def training_records(
    split: Split, train: TrainConfig, devices: Devices | None, *, whole_files: bool = True
) -> ShuffledRecords:
    """Returns the share of a split that this process trains on, in the order of the run.

    Args:
        split: the training data.
        train: the config of the run.
        devices: their process reads its part of each batch; None: whole batches.
        whole_files: as of `ShuffledRecords`.
    """
    return ShuffledRecords(
        split.shards,
        split.records_per_shard,
        seed=train.seed,
        process_index=devices.process_index if devices else 0,
        process_count=devices.num_processes if devices else 1,
        whole_files=whole_files,
    )
