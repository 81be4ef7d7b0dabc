"""AutoAugment: its tables, its amounts, and what it does to images, boxes and masks."""

from collections import Counter
from functools import cache, partial

import numpy as np
import pytest
import tensorflow as tf
from PIL import Image, ImageOps

from tpudet.detection.data.augmentations.autoaugment import (
    POLICIES,
    PolicyName,
    PolicyStep,
    apply_autoaugment,
    apply_sub_policy,
)
from tpudet.detection.data.augmentations.rand_augment import CHANGES
from tpudet.detection.data.sample import AnnotatedImage

RED = (255, 0, 0)


def annotated_image(image, boxes, masks=None, crowds=()) -> AnnotatedImage:
    boxes = tf.constant(boxes, tf.float32)
    is_crowd = tf.constant([row in crowds for row in range(len(boxes))], tf.bool)
    return AnnotatedImage(image, boxes, is_crowd, masks)


def seed_of(index: tf.Tensor | int) -> tf.Tensor:
    return tf.stack([tf.constant(9, tf.int64), tf.cast(index, tf.int64)])


def smooth_image(height: int = 96, width: int = 128) -> AnnotatedImage:
    """A smooth image with two boxes and their masks."""
    ramp = tf.linspace(0.0, 200.0, width)[None, :, None] * tf.constant([1.0, 0.6, 0.3])
    image = tf.cast(ramp + tf.linspace(0.0, 50.0, height)[:, None, None], tf.uint8)
    boxes = [[10, 12, 50, 60], [40, 70, 90, 120]]
    masks = np.zeros((2, height, width), np.uint8)
    for mask, (y1, x1, y2, x2) in zip(masks, boxes, strict=True):
        mask[y1:y2, x1:x2] = 1
    return annotated_image(image, boxes, tf.constant(masks))


def dataset(policy: PolicyName, *, with_masks: bool) -> tf.data.Dataset:
    """40 images, the same but for their seeds."""

    def run(index: tf.Tensor) -> tuple:
        annotated = smooth_image() if with_masks else smooth_image()._replace(masks=None)
        annotated = apply_autoaugment(annotated, seed_of(index), policy=policy)
        return tuple(part for part in annotated if part is not None)

    numbers = tf.data.Dataset.range(40)
    return numbers.map(run, num_parallel_calls=2, deterministic=True)


@cache  # v1 takes two seconds to trace
def augmented(policy: PolicyName) -> list[tuple]:
    """Images, boxes, which are crowds, and masks."""
    return list(dataset(policy, with_masks=True))


@pytest.mark.parametrize("policy", POLICIES)
def test_shapes_types_and_boxes_within_the_image(policy):
    image, boxes, is_crowd, masks = smooth_image()
    assert masks is not None
    changed = 0
    for new_image, new_boxes, new_is_crowd, new_masks in augmented(policy):
        np.testing.assert_array_equal(new_is_crowd, is_crowd)
        assert (new_image.shape, new_image.dtype) == (image.shape, tf.uint8)
        assert (new_boxes.shape, new_boxes.dtype) == (boxes.shape, tf.float32)
        assert (new_masks.shape, new_masks.dtype) == (masks.shape, tf.uint8)
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
        changed += not np.array_equal(new_image, image)
    assert changed >= 20


def test_reproducible_and_the_same_without_masks():
    again = dataset("v1", with_masks=False)
    for (image, boxes, *_), bare in zip(augmented("v1"), again, strict=True):
        np.testing.assert_array_equal(image, bare[0])
        np.testing.assert_array_equal(boxes, bare[1])


def test_the_same_in_single_steps():
    for index in (0, 7, 21):
        eager = apply_autoaugment(smooth_image(), seed_of(index), policy="v1")
        for traced, single in zip(augmented("v1")[index], eager, strict=True):
            np.testing.assert_allclose(traced, np.asarray(single), atol=1e-3)


