"""Outcomes of predictions and objects: worked by hand, and against a plain loop."""

import numpy as np
import pytest

from tpudet.detection.inspection.objects import (
    InspectionError,
    Objects,
    class_permutation,
    order_objects,
)
from tpudet.detection.inspection.objects import take_images as take
from tpudet.detection.inspection.outcomes import (
    BADLY_PLACED,
    DUPLICATE,
    FOUND,
    IGNORED,
    NO_OBJECT,
    WRONG_CLASS,
    find_outcomes,
    rank_worst,
)
from tpudet.trainkit.class_list import ClassEntry


def objects(ids: list[str], rows: list[tuple], *, groups: tuple[int, ...] = ()) -> Objects:
    """Rows of (image, class id, score, y1, x1, y2, x2) in tenths of the image."""
    table = np.array(rows, float).reshape(-1, 7)
    is_group = np.isin(np.arange(len(rows)), groups)
    images, classes = table[:, 0].astype(int), table[:, 1].astype(int)
    return order_objects(ids, images, classes, table[:, 3:] / 10, table[:, 2], is_group)


def test_every_kind_of_outcome_worked_by_hand() -> None:
    truth = objects(
        ["a", "b"],
        [
            (0, 1, 1, 0, 0, 4, 4),
            (0, 2, 1, 6, 6, 9, 9),
            (0, 1, 1, 5, 0, 9, 4),
            (1, 1, 1, 0, 0, 5, 5),
        ],
        groups=(3,),
    )
    found = objects(
        ["a", "b"],
        [
            (0, 1, 0.9, 0, 0, 4, 4),  # the object itself
            (0, 1, 0.8, 0, 0, 4, 3),  # IoU 12/16 with what is found already
            (0, 1, 0.7, 6, 6, 9, 9),  # a dog is there
            (0, 1, 0.6, 5, 2, 9, 6),  # IoU 8/24 with the second cat
            (0, 2, 0.5, 0, 7, 2, 9),
            (1, 1, 0.4, 1, 1, 3, 3),  # within the group region
            (1, 1, 0.3, 4, 4, 7, 7),  # a ninth of it within
        ],
    )
    outcomes = find_outcomes(found, truth, num_classes=2)
    assert outcomes.kinds.tolist() == [
        *(FOUND, DUPLICATE, WRONG_CLASS, BADLY_PLACED, NO_OBJECT),
        *(IGNORED, NO_OBJECT),
    ]
    assert outcomes.overlaps[:4].tolist() == pytest.approx([1, 0.75, 0, 1 / 3])
    assert outcomes.confused_with.tolist() == [-1, -1, 1, -1, -1, -1, -1]
    assert outcomes.is_missed.tolist() == [False, True, True, False]
    # 2 missed + 0.8 + 0.7 + 0.6 + 0.5, and the one that lies in nothing.
    assert outcomes.badness.tolist() == pytest.approx([4.6, 0.3])


def test_the_worst_come_first_and_faultless_images_not_at_all() -> None:
    ids = ["d", "c", "b", "a"]
    truth = objects(ids, [(0, 1, 1, 0, 0, 5, 5), (1, 1, 1, 0, 0, 5, 5), (2, 1, 1, 0, 0, 5, 5)])
    found = objects(
        ids,
        [
            *[(0, 1, 0.9, 0, 0, 5, 5)],  # d: right
            *[(1, 2, 0.9, 6, 6, 9, 9)],  # c: 1 missed, 0.9 false
            *[(3, 1, s, 6, 6, 9, 9) for s in (0.9, 0.8, 0.2)],  # a: 1.9 false, as bad as c
        ],
    )  # b: 1 missed
    outcomes = find_outcomes(found, truth, num_classes=2)
    assert dict(zip(found.image_ids, outcomes.badness.round(9), strict=True)) == {
        "a": 1.9, "b": 1.0, "c": 1.9, "d": 0.0
    }  # fmt: skip
    assert found.image_ids[rank_worst(outcomes, 9)].tolist() == ["a", "c", "b"]
    assert found.image_ids[rank_worst(outcomes, 2)].tolist() == ["a", "c"]


def overlap(a: np.ndarray, b: np.ndarray, *, over_first: bool = False) -> float:
    sides = np.minimum(a[2:], b[2:]) - np.maximum(a[:2], b[:2])
    shared = float(np.prod(np.maximum(sides, 0)))
    areas = [float(np.prod(box[2:] - box[:2])) for box in (a, b)]
    return shared / (areas[0] if over_first else sum(areas) - shared)


