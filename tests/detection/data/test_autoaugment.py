"""AutoAugment: its tables, its amounts, and what it does to pictures, boxes and masks."""

from collections import Counter
from functools import cache, partial

import numpy as np
import pytest
import tensorflow as tf
from PIL import Image, ImageOps

from detection.data.autoaugment import apply_autoaugment, carry_out_one
from detection.data.autoaugment_policies import POLICIES, PolicyName, Step
from detection.data.scene import Scene

RED = (255, 0, 0)


def record(index: tf.Tensor, height: int = 96, width: int = 128) -> tuple:
    """A smooth picture with two boxes and their masks."""
    ramp = tf.linspace(0.0, 200.0, width)[None, :, None] * tf.constant([1.0, 0.6, 0.3])
    picture = tf.cast(ramp + tf.linspace(0.0, 50.0, height)[:, None, None], tf.uint8)
    boxes = tf.constant([[10.0, 12.0, 50.0, 60.0], [40.0, 70.0, 90.0, 120.0]])
    rows, columns = tf.range(height)[None, :, None], tf.range(width)[None, None]
    y1, x1, y2, x2 = (tf.cast(side, tf.int32)[:, None, None] for side in tf.unstack(boxes, axis=1))
    masks = (rows >= y1) & (rows < y2) & (columns >= x1) & (columns < x2)
    return picture, boxes, masks, tf.stack([tf.constant(9, tf.int64), index])


def dataset(policy: PolicyName, *, with_masks: bool) -> tf.data.Dataset:
    """40 pictures, the same but for their seeds."""

    def run(index: tf.Tensor) -> tuple:
        picture, boxes, masks, seed = record(index)
        masks = masks if with_masks else None
        scene = apply_autoaugment(picture, boxes, masks, seed, policy=policy)
        return tuple(part for part in scene if part is not None)

    numbers = tf.data.Dataset.range(40)
    return numbers.map(run, num_parallel_calls=2, deterministic=True)


@cache  # v1 takes two seconds to trace
def augmented(policy: PolicyName) -> list[tuple]:
    """Pictures, boxes and masks."""
    return list(dataset(policy, with_masks=True))


@pytest.mark.parametrize(
    ("policy", "count", "length"), [("v0", 5, 2), ("v1", 20, 2), ("v3", 15, 2)]
)
def test_sizes_of_the_tables(policy, count, length):
    assert Counter(map(len, POLICIES[policy])) == {length: count}


def test_v2_has_fourteen_triples_and_a_pair():
    assert Counter(map(len, POLICIES["v2"])) == {3: 14, 2: 1}


@pytest.mark.parametrize("policy", POLICIES)
def test_shapes_types_and_boxes_within_the_picture(policy):
    picture, boxes, masks, _ = record(tf.constant(0, tf.int64))
    changed = 0
    for new_picture, new_boxes, new_masks in augmented(policy):
        assert (new_picture.shape, new_picture.dtype) == (picture.shape, tf.uint8)
        assert (new_boxes.shape, new_boxes.dtype) == (boxes.shape, tf.float32)
        assert (new_masks.shape, new_masks.dtype) == (masks.shape, tf.bool)
        y1, x1, y2, x2 = new_boxes.numpy().T
        assert np.all((y1 >= 0) & (y1 <= y2) & (y2 <= 96))
        assert np.all((x1 >= 0) & (x1 <= x2) & (x2 <= 128))
        for box, mask in zip(new_boxes.numpy(), new_masks.numpy(), strict=True):
            rows, columns = np.nonzero(mask)
            if len(rows):  # pixels whose middle lies within the moved box
                assert rows.min() >= box[0] - 1
                assert columns.min() >= box[1] - 1
                assert rows.max() <= box[2]
                assert columns.max() <= box[3]
        changed += not np.array_equal(new_picture, picture)
    assert changed >= 20


def test_reproducible_and_the_same_without_masks():
    again = dataset("v1", with_masks=False)
    for (picture, boxes, _), (bare_picture, bare_boxes) in zip(augmented("v1"), again, strict=True):
        np.testing.assert_array_equal(picture, bare_picture)
        np.testing.assert_array_equal(boxes, bare_boxes)


def test_the_same_in_single_steps():
    for index in (0, 7, 21):
        picture, boxes, masks, seed = record(tf.constant(index, tf.int64))
        eager = apply_autoaugment(picture, boxes, masks, seed, policy="v1")
        for traced, single in zip(augmented("v1")[index], eager, strict=True):
            np.testing.assert_allclose(traced, np.asarray(single), atol=1e-3)


def test_the_test_policy_by_pillow():
    # Level 4 of translation: 100 pixels of 640, so 20 of the 128; then equalised.
    picture, boxes, masks, seed = record(tf.constant(0, tf.int64))
    moved, new_boxes, new_masks = apply_autoaugment(picture, boxes, masks, seed, policy="test")
    expected = []
    for shift in (20, -20):
        how = {"resample": Image.Resampling.NEAREST, "fillcolor": (128, 128, 128)}
        image = Image.fromarray(picture.numpy())
        matrix = (1, 0, -shift, 0, 1, 0)
        image = image.transform(image.size, Image.Transform.AFFINE, matrix, **how)
        expected.append(np.asarray(ImageOps.equalize(image)))
    matches = [np.array_equal(moved, candidate) for candidate in expected]
    assert matches.count(True) == 1
    shift = (20, -20)[matches.index(True)]
    clipped = np.clip(boxes.numpy() + [0, shift, 0, shift], 0, [96, 128, 96, 128])
    np.testing.assert_array_equal(new_boxes, clipped)
    assert new_masks is not None
    assert new_masks[0].numpy().sum() == (clipped[0, 3] - clipped[0, 1]) * 40