def test_the_test_policy_by_pillow():
    # Level 4 of translation: 100 pixels of 640, so 20 of the 128; then equalised.
    image, boxes, *_ = smooth_image()
    moved, new_boxes, _, new_masks = apply_autoaugment(smooth_image(), seed_of(0), policy="test")
    expected = []
    for shift in (20, -20):
        how = {"resample": Image.Resampling.NEAREST, "fillcolor": (128, 128, 128)}
        pillow = Image.fromarray(image.numpy())
        matrix = (1, 0, -shift, 0, 1, 0)
        pillow = pillow.transform(pillow.size, Image.Transform.AFFINE, matrix, **how)
        expected.append(np.asarray(ImageOps.equalize(pillow)))
    matches = [np.array_equal(moved, candidate) for candidate in expected]
    assert matches.count(True) == 1
    shift = (20, -20)[matches.index(True)]
    clipped = np.clip(boxes.numpy() + [0, shift, 0, shift], 0, [96, 128, 96, 128])
    np.testing.assert_array_equal(new_boxes, clipped)
    assert new_masks is not None
    assert new_masks[0].numpy().sum() == (clipped[0, 3] - clipped[0, 1]) * 40


NOTHING = [
    PolicyStep("rotate", 1.0, 0),
    PolicyStep("shear_x", 1.0, 0),
    PolicyStep("shear_y", 1.0, 0),
    PolicyStep("translate_x", 1.0, 0),
    PolicyStep("translate_y", 3.0, 0, in_boxes=True),
    PolicyStep("shear_x", 3.0, 0, in_boxes=True),
    PolicyStep("cutout", 1.0, 0),
    PolicyStep("cutout", 3.0, 0, in_boxes=True),
    PolicyStep("box_cutout", 1.0, 0),
    PolicyStep("solarize_add", 1.0, 0),
    PolicyStep("solarize", 1.0, 10),
    PolicyStep("color", 1.0, 5),
    PolicyStep("brightness", 1.0, 5),
    PolicyStep("contrast", 1.0, 5),
    PolicyStep("sharpness", 1.0, 5),
    PolicyStep("equalize", 0.0, 10),
]


@pytest.mark.parametrize("step", NOTHING, ids=str)
def test_no_strength_changes_nothing(step):
    annotated = smooth_image()
    for old, new in zip(annotated, apply_sub_policy(annotated, [(step,)], seed_of(3)), strict=True):
        np.testing.assert_array_equal(old, new)


def change_share(step: PolicyStep, boxes: list[list[int]], crowds=(), count: int = 300) -> float:
    """How often the image changes."""
    annotated = annotated_image(smooth_image().image, boxes, crowds=crowds)

    @tf.function
    def run(seed):
        changed = apply_sub_policy(annotated, [(step,)], seed)
        return tf.reduce_any(changed.image != annotated.image)

    seeds = [tf.constant([7, index], tf.int64) for index in range(count)]
    return float(np.mean([run(seed) for seed in seeds]))


def test_probabilities():
    # Five standard deviations of 300 draws are 0.14 at most.
    box = [[10, 12, 50, 60]]
    assert change_share(PolicyStep("translate_x", 0.6, 4), box) == pytest.approx(0.6, abs=0.14)
    # A third of it in each box.
    assert change_share(PolicyStep("flip", 0.9, 4, in_boxes=True), box) == pytest.approx(
        0.3, abs=0.14
    )


@pytest.mark.parametrize(
    "step", [PolicyStep("box_cutout", 1.0, 10), PolicyStep("flip", 3.0, 4, in_boxes=True)]
)
def test_steps_in_boxes_are_of_objects_alone(step):
    box = [10, 12, 50, 60]
    crowd, removed = [0, 0, 96, 128], [[0, 0, 0, 0]] * 3
    assert change_share(step, [crowd, *removed], crowds=[0], count=30) == 0.0
    # One object among four rows gets every step.
    assert change_share(step, [*removed, box], count=60) > 0.95
    # Below the object there is only the crowd.
    annotated = annotated_image(smooth_image().image, [crowd, box], crowds=[0])
    changed = apply_sub_policy(annotated, [(step,)], seed_of(1)).image.numpy()
    np.testing.assert_array_equal(changed[75:], annotated.image[75:])
    assert np.any(changed != annotated.image)


