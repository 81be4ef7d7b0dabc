"""Finds a learning rate for a classifier: it grows each step until the loss diverges.

Nothing is saved but the curve. The suggestion, where the loss falls fastest, is for the batch size
of the test, train.batch_size.
"""

import argparse
from collections.abc import Sequence

from tpudet.trainkit.backend_arguments import add_backend_argument, choose_backend
from tpudet.trainkit.command_line import (
    add_experiment_arguments,
    add_range_test_arguments,
    new_parser,
    run_command,
    start_logging,
)


def main(argv: Sequence[str] | None = None) -> int:
    """Command line; see --help."""
    parser = new_parser("tpudet find_lr", __doc__)
    add_experiment_arguments(parser)
    add_backend_argument(parser)
    add_range_test_arguments(parser)
    return run_command(parser, argv, _run)


def _run(arguments: argparse.Namespace) -> str:
    choose_backend(arguments)
    start_logging()
    from tpudet.classification.config import ExperimentConfig
    from tpudet.classification.experiment import range_test
    from tpudet.trainkit.config.decode import load_config
    from tpudet.trainkit.training.lr_finder import write_range_test

    config = load_config(
        ExperimentConfig,
        arguments.config,
        overrides=arguments.overrides,
        params_override=arguments.params_override,
    )
    found = range_test(
        config, start=arguments.start, end=arguments.end, num_steps=arguments.num_steps
    )
    return write_range_test(found, arguments.output, title=arguments.config)
