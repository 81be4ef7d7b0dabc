"""Times the training steps of an experiment: a table's row for each kind of input, and JSON.

Synthetic input is one batch of noise, again and again: what the devices can do. Real input is
`data.directory`, decoded and augmented: what a run does. Nothing is saved.
    tpudet benchmark_train quickstart --steps 10
    tpudet benchmark_train r50_fpn_640 --input both --set data.directory=DIR --json times.json
"""

import argparse
import json
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from tpudet.detection.commands.experiment_arguments import experiment_config
from tpudet.trainkit.command_line import (
    add_backend_argument,
    add_config_arguments,
    choose_backend,
    new_parser,
    positive_integer,
    run_command,
    writing,
)

if TYPE_CHECKING:
    from tpudet.detection.config import ExperimentConfig

_COCO_CLASSES = 80


def main(argv: Sequence[str] | None = None) -> int:
    """Command line; see --help."""
    parser = new_parser("tpudet benchmark_train", __doc__)
    add_config_arguments(parser)
    add_backend_argument(parser)
    parser.add_argument(
        "--input", choices=("synthetic", "real", "both"), default="synthetic", help="(%(default)s)"
    )
    parser.add_argument(
        "--steps", type=positive_integer, default=20, metavar="N", help="timed steps (%(default)s)"
    )
    parser.add_argument(
        "--warmup_steps",
        type=positive_integer,
        default=3,
        metavar="N",
        help="untimed steps before (%(default)s)",
    )
    parser.add_argument("--json", default="", metavar="FILE", help="write the times there too")
    return run_command(parser, argv, _run)


def _run(arguments: argparse.Namespace) -> None:
    choose_backend(arguments)
    from tpudet.trainkit.training.step_benchmark import HEADER

    config = experiment_config(arguments)
    names = ["synthetic", "real"] if arguments.input == "both" else [arguments.input]
    inputs = {name: _open_input(name, config) for name in names}  # what is missing is said first
    print(HEADER, flush=True)
    results = []
    for name, (num_classes, make_dataset) in inputs.items():
        times = _time(config, arguments, name, num_classes, make_dataset)
        print(times.row(), flush=True)
        results.append(times._asdict())
    if arguments.json:
        with writing(arguments.json), open(arguments.json, "w", encoding="utf-8") as file:
            json.dump(results, file, indent=2)


def _open_input(name: str, config: "ExperimentConfig") -> tuple[int, Callable[..., Any]]:
    """Returns the number of classes, and a function from devices to `make_dataset` of an engine."""
    import functools

    from tpudet.detection.data.synthetic import synthetic_dataset
    from tpudet.detection.experiment import build_train_dataset
    from tpudet.trainkit.record_splits import find_split
    from tpudet.trainkit.training.model_dir import load_classes

    if name == "synthetic":

        def make_synthetic(devices: Any) -> Callable[[int], Any]:
            return lambda start: synthetic_dataset(
                config.data,
                batch_size=config.train.batch_size // devices.num_processes,
                with_masks=config.model.predicts_masks,
                num_classes=_COCO_CLASSES,
                seed=config.train.seed,
            )

        return _COCO_CLASSES, make_synthetic
    entries = load_classes(config.data.directory)[1]
    split = find_split(
        config.data.directory, config.data.train_split, [entry.name for entry in entries]
    )
    return len(entries), lambda devices: functools.partial(
        build_train_dataset, config, split, devices=devices
    )


def _time(
    config: "ExperimentConfig",
    arguments: argparse.Namespace,
    input_name: str,
    num_classes: int,
    make_dataset: Callable[..., Any],
):
    from tpudet.detection.build_detector import build_task
    from tpudet.trainkit.training.build_engine import build_engine, choose_devices, set_precision
    from tpudet.trainkit.training.step_benchmark import time_steps

    devices = choose_devices(config.train)
    set_precision(config.train, devices)
    with devices.scope():
        task = build_task(
            config,
            num_classes=num_classes,
            canvas_size=config.data.canvas_size,
            synchronized=devices.num_replicas > 1,
            sum_over_replicas=devices.sum_over_replicas,
        )
    engine, _ = build_engine(
        task,
        config.train,
        devices=devices,
        make_dataset=make_dataset(devices),
        record_numbers=lambda batch: batch.records,
    )
    return time_steps(
        engine,
        devices=devices,
        network=arguments.config,
        input_name=input_name,
        warmup_steps=arguments.warmup_steps,
        steps=arguments.steps,
    )
