"""Compiles an experiment's steps for a TPU, without one, and says what they need and can reach.

The real compiler compiles the real training and evaluation step; nothing runs. Expect 1 to 10
minutes for each on two cores. It needs JAX and libtpu, of which nothing else is used:
    pip install --target libtpu_only libtpu==0.0.52
    PYTHONPATH=libtpu_only tpudet plan quickstart --tpu v5e-8
"""

import argparse
from collections.abc import Sequence

from tpudet.detection.config import ExperimentConfig
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
_COCO_CLASSES = 80


def main(argv: Sequence[str] | None = None) -> int:
    """Command line; see --help."""
    parser = new_parser("tpudet plan", __doc__, epilog=_EPILOG)
    add_config_arguments(parser)
    add_plan_arguments(parser)
    return run_command(parser, argv, _run)


def _run(arguments: argparse.Namespace) -> int:
    from tpudet.trainkit.training.tpu_planner import run_plan

    config = experiment_config(ExperimentConfig, arguments)
    return run_plan(
        arguments,
        config.train,
        process="tpudet.detection.planning",
        num_classes=arguments.num_classes or _count_classes(config.data.directory),
    )


def _count_classes(directory: str) -> int:
    from tpudet.trainkit.class_list import read_class_list
    from tpudet.trainkit.files.storage import read_text

    text = read_text(f"{directory.rstrip('/')}/classes.csv") if directory else None
    return len(read_class_list(text)) if text else _COCO_CLASSES
