"""Compiles a classifier's steps for a TPU, without one, and says what they need and can reach.

The real compiler compiles the real training and evaluation step; nothing runs. Expect 1 to 10
minutes for each on two cores. It needs JAX and libtpu, of which nothing else is used:
    pip install --target libtpu_only libtpu==0.0.52
    PYTHONPATH=libtpu_only tpudet plan resnet50_224 --tpu v5e-8
"""

import argparse
from collections.abc import Sequence

from tpudet.trainkit.command_line import (
    add_config_arguments,
    add_plan_arguments,
    new_parser,
    run_command,
)
from tpudet.trainkit.experiment_commands import experiment_config

_EPILOG = """
exit codes: 0 compiles and fits, 2 wrong usage, 3 does not fit, 4 does not compile, 5 libtpu is
missing or its process crashed
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Command line; see --help."""
    parser = new_parser("tpudet plan", __doc__, epilog=_EPILOG)
    add_config_arguments(parser)
    add_plan_arguments(parser)
    return run_command(parser, argv, _run)


def _run(arguments: argparse.Namespace) -> int:
    from tpudet.classification.config import ExperimentConfig
    from tpudet.classification.step_times import count_classes
    from tpudet.trainkit.training.tpu_planner import run_plan

    config = experiment_config(ExperimentConfig, arguments)
    return run_plan(
        arguments,
        config.train,
        process="tpudet.classification.planning",
        num_classes=arguments.num_classes or count_classes(config),
    )
