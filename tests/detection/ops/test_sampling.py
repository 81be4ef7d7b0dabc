import numpy as np
import pytest
import tensorflow as tf

from tpudet.detection.ops.sampling import (
    draw_balanced,
    match_rois,
    random_ranks,
    rematch_rois,
    sample_rois,
)
from tpudet.trainkit.record_numbers import mix_shard

SAMPLE = {"iou_threshold": 0.5, "count": 8, "max_positives": 2}


def plain_hash(record, step, place, stream):
    """Murmur3's finaliser in Python's integers."""

    def mix(bits):
        bits = (bits ^ bits >> 16) * 0x85EBCA6B % 2**32
        bits = (bits ^ bits >> 13) * 0xC2B2AE35 % 2**32
        return bits ^ bits >> 16

    key = mix((step + 0x9E3779B9 * (stream + 1)) % 2**32)
    return (mix(mix(record % 2**32 ^ key) ^ place) >> 8) / 2**24


def test_random_ranks_by_the_plain_hash():
    records = [0, 1, 2**31 - 1]
    for step, stream in ((0, 0), (90_000, 1)):
        found = random_ranks(np.array(records), np.int32(step), count=5, stream=stream)
        expected = [[plain_hash(r, step, place, stream) for place in range(5)] for r in records]
        np.testing.assert_array_equal(found, np.array(expected, np.float32))


def test_records_at_one_place_of_several_shards_draw_differently():
    records = np.array([5, 5 + 2**32, 5 + 7 * 2**32])
    found = np.array(random_ranks(records, np.int32(3), count=4, stream=0))
    mixed = [5, 5 ^ 0x9E3779B1, 5 ^ 7 * 0x9E3779B1]
    expected = [[plain_hash(record, 3, place, 0) for place in range(4)] for record in mixed]
    np.testing.assert_array_equal(found, np.array(expected, np.float32))
    # As JAX gets them, which has 32 bits only.
    short = mix_shard(records).astype(np.int32)
    np.testing.assert_array_equal(random_ranks(short, np.int32(3), count=4, stream=0), found)


def test_random_ranks_are_uniform_and_do_not_depend_on_each_other():
    records = np.arange(64)
    ranks = {
        (step, stream): np.array(random_ranks(records, step, count=512, stream=stream))
        for step in (0, 1, 12345)
        for stream in (0, 1)
    }
    drawn = np.stack(list(ranks.values())).reshape(-1, 512)  # a row per step, stream and record
    counts = np.histogram(drawn, bins=20, range=(0, 1))[0] / drawn.size
    np.testing.assert_allclose(counts, 0.05, atol=0.002)
    correlations = np.corrcoef(drawn) - np.eye(len(drawn))
    assert np.abs(correlations).max() < 0.25  # of 73,536 pairs; one deviation is 0.044
    assert np.abs(correlations).mean() < 0.04


def test_an_image_draws_the_same_wherever_it_is_in_the_batch():
    whole = np.array(random_ranks(np.array([4, 9, 2]), 7, count=30, stream=0))
    alone = np.array(random_ranks(np.array([2]), 7, count=30, stream=0))
    np.testing.assert_array_equal(whole[2:], alone)


def draw(classes, ranks=None, **settings):
    classes = np.atleast_2d(classes)
    if ranks is None:
        ranks = np.random.default_rng(0).random(classes.shape)
    found = draw_balanced(
        classes, np.asarray(ranks, np.float32), **{"count": 4, "max_positives": 2, **settings}
    )
    return [np.array(value) for value in found]


def test_the_highest_ranks_of_each_kind_by_hand():
    classes = [[3, 0, 1, -1, 0, 2, 0]]
    ranks = [[0.1, 0.2, 0.9, 1.0, 0.8, 0.5, 0.3]]
    rows, positive, valid = draw(classes, ranks)
    np.testing.assert_array_equal(rows, [[2, 5, 4, 6]])
    np.testing.assert_array_equal(positive, [[True, True, False, False]])
    assert valid.all()


