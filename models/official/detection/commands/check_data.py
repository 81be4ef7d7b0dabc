"""Runs the checks of make_tfrecords on annotations and images without writing records."""

import argparse
from collections.abc import Sequence
from functools import partial

from tpudet.detection.commands.preparation_arguments import add_source_arguments, build_source
from tpudet.trainkit.command_line import new_parser, report_file, run_command
from tpudet.trainkit.files.file_kinds import FINDINGS

_EPILOG = """exit codes: 0 everything can be used (repairs are listed), 1 something would be left
out, 2 wrong arguments or inputs
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command; returns its exit code."""
    parser = new_parser("tpudet check_data", __doc__, epilog=_EPILOG)
    add_source_arguments(parser)
    parser.add_argument(
        "--report",
        type=partial(report_file, kind=FINDINGS),
        metavar="FILE",
        help="also write all findings here, as JSON",
    )
    return run_command(parser, argv, _run)


def _run(arguments: argparse.Namespace) -> int:
    from tpudet.detection.preparation.records.convert import check_source

    is_usable = check_source(
        build_source(arguments), workers=arguments.workers, report=arguments.report
    )
    return 0 if is_usable else 1
