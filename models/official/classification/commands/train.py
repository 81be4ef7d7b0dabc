"""Trains and evaluates a classifier: `tpudet train --config VERSION --model_dir DIR`.

The same command resumes a run where it stopped. Exit codes: 0 finished, 2 wrong usage, 75 stopped
by SIGTERM or SIGINT with its state saved (start it again), 1 failed.
"""

import argparse
from collections.abc import Sequence

from tpudet.trainkit.command_line import (
    add_backend_argument,
    add_experiment_arguments,
    add_training_arguments,
    choose_backend,
    new_parser,
    run_command,
    start_logging,
)


def main(argv: Sequence[str] | None = None) -> int:
    """Command line; see --help."""
    parser = new_parser("tpudet train", __doc__)
    add_experiment_arguments(parser)
    add_backend_argument(parser)
    add_training_arguments(parser)
    return run_command(parser, argv, _run)


def _run(arguments: argparse.Namespace) -> int:
    choose_backend(arguments)
    start_logging(arguments.log_file)
    from tpudet.classification.config import ExperimentConfig
    from tpudet.classification.experiment import train
    from tpudet.trainkit.config.decode import load_config

    return train(
        load_config(
            ExperimentConfig,
            arguments.config,
            overrides=arguments.overrides,
            params_override=arguments.params_override,
        ),
        model_dir=arguments.model_dir.rstrip("/"),
        mode=arguments.mode,
        eval_timeout=arguments.eval_timeout,
        dry_run=arguments.dry_run,
    )
