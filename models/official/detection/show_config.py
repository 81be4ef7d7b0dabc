"""Prints the resolved experiment: `python -m detection.show_config --config VERSION`."""

import argparse
import sys
from collections.abc import Sequence

from detection.command_line import add_experiment_arguments, experiment_config, run_command
from trainkit.config import to_yaml


def main(argv: Sequence[str] | None = None) -> int:
    """Command line; the output is a config file of its own."""
    parser = argparse.ArgumentParser(prog="show_config", description=__doc__)
    add_experiment_arguments(parser)
    arguments = parser.parse_args(argv)

    def body() -> int:
        print(to_yaml(experiment_config(arguments)), end="")
        return 0

    return run_command(body, prefix=parser.prog)


if __name__ == "__main__":
    sys.exit(main())
