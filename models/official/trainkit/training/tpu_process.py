"""Compiles the steps of an experiment for a TPU: the body of the process that `tpudet plan` starts.

Reads a request from standard input; `tpu_compiler` describes the reply.
"""

import json
import sys
from collections.abc import Callable
from typing import Any, TypedDict

from tpudet.trainkit.config.decode import load_config
from tpudet.trainkit.errors import UserError
from tpudet.trainkit.training.build_engine import set_precision
from tpudet.trainkit.training.jax_devices import JaxDevices
from tpudet.trainkit.training.task import Task
from tpudet.trainkit.training.tpu_compiler import end_with_parent
from tpudet.trainkit.training.tpu_machines import find_machine
from tpudet.trainkit.training.tpu_topology import (
    compile_traced,
    lower_prediction,
    lower_training,
    topology_devices,
    without_values,
)


class Request(TypedDict):
    """The steps to compile."""

    config: str  # file or VERSION
    overrides: list[str]
    params_override: str
    num_classes: int
    tpu: str
    steps: list[str]  # "train", "evaluate"
    batch_size: int  # of training, over all devices


def answer_request(
    experiment: type[Any],
    *,
    build_task: Callable[[Any, int, JaxDevices], Task],
    empty_batch: Callable[[Any, int, int], Any],
) -> int:
    """Handles one request.

    Args:
        experiment: dataclass of the task's experiments, with `train` and `evaluation.schedule`.
        build_task: (experiment, number of classes, devices) -> the task, as for training.
        empty_batch: (experiment, number of classes, B) -> arrays, of which only shapes and dtypes
            are used.

    Returns:
        The exit code of the process.
    """
    request: Request = json.loads(sys.stdin.readline())
    end_with_parent()
    try:
        _answer(request, experiment, build_task, empty_batch)
    except UserError as error:
        _emit({"event": "wrong_input", "message": str(error)})
    return 0


def _answer(
    request: Request,
    experiment: type[Any],
    build_task: Callable[[Any, int, JaxDevices], Task],
    empty_batch: Callable[[Any, int, int], Any],
) -> None:
    overrides = [*request["overrides"], f"train.batch_size={request['batch_size']}"]
    config = load_config(
        experiment,
        request["config"],
        overrides=overrides,
        params_override=request["params_override"],
    )
    devices = topology_devices(find_machine(request["tpu"]), config.train.num_devices)
    _emit({"event": "doing", "what": "building the model"})
    set_precision(config.train, devices)
    with without_values():
        task = build_task(config, request["num_classes"], devices)
    for step in request["steps"]:
        _emit({"event": "doing", "what": f"compiling the {step} step"})
        size = _batch_size(step, config, devices)
        batch = empty_batch(config, request["num_classes"], size)
        _emit(_compile(step, task, config, devices, batch))


def _batch_size(step: str, config: Any, devices: JaxDevices) -> int:
    if step == "train":
        return config.train.batch_size
    # Filled up to a multiple of the devices, as `JaxDevices.predict_batches` does.
    size = config.evaluation.schedule.batch_size
    return size + -size % devices.num_replicas


def _compile(step: str, task: Task, config: Any, devices: JaxDevices, batch: Any) -> dict[str, Any]:
    def trace() -> Any:
        if step == "train":
            return lower_training(task, config.train, devices, batch)
        return lower_prediction(task, devices, batch)

    parts = config.train.accumulate_steps if step == "train" else 1
    return compile_traced(step, trace, batch, devices, parts=parts)


def _emit(event: dict[str, Any]) -> None:
    print(json.dumps(event), flush=True)
