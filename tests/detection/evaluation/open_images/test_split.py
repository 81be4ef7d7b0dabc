"""The challenge's rules as the evaluation of a training run."""

import json
import tracemalloc
from pathlib import Path
from typing import get_args

import numpy as np
import pytest
import tensorflow as tf

from tpudet.detection.config import ExperimentConfig, Metric, OpenImagesRulesConfig
from tpudet.detection.evaluation.ground_truth import GroundTruth
from tpudet.detection.evaluation.open_images.masks import (
    read_mask_predictions,
    score_masks,
    truth_masks,
)
from tpudet.detection.evaluation.open_images.metric import average_precisions
from tpudet.detection.evaluation.open_images.split import challenge_split
from tpudet.detection.evaluation.open_images.truth import read_truth
from tpudet.detection.evaluation.results import EvaluatedSplit
from tpudet.detection.evaluation.split import build_evaluation
from tpudet.detection.ops.numpy_masks import encode_rle
from tpudet.detection.submission.mask_header import HEADER
from tpudet.detection.submission.mask_text import encode_mask
from tpudet.detection.types import Batch, Detections, DetectionTable
from tpudet.trainkit.class_list import ClassEntry
from tpudet.trainkit.config.decode import ConfigError, decode, parse_tree
from tpudet.trainkit.training.devices import choose_tensorflow_devices
from tpudet.trainkit.training.model_dir import load_classes

CLASSES = [ClassEntry("/dog", "Dog"), ClassEntry("/cat", "Cat"), ClassEntry("/animal", "Animal")]
TREE = {
    "LabelName": "/root",
    "Subcategory": [
        {"LabelName": "/animal", "Subcategory": [{"LabelName": "/dog"}, {"LabelName": "/cat"}]}
    ],
}


def truth_of(boxes: list, classes: list[int], images: list[int], crowds: list[bool]) -> GroundTruth:
    return GroundTruth(
        records=np.array([4, 5]),
        sizes=np.full((2, 2), 100.0),
        image_indices=np.array(images),
        boxes=np.array(boxes, float),
        classes=np.array(classes),
        is_crowd=np.array(crowds),
        areas=np.ones(len(classes)),
        source_ids=("a", "b"),
    )


@pytest.fixture
def tree(tmp_path: Path) -> str:
    (tmp_path / "tree.json").write_text(json.dumps(TREE))
    return str(tmp_path / "tree.json")


DOG, CAT = [0, 0, 50, 50], [50, 50, 90, 90]
TRUTH = truth_of([DOG, CAT], [1, 2], [0, 1], [False, True])


def test_objects_and_detections_count_for_their_ancestors_too(tree: str) -> None:
    detections = DetectionTable(
        np.array([0, 0, 1]), np.array([DOG, DOG, [60, 60, 70, 70]], float),
        np.array([0.9, 0.8, 0.7]), np.array([1, 2, 2]),
    )  # fmt: skip
    rules = challenge_split(TRUTH, CLASSES, hierarchy=tree, image_labels="")
    # The cat on the first image is not verified. Its animal is the dog's: the same box, there once.
    assert rules.metrics(detections) == {
        "AP": 1.0, "AP50": 1.0, "AP/Dog": 1.0, "AP/Cat": 1.0, "AP/Animal": 1.0,
    }  # fmt: skip
    plain = challenge_split(TRUTH, CLASSES, hierarchy="", image_labels="")
    metrics = plain.metrics(detections)
    assert metrics["AP/Animal"] == -1
    assert metrics["AP"] == 1.0
    assert plain.explanations(metrics) == ["AP is -1 for 1 classes without ground truth: Animal"]


def test_masks_are_scored_by_masks_and_count_for_ancestors_too(tree: str) -> None:
    """The dog is the left half of its box: a detection of the right half has its box, not it."""
    left, right, cat = (np.zeros((100, 100), bool) for _ in range(3))
    left[:50, :25] = right[:50, 25:50] = cat[50:90, 50:90] = True
    truth = TRUTH._replace(masks=[encode_rle(left), encode_rle(cat)])
    detections = DetectionTable(
        np.array([0, 0, 1]), np.array([DOG, DOG, [60, 60, 70, 70]], float),
        np.array([0.9, 0.8, 0.7]), np.array([1, 1, 2]),
        [encode_rle(right), encode_rle(left), encode_rle(cat)],
    )  # fmt: skip
    rules = challenge_split(truth, CLASSES, hierarchy=tree, image_labels="")
    metrics = rules.metrics(detections)
    assert metrics["AP/Dog"] == 1.0
    # Found by the second detection only; of the two animals (a dog, a group) one by the second
    # and one by the third.
    expected = {"Dog": 0.5, "Cat": 1.0, "Animal": 0.5 * (2 / 3) + 0.5 * (2 / 3)}
    for name, value in expected.items():
        assert metrics[f"mask_AP/{name}"] == pytest.approx(value)
    assert (
        metrics["mask_AP"] == metrics["mask_AP50"] == pytest.approx(np.mean([*expected.values()]))
    )
    assert not any(
        key.startswith("mask_") for key in rules.metrics(detections._replace(masks=None))
    )


