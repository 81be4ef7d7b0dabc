"""The command `join_subs.py`: submissions of parts of the classes -> one of all."""

import argparse
import sys
from collections.abc import Sequence
from contextlib import ExitStack

import numpy as np

from tpudet.detection.submission.files import (
    Block,
    BlockResult,
    SubmissionError,
    SubmissionFile,
    align,
    open_submission,
    print_block,
    scan,
)
from tpudet.detection.submission.fusion.scanned_rows import ScannedRows
from tpudet.detection.submission.rewrite import EXIT_CODES, describe
from tpudet.detection.submission.writer import (
    add_writing_arguments,
    check_target,
    write_submission_file,
)
from tpudet.trainkit.command_line import run_command

MIN_CONF = 0.02
_EPILOG = """\
example: join_subs.py joined.csv human_parts.csv part_0.csv part_1.csv part_2.csv

Images are joined by id and come out sorted; one that some files lack has what the others say, and
the summary tells how many a file lacks. The predictions of an image come by falling score, equal
scores in the order of the files. Nothing is merged: that is merge_subs.py.

"""


def join_submissions(
    target: str,
    sources: Sequence[SubmissionFile],
    *,
    min_conf: float = MIN_CONF,
    threads: int = 1,
    skip_bad: bool = False,
) -> tuple[BlockResult, list[int]]:
    """Joins submissions by image id.

    Args:
        target: the file to write.
        sources: open submissions, at least one.
        min_conf: predictions with a score above it stay.
        threads: at least 1; the result does not depend on it.
        skip_bad: whether bad rows are left out and counted.

    Returns:
        The totals, and for each source how many images it lacks.

    Raises:
        BadRowsError: there are bad rows and `skip_bad` is False.
    """

    def work(block: Block) -> BlockResult:
        rows, faults = scan(block)
        joined = by_falling_score(rows.take(rows.scores > min_conf))
        return print_block(block, joined, faults, num_read=len(rows.scores))

    images = align(sources)
    num_images = len(images.id_files)
    totals = write_submission_file(target, images, work, threads=threads, skip_bad=skip_bad)
    return totals, [num_images - len(source.rows) for source in sources]


def by_falling_score(rows: ScannedRows) -> ScannedRows:
    """Sorts the predictions of each image; equal scores keep their order."""
    return rows.take(np.lexsort((-rows.scores, rows.images())))


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command; returns its exit code: 0 done, 2 wrong arguments or unusable files."""
    parser = argparse.ArgumentParser(
        prog="join_subs.py",
        description="Join submissions of parts of the classes into one.",
        epilog=_EPILOG + EXIT_CODES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("result", metavar="RESULT", help="the submission to write")
    parser.add_argument("files", metavar="FILE", nargs="+", help="submissions to join")
    parser.add_argument(
        "--min_conf",
        type=float,
        default=MIN_CONF,
        metavar="X",
        help="predictions with a score above it stay (default: %(default)s)",
    )
    add_writing_arguments(parser)
    return run_command(parser, argv, _run)


def _run(arguments: argparse.Namespace) -> str:
    target, paths = arguments.result, arguments.files
    if not 0 <= arguments.min_conf < 1:
        raise SubmissionError(f"--min_conf {arguments.min_conf} must lie in 0..1, 1 excluded")
    if repeated := sorted({path for path in paths if paths.count(path) > 1}):
        raise SubmissionError(f"named twice: {', '.join(repeated)}")
    check_target(target, paths, force=arguments.force, threads=arguments.threads)
    with ExitStack() as stack:
        totals, lacking = join_submissions(
            target,
            [stack.enter_context(open_submission(path)) for path in paths],
            min_conf=arguments.min_conf,
            threads=arguments.threads,
            skip_bad=arguments.skip_bad,
        )
    remarks = [
        f"{path} has no usable row for {count} of the images"
        for path, count in zip(paths, lacking, strict=True)
        if count
    ]
    return describe(target, totals, *remarks)


if __name__ == "__main__":
    sys.exit(main())
