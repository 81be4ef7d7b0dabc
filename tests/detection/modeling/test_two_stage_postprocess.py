import numpy as np
import pytest

from tpudet.detection.modeling.roi_heads import BoxPredictions
from tpudet.detection.modeling.two_stage_postprocess import (
    log_scores,
    postprocess_rois,
    refine_rois,
)
from tpudet.detection.ops.boxes import encode_boxes

CANVAS = (40, 60)
WEIGHTS = (10.0, 10.0, 5.0, 5.0)
SETTINGS = {
    "box_weights": WEIGHTS,
    "score_threshold": 0.05,
    "iou_threshold": 0.5,
    "max_candidates": 20,
    "max_detections": 4,
}
ROIS = np.array([[[0, 0, 20, 20], [0, 2, 20, 22], [10, 30, 30, 50]]], np.float32)
VALID = np.ones((1, 3), bool)


def find(scores, deltas=None, *, valid=VALID, region=(0, 0, *CANVAS), **settings):
    scores = np.array(scores, np.float64)[None]
    if deltas is None:
        deltas = np.zeros((*scores.shape, 4), np.float32)
    with np.errstate(divide="ignore"):
        logarithms = np.log(scores).astype(np.float32)
    regions = np.array([region], np.float32)
    found = postprocess_rois(logarithms, deltas, ROIS, valid, regions, **{**SETTINGS, **settings})
    count = int(found.num_detections[0])
    for value in found[:3]:
        assert not np.any(value[0, count:])
    return [np.array(value)[0, :count] for value in found[:3]]


def test_suppression_is_within_each_class():
    """Regions 0 and 1 overlap by 0.82."""
    boxes, scores, classes = find([[0.9, 0.02], [0.6, 0.3], [0.04, 0.7]])
    np.testing.assert_allclose(boxes, ROIS[0, [0, 2, 1]], atol=1e-4)
    np.testing.assert_allclose(scores, [0.9, 0.7, 0.3], rtol=1e-5)
    np.testing.assert_array_equal(classes, [1, 2, 2])
    boxes, scores, _ = find([[0.9, 0.02], [0.6, 0.3], [0.04, 0.7]], iou_threshold=0.9)
    np.testing.assert_allclose(scores, [0.9, 0.7, 0.6, 0.3], rtol=1e-5)


def test_boxes_in_the_padding_of_the_canvas_do_not_count():
    boxes, scores, _ = find([[0.9, 0.0], [0.1, 0.0], [0.7, 0.0]], region=(0, 0, 15, 30))
    np.testing.assert_allclose(boxes, [[0, 0, 15, 20]], atol=1e-4)
    np.testing.assert_allclose(scores, [0.9], rtol=1e-5)


def test_invalid_regions_and_low_scores_are_no_candidates():
    valid = np.array([[False, True, True]])
    _, scores, _ = find([[0.9, 0.1], [0.6, 0.05], [0, 0.04]], valid=valid)
    np.testing.assert_allclose(scores, [0.6], rtol=1e-5)
    assert len(find([[0.9, 0.1]] * 3, valid=np.zeros((1, 3), bool))[1]) == 0


def test_boxes_are_those_of_their_class_weighted_and_clipped():
    targets = np.array([[-5, 10, 15, 30], [20, 40, 60, 70]], np.float32)
    deltas = np.zeros((1, 3, 2, 4), np.float32)
    for channel in range(2):
        deltas[0, 0, channel] = np.array(encode_boxes(targets[channel], ROIS[0, 0])) * WEIGHTS
    boxes, _, classes = find([[0.9, 0.8], [0, 0], [0, 0]], deltas)
    np.testing.assert_array_equal(classes, [1, 2])
    np.testing.assert_allclose(boxes, [[0, 10, 15, 30], [20, 40, 40, 60]], atol=1e-3)
    # All classes share the deltas of the first.
    boxes, _, classes = find([[0.9, 0.8], [0, 0], [0, 0]], deltas[:, :, :1])
    np.testing.assert_array_equal(classes, [1, 2])
    np.testing.assert_allclose(boxes, [[0, 10, 15, 30]] * 2, atol=1e-3)


def test_a_box_outside_the_canvas_is_no_detection():
    deltas = np.zeros((1, 3, 1, 4), np.float32)
    deltas[0, 0, 0] = [-200, 0, 0, 0]
    _, scores, _ = find([[0.9], [0.5], [0.4]], deltas)
    np.testing.assert_allclose(scores, [0.5, 0.4], rtol=1e-5)


def test_scores_are_softmaxes_averaged_over_stages():
    rng = np.random.default_rng(0)
    stages = rng.normal(size=(3, 2, 5, 4)).astype(np.float32)
    exponentials = np.exp(stages)
    softmaxes = exponentials / exponentials.sum(axis=-1, keepdims=True)
    np.testing.assert_allclose(
        np.exp(log_scores(list(stages[:1]))), softmaxes[0, ..., 1:], rtol=1e-5
    )
    np.testing.assert_allclose(
        np.exp(log_scores(list(stages))), softmaxes.mean(axis=0)[..., 1:], rtol=1e-5
    )


@pytest.mark.parametrize("shared", [True, False])
def test_a_stage_moves_regions_by_the_deltas_of_their_best_class(shared):
    target = np.array([4, 4, 24, 70], np.float32)
    deltas = np.full((1, 3, 1 if shared else 2, 4), 0.0, np.float32)
    deltas[0, 0, -1] = np.array(encode_boxes(target, ROIS[0, 0])) * WEIGHTS
    logits = np.tile(np.array([9, 0, 1], np.float32), (1, 3, 1))  # background is not a class
    found = refine_rois(
        ROIS, BoxPredictions(logits, deltas), box_weights=WEIGHTS, canvas_size=CANVAS
    )
    np.testing.assert_allclose(found[0, 0], [4, 4, 24, 60], atol=1e-3)
    np.testing.assert_allclose(found[0, 1:], ROIS[0, 1:], atol=1e-4)
