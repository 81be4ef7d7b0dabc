"""The command `merge_subs.py`: several submissions -> one, class by class within each image."""

import argparse
import sys
import threading
from collections.abc import Mapping, Sequence
from contextlib import ExitStack

import numpy as np

from tpudet.detection.submission.files import (
    Block,
    BlockResult,
    SubmissionError,
    align,
    bad_rows,
    open_submission,
    with_good_row,
)
from tpudet.detection.submission.fusion.kernel import load_kernel
from tpudet.detection.submission.fusion.plain_fusion import METHODS
from tpudet.detection.submission.fusion.settings import (
    FusionSettings,
    read_class_settings,
    relative_weights,
    settings_table,
)
from tpudet.detection.submission.writer import (
    add_writing_arguments,
    check_target,
    describe_bad,
    write_submission_file,
)
from tpudet.trainkit.command_line import run_command
from tpudet.trainkit.files.storage import open_file

_EPILOG = """\
example: merge_subs.py merged.csv a.csv b.csv c.csv --method wbf --iou 0.55 --weights 1,0.8,0.8

Images are joined by id and come out sorted; an image that some files lack is merged from the
others. Methods: hard (non-maximum suppression), soft_linear and soft_gaussian (Soft-NMS), wbf
(weighted boxes fusion), nmw (non-maximum weighted). Predictions with a score below the threshold,
after weighting, neither take part nor are written.

--class_settings is a CSV with the header `label` and any of method,iou,sigma,threshold; an empty
field keeps the value for all classes.

exit codes: 0 done, 2 wrong arguments or unusable files (nothing is written)
"""


def merge_submissions(
    target: str,
    sources: Sequence[str],
    *,
    settings: FusionSettings,
    by_label: Mapping[str, FusionSettings],
    weights: Sequence[float] = (),
    max_per_image: int = 0,
    threads: int = 1,
    skip_bad: bool = False,
) -> tuple[BlockResult, dict[str, int]]:
    """Merges submissions into one; the same bytes whatever the number of threads.

    Args:
        target: the file to write.
        sources: at least one submission; their order decides between equal scores.
        settings: how predictions are fused.
        by_label: settings for some labels.
        weights: one for each source; none: all equal.
        max_per_image: how many of the best an image keeps; 0: all.
        threads: at least 1.
        skip_bad: whether bad rows are left out and counted.

    Returns:
        The totals, and how many predictions of each label of `by_label` were read.

    Raises:
        SubmissionError: a source is no submission.
        BadRowsError: there are bad rows and `skip_bad` is False.
        ValueError: the weights cannot be.
    """
    table = settings_table(settings, by_label)
    relative = relative_weights(weights, len(sources))
    fuse = load_kernel().fuse
    seen = np.zeros(1 + len(by_label), np.int64)
    lock = threading.Lock()

    def work(block: Block) -> BlockResult:
        text, num_read, num_written, faults, counts = fuse(
            block.arrays(), *block[1:8], relative, *table, max_per_image
        )
        with lock:
            np.add(seen, counts, out=seen)
        num_images = int(with_good_row(block, faults).sum())
        return BlockResult(text, num_images, num_read, num_written, bad_rows(block, faults))

    with ExitStack() as stack:
        files = [stack.enter_context(open_submission(path)) for path in sources]
        totals = write_submission_file(
            target, align(files), work, threads=threads, skip_bad=skip_bad
        )
    return totals, dict(zip(by_label, seen[1:].tolist(), strict=True))


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command; returns its exit code: 0 done, 2 wrong arguments or unusable files."""
    return run_command(_parser(), argv, _run)


def _run(arguments: argparse.Namespace) -> str:
    sources: list[str] = arguments.submissions
    settings = FusionSettings(arguments.method, arguments.iou, arguments.sigma, arguments.threshold)
    mistakes = settings.mistakes()
    if arguments.max_per_image < 0:
        mistakes.append(f"max_per_image {arguments.max_per_image} must not be negative")
    by_label: dict[str, FusionSettings] = {}
    try:
        relative_weights(arguments.weights, len(sources))
    except ValueError as error:
        mistakes.append(str(error))
    if not mistakes and arguments.class_settings:
        by_label = _read_class_settings(arguments.class_settings, settings)
    if mistakes:
        raise SubmissionError("\n".join(mistakes))
    check_target(arguments.result, sources, force=arguments.force, threads=arguments.threads)
    totals, seen = merge_submissions(
        arguments.result,
        sources,
        settings=settings,
        by_label=by_label,
        weights=arguments.weights,
        max_per_image=arguments.max_per_image,
        threads=arguments.threads,
        skip_bad=arguments.skip_bad,
    )
    unseen = [label for label, count in seen.items() if not count]
    return (
        f"{arguments.result}: {totals.num_images} images, {totals.num_written} predictions of the "
        f"{totals.num_read} in {len(sources)} files"
        + (f"\n  no prediction has these labels of --class_settings: {unseen}" if unseen else "")
        + describe_bad(totals.bad)
    )


def _read_class_settings(path: str, default: FusionSettings) -> dict[str, FusionSettings]:
    try:
        with open_file(path, "rb") as file:
            return read_class_settings(file.read().decode(), default)
    except ValueError as error:  # UnicodeDecodeError is one
        raise SubmissionError(f"{path}: {error}") from error


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="merge_subs.py",
        description="Merge submissions into one, class by class within each image.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    default = FusionSettings()
    parser.add_argument("result", metavar="RESULT", help="the submission to write")
    parser.add_argument("submissions", metavar="SUB", nargs="+", help="submissions to merge")
    parser.add_argument(
        "--method",
        default=default.method,
        metavar="METHOD",
        help=f"{', '.join(METHODS)} (default: %(default)s)",
    )
    for name, meaning in {
        "iou": "overlap above which boxes suppress or join one another; soft_gaussian has no use "
        "for it",
        "sigma": "of soft_gaussian: scores fall by exp(-IoU**2 / sigma)",
        "threshold": "least score",
    }.items():
        parser.add_argument(
            f"--{name}",
            type=float,
            default=getattr(default, name),
            metavar="X",
            help=f"{meaning} (default: %(default)s)",
        )
    parser.add_argument(
        "--weights",
        type=lambda text: [float(part) for part in text.split(",")],
        default=[],
        metavar="W,W,…",
        help="one a submission; only their ratios count (default: all equal)",
    )
    parser.add_argument("--class_settings", metavar="FILE", help="settings for some labels")
    parser.add_argument(
        "--max_per_image",
        type=int,
        default=0,
        metavar="N",
        help="keep the N best of an image (default: 0, all)",
    )
    add_writing_arguments(parser)
    return parser


if __name__ == "__main__":
    sys.exit(main())
