"""The challenge's metric: a hand-worked case a rule, and a plain statement of the rules."""

from collections.abc import Sequence

import numpy as np
import pytest

from tpudet.detection.evaluation.open_images.metric import (
    MAX_PER_IMAGE_AND_CLASS,
    ChallengeTruth,
    Scored,
    average_precisions,
    expand,
    precision_recall,
    score_boxes,
)
from tpudet.detection.types import DetectionTable

Row = tuple[int, int, tuple[float, float, float, float], float]  # image, class, box, score or group


def truth_of(rows: Sequence[Row], *, images: int = 1, classes: int = 1) -> ChallengeTruth:
    """Ground truth of (image, class, box, group-of); verified are the classes of the boxes."""
    truth = ChallengeTruth(
        np.array([row[0] for row in rows], int),
        np.array([row[1] for row in rows], int),
        np.array([row[2] for row in rows], float).reshape(-1, 4),
        np.array([row[3] for row in rows], bool),
        np.zeros((images, classes), bool),
    )
    truth.verified[truth.image_indices, truth.classes - 1] = True
    return truth


def detections_of(rows: Sequence[Row]) -> DetectionTable:
    return DetectionTable(
        np.array([row[0] for row in rows], int),
        np.array([row[2] for row in rows], float).reshape(-1, 4),
        np.array([row[3] for row in rows], float),
        np.array([row[1] for row in rows], int),
    )


def outcome(scored: Scored) -> list[tuple[float, bool]]:
    return list(zip(scored.scores.tolist(), scored.is_true.tolist(), strict=True))


A, GROUP = (0.0, 0, 10, 10), (20.0, 0, 40, 20)


def test_the_hand_worked_case() -> None:
    truth = truth_of([(0, 1, A, 0), (0, 1, GROUP, 1)])
    detections = [(0, 1, A, 0.9), (0, 1, (1.0, 0, 11, 10), 0.8), (0, 1, (21.0, 1, 30, 9), 0.7)]
    detections += [(0, 1, (22.0, 2, 30, 9), 0.6), (0, 1, (60.0, 60, 70, 70), 0.5)]
    scored = score_boxes(truth, detections_of(detections))
    assert outcome(scored) == [(0.9, True), (0.8, False), (0.7, True), (0.5, False)]
    assert scored.num_ignored.tolist() == [1]
    assert average_precisions(scored).tolist() == [pytest.approx(1 / 2 + 1 / 2 * 2 / 3)]  # 0.8333
    precision, recall = precision_recall(scored, 1)
    assert precision.tolist() == [1, 1 / 2, pytest.approx(2 / 3), 2 / 4]
    assert recall.tolist() == [0.5, 0.5, 1, 1]


def test_a_detection_does_not_try_its_second_best_box() -> None:
    # .8 overlaps the taken box by 9/11 and the free one by 8/12: COCO would give it the free one.
    truth = truth_of([(0, 1, A, 0), (0, 1, (0.0, 3, 10, 13), 0)])
    scored = score_boxes(truth, detections_of([(0, 1, A, 0.9), (0, 1, (0.0, 1, 10, 11), 0.8)]))
    assert outcome(scored) == [(0.9, True), (0.8, False)]
    assert average_precisions(scored).tolist() == [0.5]


def test_the_overlap_must_be_half_and_the_higher_score_takes_the_box() -> None:
    truth = truth_of([(0, 1, (0.0, 0, 8, 8), 0), (0, 1, (20.0, 0, 28, 8), 0)])
    half, less = (0.0, 0, 8, 4), (20.0, 0, 28, 3.9)  # IoU 1/2 and below
    scored = score_boxes(
        truth, detections_of([(0, 1, half, 0.5), (0, 1, less, 0.9), (0, 1, (0.0, 0, 8, 8), 0.4)])
    )
    assert outcome(scored) == [(0.9, False), (0.5, True), (0.4, False)]


