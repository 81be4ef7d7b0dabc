"""Lists the training runs below a folder or bucket with their progress and scores."""

import argparse
from collections.abc import Sequence
from functools import partial

from tpudet.trainkit.command_line import new_parser, positive_number, report_file, run_command
from tpudet.trainkit.files.file_kinds import PAGE
from tpudet.trainkit.files.locations import storage_path


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command; returns its exit code."""
    parser = new_parser("tpudet list_runs", __doc__)
    parser.add_argument(
        "directory",
        nargs="?",
        default=storage_path("saved"),
        help="folder or bucket (default: %(default)s)",
    )
    parser.add_argument("--metric", default="AP50", help="shown as last and best (%(default)s)")
    parser.add_argument(
        "--silent_after_minutes",
        type=positive_number,
        default=15.0,
        metavar="MINUTES",
        help="minutes without a log line after which a run is marked silent (%(default)g)",
    )
    parser.add_argument(
        "--watch", type=positive_number, metavar="SECONDS", help="refresh until Ctrl-C"
    )
    parser.add_argument(
        "--goodput",
        action="store_true",
        help="list instead where the time of all attempts of a run went: start, compile, steps, "
        "waiting for input, save, evaluation, steps done again after a kill, and the rest; the "
        "goodput is the share of steps and evaluations",
    )
    parser.add_argument(
        "--compare",
        action="store_true",
        help="list instead the settings in which the runs differ and the best evaluation of each, "
        "by --metric, one column per run",
    )
    parser.add_argument(
        "--page",
        type=partial(report_file, kind=PAGE),
        metavar="FILE.html",
        help="write a page instead: the table, curves of --metric and of the loss, the comparison",
    )
    return run_command(parser, argv, _run)


def _run(arguments: argparse.Namespace) -> str | None:
    from tpudet.trainkit.errors import UserError
    from tpudet.trainkit.files import storage
    from tpudet.trainkit.training import runs

    is_named = arguments.directory != storage_path("saved")  # which the first run will make
    if is_named and not storage.exists(arguments.directory):
        raise UserError(f"there is no folder {arguments.directory}")
    if arguments.goodput and arguments.compare:
        raise UserError("--goodput and --compare are two tables: give one of them")
    if arguments.page and (arguments.goodput or arguments.compare or arguments.watch):
        raise UserError("--page is written once, with everything: leave the other options out")
    if arguments.page:
        from tpudet.trainkit.training.runs_page import write_runs_page  # it imports Matplotlib

        return write_runs_page(
            arguments.page,
            arguments.directory,
            metric=arguments.metric,
            silent_after_minutes=arguments.silent_after_minutes,
        )
    runs.print_report(
        arguments.directory,
        metric=arguments.metric,
        silent_after_minutes=arguments.silent_after_minutes,
        every_seconds=arguments.watch,
        content=(
            "goodput" if arguments.goodput else "comparison" if arguments.compare else "progress"
        ),
    )
    return None