def test_negatives_fill_what_positives_leave_and_the_rest_is_unused():
    rows, positive, valid = draw([[0, 1, 0, 0, 0, 0], [1, 1, 1, -1, 0, -1]])
    assert rows[0, 0] == 1
    assert len(set(rows[0])) == 4
    np.testing.assert_array_equal(positive, [[1, 0, 0, 0], [1, 1, 0, 0]])
    np.testing.assert_array_equal(valid, [[1, 1, 1, 1], [1, 1, 1, 0]])
    assert rows[1, 2] == 4


@pytest.mark.parametrize("count", [1, 3, 40])
def test_counts_for_random_candidates(count):
    rng = np.random.default_rng(count)
    for _ in range(20):
        classes = rng.choice([-1, 0, 0, 0, 2], size=(3, rng.integers(1, 30)))
        most = int(rng.integers(0, count + 1))
        rows, positive, valid = draw(classes, count=count, max_positives=most)
        for image in range(3):
            num_positives = min(np.sum(classes[image] > 0), most)
            num_negatives = min(np.sum(classes[image] == 0), count - num_positives)
            chosen = rows[image][valid[image]]
            assert len(chosen) == len(set(chosen)) == num_positives + num_negatives
            assert np.sum(positive[image]) == num_positives
            np.testing.assert_array_equal(
                classes[image][chosen] > 0, np.arange(len(chosen)) < num_positives
            )
            assert np.all(classes[image][chosen] >= 0)


def test_no_candidate_at_all():
    _, positive, valid = draw([[-1, -1, -1]])
    assert not positive.any()
    assert not valid.any()


BOXES = np.array([[[0, 0, 10, 10], [20, 20, 40, 40], [0, 0, 0, 0]]], np.float32)
CLASSES = np.array([[5, 3, 0]], np.int32)
NO_CROWD = np.zeros((1, 3), bool)


def match(rois, *, valid=None, boxes=BOXES, classes=CLASSES, is_crowd=NO_CROWD, threshold=0.5):
    rois = np.array([rois], np.float32)
    valid = np.ones(rois.shape[:2], bool) if valid is None else np.array([valid])
    found = match_rois(rois, valid, boxes, classes, is_crowd, iou_threshold=threshold)
    return np.array(found.classes)[0], np.array(found.instances)[0]


def test_matching_by_hand():
    # IoU 1, 0.5, 0.45 and 0; the last has no area.
    rois = [[20, 20, 40, 40], [0, 0, 10, 5], [0, 0, 10, 4.5], [50, 50, 60, 60], [5, 5, 5, 5]]
    classes, instances = match(rois)
    np.testing.assert_array_equal(classes, [3, 5, 0, 0, -1])
    np.testing.assert_array_equal(instances[:3], [1, 0, 0])
    classes, _ = match(rois, threshold=0.6)
    np.testing.assert_array_equal(classes, [3, 0, 0, 0, -1])
    classes, _ = match(rois, valid=[False, True, True, False, True])
    np.testing.assert_array_equal(classes, [-1, 5, 0, -1, -1])


def test_padding_never_matches():
    """Not even a region that is padding itself, or one of the same numbers."""
    padding = np.zeros((1, 3), np.int32)
    boxes = np.tile(np.array([0, 0, 10, 10], np.float32), (1, 3, 1))
    classes, _ = match([[0, 0, 10, 10], [0, 0, 0, 0]], boxes=boxes, classes=padding)
    np.testing.assert_array_equal(classes, [0, -1])
    broken = np.array([[[0, 0, np.nan, 10], [0, 0, np.inf, 10], [10, 10, 0, 0]]], np.float32)
    classes, _ = match([[0, 0, 10, 10]], boxes=broken, classes=np.array([[1, 2, 3]]))
    np.testing.assert_array_equal(classes, [0])


def test_a_region_in_a_crowd_is_neither_positive_nor_negative():
    is_crowd = np.array([[False, True, False]])
    rois = [[20, 20, 40, 40], [22, 22, 28, 28], [30, 30, 60, 60], [0, 0, 10, 10]]
    classes, _ = match(rois, is_crowd=is_crowd)
    np.testing.assert_array_equal(classes, [-1, -1, 0, 5])