def test_what_found_its_box_taken_may_still_be_absorbed() -> None:
    truth = truth_of([(0, 1, A, 0), (0, 1, (0.0, 0, 20, 20), 1)])
    scored = score_boxes(truth, detections_of([(0, 1, A, 0.9), (0, 1, A, 0.8), (0, 1, A, 0.7)]))
    assert outcome(scored) == [(0.9, True), (0.8, True)]
    assert average_precisions(scored).tolist() == [1.0]


def test_group_of_boxes_take_by_intersection_over_the_detection() -> None:
    truth = truth_of([(0, 1, (0.0, 0, 100, 100), 1)])
    inside, sticking_out = (0.0, 0, 2, 2), (0.0, 95, 10, 106)  # 1, and 5/11 of it inside
    scored = score_boxes(truth, detections_of([(0, 1, inside, 0.3), (0, 1, sticking_out, 0.9)]))
    assert outcome(scored) == [(0.9, False), (0.3, True)]
    nothing = score_boxes(truth, detections_of([]))  # a missed group-of box counts as missed
    assert len(nothing.instance_classes) == 1
    assert average_precisions(nothing).tolist() == [0.0]


def test_each_group_of_box_counts_once_and_only_the_best_one_absorbs() -> None:
    left, right = (0.0, 0, 10, 10), (0.0, 8, 10, 30)
    truth = truth_of([(0, 1, left, 1), (0, 1, right, 1)])
    both = (0.0, 2, 10, 12)  # 8/10 in the left one, 4/10 in the right
    scored = score_boxes(truth, detections_of([(0, 1, left, 0.9), (0, 1, both, 0.8)]))
    assert outcome(scored) == [(0.9, True)]
    assert scored.num_ignored.tolist() == [1]
    assert average_precisions(scored).tolist() == [0.5]  # the right one is missed


def test_classes_that_are_not_verified_are_ignored_and_negative_ones_are_not() -> None:
    truth = truth_of([(0, 1, A, 0), (1, 2, A, 0)], images=2, classes=2)
    elsewhere = detections_of([(0, 1, A, 0.5), (1, 1, A, 0.9), (1, 2, A, 0.4)])
    assert average_precisions(score_boxes(truth, elsewhere)).tolist() == [1.0, 1.0]
    truth.verified[1, 0] = True  # somebody looked: class 1 is not on image 1
    scored = score_boxes(truth, elsewhere)
    assert outcome(scored)[:2] == [(0.9, False), (0.5, True)]
    assert average_precisions(scored).tolist() == [0.5, 1.0]


def test_invalid_boxes_are_dropped_and_boxes_without_area_are_not() -> None:
    truth = truth_of([(0, 1, A, 0)])
    turned, flat = (5.0, 0, 4, 10), (5.0, 0, 5, 10)
    scored = score_boxes(truth, detections_of([(0, 1, turned, 0.9), (0, 1, flat, 0.8)]))
    assert outcome(scored) == [(0.8, False)]


def test_only_the_10000_best_of_an_image_and_class_are_looked_at() -> None:
    truth = truth_of([(0, 1, A, 0), (0, 2, A, 0)], classes=2)
    noise = [(0, 1, (50.0, 50, 60, 60), 0.5)] * (MAX_PER_IMAGE_AND_CLASS - 1)
    rows = [*noise, (0, 1, A, 0.4), (0, 1, A, 0.3), (0, 2, A, 0.1)]
    scored = score_boxes(truth, detections_of(rows))
    assert np.bincount(scored.classes)[1:].tolist() == [10_000, 1]
    assert scored.is_true[9_999]
    assert average_precisions(scored).tolist() == [pytest.approx(1e-4), 1.0]


