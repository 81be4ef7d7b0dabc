"""Prints the resolved experiment: `python -m tpudet.detection.commands.show_config --config VERSION`."""

import argparse
import sys
from collections.abc import Sequence

from tpudet.detection.commands.experiment_arguments import (
    add_experiment_arguments,
    experiment_config,
)
from tpudet.trainkit.command_line import run_command
from tpudet.trainkit.config.decode import to_yaml


def main(argv: Sequence[str] | None = None) -> int:
    """Command line; the output is a config file of its own."""
    parser = argparse.ArgumentParser(prog="show_config", description=__doc__)
    add_experiment_arguments(parser)
    return run_command(parser, argv, _run)


def _run(arguments: argparse.Namespace) -> None:
    print(to_yaml(experiment_config(arguments)), end="")


if __name__ == "__main__":
    sys.exit(main())
