"""Precision, recall, F1, confusions and the table by class: few objects that a person can count."""

import csv
import io

import numpy as np
import pytest

from tpudet.detection.evaluation.class_scores import (
    ClassScores,
    best_points,
    best_threshold,
    f1_by_threshold,
    sample_curve,
)
from tpudet.detection.evaluation.class_table import (
    class_rows,
    class_table_csv,
    format_class_table,
)
from tpudet.detection.evaluation.coco import coco_class_scores, coco_metrics
from tpudet.detection.evaluation.confusions import count_confusions
from tpudet.detection.evaluation.ground_truth import GroundTruth
from tpudet.detection.evaluation.open_images.split import challenge_split
from tpudet.detection.types import DetectionTable
from tpudet.trainkit.class_list import ClassEntry

NAMES = ["cat", "dog", "sheep"]
A, B, C, D, FAR = (
    [0, 0, 10, 10], [20, 20, 30, 30], [40, 40, 50, 50], [60, 60, 70, 70], [80, 80, 90, 90]
)  # fmt: skip


def ground_truth(*rows: tuple[int, int, list[int], bool]) -> GroundTruth:
    """From image, class, box and whether it is a crowd; two images of 100x100."""
    images, classes, boxes, crowds = zip(*rows, strict=True)
    return GroundTruth(
        records=np.arange(2),
        sizes=np.full((2, 2), 100.0),
        image_indices=np.array(images),
        boxes=np.array(boxes, float),
        classes=np.array(classes),
        is_crowd=np.array(crowds),
        areas=np.full(len(rows), 100.0),
        source_ids=("one", "two"),
    )


def detections(*rows: tuple[int, int, list[int], float]) -> DetectionTable:
    images, classes, boxes, scores = zip(*rows, strict=True)
    return DetectionTable(
        np.array(images), np.array(boxes, float), np.array(scores), np.array(classes)
    )


# Cats: four, of which three are found, with one false in between; the dog is taken for a cat.
TRUTH = ground_truth(
    (0, 1, A, False), (0, 1, B, False), (0, 1, C, False), (1, 1, A, False), (1, 2, B, False)
)
FOUND = detections((0, 1, A, 0.9), (0, 1, B, 0.8), (1, 1, B, 0.7), (0, 1, C, 0.6), (0, 1, FAR, 0.2))


def test_precision_and_recall_at_the_best_f1_are_those_of_the_cats() -> None:
    """F1 after each: 2/5, 4/6, 4/7, 6/8, 6/9. The best has 3 true of 4, and 3 of 4 cats."""
    found = coco_class_scores(TRUTH, FOUND, 3)
    best = best_points(found)
    assert found.images.tolist() == [2, 1, 0]
    assert found.instances.tolist() == [4, 1, 0]
    np.testing.assert_allclose(best.precision, [0.75, 0, np.nan])
    np.testing.assert_allclose(best.recall, [0.75, 0, np.nan])
    np.testing.assert_allclose(best.f1, [0.75, 0, np.nan])
    assert best.threshold[0] == 0.6
    curve = f1_by_threshold(found, np.array([0.0, 0.6, 0.65, 0.85, 0.95]))
    # At 0.65 and 0.7 stand the two best cats: 2 of 2 and 2 of 4, the false one comes after them.
    np.testing.assert_allclose(curve[0], [0.75, 0.75, 2 / 3, 0.4, 0])
    assert best_threshold(found) == 0.6


@pytest.mark.parametrize("seed", range(3))
def test_best_f1_is_that_of_counting_by_brute_force(seed: int) -> None:
    random = np.random.default_rng(seed)
    scores = np.sort(random.uniform(0.01, 1, 60))[::-1]
    is_true = random.uniform(size=60) < scores
    num_instances = int(is_true.sum()) + 20
    precisions, thresholds = sample_curve(scores, is_true, num_instances)
    found = coco_class_scores(TRUTH, FOUND, 1)._replace(
        instances=np.array([num_instances]),
        precisions=precisions[None],
        thresholds=thresholds[None],
    )
    true = np.cumsum(is_true)
    f1 = 2 * true / (np.arange(1, 61) + num_instances)
    assert best_points(found).f1[0] == pytest.approx(f1.max(), abs=1e-12)
    assert best_points(found).threshold[0] == scores[f1.argmax()]


@pytest.mark.parametrize("num_found", [35, 41, 47, 57, 69, 82, 94])
def test_of_a_hundred_instances_the_curve_has_each_number_found(num_found: int) -> None:
    """These shares in hundredths are less than their neighbours in RECALLS, by one bit."""
    scores = np.linspace(0.9, 0.5, num_found)
    precisions, thresholds = sample_curve(scores, np.ones(num_found, bool), 100)
    found = ClassScores(
        np.array([100]), np.array([100]), np.zeros(1), precisions[None], thresholds[None]
    )
    best = best_points(found)
    assert best.recall[0] == num_found / 100
    assert best.f1[0] == pytest.approx(2 * num_found / (num_found + 100))


