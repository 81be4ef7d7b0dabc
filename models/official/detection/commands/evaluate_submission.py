"""The command `evaluate_submission.py`: a submission -> its mean average precision."""

import argparse
import json
import os
import sys
from collections.abc import Sequence
from typing import NamedTuple

from tpudet.detection.evaluation.open_images.masks import (
    read_mask_predictions,
    score_masks,
    truth_masks,
)
from tpudet.detection.evaluation.open_images.metric import Scored, score_boxes
from tpudet.detection.evaluation.open_images.predictions import ReadCounts, read_box_predictions
from tpudet.detection.evaluation.open_images.report import (
    CURVES_A_PAGE,
    TIDE_MEANINGS,
    ClassRow,
    ErrorShare,
    class_rows,
    draw_curves,
    error_shares,
    mean_average_precision,
    table_text,
    worst_first,
)
from tpudet.detection.evaluation.open_images.truth import LabelledTruth, read_truth
from tpudet.detection.evaluation.open_images.truth_csv import TruthFileError
from tpudet.detection.submission.files import SubmissionError
from tpudet.detection.types import ImageDetections
from tpudet.trainkit.command_line import run_command
from tpudet.trainkit.files.storage import is_file, is_remote, whole_file

TABLE = "classes.csv"
SUMMARY = "summary.json"
_NUM_WORST = 10
_EPILOG = """\
example: evaluate_submission.py sub.csv challenge-2019-validation-detection-bbox.csv \\
             --hierarchy challenge-2019-label500-hierarchy.json \\
             --image_labels challenge-2019-validation-detection-human-imagelabels.csv

The rules are those of the Open Images Challenge 2019: the ground truth, not the submission, is
expanded up the hierarchy; a class that is not verified for an image is not scored there; each
group-of box counts once; AP at IoU 0.5 over all points, and its mean over the classes with ground
truth. Without --hierarchy the ground truth is taken as expanded.

GROUNDTRUTH is a box CSV (ImageID,LabelName,XMin,XMax,YMin,YMax, IsGroupOf and others). With --masks
it has ImageWidth, ImageHeight and Mask too (base64 of zlib of COCO RLE; blank: no mask).

DIR gets classes.csv (a row a class), precision_recall_<n>.png (the worst classes first) and
summary.json.

exit codes: 0 done, 2 wrong arguments or unusable files (nothing is written)
"""


class SubmissionScores(NamedTuple):
    """A submission, read and matched."""

    scored: Scored
    detections: ImageDetections
    counts: ReadCounts


class Challenge:
    """The ground truth as the arguments name it, ready for one or several submissions."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        """Reads the ground truth.

        Raises:
            SubmissionError: a file is missing or not usable.
        """
        check_inputs(arguments)
        try:
            self._read_truth(arguments)
        except TruthFileError as error:
            raise SubmissionError(str(error)) from error
        self._reading = {"skip_bad": arguments.skip_bad}
        self._threads = arguments.threads

    def _read_truth(self, arguments: argparse.Namespace) -> None:
        self.labelled: LabelledTruth = read_truth(
            arguments.groundtruth,
            hierarchy=arguments.hierarchy or "",
            image_labels=arguments.image_labels or "",
            classes=arguments.classes or "",
            with_masks=arguments.masks,
        )
        self._masks = None
        if self.labelled.masks is not None:
            self._masks = truth_masks(arguments.groundtruth, self.labelled.masks)

    def score(self, path: str) -> SubmissionScores:
        """Reads a submission and matches it; raises what reading raises."""
        if self._masks is None:
            detections, counts = read_box_predictions(
                path, self.labelled, threads=self._threads, **self._reading
            )
            return SubmissionScores(
                score_boxes(self.labelled.truth, detections), detections, counts
            )
        predictions, counts = read_mask_predictions(path, self.labelled, **self._reading)
        scored = score_masks(self.labelled, self._masks, predictions)
        return SubmissionScores(scored, predictions.detections, counts)


def add_truth_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds GROUNDTRUTH and what says how it and submissions are read."""
    parser.add_argument("groundtruth", metavar="GROUNDTRUTH", help="box CSV of Open Images")
    parser.add_argument("--hierarchy", metavar="JSON", help="the class hierarchy")
    parser.add_argument(
        "--image_labels",
        metavar="FILE",
        help="CSV of verified labels, ImageID,LabelName,Confidence (or Source)",
    )
    parser.add_argument(
        "--classes", metavar="FILE", help="score only these; `MID,name` a line, without header"
    )
    parser.add_argument("--masks", action="store_true", help="instance segmentation")
    parser.add_argument("--skip_bad", action="store_true", help="leave bad rows out and count them")
    parser.add_argument(
        "--threads",
        type=int,
        default=len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 1,
        metavar="N",
        help="default: the cores at hand (%(default)s); the result does not depend on it",
    )
    parser.add_argument("-f", "--force", action="store_true", help="replace existing files")


