"""Each algorithm on boxes whose overlaps can be worked out by hand.

`BIG` covers `HALF`, which is half as large: IoU 0.5. `FAR` touches nothing.
"""

import math

import numpy as np
import pytest

from tpudet.detection.submission.fusion.plain_fusion import Boxes, fuse_class

BIG, HALF, FAR = [0.0, 0.0, 0.4, 0.4], [0.0, 0.0, 0.4, 0.2], [0.6, 0.6, 0.9, 0.9]


def fuse(
    rows: list[tuple], method: str, *, iou: float = 0.3, threshold: float = 0.02, models: float = 1
) -> list[tuple]:
    """Rows (box, score, weight) in and (score, box) out."""
    boxes = Boxes(
        np.array([row[0] for row in rows], float).reshape(-1, 4),
        np.array([row[1] * row[2] for row in rows], float),
        np.array([row[2] for row in rows], float),
    )
    result = fuse_class(
        boxes,
        method=method,
        iou_threshold=iou,
        sigma=0.5,
        threshold=threshold,
        total_weight=models,
    )
    return list(zip(result.scores.tolist(), result.coordinates.tolist(), strict=True))


THREE = [(HALF, 0.8, 1), (BIG, 0.9, 1), (FAR, 0.3, 1)]


def test_hard_suppresses_above_the_overlap_and_not_at_it() -> None:
    assert fuse(THREE, "hard", iou=0.49) == [(0.9, BIG), (0.3, FAR)]
    assert fuse(THREE, "hard", iou=0.5) == [(0.9, BIG), (0.8, HALF), (0.3, FAR)]


def test_soft_linear_halves_the_score_at_an_overlap_of_a_half() -> None:
    assert fuse(THREE, "soft_linear") == [(0.9, BIG), (0.4, HALF), (0.3, FAR)]
    assert fuse(THREE, "soft_linear", iou=0.5) == [(0.9, BIG), (0.8, HALF), (0.3, FAR)]


def test_soft_gaussian_decays_by_the_square() -> None:
    (first, second, third) = fuse(THREE, "soft_gaussian")
    assert (first, third) == ((0.9, BIG), (0.3, FAR))
    assert second[0] == pytest.approx(0.8 * math.exp(-(0.5**2) / 0.5))  # 0.48522


@pytest.mark.parametrize("method", ["hard", "soft_linear", "soft_gaussian", "nmw", "wbf"])
def test_the_threshold_holds_for_boxes_that_overlap_nothing(method: str) -> None:
    assert fuse([(BIG, 0.9, 1), (FAR, 0.019, 1)], method) == [(0.9, BIG)]
    assert fuse([(BIG, 0.9, 1), (FAR, 0.02, 1)], method)[1] == (0.02, FAR)
    assert fuse([(FAR, 0.019, 1)], method) == []


@pytest.mark.parametrize("method", ["hard", "soft_linear", "soft_gaussian"])
def test_boxes_that_only_touch_do_not_overlap(method: str) -> None:
    left, right = [0.0, 0.0, 0.5, 1.0], [0.5, 0.0, 1.0, 1.0]  # with a +1 they would by 0.53
    assert fuse([(left, 0.9, 1), (right, 0.8, 1)], method, iou=0) == [(0.9, left), (0.8, right)]


def test_wbf_averages_boxes_by_their_scores() -> None:
    (score, box), (far_score, far) = fuse(THREE, "wbf", iou=0.45, models=2)
    assert score == pytest.approx((0.9 + 0.8) / 2)
    assert box == pytest.approx([0, 0, 0.4, (0.9 * 0.4 + 0.8 * 0.2) / 1.7])
    assert (far_score, far) == (0.15, FAR)  # one of two models saw it


def test_wbf_scores_stay_below_one_where_ensemble_boxes_gives_more() -> None:
    # Weights 2 and 1; both boxes are of the first model. ensemble-boxes 1.0.9 says 1.2.
    rows = [(BIG, 0.9, 1), (BIG, 0.9, 1)]
    assert fuse(rows, "wbf", models=1.5) == [(0.9, pytest.approx(BIG))]


