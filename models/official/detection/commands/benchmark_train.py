"""Times the training steps of an experiment: a table's row for each kind of input, and JSON.

Synthetic input is one batch of noise, again and again: what the devices can do. Real input is
`data.directory`, decoded and augmented: what a run does. Nothing is saved.
    tpudet benchmark_train quickstart --steps 10
    tpudet benchmark_train r50_fpn_640 --input both --set data.directory=DIR --json times.json
"""

import argparse
import json
from collections.abc import Sequence

from tpudet.detection.commands.experiment_arguments import experiment_config
from tpudet.trainkit.backend_arguments import add_backend_argument, choose_backend
from tpudet.trainkit.command_line import (
    add_config_arguments,
    new_parser,
    positive_integer,
    run_command,
    writing,
)


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
    from tpudet.detection.step_times import open_input, time_experiment
    from tpudet.trainkit.training.step_benchmark import HEADER

    config = experiment_config(arguments)
    names = ["synthetic", "real"] if arguments.input == "both" else [arguments.input]
    inputs = [open_input(name, config) for name in names]  # what is missing is said first
    print(HEADER, flush=True)
    results = []
    for timed_input in inputs:
        times = time_experiment(
            config,
            timed_input,
            network=arguments.config,
            warmup_steps=arguments.warmup_steps,
            steps=arguments.steps,
        )
        print(times.row(), flush=True)
        results.append(times._asdict())
    if arguments.json:
        with writing(arguments.json), open(arguments.json, "w", encoding="utf-8") as file:
            json.dump(results, file, indent=2)