def test_precision_is_monotone_from_the_right_and_classes_without_truth_are_left_out() -> None:
    # Found first, third and fourth of 4: precision 1, 2/3, 3/4, the second raised to 3/4.
    boxes = [(0.0, 20 * k, 10, 20 * k + 10) for k in range(4)]
    truth = truth_of([(0, 1, box, 0) for box in boxes], classes=3)
    truth.verified[0, 1] = True  # verified, and nothing there: false positives without AP
    rows = [(0, 1, boxes[0], 0.9), (0, 1, (50.0, 0, 60, 9), 0.8), (0, 1, boxes[1], 0.7)]
    rows += [(0, 1, boxes[2], 0.6), (0, 2, boxes[0], 0.9)]
    precisions = average_precisions(score_boxes(truth, detections_of(rows)))
    assert precisions[0] == pytest.approx((1 + 3 / 4 + 3 / 4) / 4)
    assert np.isnan(precisions[1:]).all()


def test_equal_scores_are_taken_in_their_order() -> None:
    truth = truth_of([(0, 1, A, 0)])
    miss = (50.0, 50, 60, 60)
    for rows, expected in (([A, miss], 1.0), ([miss, A], 0.5)):
        scored = score_boxes(truth, detections_of([(0, 1, box, 0.5) for box in rows]))
        assert average_precisions(scored).tolist() == [expected]


def test_expansion_repeats_rows_for_their_relatives() -> None:
    rows, labels = expand(np.array([2, 0, 2]), [[], [0], [1, 0]])
    assert sorted(zip(rows.tolist(), labels.tolist(), strict=True)) == [
        *((0, 0), (0, 1), (0, 2), (1, 0), (2, 0), (2, 1), (2, 2)),
    ]


def plain_precisions(truth: ChallengeTruth, detections: DetectionTable) -> list[float]:
    """The rules, word by word: loops over classes, images and detections."""

    def share(box: np.ndarray, other: np.ndarray, over_detection: bool) -> float:
        height = min(box[2], other[2]) - max(box[0], other[0])
        width = min(box[3], other[3]) - max(box[1], other[1])
        inner = max(height, 0) * max(width, 0)
        areas = [(b[2] - b[0]) * (b[3] - b[1]) for b in (box, other)]
        total = areas[0] if over_detection else areas[0] + areas[1] - inner
        return inner / total if total > 0 else 0.0

    def best(box: np.ndarray, others: list[np.ndarray], over_detection: bool) -> int:
        """The place of the one with most overlap, -1 where that is below a half."""
        shares = [share(box, other, over_detection) for other in others]
        place = int(np.argmax(shares)) if shares else -1
        return place if place >= 0 and shares[place] >= 0.5 else -1

    num_images, num_classes = truth.verified.shape
    result = []
    for class_id in range(1, num_classes + 1):
        listed: list[tuple[float, bool]] = []
        count = int((truth.classes == class_id).sum())
        for image in range(num_images):
            if not truth.verified[image, class_id - 1]:
                continue
            here = (truth.image_indices == image) & (truth.classes == class_id)
            single = list(truth.boxes[here & ~truth.is_group_of])
            groups = list(truth.boxes[here & truth.is_group_of])
            found = (detections.image_indices == image) & (detections.classes == class_id)
            rows = [
                row
                for row in np.flatnonzero(found)
                if (detections.boxes[row][2:] >= detections.boxes[row][:2]).all()
            ]
            taken: set[int] = set()
            absorbed: dict[int, float] = {}
            for row in sorted(rows, key=lambda r: -detections.scores[r]):
                box, score = detections.boxes[row], float(detections.scores[row])
                place = best(box, single, False)
                if place >= 0 and place not in taken:
                    taken.add(place)
                    listed.append((score, True))
                    continue
                place = best(box, groups, True)
                if place >= 0:
                    absorbed[place] = max(absorbed.get(place, 0.0), score)
                else:
                    listed.append((score, False))
            listed += [(score, True) for score in absorbed.values()]
        listed.sort(key=lambda pair: -pair[0])
        precision = [sum(true for _, true in listed[: n + 1]) / (n + 1) for n in range(len(listed))]
        area = sum(max(precision[n:]) for n, (_, true) in enumerate(listed) if true)
        result.append(area / count if count else float("nan"))
    return result


