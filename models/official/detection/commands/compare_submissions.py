"""The command `compare_submissions.py`: what changed from one submission to another, by class."""

import argparse
import csv
import io
import math
import os
import sys
from collections.abc import Sequence

from tqdm import tqdm

from tpudet.detection.commands.evaluate_submission import (
    Challenge,
    add_truth_arguments,
    check_inputs,
)
from tpudet.detection.evaluation.compare import Change, compare
from tpudet.detection.evaluation.open_images.report import ClassRow, class_rows
from tpudet.detection.submission.files import SubmissionError
from tpudet.trainkit.command_line import run_command
from tpudet.trainkit.files.storage import is_file, is_remote, whole_file

_NUM_SHOWN = 10
_EPILOG = """\
example: compare_submissions.py before.csv after.csv challenge-2019-validation-detection-bbox.csv \\
             --hierarchy challenge-2019-label500-hierarchy.json --output changes.csv

The intervals are of the change B - A, by bootstrap: images are drawn with replacement, the same
for A and B, and both are scored on them. A change whose interval leaves zero out is marked *.
GROUNDTRUTH and the rules are those of evaluate_submission.py.

exit codes: 0 done, 2 wrong arguments or unusable files (nothing is written)
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command; returns its exit code: 0 done, 2 wrong arguments or unusable files."""
    parser = argparse.ArgumentParser(
        prog="compare_submissions.py",
        description="Compare two submissions class by class, with bootstrap intervals.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("submissions", metavar="A B", nargs=2, help="the two submissions")
    add_truth_arguments(parser)
    parser.add_argument("--output", metavar="FILE", help="a CSV with a row a class")
    parser.add_argument(
        "--resamples", type=int, default=1000, metavar="N", help="default: %(default)s"
    )
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="default: %(default)s")
    parser.add_argument(
        "--confidence", type=float, default=0.95, metavar="X", help="default: %(default)s"
    )
    return run_command(parser, argv, _run)


def _run(arguments: argparse.Namespace) -> str:
    _check(arguments)
    challenge = Challenge(arguments)
    names: list[str] = arguments.submissions
    found = [challenge.score(path) for path in names]
    labelled = challenge.labelled
    bar = tqdm(range(arguments.resamples), desc="resampling", delay=2, leave=False)
    total, changes = compare(
        found[0].scored,
        found[1].scored,
        num_resamples=arguments.resamples,
        seed=arguments.seed,
        confidence=arguments.confidence,
        progress=iter(bar),
    )
    rows = class_rows(labelled.truth, found[0].scored, labelled.classes)
    written = ""
    if arguments.output:
        with whole_file(arguments.output) as file:
            file.write(_table(rows, changes).encode())
        written = f"\nwritten to {arguments.output}"
    counts = [
        f"{name}: {one.counts.images} images, {one.counts.predictions} predictions"
        f"{one.counts.describe()}"
        for name, one in zip(names, found, strict=True)
    ]
    notes = list(labelled.notes)
    return "\n".join(
        [
            f"mAP {_describe(total)} at {arguments.confidence:.0%} confidence, "
            f"{arguments.resamples} resamples of {len(labelled.image_ids)} images",
            *counts,
            *notes,
            *_largest(rows, changes),
        ]
    ) + written  # fmt: skip


def _check(arguments: argparse.Namespace) -> None:
    check_inputs(arguments)
    mistakes = []
    if arguments.resamples < 1:
        mistakes.append(f"--resamples {arguments.resamples}: at least 1 is needed")
    if not 0 < arguments.confidence < 1:
        mistakes.append(f"--confidence {arguments.confidence} must lie between 0 and 1")
    if arguments.seed < 0:
        mistakes.append(f"--seed {arguments.seed} must not be negative")
    target = arguments.output or ""
    if target and is_file(target) and not arguments.force:
        mistakes.append(f"{target} exists; -f replaces it")
    folder = os.path.dirname(target) or "."
    if target and not is_remote(target) and not os.path.isdir(folder):
        mistakes.append(f"no folder {folder} to write {os.path.basename(target)} in")
    if mistakes:
        raise SubmissionError("\n".join(mistakes))


def _largest(rows: Sequence[ClassRow], changes: Sequence[Change]) -> list[str]:
    """Lines for the classes that changed most, the worse and the better."""
    known = [k for k, row in enumerate(rows) if not math.isnan(row.ap)]
    order = sorted(known, key=lambda k: changes[k].second - changes[k].first)
    worse = [k for k in order if changes[k].second < changes[k].first][:_NUM_SHOWN]
    better = [k for k in order[::-1] if changes[k].second > changes[k].first][:_NUM_SHOWN]
    sure = [changes[k] for k in known if changes[k].is_sure()]
    num_better = sum(change.low > 0 for change in sure)
    lines = [
        f"{len(known)} classes with ground truth; {num_better} are better and "
        f"{len(sure) - num_better} worse beyond their interval"
    ]
    for title, chosen in (("most worse:", worse), ("most better:", better)):
        if chosen:
            lines.append(title)
            lines += [f"  {_describe(changes[k])}  {rows[k].name}" for k in chosen]
    return lines


def _describe(change: Change) -> str:
    mark = " *" if change.is_sure() else ""
    return (
        f"{change.first:.4f} -> {change.second:.4f} ({change.second - change.first:+.4f}, "
        f"{change.low:+.4f} to {change.high:+.4f}{mark})"
    )


def _table(rows: Sequence[ClassRow], changes: Sequence[Change]) -> str:
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow(
        ("LabelName", "Name", "Boxes", "GroupOf", "AP_A", "AP_B", "Change", "Low", "High")
    )
    for row, change in zip(rows, changes, strict=True):
        values = (change.first, change.second, change.second - change.first, *change[2:])
        numbers = ("" if math.isnan(value) else f"{value:.6f}" for value in values)
        writer.writerow((row.label, row.name, row.boxes, row.group_of, *numbers))
    return stream.getvalue()


if __name__ == "__main__":
    sys.exit(main())
