"""Evaluates one checkpoint of a classifier: `tpudet evaluate --model_dir DIR [--split test]`.

The experiment is that of the model_dir. The metrics are printed and written to
`<model_dir>/evaluation_<split>_<step>.json`, with a table of the classes and the confusion matrix
beside it as CSV.
"""

import argparse
from collections.abc import Sequence

from tpudet.trainkit.backend_arguments import add_backend_argument, choose_backend
from tpudet.trainkit.command_line import (
    add_evaluation_arguments,
    new_parser,
    run_command,
    start_logging,
)


def main(argv: Sequence[str] | None = None) -> int:
    """Command line; see --help."""
    parser = new_parser("tpudet evaluate", __doc__)
    add_evaluation_arguments(parser)
    add_backend_argument(parser)
    return run_command(parser, argv, _run)


def _run(arguments: argparse.Namespace) -> None:
    choose_backend(arguments)
    start_logging()
    from tpudet.classification.experiment import evaluate

    metrics, path = evaluate(
        arguments.model_dir.rstrip("/"),
        step=arguments.step,
        split=arguments.split,
        overrides=arguments.overrides,
    )
    for metric, value in metrics.items():
        print(f"{metric}: {value:.4f}")
    print(f"Written to {path}*")
