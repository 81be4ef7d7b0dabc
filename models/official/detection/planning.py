"""Compiles the steps of an experiment for a TPU: the process that `tpudet plan` starts.

Reads a request from standard input; `tpu_compiler` says how it answers.
"""

import json
import sys
from typing import Any, TypedDict

from tpudet.detection.build_detector import DetectorTask, build_task
from tpudet.detection.config import ExperimentConfig
from tpudet.detection.data.synthetic import empty_batch
from tpudet.trainkit.config.decode import load_config
from tpudet.trainkit.errors import UserError
from tpudet.trainkit.training.build_engine import set_precision
from tpudet.trainkit.training.jax_devices import JaxDevices
from tpudet.trainkit.training.tpu_machines import find_tpu
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


def main() -> int:
    """Answers one request; returns the exit code of the process."""
    request: Request = json.load(sys.stdin)
    try:
        _answer(request)
    except UserError as error:
        _emit({"event": "wrong_input", "message": str(error)})
    return 0


def _answer(request: Request) -> None:
    overrides = [*request["overrides"], f"train.batch_size={request['batch_size']}"]
    config = load_config(
        ExperimentConfig,
        request["config"],
        overrides=overrides,
        params_override=request["params_override"],
    )
    devices = topology_devices(find_tpu(request["tpu"]), config.train.num_devices)
    _emit({"event": "doing", "what": "building the model"})
    task = _build(config, request["num_classes"], devices)
    for step in request["steps"]:
        _emit({"event": "doing", "what": f"compiling the {step} step"})
        _emit(_compile(step, task, config, devices))


def _build(config: ExperimentConfig, num_classes: int, devices: JaxDevices) -> DetectorTask:
    """Builds the detector as for training."""
    set_precision(config.train, devices)
    with without_values():
        return build_task(
            config,
            num_classes=num_classes,
            canvas_size=config.data.canvas_size,
            synchronized=devices.num_replicas > 1,
            sum_over_replicas=devices.sum_over_replicas,
        )


def _compile(
    step: str, task: DetectorTask, config: ExperimentConfig, devices: JaxDevices
) -> dict[str, Any]:
    if step == "train":
        size = config.train.batch_size
    else:  # filled up to a multiple of the devices, as `JaxDevices.predict_batches` does
        size = config.evaluation.schedule.batch_size
        size += -size % devices.num_replicas
    batch = empty_batch(config.data, batch_size=size, with_masks=config.model.predicts_masks)

    def trace() -> Any:
        if step == "train":
            return lower_training(task, config.train, devices, batch)
        return lower_prediction(task, devices, batch)

    parts = config.train.accumulate_steps if step == "train" else 1
    return compile_traced(step, trace, batch, devices, parts=parts)


def _emit(event: dict[str, Any]) -> None:
    print(json.dumps(event), flush=True)


if __name__ == "__main__":
    sys.exit(main())
