import numpy as np
import pytest
import tensorflow as tf

from tpudet.detection.data.boxes import flip_boxes
from tpudet.trainkit.images.seeds import draw_placement, record_seed


def draws(epoch: int, count: int = 2000, **options):
    """The choices for records 0..count-1, stacked."""
    defaults = {"horizontal_flip": True, "scale_range": (0.1, 2.0)}
    draw = lambda record: draw_placement(  # noqa: E731
        record_seed(11, epoch, record), **{**defaults, **options}
    )
    dataset = tf.data.Dataset.range(count).map(draw).batch(count)
    return next(iter(dataset))


def test_distributions():
    drawn = draws(epoch=0)
    # Means of 2,000 draws; five standard deviations.
    assert np.mean(drawn.flip) == pytest.approx(0.5, abs=5 * 0.5 / 2000**0.5)
    assert np.mean(drawn.scale) == pytest.approx(1.05, abs=5 * 1.9 / 12**0.5 / 2000**0.5)
    assert 0.1 <= np.min(drawn.scale) < 0.11
    assert 1.99 < np.max(drawn.scale) <= 2.0
    assert 0 <= np.min(drawn.position) < 0.01
    assert 0.99 < np.max(drawn.position) < 1
    columns = np.column_stack([drawn.flip, drawn.scale, drawn.position])
    assert np.abs(np.corrcoef(columns.T) - np.eye(4)).max() < 5 / 2000**0.5


def test_choices_are_a_function_of_seed_epoch_and_record():
    first, again, other = draws(0, 50), draws(0, 50), draws(1, 50)
    assert np.array_equal(first.scale, again.scale)
    assert not np.isin(other.scale, first.scale).any()
    single = draw_placement(record_seed(11, 0, 33), horizontal_flip=True, scale_range=(0.1, 2.0))
    assert single.scale == first.scale[33]
    reseeded = draw_placement(record_seed(12, 0, 33), horizontal_flip=True, scale_range=(0.1, 2.0))
    assert reseeded.scale != first.scale[33]


def test_switching_the_flip_off_changes_nothing_else():
    with_flip, without = draws(0, 50), draws(0, 50, horizontal_flip=False)
    assert not np.any(without.flip)
    assert np.array_equal(with_flip.scale, without.scale)
    assert np.array_equal(with_flip.position, without.position)


def test_flipped_boxes_surround_the_flipped_pixels():
    image = np.zeros((20, 30), np.uint8)
    image[3:9, 4:15] = 1
    rows, columns = np.nonzero(image[:, ::-1])
    box = tf.constant([[3.0, 4.0, 9.0, 15.0]])
    flipped = flip_boxes(box, 30.0)
    assert flipped.numpy().tolist() == [
        [rows.min(), columns.min(), rows.max() + 1, columns.max() + 1]
    ]
    assert np.array_equal(flip_boxes(flipped, 30.0), box)
