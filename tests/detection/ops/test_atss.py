import numpy as np
import pytest
import tensorflow as tf

from tpudet.detection.ops.anchors import anchors_for_canvas, locations_per_level
from tpudet.detection.ops.atss import centerness, match_atss
from tpudet.detection.ops.matching import IGNORED

# One level of four places in a row, an anchor of 10x10 pixels each; and a second of one place.
ANCHORS = np.array([[0, x, 10, x + 10] for x in (0, 10, 20, 30)] + [[-5, 0, 15, 40]], np.float32)
LEVELS = (4, 1)


def match(boxes, classes, is_crowd=None, **settings):
    boxes = np.asarray(boxes, np.float32).reshape(1, -1, 4)
    classes = np.asarray(classes, np.int32).reshape(1, -1)
    is_crowd = np.zeros(classes.shape, bool) if is_crowd is None else np.array([is_crowd])
    settings = {"locations_per_level": LEVELS, "candidates_per_level": 2, **settings}
    found = match_atss(ANCHORS, boxes, classes, is_crowd, **settings)
    return np.array(found.classes)[0], np.array(found.boxes)[0]


def centered_anchors(**settings):
    return anchors_for_canvas(**settings, sides=(), layout="centered")


def test_threshold_by_hand():
    # Nearby are places 0 and 1 and the large anchor, IoU 0.8, 0 and 0.1: mean 0.3, deviation 0.436.
    classes, found = match([0, 1, 10, 9], [7])
    np.testing.assert_array_equal(classes, [7, 0, 0, 0, 0])
    np.testing.assert_array_equal(found[0], [0, 1, 10, 9])
    np.testing.assert_array_equal(found[1:], ANCHORS[1:])
    # Places 1 and 2, 0.139 both, and the large one, 0.9.
    np.testing.assert_array_equal(match([-5, 0, 15, 36], [7])[0], [0, 0, 0, 0, 7])


def test_equal_overlaps_are_all_chosen():
    """300 objects of 60 to 120 pixels hold their 9 candidates of 32 pixels, at a stride of 8."""
    levels = {"canvas_size": (1024, 1024), "strides": (8,)}
    anchors = centered_anchors(**levels, num_scales=1, aspect_ratios=(1.0,), anchor_size=4.0)
    rng = np.random.default_rng(0)
    centers, halves = rng.uniform(100, 924, (300, 1, 2)), rng.uniform(30, 60, (300, 1, 2))
    boxes = np.concatenate([centers - halves, centers + halves], axis=-1).astype(np.float32)
    found = match_atss(
        anchors,
        boxes,
        np.ones((300, 1), np.int32),
        np.zeros((300, 1), bool),
        locations_per_level=locations_per_level(**levels),
        candidates_per_level=9,
    )
    np.testing.assert_array_equal(np.sum(found.classes == 1, axis=1), 9)


def test_center_of_the_anchor_must_lie_within():
    # Place 0, its centre at 5: IoU 0.375 over a threshold of 0.354, and 0.5 over 0.462.
    np.testing.assert_array_equal(match([0, 5.5, 10, 12], [7])[0], 0)
    np.testing.assert_array_equal(match([0, 4.5, 10, 11], [7])[0], [7, 0, 0, 0, 0])


def test_anchor_of_two_goes_to_the_greater_overlap_and_of_equals_to_the_first():
    boxes = [[0, 1, 10, 9], [0, 1, 10, 10], [0, 1, 10, 10]]
    classes, found = match(boxes, [4, 5, 6])
    np.testing.assert_array_equal(classes, [5, 0, 0, 0, 0])
    np.testing.assert_array_equal(found[0], boxes[1])
    assert match(boxes[::-1], [6, 5, 4])[0][0] == 6


def test_more_candidates_than_places_are_all_of_them():
    classes, _ = match([0, 1, 10, 9], [7], candidates_per_level=100)
    np.testing.assert_array_equal(classes, [7, 0, 0, 0, 0])


def test_no_instances():
    classes, boxes = match(np.zeros((3, 4)), [0, 0, 0])
    np.testing.assert_array_equal(classes, 0)
    np.testing.assert_array_equal(boxes, ANCHORS)


@pytest.mark.parametrize(
    "box",
    [[3, 3, 3, 8], [8, 8, 3, 3], [np.nan, 0, 10, 10], [0, 0, np.inf, 10], [200, 200, 210, 210]],
)
def test_instance_without_area_or_out_of_reach_matches_nothing(box):
    classes, boxes = match([box, [0, 31, 10, 39]], [1, 2])
    np.testing.assert_array_equal(classes, [0, 0, 0, 2, 0])
    assert np.all(np.isfinite(boxes))


