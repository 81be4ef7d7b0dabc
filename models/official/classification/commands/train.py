"""Trains and evaluates a classifier: `tpudet train --config VERSION --model_dir DIR`.

The same command resumes a run where it stopped. Exit codes: 0 finished, 1 failed, 2 wrong usage;
75 another host was lost (start it again); with everything saved, 75 stopped by SIGTERM or SIGINT
(start it again), 80 --max_hours is over (start it again), 81 train.stop_at is reached, 82
train.patience is over.
"""

import argparse
from collections.abc import Sequence

from tpudet.trainkit.backend_arguments import (
    add_backend_argument,
    add_hosts_arguments,
    choose_backend,
)
from tpudet.trainkit.command_line import (
    add_experiment_arguments,
    add_training_arguments,
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
    add_hosts_arguments(parser)
    return run_command(parser, argv, _run)


def _run(arguments: argparse.Namespace) -> int:
    start_logging(arguments.log_file)
    from tpudet.trainkit.training.jax_hosts import several_hosts

    with several_hosts(arguments):
        choose_backend(arguments)
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
            deadline=arguments.deadline,
            dry_run=arguments.dry_run,
        )
