"""Masks of several submissions become one by votes per pixel, worked out by hand."""

import tracemalloc
from typing import Any

import numpy as np
import pytest

from tpudet.detection.ops.numpy_masks import decode_rle, encode_edges, encode_rle
from tpudet.detection.submission.fusion.settings import FusionSettings
from tpudet.detection.submission.mask_merge import MaskVotes, fuse_masks
from tpudet.detection.submission.mask_rows import MaskPrediction, MaskRow
from tpudet.detection.submission.mask_text import decode_mask, encode_mask

HEIGHT, WIDTH = 20, 30


def rectangle(y1: int, x1: int, y2: int, x2: int) -> np.ndarray:
    mask = np.zeros((HEIGHT, WIDTH), bool)
    mask[y1:y2, x1:x2] = True
    return mask


def row_of(image_id: str, *predictions: tuple[str, float, np.ndarray]) -> MaskRow:
    found = [
        MaskPrediction(label, score, encode_mask(encode_rle(mask)))
        for label, score, mask in predictions
    ]
    return MaskRow(image_id, WIDTH, HEIGHT, tuple(found))


A, B, C = rectangle(0, 0, 10, 10), rectangle(0, 0, 10, 9), rectangle(12, 15, 18, 25)


def votes_of(share: float, *, num_files: int = 3, **changes: Any) -> MaskVotes:
    settings = FusionSettings(iou=0.5, threshold=0.02)
    options: dict[str, Any] = {"weights": (1.0,) * num_files, "max_per_image": 0} | changes
    return MaskVotes(settings=settings, by_label={}, share=share, **options)


@pytest.mark.parametrize(
    ("share", "columns"),
    [(0.0, range(11)), (0.3, range(11)), (0.5, range(10)), (0.7, range(9)), (1.0, range(9))],
)
def test_a_pixel_stays_where_enough_masks_cover_it(share: float, columns: range) -> None:
    """Three masks of 9, 10 and 11 columns; the scores are 0.9, 0.6 and 0.3 of three files."""
    widths = {0.6: 10, 0.9: 9, 0.3: 11}
    rows = [
        row_of("a", ("/cat", score, rectangle(0, 0, 10, width))) for score, width in widths.items()
    ]
    merged, faults = fuse_masks(rows, votes_of(share))
    assert merged is not None
    assert not faults
    ((label, score, text),) = merged.predictions
    assert label == "/cat"
    assert score == pytest.approx(0.6)
    found = decode_rle(decode_mask(text, HEIGHT, WIDTH))
    np.testing.assert_array_equal(found, rectangle(0, 0, 10, len(columns)))


@pytest.mark.parametrize(
    ("share", "weights"), [(0.75, (1.0, 1.0, 1.0, 1.0)), (0.5, (0.95, 1.0, 1.0, 1.0))]
)
def test_a_group_without_a_pixel_of_enough_votes_keeps_its_first_mask(
    share: float, weights: tuple[float, ...]
) -> None:
    """A whole and its thirds, IoU 1/3 each: a pixel has 2 of 4 votes, or 1.95 of 3.95."""
    whole = rectangle(5, 0, 15, 30)
    thirds = [rectangle(5, x, 15, x + 10) for x in (0, 10, 20)]
    rows = [row_of("a", ("/cat", 0.9, whole))]
    rows += [row_of("a", ("/cat", 0.8, third)) for third in thirds]
    votes = votes_of(share, num_files=4, weights=weights)
    merged, _ = fuse_masks(rows, votes._replace(settings=FusionSettings(iou=0.3)))
    assert merged is not None
    ((_, score, text),) = merged.predictions
    assert score == pytest.approx((0.9 * weights[0] + 3 * 0.8) / sum(weights))
    np.testing.assert_array_equal(decode_rle(decode_mask(text, HEIGHT, WIDTH)), whole)


