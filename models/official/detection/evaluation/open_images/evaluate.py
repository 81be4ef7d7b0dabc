"""Scores a submission by the rules of the Open Images Challenge and writes the report."""

import json
import re
from collections.abc import Collection, Sequence
from typing import NamedTuple

from tpudet.detection.evaluation.open_images.masks import (
    read_mask_predictions,
    score_masks,
    truth_masks,
)
from tpudet.detection.evaluation.open_images.metric import Scored, score_boxes
from tpudet.detection.evaluation.open_images.predictions import ReadCounts, read_box_predictions
from tpudet.detection.evaluation.open_images.report import (
    CURVES_PER_PAGE,
    TABLE_COLUMNS,
    TIDE_MEANINGS,
    ErrorShare,
    ScoredClass,
    draw_curves,
    error_shares,
    mean_average_precision,
    scored_classes,
    table_text,
    worst_first,
)
from tpudet.detection.evaluation.open_images.truth import LabelledTruth, read_truth
from tpudet.detection.submission.errors import SubmissionError
from tpudet.detection.submission.open_images_csv import require_words
from tpudet.detection.types import DetectionTable
from tpudet.trainkit.files import storage
from tpudet.trainkit.files.claims import Claim, claim_beside
from tpudet.trainkit.files.storage import is_file, whole_file

TABLE = "classes.csv"
SUMMARY = "summary.json"
_NUM_WORST = 10


class SubmissionScores(NamedTuple):
    """A submission, read and matched with the ground truth."""

    scored: Scored
    detections: DetectionTable
    counts: ReadCounts


class ChallengeOptions(NamedTuple):
    """The files of the ground truth, and how it and submissions are read."""

    groundtruth: str  # path of a box CSV, see `truth_csv.read_box_rows`
    hierarchy: str | None = None  # path of a class hierarchy; None: the ground truth is expanded
    image_labels: str | None = None  # path of verified labels, see `truth_csv.read_image_labels`
    classes: str | None = None  # path of a class list: only its classes are scored
    masks: bool = False  # whether instance masks are scored instead of boxes
    threads: int = 1  # no result depends on it
    skip_bad: bool = False  # whether bad rows of submissions are left out and counted

    def check_files(self, *submissions: str) -> None:
        """Raises a SubmissionError that lists every file that is missing."""
        of_truth = (self.groundtruth, self.hierarchy, self.image_labels, self.classes)
        named = [path for path in (*submissions, *of_truth) if path]
        mistakes = [f"no file {path}" for path in named if not is_file(path)]
        if mistakes:
            raise SubmissionError("\n".join(mistakes))


class Challenge:
    """The ground truth of the challenge, to score one or several submissions with."""

    def __init__(self, options: ChallengeOptions) -> None:
        """Reads the ground truth; raises a UserError if a file is not usable."""
        self.labelled: LabelledTruth = read_truth(
            options.groundtruth,
            hierarchy=options.hierarchy or "",
            image_labels=options.image_labels or "",
            classes=options.classes or "",
            with_masks=options.masks,
        )
        identifiers = (entry.identifier for entry in self.labelled.classes)
        require_words(identifiers, "labels that are scored", "give others by --classes")
        self._masks = None
        if self.labelled.masks is not None:
            self._masks = truth_masks(
                options.groundtruth, self.labelled.masks, self.labelled.truth.is_group_of
            )
        self._threads = options.threads
        self._skip_bad = options.skip_bad

    def score(self, path: str) -> SubmissionScores:
        """Reads a submission and matches it; raises as `read_box_predictions` does."""
        if self._masks is None:
            detections, counts = read_box_predictions(
                path, self.labelled, threads=self._threads, skip_bad=self._skip_bad
            )
            self._require_known_labels(path, detections, counts)
            scored = score_boxes(self.labelled.truth, detections)
            return SubmissionScores(scored, detections, counts)
        detections, counts = read_mask_predictions(path, self.labelled, skip_bad=self._skip_bad)
        self._require_known_labels(path, detections, counts)
        scored = score_masks(self.labelled.truth, self._masks, detections)
        return SubmissionScores(scored, detections, counts)

    def _require_known_labels(
        self, path: str, detections: DetectionTable, counts: ReadCounts
    ) -> None:
        if counts.unknown and not len(detections.scores) and not counts.unverified:
            raise SubmissionError(
                f"{path}: no prediction in an image of the ground truth is of a class that is "
                f"scored: {counts.unknown}; the first class is "
                f"{self.labelled.classes[0].identifier}"
            )


