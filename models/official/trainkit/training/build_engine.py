"""Chooses the devices of a run, and builds the engine that trains a task on them.

The backend is that of Keras: TensorFlow by default, JAX for TPUs. JAX is imported only where it is
used.
"""

import dataclasses
from collections.abc import Callable
from typing import Any, get_args

import keras
import tensorflow as tf

from tpudet.trainkit.config.find import read_value
from tpudet.trainkit.errors import UserError
from tpudet.trainkit.training.build_optimizer import build_optimizer, l2_in_loss
from tpudet.trainkit.training.config import Precision, TrainConfig
from tpudet.trainkit.training.devices import (
    Devices,
    TensorFlowDevices,
    choose_tensorflow_devices,
)
from tpudet.trainkit.training.engine import Engine
from tpudet.trainkit.training.freezing import Frozen, freeze
from tpudet.trainkit.training.model_dir import config_to_resume
from tpudet.trainkit.training.optimizers import decayed_variables
from tpudet.trainkit.training.task import Task
from tpudet.trainkit.training.tensorflow_engine import TensorFlowEngine


def choose_devices(train: TrainConfig) -> Devices:
    """Returns the devices that `train.device` and `train.num_devices` name.

    Raises:
        UserError: they are not available.
    """
    if keras.backend.backend() == "jax":
        from tpudet.trainkit.training.jax_devices import choose_jax_devices

        for kind in ("GPU", "TPU"):  # TensorFlow only reads: the memory is JAX's
            tf.config.set_visible_devices([], kind)
        return choose_jax_devices(
            train.device, train.num_devices, step_timeout_seconds=train.step_timeout_seconds
        )
    return choose_tensorflow_devices(train.device, train.num_devices)


def resolve_precision(
    train: TrainConfig, devices: Devices, model_dir: str | None, *, trains: bool = True
) -> TrainConfig:
    """Returns the config of a run without `precision: auto`.

    A run that resumes keeps the precision that its config.yaml names, on whichever devices, so that
    it does not change under way.

    Args:
        train: the config of the run.
        devices: those that compute.
        model_dir: as for `config_to_resume`.
        trains: as for `set_precision`.

    Raises:
        ConfigError: the config.yaml cannot be read.
    """
    precision = train.precision
    if precision == "auto":
        earlier = config_to_resume(model_dir)
        precision = (_read_precision(earlier) if earlier else None) or devices.precision
    return dataclasses.replace(train, precision=_computed(precision, devices, trains=trains))


def _computed(precision: str, devices: Devices, *, trains: bool) -> str:
    """A run that a GPU has trained in float16 is evaluated in float32 on a CPU."""
    is_moved = precision == "mixed_float16" and not trains and are_cpus(devices)
    return "float32" if is_moved else precision


def _read_precision(path: str) -> Precision | None:
    """Reads `train.precision` from the config.yaml of a run; None where it is auto or missing."""
    value = read_value(path, "train", "precision")
    return value if value in get_args(Precision) else None


def set_precision(train: TrainConfig, devices: Devices, *, trains: bool = True) -> None:
    """Makes `train.precision` the precision of the layers built from here on.

    Args:
        train: the config of the run.
        devices: those that compute.
        trains: whether gradients are computed. Without them mixed_float16 becomes float32 on a CPU,
            so that what a GPU has trained can be evaluated there.

    Raises:
        UserError: mixed_float16 on a CPU or with JAX.
    """
    wanted = _computed(train.precision, devices, trains=trains)
    if wanted == "mixed_float16" and keras.backend.backend() == "jax":
        raise UserError(
            "train.precision is mixed_float16, and --backend jax has no loss scaling, without "
            "which gradients vanish in float16. Use mixed_bfloat16, which TPUs compute in and "
            "which needs none, or float32: a run that began on a GPU where auto is mixed_float16 "
            "continues with --set train.precision=mixed_bfloat16."
        )
    if wanted == "mixed_float16" and are_cpus(devices):
        raise UserError(
            "train.precision is mixed_float16, and the run is on a CPU, where TensorFlow's sums in "
            "float16 lose their small terms and gradients come out wrong. Use float32 or "
            "mixed_bfloat16: a run that began on a GPU where auto is mixed_float16 continues with "
            "--set train.precision=float32."
        )
    keras.config.set_dtype_policy(devices.precision if wanted == "auto" else wanted)


def are_cpus(devices: Devices) -> bool:
    """Returns whether training runs on CPUs."""
    if isinstance(devices, TensorFlowDevices):
        names = devices.strategy.extended.worker_devices
        return all(tf.DeviceSpec.from_string(name).device_type == "CPU" for name in names)
    return keras.distribution.list_devices()[0].startswith("cpu")


def keep_compiled_steps(model_dir: str) -> None:
    """Keeps what JAX compiles beside the checkpoints; TensorFlow has nothing to keep."""
    if keras.backend.backend() == "jax":
        from tpudet.trainkit.training.jax_compile_cache import use_compile_cache

        use_compile_cache(f"{model_dir}/compile_cache")


def build_engine(
    task: Task,
    train: TrainConfig,
    *,
    devices: Devices,
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
        UserError: the config needs what only JAX has.
        ValueError: a value that the parts do not accept.
    """
    is_tensorflow = isinstance(devices, TensorFlowDevices)
    if is_tensorflow and (train.accumulate_steps > 1 or train.shard_state):
        raise UserError(
            f"train.accumulate_steps is {train.accumulate_steps} and train.shard_state is "
            f"{train.shard_state}: both need --backend jax. With TensorFlow lower batch_size; "
            "the learning rate follows train.reference_batch_size"
        )
    with devices.scope():
        frozen = freeze(task.model, train.freeze)
        decayed = decayed_variables(task.model)
        optimizer = build_optimizer(train, decayed)
    arguments: dict[str, Any] = {
        "task": task,
        "optimizer": optimizer,
        "make_dataset": make_dataset,
        "batch_size": train.batch_size,
        "decayed": decayed,
        "l2_weight_decay": l2_in_loss(train),
        "gradient_clip_norm": train.gradient_clip_norm,
        "ema_decay": train.ema_decay,
        "record_numbers": record_numbers,
    }
    if isinstance(devices, TensorFlowDevices):
        return TensorFlowEngine(devices=devices, **arguments), frozen
    arguments |= {"accumulate_steps": train.accumulate_steps, "shard_state": train.shard_state}
    from tpudet.trainkit.training.jax_devices import JaxDevices
    from tpudet.trainkit.training.jax_engine import JaxEngine

    assert isinstance(devices, JaxDevices)
    return JaxEngine(devices=devices, **arguments), frozen