def test_objects_without_a_mask_absorb_detections_of_masks_and_are_objects_for_boxes(
    tree: str,
) -> None:
    """The dog has a mask; another on the same image and a group of cats have none.

    Of masks the other dog takes one detection, which does not count; recall counts the first dog
    and, as the published scorer does, the group.
    """
    other, dog, box = [50, 0, 90, 50], np.zeros((100, 100), bool), np.ones((100, 100), bool)
    dog[:50, :50] = True
    truth = truth_of([DOG, other, CAT], [1, 1, 2], [0, 0, 1], [False, False, True])._replace(
        lacks_mask=np.array([False, True, True]),
        masks=[encode_rle(mask) for mask in (dog, box, box)],
    )
    shapes = [np.zeros((100, 100), bool) for _ in range(4)]
    shapes[0][50:90, :50] = shapes[2][50:90, :50] = shapes[1][:50, :50] = True
    shapes[3][50:90, 50:90] = True
    found = DetectionTable(
        np.array([0, 0, 0, 1]), np.array([other, DOG, other, CAT], float),
        np.array([0.9, 0.8, 0.7, 0.6]), np.array([1, 1, 1, 2]), [*map(encode_rle, shapes)],
    )  # fmt: skip
    metrics = challenge_split(truth, CLASSES, hierarchy="", image_labels="").metrics(found)
    assert metrics["AP/Dog"] == metrics["AP/Cat"] == metrics["mask_AP/Dog"] == 1.0
    assert metrics["mask_AP/Cat"] == 0.0
    # One more detection of the other dog is a false positive, of masks as of boxes.
    twice = found._replace(scores=np.array([0.9, 0.8, 0.85, 0.6]))
    metrics = challenge_split(truth, CLASSES, hierarchy="", image_labels="").metrics(twice)
    assert metrics["AP/Dog"] == pytest.approx((1 + 2 / 3) / 2)
    assert metrics["mask_AP/Dog"] == 0.5
    # Records written before objects could lack a mask have crowds only, which count as groups.
    earlier = truth._replace(is_crowd=np.array([False, True, True]), lacks_mask=None)
    metrics = challenge_split(earlier, CLASSES, hierarchy="", image_labels="").metrics(found)
    assert metrics["mask_AP/Cat"] == 1.0


@pytest.mark.parametrize("with_masks", [False, True])
def test_of_detections_in_one_place_an_ancestor_keeps_the_best(tree: str, with_masks: bool) -> None:
    """As a loop finds them; many of the 400 detections are in one of six places of an image."""
    generator = np.random.default_rng(0)
    corners = np.array([[y, x, y + 30, x + 30] for y in (0, 40) for x in (0, 30, 60)], float)
    drawn = [np.zeros((100, 100), bool) for _ in corners]
    for mask, (y1, x1, y2, x2) in zip(drawn, corners.astype(int).tolist(), strict=True):
        mask[y1:y2, x1:x2] = True
    texts = [encode_rle(mask) for mask in drawn]
    truth = truth_of(corners[:4].tolist(), [1, 2, 2, 1], [0, 0, 1, 1], [False] * 4)
    places, images, classes = (generator.integers(0, high, 400) for high in (6, 2, 2))
    detections = DetectionTable(
        images, corners[places], generator.permutation(400) / 400, classes + 1
    )
    if with_masks:  # the boxes differ then, so that masks alone decide
        truth = truth._replace(masks=texts[:4])
        detections = detections._replace(
            boxes=detections.boxes + generator.random((400, 1)),
            masks=[dict(texts[place]) for place in places.tolist()],
        )
    best: dict[tuple, int] = {}
    for row in np.argsort(-detections.scores).tolist():
        for class_id in (int(detections.classes[row]), 3):
            key = int(images[row]), class_id, int(places[row])
            best.setdefault(key, row)
    rows = list(best.values())
    expanded = DetectionTable(
        images[rows],
        detections.boxes[rows],
        detections.scores[rows],
        np.array([class_id for _, class_id, _ in best]),
        detections.masks and [detections.masks[row] for row in rows],
    )
    rules = challenge_split(truth, CLASSES, hierarchy=tree, image_labels="")
    plain = rules._replace(ancestors=[[], [], []])
    key = "mask_AP/Animal" if with_masks else "AP/Animal"
    assert rules.metrics(detections)[key] == plain.metrics(expanded)[key]
    assert 0 < plain.metrics(expanded)[key] < 1


