import numpy as np
import pytest
import tensorflow as tf

from tpudet.detection.data.augmentations.mixing import copy_paste, paste


def flat(level: int, height: int = 10, width: int = 12) -> np.ndarray:
    return np.full((height, width, 3), level, np.uint8)


def pixels(sample) -> list[int]:
    return sample.masks.numpy().sum(axis=(1, 2)).tolist()


def test_numbers_by_hand(make_sample):
    # The pasted one covers the right half of the first box, all of the second, none of the third.
    boxes = [[2, 2, 6, 6], [3, 5, 5, 7], [8, 0, 10, 3]]
    target = make_sample(flat(10), boxes, with_masks=True)
    source = make_sample(flat(20), [[0, 0, 1, 1], [1, 4, 7, 9]], with_masks=True, first_class=8)
    mixed = paste([target, source], tf.constant([False, True]))
    expected = np.full((10, 12), 10)
    expected[1:7, 4:9] = 20
    np.testing.assert_array_equal(mixed.image.numpy()[..., 1], expected)
    assert mixed.boxes.numpy().tolist() == [
        [2, 2, 6, 4],
        [0, 0, 0, 0],
        [8, 0, 10, 3],
        [1, 4, 7, 9],
    ]
    assert mixed.classes.numpy().tolist() == [1, 2, 3, 9]
    assert mixed.masks is not None
    np.testing.assert_array_equal(mixed.masks[3], expected == 20)
    assert pixels(target) == [16, 4, 6]
    assert pixels(mixed) == [8, 0, 6, 30]


PERSON_AND_SHIRT = [[0, 0, 20, 10], [0, 0, 15, 10]]  # the shirt's pixels are also the person's


@pytest.mark.parametrize(
    ("pasted", "person", "shirt"),
    [
        ([5, 5, 6, 6], [0, 0, 20, 10], [0, 0, 15, 10]),  # one pixel in the middle
        ([0, 0, 20, 3], [0, 3, 20, 10], [0, 3, 15, 10]),
        ([0, 0, 15, 10], [15, 0, 20, 10], [0, 0, 0, 0]),
        ([0, 0, 19, 10], [0, 0, 0, 0], [0, 0, 0, 0]),  # 5 % is left
    ],
)
def test_an_instance_inside_another_belongs_to_both(make_sample, pasted, person, shirt):
    target = make_sample(flat(10, 20, 12), PERSON_AND_SHIRT, with_masks=True)
    source = make_sample(flat(20, 20, 12), [pasted], with_masks=True)
    mixed = paste([target, source], tf.constant([True]))
    assert mixed.boxes.numpy().tolist() == [person, shirt, pasted]


def test_an_instance_is_pasted_with_those_inside_it(make_sample):
    """Its box and its pixels are whole although the smaller one was not chosen."""
    target = make_sample(flat(10, 20, 12), with_masks=True)
    source = make_sample(flat(20, 20, 12), PERSON_AND_SHIRT, with_masks=True)
    mixed = paste([target, source], tf.constant([True, False]))
    assert mixed.boxes.numpy().tolist() == PERSON_AND_SHIRT[:1]
    assert pixels(mixed) == [200]
    assert (mixed.image.numpy()[..., 0] == 20).sum() == 200


def test_a_box_wider_than_its_mask_shrinks_by_what_is_covered(make_sample):
    target = make_sample(flat(10), [[2, 2, 8, 8]], with_masks=True)
    target = target._replace(boxes=tf.constant([[0.5, 1.0, 9.0, 9.5]]))
    for pasted, expected in (
        ([4, 4, 5, 5], [0.5, 1, 9, 9.5]),
        ([0, 0, 9, 4], [0.5, 3, 9, 9.5]),
        ([7, 0, 9, 12], [0.5, 1, 8, 9.5]),
    ):
        source = make_sample(flat(20), [pasted], with_masks=True)
        mixed = paste([target, source], tf.constant([True]))
        assert mixed.boxes.numpy().tolist() == [expected, pasted]


