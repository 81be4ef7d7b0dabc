"""Builds the engine that trains a task as a TrainConfig says."""

from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from tpudet.trainkit.training.build_optimizer import build_optimizer, l2_in_loss
from tpudet.trainkit.training.config import TrainConfig
from tpudet.trainkit.training.devices import Devices, TensorFlowDevices
from tpudet.trainkit.training.engine import Engine
from tpudet.trainkit.training.freezing import Frozen, freeze
from tpudet.trainkit.training.optimizers import decayed_variables
from tpudet.trainkit.training.task import Task
from tpudet.trainkit.training.tensorflow_engine import TensorFlowEngine


def set_precision(train: TrainConfig, devices: Devices) -> None:
    """Makes `train.precision` the precision of the layers built from here on."""
    wanted = train.precision
    keras.config.set_dtype_policy(devices.precision if wanted == "auto" else wanted)


def build_engine(
    task: Task,
    train: TrainConfig,
    *,
    devices: TensorFlowDevices,
    make_dataset: Callable[[int], tf.data.Dataset],
    record_numbers: Callable[[Any], tf.Tensor],
) -> tuple[Engine, Frozen]:
    """Freezes parts of the model, then builds optimizer and engine.

    Args:
        task: its model was built in the scope of the devices and holds the weights to start from.
        train: the config of the run.
        devices: those that train.
        make_dataset: as for the engine.
        record_numbers: as for the engine.

    Raises:
        ValueError: a value that the parts do not accept.
    """
    with devices.scope():
        frozen = freeze(task.model, train.freeze)
        decayed = decayed_variables(task.model)
        optimizer = build_optimizer(train, task.model, decayed)
    engine = TensorFlowEngine(
        task=task,
        optimizer=optimizer,
        devices=devices,
        make_dataset=make_dataset,
        batch_size=train.batch_size,
        decayed=decayed,
        l2_weight_decay=l2_in_loss(train),
        gradient_clip_norm=train.gradient_clip_norm,
        ema_decay=train.ema_decay,
        record_numbers=record_numbers,
    )
    return engine, frozen
