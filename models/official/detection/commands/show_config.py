"""Prints the resolved experiment file: `tpudet show_config CONFIG`."""

import argparse
from collections.abc import Sequence

from tpudet.detection.config import ExperimentConfig
from tpudet.trainkit.command_line import add_config_arguments, new_parser, run_command
from tpudet.trainkit.experiment_commands import experiment_config


def main(argv: Sequence[str] | None = None) -> int:
    """Command line; the output is itself an experiment file."""
    parser = new_parser("tpudet show_config", __doc__)
    add_config_arguments(parser)
    return run_command(parser, argv, _run)


def _run(arguments: argparse.Namespace) -> None:
    from tpudet.trainkit.config.decode import to_yaml

    print(to_yaml(experiment_config(ExperimentConfig, arguments)), end="")
