"""Merges several submissions into one, class by class within each image."""

import math
import threading
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from tpudet.detection.submission.errors import SubmissionError
from tpudet.detection.submission.files import BlockResult, bad_rows, with_good_row
from tpudet.detection.submission.fusion.blocks import Block, SettingsTable
from tpudet.detection.submission.fusion.kernel import load_kernel
from tpudet.detection.submission.fusion.settings import (
    METHODS,
    FusionSettings,
    read_class_settings,
)
from tpudet.detection.submission.mask_header import have_masks
from tpudet.detection.submission.writer import (
    check_target,
    describe,
    lacking_images,
    write_aligned,
)
from tpudet.trainkit.files.storage import open_file


class MergeOptions(NamedTuple):
    """Options for merging submissions."""

    settings: FusionSettings
    class_settings: str = ""  # path of a CSV with settings for some labels, or empty
    weights: Sequence[float] = ()  # one per submission, only their ratios count; empty: all equal
    max_per_image: int = 0  # predictions kept per image, the best ones; 0: all
    mask_votes: float = 0.5  # share of masks that must cover a pixel, see `mask_merge.MaskVotes`


def merge_submissions(
    target: str,
    sources: Sequence[str],
    options: MergeOptions,
    *,
    force: bool,
    threads: int,
    skip_bad: bool,
) -> str:
    """Merges submissions into one; the same bytes whatever the number of threads.

    Masks are merged by votes whatever the method, see `mask_merge.fuse_masks`.

    Args:
        target: the submission to write.
        sources: paths of submissions, at least one; their order decides between equal scores.
        options: how predictions are fused.
        force: whether an existing target is replaced.
        threads: at least 1.
        skip_bad: whether bad rows are left out and counted.

    Returns:
        The summary.

    Raises:
        SubmissionError: the arguments or a source are not usable; lists all mistakes.
        BadRowsError: there are bad rows and `skip_bad` is False.
    """
    by_label = read_fusion_settings(options, len(sources))
    check_target(target, sources, force=force)
    relative = relative_weights(options.weights, len(sources))
    if not have_masks(sources):
        return _merge_boxes(
            target,
            sources,
            options,
            by_label,
            relative,
            force=force,
            threads=threads,
            skip_bad=skip_bad,
        )
    # Pools of processes and masks take 20 ms to import, which boxes are merged without.
    from tpudet.detection.submission.mask_merge import MaskVotes, merge_masks

    votes = MaskVotes(
        options.settings,
        by_label,
        tuple(relative.tolist()),
        options.mask_votes,
        options.max_per_image,
    )
    totals, unseen, lacking = merge_masks(
        target, sources, votes, force=force, workers=threads, skip_bad=skip_bad
    )
    return _describe(target, totals, sources, unseen, lacking)


def _merge_boxes(
    target: str,
    sources: Sequence[str],
    options: MergeOptions,
    by_label: Mapping[str, FusionSettings],
    relative: np.ndarray,
    *,
    force: bool,
    threads: int,
    skip_bad: bool,
) -> str:
    table = settings_table(options.settings, by_label)
    fuse = load_kernel().fuse
    max_per_image = min(options.max_per_image, 2**31 - 1)  # as large as a C int
    seen = np.zeros(1 + len(by_label), np.int64)
    lock = threading.Lock()

    def work(block: Block) -> BlockResult:
        text, num_read, num_written, faults, counts = fuse(block, relative, table, max_per_image)
        with lock:
            np.add(seen, counts, out=seen)
        num_images = int(with_good_row(block, faults).sum())
        return BlockResult(text, num_images, num_read, num_written, bad_rows(block, faults))

    totals, lacking = write_aligned(
        target, sources, work, force=force, threads=threads, skip_bad=skip_bad
    )
    unseen = [label for label, count in zip(by_label, seen[1:], strict=True) if not count]
    return _describe(target, totals, sources, unseen, lacking)


def _describe(
    target: str,
    totals: BlockResult,
    sources: Sequence[str],
    unseen: Sequence[str],
    lacking: Sequence[int],
) -> str:
    return describe(
        target,
        totals,
        f"no prediction has these labels of --class_settings: {unseen}" if unseen else "",
        *lacking_images(sources, lacking),
        read=f"in {len(sources)} files",
    )


def read_fusion_settings(options: MergeOptions, num_files: int) -> dict[str, FusionSettings]:
    """Checks the options; returns the settings for some labels.

    Raises:
        SubmissionError: they are not usable; lists all mistakes.
        OSError: the file of settings cannot be opened.
    """
    mistakes = options.settings.mistakes()
    if not 0 <= options.mask_votes <= 1:
        mistakes.append(f"mask_votes {options.mask_votes} must be in 0..1")
    try:
        relative_weights(options.weights, num_files)
    except ValueError as error:
        mistakes.append(str(error))
    if mistakes:
        raise SubmissionError("\n".join(mistakes))
    if not options.class_settings:
        return {}
    try:
        with open_file(options.class_settings, "rb") as file:
            return read_class_settings(file.read().decode(), options.settings)
    except ValueError as error:  # UnicodeDecodeError is one
        raise SubmissionError(f"{options.class_settings}: {error}") from error


def settings_table(
    default: FusionSettings, by_label: Mapping[str, FusionSettings]
) -> SettingsTable:
    """Returns settings as the kernel takes them."""
    rows = [default, *by_label.values()]
    return SettingsTable(
        [label.encode() for label in by_label],
        np.array([METHODS.index(row.method) for row in rows], np.int32),
        *(np.array([row[i] for row in rows], np.float64) for i in (1, 2, 3)),
    )


def relative_weights(weights: Sequence[float], num_files: int) -> np.ndarray:
    """[files] float64: weights divided by the largest; all 1 if none are given.

    Raises:
        ValueError: not one per file, a negative one, or none above 0.
    """
    if not weights:
        return np.ones(num_files)
    if len(weights) != num_files:
        raise ValueError(f"{len(weights)} weights for {num_files} files; give one for each")
    if not all(0 <= weight < math.inf for weight in weights) or not max(weights) > 0:
        shown = ",".join(f"{weight:g}" for weight in weights)
        raise ValueError(f"weights {shown}: none may be negative, and one must be above 0")
    return np.array(weights, np.float64) / max(weights)
