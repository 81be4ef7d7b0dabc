"""Times training steps and prints them as a row of a table."""

import argparse
import functools
from collections.abc import Callable, Sequence
from typing import NamedTuple

import keras
import tensorflow as tf

from tpudet.trainkit.cpu import available_cores
from tpudet.trainkit.files.file_kinds import STEP_TIMES, write_json
from tpudet.trainkit.input_errors import input_errors_in_words
from tpudet.trainkit.training.build_engine import build_engine, choose_devices, set_precision
from tpudet.trainkit.training.config import TrainConfig
from tpudet.trainkit.training.devices import Devices, TensorFlowDevices
from tpudet.trainkit.training.engine import Engine
from tpudet.trainkit.training.jax_hosts import ending_if_lost
from tpudet.trainkit.training.task import Task

HEADER = """\
| Device | Precision | Network | Batch size | s/batch | images/s |
|---|---|---|---|---|---|"""


class TimedInput(NamedTuple):
    """An input for timed steps, and the task that trains on it."""

    name: str  # synthetic or real
    num_classes: int
    # From devices and the number of records consumed to batches.
    make_dataset: Callable[[Devices, int], tf.data.Dataset]
    make_task: Callable[[Devices], Task]  # called in the scope of the devices
    shards: Sequence[str] = ()  # files of records that are read


class StepTimes(NamedTuple):
    """The time of training steps, compilation left out."""

    device: str
    backend: str  # tensorflow or jax
    precision: str  # float32, mixed_bfloat16 or mixed_float16
    network: str
    input: str  # synthetic or real
    batch_size: int  # over all devices
    steps: int
    seconds_per_batch: float
    images_per_second: float
    input_wait_share: float  # 0..1

    def row(self) -> str:
        """Returns the row of the table that `HEADER` begins."""
        cells = (
            self.device,
            self.precision,
            f"{self.network}, {self.input} input, {self.backend}",
            self.batch_size,
            f"{self.seconds_per_batch:.3f}",
            f"{self.images_per_second:.1f}",
        )
        return f"| {' | '.join(map(str, cells))} |"


def time_training(
    train: TrainConfig,
    timed_input: TimedInput,
    *,
    network: str,
    warmup_steps: int,
    steps: int,
) -> StepTimes:
    """Builds a task and its engine as for training, and times steps.

    Args:
        train: the config of the run.
        timed_input: what is trained on; its batches have `records`.
        network: its name in the table.
        warmup_steps: untimed steps before.
        steps: timed steps.

    Raises:
        UserError: a record is damaged.
    """
    devices = choose_devices(train)
    set_precision(train, devices)
    with devices.scope():
        task = timed_input.make_task(devices)
    engine, _ = build_engine(
        task,
        train,
        devices=devices,
        make_dataset=functools.partial(timed_input.make_dataset, devices),
        record_numbers=lambda batch: batch.records,
    )
    with ending_if_lost(), input_errors_in_words(lambda: timed_input.shards):
        return time_steps(
            engine,
            devices=devices,
            network=network,
            input_name=timed_input.name,
            warmup_steps=warmup_steps,
            steps=steps,
        )


def time_steps(
    engine: Engine,
    *,
    devices: Devices,
    network: str,
    input_name: str,
    warmup_steps: int,
    steps: int,
) -> StepTimes:
    """Trains `warmup_steps` steps untimed, and then times `steps`.

    Args:
        engine: just built.
        devices: of the engine.
        network: its name, for the table.
        input_name: "synthetic" or "real".
        warmup_steps: 1 or more: the first compiles.
        steps: 1 or more.

    Raises:
        ValueError: a loss was not finite.
    """
    for count in (warmup_steps, steps):
        report = engine.train(count)
        if report.nonfinite is not None:
            raise ValueError(f"the loss is not finite at step {report.nonfinite.step}")
    seconds = report.seconds / report.steps_done
    return StepTimes(
        device=describe_devices(devices),
        backend=keras.backend.backend(),
        precision=keras.config.dtype_policy().name,
        network=network,
        input=input_name,
        batch_size=engine.batch_size,
        steps=report.steps_done,
        seconds_per_batch=round(seconds, 6),
        images_per_second=round(engine.batch_size / seconds, 3),
        input_wait_share=round(report.input_wait_share, 4),
    )


def print_times(
    arguments: argparse.Namespace,
    *,
    open_input: Callable[[str], TimedInput],
    time_input: Callable[[TimedInput], StepTimes],
) -> None:
    """Prints the table of the inputs that --input names, and writes it to --json.

    Args:
        arguments: of `add_step_time_arguments`.
        open_input: from "synthetic" or "real" to the input.
        time_input: times steps on it.

    Raises:
        UserError: the data of real input is not usable.
    """
    names = ["synthetic", "real"] if arguments.input == "both" else [arguments.input]
    inputs = [open_input(name) for name in names]  # what is missing is said first
    print(HEADER, flush=True)
    results = []
    for timed_input in inputs:
        times = time_input(timed_input)
        print(times.row(), flush=True)
        results.append(times._asdict())
    if arguments.json:
        write_json(arguments.json, results, STEP_TIMES)


def describe_devices(devices: Devices) -> str:
    """Returns the number and the kind of the devices; of a CPU its cores and its model."""
    if isinstance(devices, TensorFlowDevices):
        first = tf.DeviceSpec.from_string(devices.strategy.extended.worker_devices[0])
        if first.device_type == "CPU":
            return _describe_cpu()
        gpu = tf.config.list_physical_devices("GPU")[first.device_index or 0]
        name = tf.config.experimental.get_device_details(gpu).get("device_name", "GPU")
    else:
        from tpudet.trainkit.training.jax_devices import JaxDevices

        assert isinstance(devices, JaxDevices)
        if devices.devices[0].platform == "cpu":
            return _describe_cpu()
        name = devices.devices[0].device_kind
    return f"{devices.num_replicas} x {name}"


def _describe_cpu() -> str:
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            names = [line.partition(":")[2].strip() for line in file if line.startswith("model na")]
    except OSError:
        names = []
    return f"{available_cores()} cores of {names[0] if names else 'a CPU'}"