def test_nmw_averages_by_score_and_overlap_and_keeps_the_best_score() -> None:
    (score, box), far = fuse(THREE, "nmw", iou=0.45)
    assert score == 0.9
    assert box == pytest.approx([0, 0, 0.4, (0.9 * 0.4 + 0.8 * 0.5 * 0.2) / (0.9 + 0.8 * 0.5)])
    assert far == (0.3, FAR)


@pytest.mark.parametrize("method", ["hard", "soft_linear", "soft_gaussian", "wbf", "nmw"])
def test_weight_zero_and_boxes_without_area_give_no_nan(method: str) -> None:
    line = [0.1, 0.1, 0.1, 0.5]
    rows = [(BIG, 0.9, 0), (FAR, 0.5, 1), (line, 0.4, 1), (line, 0.3, 1), (HALF, 0.0, 1)]
    assert fuse(rows, method, threshold=0) == [(0.5, FAR), (0.4, line), (0.3, line)]
    assert fuse([], method) == []


def test_ties_keep_the_order_of_the_input() -> None:
    boxes = [[0.1 * k, 0.0, 0.1 * k + 0.05, 0.1] for k in range(8)]
    for method in ("hard", "soft_gaussian", "wbf", "nmw"):
        assert [box for _, box in fuse([(b, 0.5, 1) for b in boxes], method)] == boxes


# Recorded from ensemble-boxes 1.0.9 (float32 inside): three models, weights 1, 2, 1, IoU 0.5.
MODELS = [
    [([0.10, 0.10, 0.50, 0.50], 0.9), ([0.60, 0.60, 0.90, 0.80], 0.4)],
    [([0.12, 0.11, 0.52, 0.48], 0.8), ([0.20, 0.70, 0.40, 0.95], 0.3)],
    [([0.09, 0.12, 0.47, 0.51], 0.7), ([0.61, 0.58, 0.93, 0.81], 0.6)],
]
EXPECTED: dict[str, list[tuple[float, list[float]]]] = {
    "wbf": [
        (0.8, [0.107813, 0.109375, 0.503438, 0.492188]),
        (0.25, [0.606, 0.588, 0.918, 0.806]),
        (0.15, [0.2, 0.7, 0.4, 0.95]),
    ],
    "nmw": [  # two of score 0.3: ours in the order of the input
        (0.8, [0.109331, 0.109173, 0.505725, 0.490669]),
        (0.3, [0.2, 0.7, 0.4, 0.95]),
        (0.3, [0.606616, 0.586768, 0.919848, 0.806616]),
    ],
    "hard": [  # hard and soft with equal weights, soft at IoU 0.3 and sigma 0.5
        (0.9, [0.1, 0.1, 0.5, 0.5]),
        (0.6, [0.61, 0.58, 0.93, 0.81]),
        (0.3, [0.2, 0.7, 0.4, 0.95]),
    ],
    "soft_linear": [
        (0.9, [0.1, 0.1, 0.5, 0.5]),
        (0.6, [0.61, 0.58, 0.93, 0.81]),
        (0.3, [0.2, 0.7, 0.4, 0.95]),
        (0.128076, [0.12, 0.11, 0.52, 0.48]),
        (0.093122, [0.6, 0.6, 0.9, 0.8]),
        (0.029285, [0.09, 0.12, 0.47, 0.51]),
    ],
    "soft_gaussian": [
        (0.9, [0.1, 0.1, 0.5, 0.5]),
        (0.6, [0.61, 0.58, 0.93, 0.81]),
        (0.3, [0.2, 0.7, 0.4, 0.95]),
        (0.195143, [0.12, 0.11, 0.52, 0.48]),
        (0.123259, [0.6, 0.6, 0.9, 0.8]),
        (0.057252, [0.09, 0.12, 0.47, 0.51]),
    ],
}


@pytest.mark.parametrize("method", EXPECTED)
def test_agrees_with_ensemble_boxes(method: str) -> None:
    weights = [0.5, 1.0, 0.5] if method in ("wbf", "nmw") else [1.0, 1.0, 1.0]
    rows = [
        (box, score, weight)
        for model, weight in zip(MODELS, weights, strict=True)
        for box, score in model
    ]
    iou = 0.3 if method.startswith("soft") else 0.5
    found = fuse(rows, method, iou=iou, models=sum(weights))
    table = np.array([[score, *box] for score, box in found])
    expected = np.array([[score, *box] for score, box in EXPECTED[method]])
    assert np.abs(table - expected).max() < 2e-6
