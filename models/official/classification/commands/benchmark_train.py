"""Times the training steps of a classifier: a table's row for each kind of input, and JSON.

Synthetic input is one batch of noise, again and again: what the devices can do, without a data set.
Real input is `data.directory`, decoded and augmented: what a run does. Nothing is saved.
    tpudet benchmark_train resnet50_224 --set train.batch_size=16 --steps 5
    tpudet benchmark_train rsna-r50_448 --input both --set data.directory=DIR --json times.json
"""

import argparse
from collections.abc import Sequence

from tpudet.trainkit.backend_arguments import add_backend_argument, choose_backend
from tpudet.trainkit.command_line import (
    add_config_arguments,
    add_step_time_arguments,
    new_parser,
    run_command,
)
from tpudet.trainkit.experiment_commands import experiment_config


def main(argv: Sequence[str] | None = None) -> int:
    """Command line; see --help."""
    parser = new_parser("tpudet benchmark_train", __doc__)
    add_config_arguments(parser)
    add_backend_argument(parser)
    add_step_time_arguments(parser)
    return run_command(parser, argv, _run)


def _run(arguments: argparse.Namespace) -> None:
    choose_backend(arguments)
    from tpudet.classification.config import ExperimentConfig
    from tpudet.classification.step_times import open_input, time_experiment
    from tpudet.trainkit.training.step_benchmark import print_times

    config = experiment_config(ExperimentConfig, arguments)
    print_times(
        arguments,
        open_input=lambda name: open_input(name, config),
        time_input=lambda timed_input: time_experiment(
            config,
            timed_input,
            network=arguments.config,
            warmup_steps=arguments.warmup_steps,
            steps=arguments.steps,
        ),
    )