@pytest.mark.parametrize(
    ("step", "filled"),
    [
        # Of 640 pixels, level 10, in a box that is the whole image.
        (PolicyStep("translate_y", 3.0, 10, in_boxes=True), 120 * 640),
        (PolicyStep("translate_y", 1.0, 10), 250 * 640),
        (PolicyStep("translate_x", 1.0, 3), 75 * 640),
    ],
    ids=str,
)
def test_distances_in_boxes_and_images(step, filled):
    image = tf.zeros([640, 640, 3], tf.uint8)
    annotated = annotated_image(image, [[0, 0, 640, 640]])
    changed = apply_sub_policy(annotated, [(step,)], tf.constant([1, 2], tf.int64))
    assert np.count_nonzero(changed.image.numpy()[..., 0]) == filled


def test_sub_policies_come_up_equally_often(monkeypatch):
    """500 images: each of the five of v0 about a hundred times."""
    shades = [(PolicyStep("solarize_add", 1.0, level),) for level in (1, 3, 5, 7, 9)]
    monkeypatch.setitem(POLICIES, "v0", shades)  # type: ignore[arg-type]
    dark = annotated_image(tf.zeros([2, 2, 3], tf.uint8), [[0, 0, 2, 2]])
    run = tf.function(partial(apply_autoaugment, policy="v0"))
    values = Counter(
        int(run(dark, tf.constant([5, index], tf.int64))[0][0, 0, 0]) for index in range(500)
    )
    assert sorted(values) == [11, 33, 55, 77, 99]
    assert min(values.values()) > 55


SIGNATURE = AnnotatedImage(
    image=tf.TensorSpec([None, None, 3], tf.uint8),
    boxes=tf.TensorSpec([None, 4], tf.float32),
    is_crowd=tf.TensorSpec([None], tf.bool),
    masks=tf.TensorSpec([None, None, None], tf.uint8),
)


def tiny_image(size: tuple[int, int], count: int) -> AnnotatedImage:
    """With boxes and masks of the whole image."""
    return annotated_image(
        tf.zeros([*size, 3], tf.uint8),
        np.tile([0, 0, *size], (count, 1)),
        tf.ones([count, *size], tf.uint8),
    )


def assert_in_order(old: AnnotatedImage, new: AnnotatedImage) -> None:
    """Sizes and types stay, boxes lie within the image, masks within their boxes."""
    assert old.masks is not None
    assert new.masks is not None
    for before, after in zip(old, new, strict=True):
        assert before is not None
        assert after is not None
        assert (after.shape, after.dtype) == (before.shape, before.dtype)
    height, width = old.image.shape[:2]
    for (y1, x1, y2, x2), mask in zip(new.boxes.numpy(), new.masks.numpy(), strict=True):
        assert 0 <= y1 <= y2 <= height
        assert 0 <= x1 <= x2 <= width
        if y2 > y1:
            rows, columns = np.nonzero(mask)
            assert (rows >= y1 - 1).all()
            assert (rows <= y2).all()
            assert (columns >= x1 - 1).all()
            assert (columns <= x2).all()


def test_images_without_boxes_and_of_one_pixel():
    run = tf.function(
        partial(apply_autoaugment, policy="v1"),
        input_signature=[SIGNATURE, tf.TensorSpec([2], tf.int64)],
    )
    for size in ((1, 1), (1, 40), (40, 1), (3, 3)):
        for count in (0, 2):
            annotated = tiny_image(size, count)
            for index in range(15):
                assert_in_order(annotated, run(annotated, seed_of(index)))


@pytest.mark.parametrize("name", CHANGES)
@pytest.mark.parametrize("in_boxes", [False, True])
def test_every_operation_on_tiny_images(name, in_boxes):
    """Each one as itself and in boxes, whether a policy has it there or not."""
    step = PolicyStep(name, 3.0, 10, in_boxes)
    for size in ((1, 1), (1, 40), (40, 1), (3, 3)):
        for count in (0, 2):
            annotated = tiny_image(size, count)
            assert_in_order(annotated, apply_sub_policy(annotated, [(step,)], seed_of(count)))