def plain_badness(found: Objects, truth: Objects) -> list[float]:
    """The rules of the module, prediction by prediction."""
    result = [0.0] * len(found.image_ids)
    taken: set[int] = set()
    for d in range(len(found.images)):
        same = [
            g for g in range(len(truth.images))
            if truth.images[g] == found.images[d] and truth.class_ids[g] == found.class_ids[d]
        ]  # fmt: skip
        boxes = [g for g in same if not truth.is_group[g]]
        overlaps = [overlap(found.boxes[d], truth.boxes[g]) for g in boxes]
        if overlaps and max(overlaps) >= 0.5:
            best = boxes[int(np.argmax(overlaps))]
            if best not in taken:
                taken.add(best)
                continue
        regions = [g for g in same if truth.is_group[g]]
        if not any(
            overlap(found.boxes[d], truth.boxes[g], over_first=True) >= 0.5 for g in regions
        ):
            result[found.images[d]] += found.scores[d]
    for g in range(len(truth.images)):
        if g not in taken and not truth.is_group[g]:
            result[truth.images[g]] += 1
    return result


def test_random_images_agree_with_a_plain_loop() -> None:
    random = np.random.default_rng(5)
    ids = [f"{k}" for k in range(12)]

    def draw(count: int, scores: np.ndarray, group_share: float) -> Objects:
        corners = random.integers(0, 6, (count, 2)) / 8  # exact sums
        boxes = np.concatenate([corners, corners + random.integers(1, 5, (count, 2)) / 8], 1)
        images, classes = random.integers(0, 12, count), random.integers(1, 4, count)
        return order_objects(
            ids, images, classes, boxes, scores, random.random(count) < group_share
        )

    truth = draw(300, np.ones(300), 0.1)
    found = draw(900, random.integers(1, 10, 900) / 10, 0)
    outcomes = find_outcomes(found, truth, num_classes=3)
    assert (outcomes.kinds == FOUND).sum() > 50
    np.testing.assert_allclose(outcomes.badness, plain_badness(found, truth))


def test_objects_are_ordered_and_taken_by_image() -> None:
    table = objects(["b", "a"], [(0, 1, 0.1, 0, 0, 1, 1), (1, 2, 0.2, 0, 0, 1, 1)] * 2)
    table = table._replace(scores=np.array([0.2, 0.2, 0.1, 0.1]))
    assert table.image_ids.tolist() == ["a", "b"]
    assert table.class_ids.tolist() == [2, 2, 1, 1]
    assert table.of_image(1) == slice(2, 4)
    some = take(table, np.array(["b", "c"]))
    assert (some.images.tolist(), some.class_ids.tolist()) == ([0, 0], [1, 1])
    assert len(take(table, np.zeros(0, str)).images) == 0


def test_classes_are_matched_by_name() -> None:
    cat, dog = ClassEntry("1", "cat"), ClassEntry("2", "dog")
    swapped = [ClassEntry("1", "dog"), ClassEntry("2", "cat")]
    assert class_permutation([cat, dog], swapped, "p", "t").tolist() == [0, 2, 1]
    with pytest.raises(InspectionError, match=r"p and t call the same class.*2 is dog, there cow"):
        class_permutation([cat, dog], [cat, ClassEntry("2", "cow")], "p", "t")


def test_classes_without_names_are_matched_by_identifier() -> None:
    named = [ClassEntry("1", "cat"), ClassEntry("2", "dog")]
    nameless = [ClassEntry("2", "2"), ClassEntry("1", "1")]
    assert class_permutation(named, nameless, "p", "t").tolist() == [0, 2, 1]
    assert class_permutation(nameless, named, "p", "t").tolist() == [0, 2, 1]


def test_classes_may_have_any_order() -> None:
    one, two, three = (ClassEntry(f"/m/{k}", str(k)) for k in range(3))
    assert class_permutation([one, two, three], [three, one, two], "p", "t").tolist() == [
        0,
        2,
        3,
        1,
    ]
    with pytest.raises(InspectionError, match=r"only in p: /m/1; only in t: /m/2"):
        class_permutation([one, two], [one, three], "p", "t")