def test_one_long_mask_does_not_make_all_masks_long(tree: str) -> None:
    """2,000 masks of which two have 100 KB of counts: 0.8 GB as an array of 4 bytes a character.

    The best two are a dog of 160 stripes, found as a dog and as a cat by equal masks: one animal.
    """
    stripes, cat = np.zeros((320, 320), bool), np.zeros((100, 100), bool)
    stripes[1::2] = cat[50:90, 50:90] = True
    texts = [encode_rle(stripes), encode_rle(stripes), encode_rle(cat)]
    assert len(texts[0]["counts"]) > 100_000
    for row in range(1997):
        cat[:] = False
        cat[row // 50 : row // 50 + 5, row % 50 : row % 50 + 5] = True
        texts.append(encode_rle(cat))
    truth = truth_of([DOG, CAT], [1, 2], [0, 1], [False, False])
    truth = truth._replace(masks=[texts[0], texts[2]])
    detections = DetectionTable(
        np.array([0, 0] + [1] * 1998), np.zeros((2000, 4)), np.linspace(0.9, 0.1, 2000),
        np.array([1] + [2] * 1999), texts,
    )  # fmt: skip
    rules = challenge_split(truth, CLASSES, hierarchy=tree, image_labels="")
    tracemalloc.start()
    try:
        metrics = rules.metrics(detections)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert metrics["mask_AP/Animal"] == 1.0
    assert peak < 20e6


def test_masks_without_a_pixel_do_not_count_as_in_a_submission(tmp_path: Path) -> None:
    dog, empty = np.zeros((100, 100), bool), np.zeros((100, 100), bool)
    dog[:50, :50] = True
    truth = truth_of([DOG], [1], [0], [False])._replace(masks=[encode_rle(dog)])
    detections = DetectionTable(
        np.array([0, 0]), np.array([CAT, DOG], float), np.array([0.9, 0.8]), np.array([1, 1]),
        [encode_rle(empty), encode_rle(dog)],
    )  # fmt: skip
    metrics = challenge_split(truth, CLASSES, hierarchy="", image_labels="").metrics(detections)
    assert metrics["AP"] == 0.5  # of boxes, of which the first is wrong
    assert metrics["mask_AP"] == 1.0
    none = detections._replace(masks=[encode_rle(empty)] * 2)
    metrics = challenge_split(truth, CLASSES, hierarchy="", image_labels="").metrics(none)
    assert metrics["mask_AP"] == 0.0

    texts = [encode_mask(encode_rle(mask)) for mask in (empty, dog)]
    truth_path, path = str(tmp_path / "truth.csv"), tmp_path / "sub.csv"
    Path(truth_path).write_text(
        "ImageID,LabelName,XMin,XMax,YMin,YMax,IsGroupOf,ImageWidth,ImageHeight,Mask\n"
        f"a,/dog,0,0.5,0,0.5,0,100,100,{texts[1]}\n"
    )
    path.write_text(f"{HEADER}\na,100,100,/dog 0.9 {texts[0]} /dog 0.8 {texts[1]}\n")
    labelled = read_truth(truth_path, with_masks=True)
    assert labelled.masks is not None
    masks = truth_masks(truth_path, labelled.masks, labelled.truth.is_group_of)
    found, _ = read_mask_predictions(str(path), labelled)
    assert average_precisions(score_masks(labelled.truth, masks, found)).tolist() == [1.0]


def test_verified_labels_reach_every_copy_of_an_image(tmp_path: Path) -> None:
    """A balanced split repeats images: three times one without a cat, found on each."""
    path = tmp_path / "labels.csv"
    path.write_text("ImageID,LabelName,Confidence\na,/cat,0\n")
    truth = truth_of([CAT], [2], [1], [False])._replace(
        records=np.arange(4), sizes=np.full((4, 2), 100.0), source_ids=("a", "b", "a", "a")
    )
    detections = DetectionTable(
        np.array([0, 2, 3, 1]), np.array([CAT] * 4, float), np.array([0.9, 0.8, 0.7, 0.6]),
        np.full(4, 2),
    )  # fmt: skip
    rules = challenge_split(truth, CLASSES, hierarchy="", image_labels=str(path))
    assert rules.truth.verified[:, 1].tolist() == [True] * 4
    assert rules.metrics(detections)["AP/Cat"] == 0.25  # three false positives, then the cat


def test_verified_labels_make_false_positives(tree: str, tmp_path: Path) -> None:
    path = tmp_path / "labels.csv"
    path.write_text("ImageID,LabelName,Confidence\na,/cat,0\nelsewhere,/dog,1\n")
    detections = DetectionTable(
        np.array([0, 1]), np.array([DOG, CAT], float), np.array([0.9, 0.8]), np.array([2, 2])
    )
    rules = challenge_split(TRUTH, CLASSES, hierarchy=tree, image_labels=str(path))
    assert rules.metrics(detections)["AP/Cat"] == 0.5
    path.write_text("ImageID,LabelName,Confidence\nelsewhere,/dog,1\n")
    with pytest.raises(ValueError, match="none of its images is in this split"):
        challenge_split(TRUTH, CLASSES, hierarchy=tree, image_labels=str(path))


def test_the_absence_of_an_ancestor_that_is_no_class_makes_false_positives(
    tree: str, tmp_path: Path
) -> None:
    leaves, path = CLASSES[:2], tmp_path / "labels.csv"
    path.write_text("ImageID,LabelName,Confidence\nb,/animal,0\n")
    detections = DetectionTable(
        np.array([0, 1]), np.array([DOG, CAT], float), np.array([0.8, 0.9]), np.array([1, 1])
    )
    rules = challenge_split(TRUTH, leaves, hierarchy=tree, image_labels=str(path))
    assert rules.truth.verified.tolist() == [[True, False], [True, True]]
    assert rules.metrics(detections)["AP/Dog"] == 0.5
    path.write_text("ImageID,LabelName,Confidence\nb,/animal,1\n")  # of no class in particular
    with pytest.raises(ValueError, match=r"labels\.csv: none .* its first is '/animal'"):
        challenge_split(TRUTH, leaves, hierarchy=tree, image_labels=str(path))


def test_files_of_which_no_label_is_a_class_are_refused(tree: str, tmp_path: Path) -> None:
    numbered = [ClassEntry("1", "dog"), ClassEntry("2", "cat")]
    match = (
        r"tree\.json: none of its labels .* its first is '/animal', the first class is '1', 'dog'"
    )
    with pytest.raises(ValueError, match=match):
        challenge_split(TRUTH, numbered, hierarchy=tree, image_labels="")
    (tmp_path / "labels.csv").write_text("ImageID,LabelName,Confidence\na,/bird,0\n")
    with pytest.raises(ValueError, match=r"labels\.csv: none .* its first is '/bird'"):
        challenge_split(TRUTH, CLASSES, hierarchy="", image_labels=f"{tmp_path}/labels.csv")


def test_the_config_knows_both_rules() -> None:
    rules = "{kind: open_images, hierarchy: h.json}"
    text = f"evaluation: {{rules: {rules}, schedule: {{best_metric: AP50}}}}"
    config = decode(ExperimentConfig, parse_tree(text, "x.yaml"))
    assert config.evaluation.rules == OpenImagesRulesConfig(hierarchy="h.json")
    assert ExperimentConfig().evaluation.rules.kind == "coco"
    with pytest.raises(ConfigError, match="best_metric AP75 is not a metric of rules.kind"):
        decode(ExperimentConfig, parse_tree(text.replace("AP50", "AP75"), "x.yaml"))


def test_a_detector_that_knows_the_truth_has_ap_1_by_either_rules(
    sample_part: str, tmp_path: Path
) -> None:
    text = f"data: {{directory: {sample_part}, canvas_size: [128, 128]}}\n"
    text += "evaluation:\n  schedule: {num_images: 0, batch_size: 3}\n"

    def predict(batch: Batch) -> Detections:
        is_object = batch.classes > 0
        scores = tf.where(is_object, 0.9, 0.0)
        num_objects = tf.reduce_sum(tf.cast(is_object, tf.int32), axis=1)
        return Detections(batch.boxes, scores, batch.classes, num_objects)

    reports: list[EvaluatedSplit] = []

    def evaluate(rules: str) -> dict[str, float]:
        evaluation = build_evaluation(
            decode(ExperimentConfig, parse_tree(text + rules, "x.yaml")),
            predict=predict,
            classes=load_classes(sample_part)[1],
            devices=choose_tensorflow_devices("cpu"),
            image_path=str(tmp_path / "none.png"),
            report=reports.append,
        )
        return evaluation(1).metrics

    coco, challenge = evaluate(""), evaluate("  rules: {kind: open_images}\n")
    assert coco["AP50"] == pytest.approx(1)
    assert challenge["AP"] == challenge["AP50"] == 1
    assert "AP75" in coco
    for results in reports:  # whatever the rules, each object is found and nothing else
        assert all(row.f1 is None or row.f1 == pytest.approx(1) for row in results.rows)
        matrix = results.confusions
        assert matrix.sum() == np.trace(matrix) == results.scores.instances.sum() > 0
    of_boxes = {name for name in get_args(Metric) if not name.startswith("mask_")}
    assert set(coco) - set(challenge) == of_boxes - {"AP", "AP50"}
    with pytest.raises(ConfigError, match=r"none\.json"):
        evaluate(f"  rules: {{kind: open_images, hierarchy: {tmp_path}/none.json}}\n")