@pytest.mark.parametrize("share", [0.0, 0.3, 0.5, 0.75, 1.0])
def test_votes_by_runs_are_those_by_pixels(share: float) -> None:
    random = np.random.default_rng(0)
    weights = (0.3, 1.0, 0.7)
    for density in (0.02, 0.3, 0.9):
        masks = random.random((3, HEIGHT, WIDTH)) < density
        masks[:, 3, 4] = True
        rows = [row_of("a", ("/cat", 0.9, mask)) for mask in masks]
        votes = votes_of(share, weights=weights)
        merged, _ = fuse_masks(rows, votes._replace(settings=FusionSettings(iou=1e-9)))
        assert merged is not None
        covered = np.tensordot(weights, masks, axes=1)
        expected = covered >= max(share * sum(weights), 1e-12) * (1 - 1e-9)
        assert merged.predictions[0].mask == encode_mask(encode_rle(expected))


def test_a_vote_costs_by_runs_not_by_pixels() -> None:
    """Two masks of all pixels that a submission may have: as floats 1 GB, and more to add them."""
    side = 11_585
    full = encode_mask(encode_edges(np.array([0]), height=side, width=side))
    rest = encode_mask(encode_edges(np.array([side]), height=side, width=side))
    rows = [MaskRow("a", side, side, (MaskPrediction("/cat", 0.5, text),)) for text in (full, rest)]
    tracemalloc.start()
    merged, _ = fuse_masks(rows, votes_of(1.0, num_files=2))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert merged is not None
    assert [prediction.mask for prediction in merged.predictions] == [rest]
    assert peak < 1e6


def test_weights_decide_votes_and_scores() -> None:
    rows = [row_of("a", ("/cat", 0.8, A)), row_of("a", ("/cat", 0.8, B)), None]
    merged, _ = fuse_masks(rows, votes_of(0.6, weights=(0.5, 1.0, 0.5)))
    assert merged is not None
    ((_, score, text),) = merged.predictions
    assert score == pytest.approx((0.5 + 1) * 0.8 / 2)
    np.testing.assert_array_equal(decode_rle(decode_mask(text, HEIGHT, WIDTH)), B)  # 1 of 1.5


def test_groups_are_of_one_class_and_one_mask_per_file() -> None:
    rows = [
        row_of("a", ("/cat", 0.9, A), ("/cat", 0.8, B), ("/dog", 0.7, A)),
        row_of("a", ("/cat", 0.6, C), ("/cat", 0.01, A)),
    ]
    merged, _ = fuse_masks(rows, votes_of(0.5, num_files=2))
    assert merged is not None
    assert [(label, round(score, 3)) for label, score, _ in merged.predictions] == [
        ("/cat", 0.45),
        ("/dog", 0.35),
        ("/cat", 0.3),
    ]
    best, _ = fuse_masks(rows, votes_of(0.5, num_files=2, max_per_image=1))
    assert best is not None
    assert best.predictions == merged.predictions[:1]


def test_a_group_below_the_threshold_is_dropped() -> None:
    """Of three files only one has each mask: scores of 0.03 / 3 and 0.9 / 3."""
    rows = [row_of("a", ("/cat", 0.03, A)), row_of("a", ("/cat", 0.9, C)), row_of("a")]
    merged, _ = fuse_masks(rows, votes_of(0.5))
    assert merged is not None
    assert [round(score, 6) for _, score, _ in merged.predictions] == [0.3]


def test_a_file_of_weight_0_takes_no_part_whatever_the_threshold() -> None:
    rows = [row_of("a", ("/cat", 0.9, A)), row_of("a", ("/dog", 0.8, C))]
    votes = votes_of(0.5, weights=(0.0, 1.0))
    merged, _ = fuse_masks(rows, votes._replace(settings=FusionSettings(threshold=0.0)))
    assert merged is not None
    assert [prediction[:2] for prediction in merged.predictions] == [("/dog", 0.8)]
