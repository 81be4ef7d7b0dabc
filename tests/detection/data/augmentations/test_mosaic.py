import numpy as np
import pytest
import tensorflow as tf

from tpudet.detection.data.augmentations.mixing import mosaic
from tpudet.detection.data.boxes import visible_areas

CANVAS = (40, 60)


def coded_image(number: int, height: int, width: int) -> np.ndarray:
    """Every pixel says where it is: number, row, column; number is from 1."""
    rows, columns = np.mgrid[:height, :width]
    return np.stack([np.full_like(rows, number), rows, columns], -1).astype(np.uint8)


def quarters(image: np.ndarray) -> list[np.ndarray]:
    """For each image, the pixels [m, 4] it has: y and x on the canvas, row and column in it."""
    found = [np.argwhere(image[..., 0] == number) for number in (1, 2, 3, 4)]
    return [np.column_stack([places, image[tuple(places.T)][:, 1:]]) for places in found]


@pytest.mark.parametrize("seed", range(5))
def test_each_quarter_shows_a_part_of_its_image_against_the_centre(make_sample, seed):
    # Larger than any quarter, so the canvas is full and the corners of the parts meet.
    samples = [make_sample(coded_image(k, 40, 60)) for k in (1, 2, 3, 4)]
    image = mosaic(samples, tf.constant([seed, 9]), canvas_size=CANVAS).image.numpy()
    assert image.shape == (*CANVAS, 3)
    assert image.dtype == np.uint8
    found = quarters(image)
    assert sum(map(len, found)) == 40 * 60
    shifts = [np.unique(f[:, :2] - f[:, 2:], axis=0) for f in found]
    assert [len(shift) for shift in shifts] == [1, 1, 1, 1]  # nothing but a shift
    centre = found[3][:, :2].min(axis=0)
    assert (found[0][:, :2].max(axis=0) + 1).tolist() == centre.tolist()
    assert 0.25 <= centre[0] / 40 <= 0.75
    assert 0.25 <= centre[1] / 60 <= 0.75


def test_small_images_lie_whole_against_the_centre(make_sample):
    samples = [make_sample(coded_image(k, 6, 8), [[1, 2, 5, 7]]) for k in (1, 2, 3, 4)]
    mixed = mosaic(samples, tf.constant([1, 2]), canvas_size=CANVAS)
    image = mixed.image.numpy()
    found = quarters(image)
    assert [len(pixels) for pixels in found] == [48, 48, 48, 48]
    assert (image[..., 0] > 0).sum() == 4 * 48  # the rest is 0
    assert not image[image[..., 0] == 0].any()
    together = np.concatenate(found)[:, :2]
    assert (np.ptp(together, axis=0) + 1).tolist() == [12, 16]  # side by side around the centre
    corners = [pixels[:, :2].min(axis=0) for pixels in found]
    expected = [[y + 1, x + 2, y + 5, x + 7] for y, x in corners]
    assert mixed.boxes.numpy().tolist() == expected


@pytest.mark.parametrize("seed", range(8))
def test_boxes_and_masks_surround_the_pixels_that_are_left(make_sample, seed):
    random = np.random.default_rng(seed)
    samples = []
    for number in (1, 2, 3, 4):
        image = coded_image(number, *random.integers(15, 41, 2))
        y1, x1 = random.integers(0, 6, 2)
        y2, x2 = random.integers(9, 15, 2)
        image[y1:y2, x1:x2, 0] += 100
        samples.append(make_sample(image, [[y1, x1, y2, x2]], with_masks=True, first_class=number))
    mixed = mosaic(samples, tf.constant([seed, 0]), canvas_size=CANVAS)
    assert mixed.classes.numpy().tolist() == [1, 2, 3, 4]
    assert mixed.masks is not None
    for row in range(4):
        marked = mixed.image.numpy()[..., 0] == 101 + row
        np.testing.assert_array_equal(mixed.masks[row], marked)
        (y1, x1, y2, x2) = samples[row].boxes.numpy()[0]
        if marked.sum() < 0.1 * (y2 - y1) * (x2 - x1):
            assert not mixed.boxes.numpy()[row].any()
        else:
            places = np.argwhere(marked)
            extent = [*places.min(axis=0), *(places.max(axis=0) + 1)]
            assert mixed.boxes.numpy()[row].tolist() == extent


def test_less_than_a_tenth_of_a_box_is_none(make_sample):
    # A quarter has at most 30 x 45 = 1,350 pixels, of this box 5.6 %.
    tall = [[0, 0, 400, 60]]
    samples = [make_sample(np.ones((400, 60, 3)), tall) for _ in range(4)]
    mixed = mosaic(samples, tf.constant([0, 0]), canvas_size=CANVAS)
    assert not mixed.boxes.numpy().any()


def test_what_is_to_be_ignored_is_so_however_little_of_it_is_seen(make_sample):
    """Its pixels stay: without the box they would be background."""
    samples = [make_sample(np.ones((400, 60, 3)), [[0, 0, 400, 60]], crowds=[0]) for _ in range(4)]
    mixed = mosaic(samples, tf.constant([0, 0]), canvas_size=CANVAS)
    assert (visible_areas(mixed.boxes).numpy() > 0).all()
    assert mixed.is_crowd.numpy().all()


def test_crowds_stay_crowds(make_sample):
    samples = [
        make_sample(np.ones((40, 60, 3)), [[0, 0, 40, 60]] * 2, crowds=[1]) for _ in range(4)
    ]
    mixed = mosaic(samples, tf.constant([0, 0]), canvas_size=CANVAS)
    assert mixed.is_crowd.numpy().tolist() == [False, True] * 4
    assert mixed.masks is None
