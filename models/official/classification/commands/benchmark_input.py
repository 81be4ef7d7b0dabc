"""Times the input of a classifier: one image at a time, in parallel and, if wanted, from a cache.

Each input is measured alone, and then while steps are trained, where only the waiting counts.
    tpudet benchmark_input resnet50_224 --set data.directory=DIR --set train.batch_size=32
    tpudet benchmark_input effnetlite0_112 --set data.directory=DIR --set data.cache=CACHE
"""

import argparse
from collections.abc import Sequence

from tpudet.trainkit.backend_arguments import add_backend_argument, choose_backend
from tpudet.trainkit.command_line import (
    add_config_arguments,
    add_json_argument,
    natural_number,
    new_parser,
    positive_integer,
    positive_number,
    run_command,
)
from tpudet.trainkit.experiment_commands import experiment_config
from tpudet.trainkit.files.file_kinds import INPUT_TIMES, write_json

_HEADER = """\
| Input | images/s | times basic | CPU ms/image | s/batch in training | waiting for input |
|---|---|---|---|---|---|"""
_WARMUP_STEPS = 3


def main(argv: Sequence[str] | None = None) -> int:
    parser = new_parser("tpudet benchmark_input", __doc__)
    add_config_arguments(parser)
    add_backend_argument(parser)
    parser.add_argument(
        "--rounds", type=positive_integer, default=5, metavar="N", help="of each input (5)"
    )
    parser.add_argument(
        "--seconds", type=positive_number, default=1.0, help="length of a measurement (1)"
    )
    parser.add_argument(
        "--steps",
        type=natural_number,
        default=10,
        metavar="N",
        help="timed training steps with each input; 0: none (%(default)s)",
    )
    add_json_argument(parser, "the times", INPUT_TIMES)
    return run_command(parser, argv, _run)


def _run(arguments: argparse.Namespace) -> None:
    choose_backend(arguments)
    from tpudet.classification.config import ExperimentConfig
    from tpudet.classification.profiling.step_times import open_input, time_inputs
    from tpudet.trainkit.training.step_benchmark import time_training

    config = experiment_config(ExperimentConfig, arguments)
    inputs, configs = time_inputs(config, rounds=arguments.rounds, seconds=arguments.seconds)
    print(_HEADER, flush=True)
    results = []
    for times, experiment in zip(inputs, configs, strict=True):
        faster = times.images_per_second / inputs[0].images_per_second
        cells = [times.name, f"{times.images_per_second:.0f}", f"{faster:.2f}"]
        cells += [f"{times.processor_milliseconds:.2f}"]
        result = times._asdict()
        if arguments.steps:
            steps = time_training(
                experiment.train,
                open_input("real", experiment),
                network=arguments.config,
                warmup_steps=_WARMUP_STEPS,
                steps=arguments.steps,
            )
            cells += [f"{steps.seconds_per_batch:.3f}", f"{steps.input_wait_share:.1%}"]
            result["training"] = steps._asdict()
        else:
            cells += ["-", "-"]
        print(f"| {' | '.join(cells)} |", flush=True)
        results.append(result)
    if arguments.json:
        write_json(arguments.json, results, INPUT_TIMES)
