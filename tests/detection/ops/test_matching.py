from typing import Any

import numpy as np
import pytest

from tpudet.detection.ops.anchors import anchors_for_canvas
from tpudet.detection.ops.matching import IGNORED, match_argmax_iou

ANCHORS = np.array([[0, 0, 10, 10], [0, 10, 10, 20], [0, 20, 10, 30], [50, 50, 60, 60]], np.float32)

FORCED: dict[str, Any] = {"force_match": True, "forced_target": "object"}


def match(boxes, classes, is_crowd=None, anchors=ANCHORS, **settings):
    boxes = np.asarray(boxes, np.float32).reshape(1, -1, 4)
    classes = np.asarray(classes, np.int32).reshape(1, -1)
    is_crowd = np.zeros(classes.shape, bool) if is_crowd is None else np.array([is_crowd])
    settings = {**FORCED, "match_threshold": 0.5, "unmatched_threshold": 0.4, **settings}
    found = match_argmax_iou(anchors, boxes, classes, is_crowd, **settings)
    return np.array(found.classes)[0], np.array(found.boxes)[0]


def test_positive_ignored_and_background_by_hand():
    # IoU of the boxes with their anchors: 0.6, 0.45 and 0.2.
    boxes = [[0, 0, 10, 6], [0, 10, 10, 14.5], [0, 20, 10, 22]]
    classes, found = match(boxes, [7, 8, 9], force_match=False)
    np.testing.assert_array_equal(classes, [7, IGNORED, 0, 0])
    np.testing.assert_array_equal(found[0], boxes[0])
    np.testing.assert_array_equal(found[1:], ANCHORS[1:])
    classes, found = match(boxes, [7, 8, 9], force_match=True)
    np.testing.assert_array_equal(classes, [7, 8, 9, 0])
    np.testing.assert_array_equal(found[:3], boxes)


def test_anchor_best_for_two_goes_to_the_first():
    boxes = [[0, 0, 10, 2], [0, 0, 10, 3], [0, 0, 10, 2]]
    assert match(boxes, [4, 5, 6])[0][0] == 4
    assert match(boxes[::-1], [6, 5, 4])[0][0] == 6


def test_forced_match_beats_a_better_overlap():
    # The second box overlaps anchor 0 more, but has a better one; anchor 0 is the first box's best.
    boxes = [[0, 0, 4, 10], [0, 4, 10, 20]]
    classes, _ = match(boxes, [1, 2], match_threshold=0.3, unmatched_threshold=0.3)
    np.testing.assert_array_equal(classes, [1, 2, 0, 0])


def test_forced_anchors_that_keep_the_object_they_overlap_most():
    # IoU of the boxes with anchors 0, 1 and 2: 0.2 0 0; 0.3 0.625 0; 0 0.333 0.333.
    boxes = [[0, 0, 2, 10], [0, 4, 10, 20], [0, 15, 10, 25]]
    settings: dict[str, Any] = {"match_threshold": 0.9, "unmatched_threshold": 0.9}
    np.testing.assert_array_equal(match(boxes, [1, 2, 3], **settings)[0], [1, 2, 0, 0])
    classes, found = match(boxes, [1, 2, 3], forced_target="argmax", **settings)
    np.testing.assert_array_equal(classes, [2, 2, 3, 0])
    np.testing.assert_array_equal(found[:3], [boxes[1], boxes[1], boxes[2]])
    # An object that touches no anchor forces none.
    classes, _ = match([[200, 200, 210, 210]], [1], forced_target="argmax", **settings)
    np.testing.assert_array_equal(classes, 0)


def test_no_instances():
    classes, boxes = match(np.zeros((3, 4)), [0, 0, 0])
    np.testing.assert_array_equal(classes, 0)
    np.testing.assert_array_equal(boxes, ANCHORS)


@pytest.mark.parametrize(
    "box",
    [[3, 3, 3, 8], [8, 8, 3, 3], [np.nan, 0, 10, 10], [0, 0, np.inf, 10], [200, 200, 210, 210]],
)
def test_instance_without_area_or_out_of_reach_matches_nothing(box):
    classes, boxes = match([box, [50, 50, 60, 60]], [1, 2])
    np.testing.assert_array_equal(classes, [0, 0, 0, 2])
    assert np.all(np.isfinite(boxes))


def test_crowd_is_a_region_to_ignore():
    # It holds half of anchor 0, a third of anchor 1 and all of anchor 3, which has an instance.
    boxes = [[0, 0, 5, 10], [0, 10, 10, 13], [49, 49, 61, 61], [50, 50, 60, 60]]
    classes, _ = match(boxes, [1, 1, 1, 2], is_crowd=[True, True, True, False])
    np.testing.assert_array_equal(classes, [IGNORED, 0, 0, 2])


def loop_reference(anchors, boxes, classes, is_crowd, high, low):
    """The rules of match_argmax_iou, said one anchor at a time.

    In float32: a box inside two anchors of one size overlaps both alike, and rounding decides.
    """

    def shared(a, b):
        height, width = np.maximum(np.minimum(a[2:], b[2:]) - np.maximum(a[:2], b[:2]), 0)
        return height * width

    def area(a):
        return (a[2] - a[0]) * (a[3] - a[1])

    def iou(a, b):
        return shared(a, b) / (area(a) + area(b) - shared(a, b))

    instances = [n for n in range(len(boxes)) if classes[n] > 0 and not is_crowd[n]]
    table = {n: np.array([iou(boxes[n], a) for a in anchors]) for n in instances}
    answers = np.zeros(len(anchors), int)
    for index, anchor in enumerate(anchors):
        best = max(instances, key=lambda n: (table[n][index], -n), default=None)
        overlap = -1.0 if best is None else table[best][index]
        inside = any(
            shared(anchor, boxes[n]) / area(anchor) >= 0.5
            for n in range(len(boxes))
            if classes[n] > 0 and is_crowd[n]
        )
        answers[index] = (
            classes[best] if overlap >= high else IGNORED if overlap >= low or inside else 0
        )
    for n in reversed(instances):
        if table[n].max() > 0:
            answers[table[n].argmax()] = classes[n]
    return answers


def test_agrees_with_a_loop():
    anchors = anchors_for_canvas(
        canvas_size=(64, 64),
        strides=(8, 16, 32),
        num_scales=2,
        aspect_ratios=(1.0, 2.0),
        anchor_size=3.0,
        sides=(),
        layout="centered",
    )
    rng = np.random.default_rng(5)
    shape = (6, 8)
    corners = rng.uniform(0, 64, (*shape, 2, 2))
    boxes = np.concatenate([corners.min(-2), corners.max(-2) + 0.5], axis=-1).astype(np.float32)
    classes = rng.integers(0, 5, shape).astype(np.int32)
    is_crowd = rng.uniform(size=shape) < 0.2
    classes[-1] = 0
    found = match_argmax_iou(
        anchors, boxes, classes, is_crowd, match_threshold=0.5, unmatched_threshold=0.3, **FORCED
    )
    for image in range(shape[0]):
        expected = loop_reference(
            anchors, boxes[image], classes[image], is_crowd[image], high=0.5, low=0.3
        )
        np.testing.assert_array_equal(np.array(found.classes)[image], expected)
    assert {IGNORED, 0, 1, 2, 3, 4} == set(np.unique(found.classes))