def test_crowd_is_a_region_to_ignore():
    # It holds half of anchor 0, a third of anchor 1 and all of anchor 3, which has an instance.
    boxes = [[0, 0, 5, 10], [0, 10, 10, 13], [-1, 29, 11, 41], [0, 31, 10, 39]]
    classes, _ = match(boxes, [1, 1, 1, 2], is_crowd=[True, True, True, False])
    np.testing.assert_array_equal(classes, [IGNORED, 0, 0, 2, 0])


def loop_reference(anchors, boxes, classes, levels, per_location, count):
    """Algorithm 1 of arXiv 1912.02424, one instance at a time; no crowds."""

    def iou(a, b):
        height, width = np.maximum(np.minimum(a[2:], b[2:]) - np.maximum(a[:2], b[:2]), 0)
        areas = [(c[2] - c[0]) * (c[3] - c[1]) for c in (a, b)]
        return height * width / (sum(areas) - height * width)

    centers = (anchors[:, :2] + anchors[:, 2:]) / 2
    answers, best = np.zeros(len(anchors), int), np.zeros(len(anchors))
    for box, label in zip(boxes, classes, strict=True):
        if label == 0:
            continue
        distances = np.linalg.norm(centers - (box[:2] + box[2:]) / 2, axis=1)
        candidates, start = [], 0
        for size in levels:
            level = np.arange(start, start + size * per_location)
            nearest = level[np.argsort(distances[level], kind="stable")]
            candidates += list(nearest[: count * per_location])
            start += size * per_location
        overlaps = np.array([iou(box, anchors[index]) for index in candidates])
        threshold = overlaps.mean() + overlaps.std(ddof=1)
        for index, overlap in zip(candidates, overlaps, strict=True):
            within = np.all(box[:2] < centers[index]) and np.all(centers[index] < box[2:])
            if overlap >= threshold and within and overlap > best[index]:
                answers[index], best[index] = label, overlap
    return answers


@pytest.mark.parametrize(("scales", "jit_compile"), [(1, False), (3, False), (3, True)])
def test_agrees_with_a_loop_traced_for_any_batch(scales, jit_compile):
    levels = {"canvas_size": (64, 96), "strides": (8, 16, 32)}
    anchors = centered_anchors(
        **levels, num_scales=scales, aspect_ratios=(1.0, 2.0)[:scales], anchor_size=3.0
    )
    per_location = len(anchors) // sum(locations_per_level(**levels))
    assert locations_per_level(**levels) == (8 * 12, 4 * 6, 2 * 3)
    assert per_location == {1: 1, 3: 6}[scales]
    rng = np.random.default_rng(5)
    shape = (8, 6)
    corners = rng.uniform(0, 64, (*shape, 2, 2))
    boxes = np.concatenate([corners.min(-2), corners.max(-2) + 2.0], axis=-1).astype(np.float32)
    classes = rng.integers(0, 5, shape).astype(np.int32)
    classes[-1] = 0

    @tf.function(
        input_signature=[tf.TensorSpec((None, 6, 4)), tf.TensorSpec((None, 6), tf.int32)],
        jit_compile=jit_compile,
    )
    def traced(boxes, classes):
        return match_atss(
            anchors,
            boxes,
            classes,
            tf.zeros_like(classes, tf.bool),
            locations_per_level=locations_per_level(**levels),
            candidates_per_level=4,
        )

    found = traced(boxes, classes)
    for image in range(shape[0]):
        expected = loop_reference(
            anchors.astype(np.float64),
            boxes[image].astype(np.float64),
            classes[image],
            locations_per_level(**levels),
            per_location,
            4,
        )
        np.testing.assert_array_equal(np.array(found.classes)[image], expected)
    assert {0, 1, 2, 3, 4} == set(np.unique(found.classes))


def test_centerness_by_hand():
    """The anchor's centre is 5 5: in the middle, nearer to sides, on one, beyond, in a point."""
    boxes = [[0, 0, 10, 10], [0, 3, 20, 9], [5, 0, 9, 10], [6, 0, 9, 10], [5, 5, 5, 5]]
    found = centerness(np.tile(ANCHORS[:1], (5, 1)), np.array([boxes], np.float32))
    np.testing.assert_allclose(found[0], [1, np.sqrt(5 / 15 * 2 / 4), 0, 0, 0], rtol=1e-6)
