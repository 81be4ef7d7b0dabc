"""Merges submissions of masks: masks of one class that overlap become one, by votes per pixel."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from typing import Any, NamedTuple

import numpy as np
from pycocotools import mask as coco_mask

from tpudet.detection.ops.numpy_masks import Rle, encode_edges, run_lengths
from tpudet.detection.submission.files import BlockResult
from tpudet.detection.submission.fusion.settings import FusionSettings
from tpudet.detection.submission.mask_rewrite import (
    align_rows,
    count_lacking,
    count_predictions,
    first_row,
)
from tpudet.detection.submission.mask_rows import (
    MaskPrediction,
    MaskRow,
    decode_masks,
    open_masks,
    write_masks,
)
from tpudet.detection.submission.mask_text import MaskError, encode_mask
from tpudet.trainkit.jobs.worker_pool import run_jobs


class MaskVotes(NamedTuple):
    """Options for merging masks."""

    settings: FusionSettings  # of which `iou` and `threshold` are used
    by_label: Mapping[str, FusionSettings]
    weights: tuple[float, ...]  # one per file, the largest 1
    share: float  # 0..1, of a group's weight that must cover a pixel; 0: any mask, the union
    max_per_image: int  # 0: all


class _Member(NamedTuple):
    score: float  # times the weight of its file
    file: int
    mask: Rle
    text: str


class _Job(NamedTuple):
    number: int
    rows: list[MaskRow | None]
    votes: MaskVotes


class _Merged(NamedTuple):
    number: int  # of the job
    row: MaskRow | None
    num_read: int  # predictions
    seen: set[str]  # labels of `by_label` among these
    faults: list[tuple[int, int, str]]  # file, line, reason


def merge_masks(
    target: str,
    sources: Sequence[str],
    votes: MaskVotes,
    *,
    force: bool,
    workers: int,
    skip_bad: bool,
) -> tuple[BlockResult, list[str], list[int]]:
    """Merges submissions of masks; the same bytes whatever the number of workers.

    Args:
        target: the submission to write.
        sources: paths, at least one.
        votes: how masks are merged, see `fuse_masks`.
        force: whether an existing target is replaced.
        workers: processes.
        skip_bad: whether bad rows, also those with a mask that cannot be read, are left out.

    Returns:
        The totals, the labels of `votes.by_label` that no prediction has, and how many of the
        images each source lacks.

    Raises:
        SubmissionError: a source is not usable.
        BadRowsError: there are bad rows and `skip_bad` is False.
    """
    unseen = dict.fromkeys(votes.by_label)
    with ExitStack() as stack:
        files = [stack.enter_context(open_masks(path)) for path in sources]
        jobs = (_Job(k, rows, votes) for k, rows in enumerate(align_rows(files)))

        def merged() -> Iterator[tuple[MaskRow, int]]:
            waiting: dict[int, _Merged] = {}
            following = 0
            for result in run_jobs(_run, jobs, workers=workers, progress=lambda _: None):
                waiting[result.number] = result
                while following in waiting:
                    one = waiting.pop(following)
                    following += 1
                    for file, line, reason in one.faults:
                        files[file].refuse(line, reason)
                    for label in one.seen:
                        unseen.pop(label, None)
                    if one.row is not None:
                        yield one.row, one.num_read

        totals = write_masks(target, merged(), files, force=force, skip_bad=skip_bad)
        return totals, list(unseen), count_lacking(files)


def _run(job: _Job, progress: Callable[[int], Any]) -> _Merged:
    del progress
    row, faults = fuse_masks(job.rows, job.votes)
    bad = {file for file, _, _ in faults}
    good = [own for file, own in enumerate(job.rows) if own and file not in bad]
    seen = {prediction.label for own in good for prediction in own.predictions}
    seen &= job.votes.by_label.keys()
    return _Merged(job.number, row, count_predictions(good), seen, faults)


def fuse_masks(
    rows: Sequence[MaskRow | None], votes: MaskVotes
) -> tuple[MaskRow | None, list[tuple[int, int, str]]]:
    """Merges the predictions of one image.

    A score counts times the weight of its file; masks at 0 or below the threshold take no part.
    Class by class, in descending order of score, a mask joins the group whose first mask it
    overlaps most, if the IoU is above `iou`, and else begins a group. A second mask of one file in
    a group is its duplicate and is dropped. A group becomes one prediction: its score is the sum of
    its members' divided by the weights of all files, as in weighted boxes fusion (arXiv
    1910.13302), and must reach the threshold too; its mask has the pixels that masks with at least
    `share` of the group's weight cover, and is the group's first one where there is no such pixel.

    Args:
        rows: one per file; None where it lacks the image.
        votes: the settings.

    Returns:
        The row in descending order of score, and (file, line, reason) of rows with a mask that
        cannot be read, which take no part. No row if they are all that there are.
    """
    by_label: dict[str, list[_Member]] = {}
    good, faults = [], []
    for file, row in enumerate(rows):
        if row is None:
            continue
        try:
            members = list(_members(row, file, votes))
        except MaskError as error:
            faults.append((file, row.line, str(error)))
            continue
        good.append(row)
        for label, member in members:
            by_label.setdefault(label, []).append(member)
    if not good:
        return None, faults
    merged = [
        prediction
        for label, members in by_label.items()
        for prediction in _fuse_class(label, members, votes)
    ]
    merged.sort(key=lambda prediction: -prediction.score)
    kept = merged[: votes.max_per_image] if votes.max_per_image else merged
    return first_row(good)._replace(predictions=tuple(kept)), faults


def _members(row: MaskRow, file: int, votes: MaskVotes) -> Iterator[tuple[str, _Member]]:
    weight = votes.weights[file]
    places = [
        place
        for place, (label, score, _) in enumerate(row.predictions)
        if score * weight > 0
        and score * weight >= votes.by_label.get(label, votes.settings).threshold
    ]
    for (label, score, text), mask in decode_masks(row, places):
        yield label, _Member(score * weight, file, mask, text)


def _fuse_class(
    label: str, members: Sequence[_Member], votes: MaskVotes
) -> Iterator[MaskPrediction]:
    settings = votes.by_label.get(label, votes.settings)
    for group in _groups(sorted(members, key=lambda member: -member.score), settings.iou):
        score = min(sum(member.score for member in group) / sum(votes.weights), 1.0)
        if score >= settings.threshold:
            yield MaskPrediction(label, score, _vote(group, votes))


def _groups(members: Sequence[_Member], iou: float) -> list[list[_Member]]:
    """Groups masks of one class, given in descending order of score."""
    groups: list[list[_Member]] = []
    for member in members:
        firsts = [group[0].mask for group in groups]
        overlaps = np.asarray(coco_mask.iou([member.mask], firsts, [0] * len(firsts)))
        best = int(overlaps[0].argmax()) if firsts else -1
        if best < 0 or overlaps[0, best] <= iou:
            groups.append([member])
        elif all(member.file != other.file for other in groups[best]):
            groups[best].append(member)
    return groups


def _vote(group: Sequence[_Member], votes: MaskVotes) -> str:
    """The mask of a group as text; that of a single member, or of no common pixel, as it was.

    Counted between the places, down the columns, where a member begins or ends: as many values as
    runs, not as pixels.
    """
    if len(group) == 1:
        return group[0].text
    weights = [votes.weights[member.file] for member in group]
    height, width = group[0].mask["size"]
    stops = [np.cumsum(run_lengths(member.mask["counts"])) for member in group]
    starts = np.unique(np.concatenate([[0], *stops]))
    starts = starts[starts < height * width]
    covered = np.zeros(len(starts))
    for own, weight in zip(stops, weights, strict=True):
        covered[np.searchsorted(own, starts, "right") % 2 == 1] += weight
    needed = max(votes.share * sum(weights), 1e-12)
    voted = covered >= needed * (1 - 1e-9)
    if not voted.any():
        return group[0].text
    edges = starts[np.flatnonzero(np.diff(voted, prepend=False))]
    return encode_mask(encode_edges(edges, height=height, width=width))