def test_a_box_removed_before_does_not_come_back(make_sample):
    target = make_sample(flat(10), [[5, 5, 9, 9]], with_masks=True)
    target = target._replace(boxes=tf.zeros([1, 4]))
    source = make_sample(flat(20), [[0, 0, 7, 7]], with_masks=True)
    mixed = paste([target, source], tf.constant([True]))
    assert mixed.boxes.numpy().tolist() == [[0, 0, 0, 0], [0, 0, 7, 7]]


def test_nothing_chosen_changes_nothing(make_sample):
    target = make_sample(flat(10), [[2, 2, 6, 6]], with_masks=True)
    source = make_sample(flat(20), [[0, 0, 5, 5]], with_masks=True)
    mixed = paste([target, source], tf.constant([False]))
    for before, after in zip(target, mixed, strict=True):
        np.testing.assert_array_equal(before, after)


def test_an_instance_without_a_mask_keeps_its_box(make_sample):
    target = make_sample(flat(10), [[2, 2, 6, 6]], with_masks=True)
    target = target._replace(masks=tf.zeros_like(target.masks))
    source = make_sample(flat(20), [[0, 0, 5, 5]], with_masks=True)
    mixed = paste([target, source], tf.constant([True]))
    assert mixed.boxes.numpy().tolist() == [[2, 2, 6, 6], [0, 0, 5, 5]]


def test_a_larger_source_enlarges_the_image(make_sample):
    target = make_sample(flat(10, 4, 12), with_masks=True)
    source = make_sample(flat(20, 9, 5), [[6, 1, 9, 3]], with_masks=True)
    mixed = paste([target, source], tf.constant([True]))
    image = mixed.image.numpy()[..., 0]
    assert image.shape == (9, 12)
    assert (image[:4] == 10).all()
    assert (image[6:9, 1:3] == 20).all()
    assert image.sum() == 4 * 12 * 10 + 6 * 20


@pytest.mark.parametrize("max_objects", [1, 3, 10])
def test_how_many_are_pasted(make_sample, max_objects):
    """Evenly 1..limit of the five that are objects with box and pixels, each equally often."""
    boxes = [[0, k, 1, k + 1] for k in range(8)]
    source = make_sample(flat(20), boxes, with_masks=True, crowds=[2])
    live = tf.range(8)[:, None]
    source = source._replace(  # the seventh has no pixel; the eighth's box was removed before
        masks=tf.where(live[..., None] == 6, tf.constant(0, tf.uint8), source.masks),
        boxes=tf.where(live == 7, 0.0, source.boxes),
    )
    target = make_sample(flat(10), with_masks=True)
    pasted = tf.data.Dataset.range(1500).map(
        lambda number: (
            copy_paste([target, source], tf.stack([number, 3]), max_objects=max_objects).classes
        )
    )
    drawn = [classes.tolist() for classes in pasted.as_numpy_iterator()]
    limit = min(max_objects, 5)
    counts = np.bincount([len(classes) for classes in drawn], minlength=9)
    assert counts[0] == counts[limit + 1 :].sum() == 0
    # Five standard deviations.
    spread = 5 * (1500 / limit * (1 - 1 / limit)) ** 0.5
    np.testing.assert_allclose(counts[1 : limit + 1], 1500 / limit, atol=spread)
    chosen = np.bincount(np.concatenate(drawn), minlength=9)
    assert chosen[[0, 3, 7, 8]].tolist() == [0, 0, 0, 0]
    share = (1 + limit) / 2 / 5
    np.testing.assert_allclose(chosen[[1, 2, 4, 5, 6]], 1500 * share, atol=5 * (1500 * 0.25) ** 0.5)


def test_a_source_without_objects_pastes_nothing(make_sample):
    target = make_sample(flat(10), [[2, 2, 6, 6]], with_masks=True)
    source = make_sample(flat(20), with_masks=True)
    mixed = copy_paste([target, source], tf.constant([0, 0]), max_objects=5)
    assert mixed.boxes.numpy().tolist() == [[2, 2, 6, 6]]
    np.testing.assert_array_equal(mixed.image, target.image)