def random_scene(seed: int) -> tuple[ChallengeTruth, DetectionTable]:
    """Boxes on a coarse grid, so that equal overlaps and exact halves occur; unequal scores."""
    generator = np.random.default_rng(seed)
    num_images, num_classes = 4, 3

    def boxes(count: int) -> np.ndarray:
        start = generator.integers(0, 6, (count, 2)) * 4.0
        return np.concatenate([start, start + generator.integers(-1, 5, (count, 2)) * 4.0], axis=1)

    count = int(generator.integers(0, 30))
    drawn = boxes(count)
    drawn[:, 2:] = np.maximum(drawn[:, 2:], drawn[:, :2])
    truth = ChallengeTruth(
        generator.integers(0, num_images, count),
        generator.integers(1, num_classes + 1, count),
        drawn,
        generator.random(count) < 0.3,
        generator.random((num_images, num_classes)) < 0.3,
    )
    truth.verified[truth.image_indices, truth.classes - 1] = True
    num = int(generator.integers(0, 120))
    detections = DetectionTable(
        generator.integers(0, num_images, num),
        boxes(num),
        generator.permutation(num) / 128,
        generator.integers(1, num_classes + 1, num),
    )
    if count:  # two thirds lie near a box of their class
        near = np.flatnonzero(generator.random(num) < 0.67)
        source = generator.integers(0, count, len(near))
        detections.image_indices[near] = truth.image_indices[source]
        detections.classes[near] = truth.classes[source]
        detections.boxes[near] = drawn[source] + generator.integers(-1, 2, (len(near), 4)) * 2.0
    return truth, detections


def test_equals_the_plain_statement_on_random_scenes() -> None:
    differing = set()
    for seed in range(150):
        truth, detections = random_scene(seed)
        expected = plain_precisions(truth, detections)
        found = average_precisions(score_boxes(truth, detections))
        np.testing.assert_allclose(found, expected, atol=1e-9, err_msg=f"seed {seed}")
        differing |= set(np.round(found[~np.isnan(found)], 6).tolist())
    assert len(differing) > 100  # the scenes are not all nought or one


def test_pairs_are_cut_into_pieces_without_a_trace(monkeypatch: pytest.MonkeyPatch) -> None:
    truth, detections = random_scene(3)
    whole = score_boxes(truth, detections)
    monkeypatch.setattr("tpudet.detection.evaluation.open_images.metric._PAIRS_AT_ONCE", 5)
    for one, other in zip(whole, score_boxes(truth, detections), strict=True):
        np.testing.assert_array_equal(one, other)


def test_a_weight_of_two_is_an_image_there_twice() -> None:
    for seed in range(20):
        truth, detections = random_scene(seed)
        weights = np.random.default_rng(seed).integers(0, 3, len(truth.verified))
        copies = np.repeat(np.arange(len(weights)), weights)
        rows = [np.flatnonzero(truth.image_indices == image) for image in copies]
        found = [np.flatnonzero(detections.image_indices == image) for image in copies]
        repeated = truth._replace(
            image_indices=np.repeat(np.arange(len(copies)), [len(r) for r in rows]),
            verified=truth.verified[copies],
            **{
                name: getattr(truth, name)[np.concatenate([*rows, []]).astype(int)]
                for name in ("classes", "boxes", "is_group_of")
            },
        )
        taken = np.concatenate([*found, []]).astype(int)
        again = DetectionTable(
            np.repeat(np.arange(len(copies)), [len(f) for f in found]),
            *(column[taken] for column in detections[1:4]),
        )
        expected = average_precisions(score_boxes(repeated, again))
        weighted = average_precisions(score_boxes(truth, detections), weights.astype(float))
        np.testing.assert_allclose(weighted, expected, atol=1e-9)