def test_by_either_rules_the_cats_have_the_same_curve() -> None:
    classes = [ClassEntry(f"/m/{name}", name) for name in NAMES]
    rules = challenge_split(TRUTH, classes, hierarchy="", image_labels="")
    coco, challenge = coco_class_scores(TRUTH, FOUND, 3), rules.class_scores(FOUND)
    np.testing.assert_allclose(challenge.precisions, coco.precisions)
    np.testing.assert_allclose(challenge.thresholds[0], coco.thresholds[0])
    np.testing.assert_array_equal(challenge.images, coco.images)
    np.testing.assert_array_equal(challenge.instances, coco.instances)
    assert challenge.ap50[0] == rules.metrics(FOUND)["AP/cat"]
    assert coco.ap50[0] == pytest.approx(coco_metrics(TRUTH, FOUND, NAMES)["AP/cat"])


def test_confusions_count_each_object_and_each_prediction_once() -> None:
    confusions = count_confusions(TRUTH, FOUND, 3, min_score=0.5)
    expected = np.zeros((4, 4), int)
    expected[0, 0], expected[0, 3] = 3, 1  # of four cats one is missed
    expected[1, 0] = 1  # the dog is taken for a cat
    np.testing.assert_array_equal(confusions, expected)
    everything = count_confusions(TRUTH, FOUND, 3, min_score=0.0)
    far = np.zeros((4, 4), int)
    far[3, 0] = 1
    np.testing.assert_array_equal(everything, expected + far)


def test_confusions_count_more_than_a_hundred_objects_of_an_image() -> None:
    boxes = [[10 * y, 6 * x, 10 * y + 8, 6 * x + 5] for y in range(10) for x in range(15)]
    classes = [1 + k % 2 for k in range(150)]
    truth = ground_truth(*((0, k, box, False) for k, box in zip(classes, boxes, strict=True)))
    scores = np.linspace(0.9, 0.6, 150).tolist()
    found = detections(*((0, *row) for row in zip(classes, boxes, scores, strict=True)))
    confusions = count_confusions(truth, found, 2, min_score=0.5)
    np.testing.assert_array_equal(confusions, np.diag([75, 75, 0]))


def test_predictions_in_a_crowd_are_no_confusions() -> None:
    truth = ground_truth((0, 1, [0, 0, 50, 50], True), (0, 2, A, False), (1, 1, A, False))
    found = detections((0, 1, B, 0.9), (0, 2, B, 0.9), (0, 1, A, 0.8), (1, 1, A, 0.7))
    confusions = count_confusions(truth, found, 2, min_score=0.5)
    # The cat in the crowd of cats is not counted, a dog there is; the dog on A is taken for a cat.
    np.testing.assert_array_equal(confusions, [[1, 0, 0], [1, 0, 0], [0, 1, 0]])


def test_a_split_without_objects_or_without_detections_has_a_table() -> None:
    nothing = detections((0, 1, A, 0.9))
    nothing = DetectionTable(*(column[:0] for column in nothing[:4]))
    found = coco_class_scores(TRUTH, nothing, 3)
    assert best_points(found).f1.tolist()[:2] == [0, 0]
    assert best_threshold(found) == 0.5
    assert count_confusions(TRUTH, nothing, 3, min_score=0.5)[:3, 3].tolist() == [4, 1, 0]
    crowd = ground_truth((0, 1, A, True))
    assert np.isnan(best_points(coco_class_scores(crowd, FOUND, 3)).f1).all()


def test_the_table_of_the_log_and_the_csv_say_the_same() -> None:
    rows = class_rows(coco_class_scores(TRUTH, FOUND, 3), coco_metrics(TRUTH, FOUND, NAMES), NAMES)
    table = list(csv.DictReader(io.StringIO(class_table_csv(rows))))
    assert [row["class"] for row in table] == NAMES
    assert (table[0]["images"], table[0]["instances"], table[0]["F1"]) == ("2", "4", "0.7500")
    assert [table[2][key] for key in ("AP", "AP50", "precision", "F1", "score")] == [""] * 5
    lines = format_class_table(rows).splitlines()
    assert len({len(line) for line in lines}) == 1
    assert lines[1].split()[:3] == ["cat", "2", "4"]
    assert lines[3].split() == ["sheep", "0", "0", *("-" * 6)]
    masked = [rows[0]._replace(mask_ap=0.125), *rows[1:]]
    assert (
        class_table_csv(masked).splitlines()[0]
        == "class,images,instances,AP,AP50,precision,recall,F1,score,mask AP"
    )
    assert class_table_csv(masked).splitlines()[1].endswith(",0.1250")
    assert format_class_table(masked).splitlines()[1].endswith("    0.125")
    many = [rows[0]._replace(name=f"class {k}", instances=k) for k in range(30)]
    long = format_class_table(many).splitlines()
    assert len(long) == 22
    assert long[1].startswith("class 29")
    assert long[-1] == "and 10 more classes"


def test_no_share_is_a_negative_zero() -> None:
    """A log would show it as -0.000."""
    nothing = np.zeros((1, 101))
    thresholds = np.where(np.arange(101) == 0, 0.5, 0.0)[None]
    found = ClassScores(np.array([1]), np.array([3]), np.zeros(1), nothing, thresholds)
    assert not np.signbit(np.concatenate([*best_points(found)])).any()