def check_inputs(arguments: argparse.Namespace) -> None:
    """Raises a SubmissionError that lists every file that is missing."""
    named = [*arguments.submissions, arguments.groundtruth, arguments.hierarchy,
             arguments.image_labels, arguments.classes]  # fmt: skip
    mistakes = [f"no file {path}" for path in named if path and not is_file(path)]
    if arguments.threads < 1:
        mistakes.append(f"--threads {arguments.threads}: at least 1 is needed")
    if mistakes:
        raise SubmissionError("\n".join(mistakes))


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command; returns its exit code: 0 done, 2 wrong arguments or unusable files."""
    parser = argparse.ArgumentParser(
        prog="evaluate_submission.py",
        description="Score a submission by the rules of the Open Images Challenge.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("submissions", metavar="SUB", nargs=1, help="the submission")
    add_truth_arguments(parser)
    parser.add_argument(
        "--output", metavar="DIR", help="default: SUB without .csv, and `_evaluation`"
    )
    parser.add_argument(
        "--num_curves",
        type=int,
        default=CURVES_A_PAGE,
        metavar="N",
        help="how many classes are drawn, the worst first (default: %(default)s; 0: none)",
    )
    return run_command(parser, argv, _run)


def _run(arguments: argparse.Namespace) -> str:
    source: str = arguments.submissions[0]
    folder: str = arguments.output or f"{source.removesuffix('.csv')}_evaluation"
    _check_output(folder, arguments)
    challenge = Challenge(arguments)
    found = challenge.score(source)
    truth = challenge.labelled.truth
    rows = class_rows(truth, found.scored, challenge.labelled.classes)
    shares = [] if arguments.masks else error_shares(truth, found.detections)
    worst = worst_first(rows)
    files = {TABLE: table_text(rows).encode()}
    for page, first in enumerate(range(0, min(arguments.num_curves, len(worst)), CURVES_A_PAGE), 1):
        shown = worst[first : min(first + CURVES_A_PAGE, arguments.num_curves)]
        files[f"precision_recall_{page}.png"] = draw_curves(found.scored, rows, shown)
    files[SUMMARY] = _summary(rows, found.counts, shares).encode()
    _write(folder, files)
    notes = "".join(f"\n  {note}" for note in challenge.labelled.notes)
    return (
        f"mAP {mean_average_precision(rows):.6f} over {len(worst)} classes with ground truth\n"
        f"{source}: {found.counts.images} images, {found.counts.predictions} predictions"
        f"{found.counts.describe()}\n"
        f"{arguments.groundtruth}: {len(truth.verified)} images, {len(truth.classes)} boxes after "
        f"expansion, {int(truth.is_group_of.sum())} of them group-of{notes}\n"
        f"{_describe_worst(rows, worst)}{_describe_shares(shares)}\n"
        f"written to {folder}: {', '.join(files)}"
    )


def _check_output(folder: str, arguments: argparse.Namespace) -> None:
    mistakes = []
    if arguments.num_curves < 0:
        mistakes.append(f"--num_curves {arguments.num_curves}: at least 0 is needed")
    if is_file(f"{folder}/{SUMMARY}") and not arguments.force:
        mistakes.append(f"{folder}/{SUMMARY} exists; -f replaces it, --output names another folder")
    if not is_remote(folder) and os.path.exists(folder) and not os.path.isdir(folder):
        mistakes.append(f"--output {folder} is a file; name a folder")
    if mistakes:
        raise SubmissionError("\n".join(mistakes))


def _write(folder: str, files: dict[str, bytes]) -> None:
    """Writes each file whole, the summary last."""
    if not is_remote(folder):
        os.makedirs(folder, exist_ok=True)
    for name, content in files.items():
        with whole_file(f"{folder}/{name}") as file:
            file.write(content)


def _summary(rows: Sequence[ClassRow], counts: ReadCounts, shares: Sequence[ErrorShare]) -> str:
    content = {
        "mAP": mean_average_precision(rows),
        "classes": sum(row.ap == row.ap for row in rows),
        "predictions": counts.predictions,
        "predictions_unverified": counts.unverified,
        "predictions_elsewhere": counts.elsewhere,
        "images": counts.images,
        "images_elsewhere": counts.images_elsewhere,
        "images_missing": counts.images_missing,
        "bad_rows": counts.bad.total,
        "errors": {share.kind: share._asdict() for share in shares},
    }
    return json.dumps(content, indent=2) + "\n"


def _describe_worst(rows: Sequence[ClassRow], worst: Sequence[int]) -> str:
    lines = [
        f"  {row.ap:.4f}  {row.name} ({row.boxes} boxes, {row.group_of} group-of, "
        f"{row.predictions} predictions, recall {row.best_recall:.3f})"
        for row in (rows[class_id - 1] for class_id in worst[:_NUM_WORST])
    ]
    return "the worst classes, by AP:\n" + "\n".join(lines)


def _describe_shares(shares: Sequence[ErrorShare]) -> str:
    lines = [
        f"\n  {share.share:6.1%}  {share.kind:<5}{TIDE_MEANINGS[share.kind]} ({share.number}; "
        f"without it AP50 +{share.ap_gain:.4f})"
        for share in shares
    ]
    return (
        "\nerrors (TIDE, the 100 best predictions of an image):" + "".join(lines) if lines else ""
    )


if __name__ == "__main__":
    sys.exit(main())