NOTHING = [
    Step("rotate", 1.0, 0),
    Step("shear_x", 1.0, 0),
    Step("shear_y", 1.0, 0),
    Step("translate_x", 1.0, 0),
    Step("translate_y", 3.0, 0, in_boxes=True),
    Step("shear_x", 3.0, 0, in_boxes=True),
    Step("cutout", 1.0, 0),
    Step("cutout", 3.0, 0, in_boxes=True),
    Step("box_cutout", 1.0, 0),
    Step("solarize_add", 1.0, 0),
    Step("solarize", 1.0, 10),
    Step("color", 1.0, 5),
    Step("brightness", 1.0, 5),
    Step("contrast", 1.0, 5),
    Step("sharpness", 1.0, 5),
    Step("equalize", 0.0, 10),
]


@pytest.mark.parametrize("step", NOTHING, ids=str)
def test_no_strength_changes_nothing(step):
    *scene, seed = record(tf.constant(3, tf.int64))
    for old, new in zip(scene, carry_out_one(Scene(*scene), [(step,)], seed), strict=True):
        np.testing.assert_array_equal(old, new)


def change_share(step: Step, count: int = 300) -> float:
    """How often the picture changes."""
    picture, boxes, _, _ = record(tf.constant(0, tf.int64))

    @tf.function
    def run(seed):
        changed = carry_out_one(Scene(picture, boxes[:1], None), [(step,)], seed)
        return tf.reduce_any(changed.picture != picture)

    seeds = [tf.constant([7, index], tf.int64) for index in range(count)]
    return float(np.mean([run(seed) for seed in seeds]))


def test_probabilities():
    # Five standard deviations of 300 draws are 0.14 at most.
    assert change_share(Step("translate_x", 0.6, 4)) == pytest.approx(0.6, abs=0.14)
    # A third of it in each box.
    assert change_share(Step("flip", 0.9, 4, in_boxes=True)) == pytest.approx(0.3, abs=0.14)


@pytest.mark.parametrize(
    ("step", "filled"),
    [
        # Of 640 pixels, level 10, in a box that is the whole picture.
        (Step("translate_y", 3.0, 10, in_boxes=True), 120 * 640),
        (Step("translate_y", 1.0, 10), 250 * 640),
        (Step("translate_x", 1.0, 3), 75 * 640),
    ],
    ids=str,
)
def test_distances_in_boxes_and_pictures(step, filled):
    picture = tf.zeros([640, 640, 3], tf.uint8)
    scene = Scene(picture, tf.constant([[0.0, 0.0, 640.0, 640.0]]), None)
    changed = carry_out_one(scene, [(step,)], tf.constant([1, 2], tf.int64))
    assert np.count_nonzero(changed.picture.numpy()[..., 0]) == filled


def test_sub_policies_come_up_equally_often(monkeypatch):
    """500 pictures: each of the five of v0 about a hundred times."""
    picture, boxes, masks, _ = record(tf.constant(0, tf.int64))
    shades = [(Step("solarize_add", 1.0, level),) for level in (1, 3, 5, 7, 9)]
    monkeypatch.setitem(POLICIES, "v0", shades)  # type: ignore[arg-type]
    dark = tf.zeros([2, 2, 3], tf.uint8)
    run = tf.function(partial(apply_autoaugment, policy="v0"))
    values = Counter(
        int(run(dark, boxes, None, tf.constant([5, index], tf.int64))[0][0, 0, 0])
        for index in range(500)
    )
    assert sorted(values) == [11, 33, 55, 77, 99]
    assert min(values.values()) > 55


def test_an_unknown_policy_is_refused():
    *scene, seed = record(tf.constant(0, tf.int64))
    with pytest.raises(ValueError, match="'v9' is none of v0, v1, v2, v3, test"):
        apply_autoaugment(*scene, seed, policy="v9")  # type: ignore[arg-type]


def test_pictures_without_boxes_and_of_one_pixel():
    signature = [
        tf.TensorSpec([None, None, 3], tf.uint8),
        tf.TensorSpec([None, 4], tf.float32),
        tf.TensorSpec([2], tf.int64),
    ]

    @tf.function(input_signature=signature)
    def run(picture, boxes, seed):
        return apply_autoaugment(picture, boxes, None, seed, policy="v1")[:2]

    for size in ((1, 1), (2, 40)):
        picture = tf.zeros([*size, 3], tf.uint8)
        for index in range(30):
            seed = tf.constant([index, 0], tf.int64)
            changed, boxes = run(picture, tf.zeros([0, 4]), seed)
            assert changed.shape == picture.shape
            assert boxes.shape == [0, 4]