def evaluate_submission(
    submission: str,
    options: ChallengeOptions,
    *,
    output: str | None,
    num_curves: int | None,
    force: bool,
) -> str:
    """Scores a submission; writes the table of classes, precision-recall curves and a summary.

    Args:
        submission: path of the submission.
        options: the ground truth.
        output: folder to write; None for the name of the submission and `_evaluation`.
        num_curves: the number of classes drawn, the worst first; None for one page.
        force: whether existing files are replaced.

    Returns:
        The summary for the screen.

    Raises:
        UserError: an argument or a file is not usable; nothing is written then.
    """
    folder = output or f"{submission.removesuffix('.csv')}_evaluation"
    num_curves = CURVES_PER_PAGE if num_curves is None else num_curves
    _check_output(folder, force=force)
    options.check_files(submission)
    challenge = Challenge(options)
    scores = challenge.score(submission)
    truth = challenge.labelled.truth
    rows = scored_classes(truth, scores.scored, challenge.labelled.classes)
    shares = [] if options.masks else error_shares(truth, scores.detections)
    worst = worst_first(rows)
    files = {TABLE: table_text(rows).encode(), **_curves(scores.scored, rows, worst[:num_curves])}
    files[SUMMARY] = _summary(rows, scores.counts, shares).encode()
    with Claim(claim_beside(folder), output=folder) as claim:
        _check_output(folder, force=force)  # another process may have written it meanwhile
        storage.make_folder(folder)
        _remove_old(folder, files)
        for name, content in files.items():  # the summary last
            claim.verify()
            with whole_file(f"{folder}/{name}", "wb") as file:
                file.write(content)
    notes = "".join(f"\n  {note}" for note in challenge.labelled.notes)
    expanded = " after expansion" if options.hierarchy else ""
    return (
        f"mAP {mean_average_precision(rows):.6f} over {len(worst)} classes with ground truth\n"
        f"{submission}: {scores.counts.images} images, {scores.counts.predictions} predictions"
        f"{scores.counts.describe()}\n"
        f"{options.groundtruth}: {len(truth.verified)} images, {len(truth.classes)} boxes{expanded}"
        f", {int(truth.is_group_of.sum())} of them group-of{notes}\n"
        f"{_describe_worst(rows, worst)}{_describe_shares(shares)}\n"
        f"written to {folder}: {', '.join(files)}"
    )


def _check_output(folder: str, *, force: bool) -> None:
    mistakes = []
    table = storage.read_text(f"{folder}/{TABLE}") if is_file(f"{folder}/{TABLE}") else None
    if table is not None and not table.startswith(",".join(TABLE_COLUMNS)):
        mistakes.append(
            f"{folder}/{TABLE} is another command's, such as the class list of a prepared set, and "
            "is not replaced; --output names another folder"
        )
    if is_file(f"{folder}/{SUMMARY}") and not force:
        mistakes.append(f"{folder}/{SUMMARY} exists; -f replaces it, --output names another folder")
    if is_file(folder):
        mistakes.append(f"--output {folder} is a file; name a folder")
    if mistakes:
        raise SubmissionError("\n".join(mistakes))


def _remove_old(folder: str, files: Collection[str]) -> None:
    """Removes an earlier summary, whose report is now replaced, and pages that `files` lack."""
    for name in storage.list_names(folder):
        is_page = re.fullmatch(r"precision_recall_[0-9]+\.png", name)
        if name == SUMMARY or (is_page and name not in files):
            storage.remove(f"{folder}/{name}")


def _curves(scored: Scored, rows: Sequence[ScoredClass], worst: Sequence[int]) -> dict[str, bytes]:
    """PNGs by file name."""
    return {
        f"precision_recall_{page}.png": draw_curves(
            scored, rows, worst[first : first + CURVES_PER_PAGE]
        )
        for page, first in enumerate(range(0, len(worst), CURVES_PER_PAGE), 1)
    }


def _summary(rows: Sequence[ScoredClass], counts: ReadCounts, shares: Sequence[ErrorShare]) -> str:
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


def _describe_worst(rows: Sequence[ScoredClass], worst: Sequence[int]) -> str:
    lines = [
        f"  {row.ap:.4f}  {row.name} ({row.boxes} boxes, {row.group_of} group-of, "
        f"{row.predictions} predictions, recall {row.best_recall:.3f})"
        for row in (rows[class_id - 1] for class_id in worst[:_NUM_WORST])
    ]
    return "the worst classes, by AP:\n" + "\n".join(lines)


def _describe_shares(shares: Sequence[ErrorShare]) -> str:
    lines = [
        f"\n  {share.share:6.1%}  {share.kind:<5}{TIDE_MEANINGS[share.kind]} ({share.number}"
        + ("" if share.ap_gain is None else f"; without it AP50 +{share.ap_gain:.4f}")
        + ")"
        for share in shares
    ]
    return (
        "\nerrors (TIDE, the 100 best predictions of an image):" + "".join(lines) if lines else ""
    )