def sample(rois, valid, boxes=BOXES, classes=CLASSES, is_crowd=NO_CROWD, step=0, **settings):
    batch = len(boxes)
    rois = np.broadcast_to(np.array(rois, np.float32), (batch, len(rois), 4))
    valid = np.broadcast_to(np.array(valid), rois.shape[:2])
    return sample_rois(
        rois,
        valid,
        boxes,
        classes,
        is_crowd,
        np.arange(batch),
        step,
        **{**SAMPLE, **settings},
    )


def test_ground_truth_is_among_the_candidates():
    found = sample([[50, 50, 60, 60], [70, 70, 80, 90]], [True, False])
    classes, boxes = np.array(found.classes)[0], np.array(found.boxes)[0]
    assert sorted(classes[:2]) == [3, 5]
    np.testing.assert_array_equal(classes[2:], [0, -1, -1, -1, -1, -1])
    np.testing.assert_array_equal(boxes[2], [50, 50, 60, 60])
    for row in range(2):
        np.testing.assert_array_equal(boxes[row], found.matched_boxes[0, row])
        instance = int(found.instances[0, row])
        np.testing.assert_array_equal(boxes[row], BOXES[0, instance])
        assert classes[row] == CLASSES[0, instance]


def test_crowds_and_padding_are_not_among_the_candidates():
    found = sample([[50, 50, 60, 60]], [True], is_crowd=np.array([[False, True, False]]))
    np.testing.assert_array_equal(found.classes[0], [5, 0] + [-1] * 6)


def test_an_image_without_instances_gives_background_only():
    found = sample([[50, 50, 60, 60], [1, 1, 5, 5]], [True, True], classes=CLASSES * 0)
    np.testing.assert_array_equal(found.classes[0], [0, 0] + [-1] * 6)
    assert np.all(np.isfinite(found.boxes))


def test_steps_draw_different_regions():
    rng = np.random.default_rng(0)
    tops = rng.uniform(50, 90, (100, 2))
    rois = np.concatenate([tops, tops + 9], axis=-1)
    draws = [np.array(sample(rois, [True] * 100, step=step).boxes) for step in (0, 0, 1)]
    np.testing.assert_array_equal(draws[0], draws[1])
    assert np.mean(np.any(draws[0][0, 2:] != draws[2][0, 2:], axis=-1)) > 0.5


def test_regions_that_have_moved_are_matched_anew():
    found = sample([[50, 50, 60, 60]], [True])
    moved = np.array(found.boxes)
    moved[0, 0] = [80, 80, 90, 90]
    moved[0, 2] = [0, 0, 10, 9]
    again = rematch_rois(found._replace(boxes=moved), BOXES, CLASSES, NO_CROWD, iou_threshold=0.7)
    np.testing.assert_array_equal(again.classes[0, :4], [0, found.classes[0, 1], 5, -1])
    np.testing.assert_array_equal(again.matched_boxes[0, 2], [0, 0, 10, 10])
    np.testing.assert_array_equal(again.boxes, moved)


def test_traced_for_any_batch_size_equals_eager():
    @tf.function(
        input_signature=[
            tf.TensorSpec([None, 5, 4], tf.float32),
            tf.TensorSpec([None, 5], tf.bool),
            tf.TensorSpec([None, 3, 4], tf.float32),
            tf.TensorSpec([None, 3], tf.int32),
            tf.TensorSpec([None, 3], tf.bool),
            tf.TensorSpec([None], tf.int64),
            tf.TensorSpec([], tf.int32),
        ]
    )
    def traced(*arguments):
        return sample_rois(*arguments, **SAMPLE)

    rng = np.random.default_rng(0)
    for batch in (1, 3):
        tops = rng.uniform(0, 30, (batch, 5, 2))
        arguments = (
            np.concatenate([tops, tops + 9], axis=-1).astype(np.float32),
            rng.random((batch, 5)) < 0.8,
            np.repeat(BOXES, batch, axis=0),
            np.repeat(CLASSES, batch, axis=0),
            np.repeat(NO_CROWD, batch, axis=0),
            np.arange(batch),
            np.int32(3),
        )
        eager = sample_rois(*arguments, **SAMPLE)
        for one, other in zip(traced(*map(tf.constant, arguments)), eager, strict=True):
            np.testing.assert_array_equal(one, other)
