"""Drawn batches have the shapes that the pipeline feeds, and boxes and classes that can be."""

import dataclasses

import numpy as np
import pytest
import tensorflow as tf

from tpudet.detection.data.config import DataConfig
from tpudet.detection.data.pipeline import _batched, _filler
from tpudet.detection.data.synthetic import empty_batch, random_batch, synthetic_dataset

DATA = dataclasses.replace(DataConfig(), canvas_size=(64, 96), max_instances=12)


@pytest.mark.parametrize("with_masks", [False, True])
def test_shapes_are_those_of_the_pipeline(with_masks: bool) -> None:
    dataset = synthetic_dataset(DATA, batch_size=2, with_masks=with_masks, num_classes=3, seed=0)
    batch = next(dataset.as_numpy_iterator())
    fillers = tf.data.Dataset.from_tensors(_filler(with_masks=with_masks)).repeat(2)
    fed = next(_batched(fillers, (64, 96), 2, 12).as_numpy_iterator())
    for name, drawn, real in zip(fed._fields, batch, fed, strict=True):
        assert (drawn is None) == (real is None), name
        if real is not None:
            assert (drawn.shape, drawn.dtype) == (real.shape, real.dtype), name


def test_boxes_have_an_area_within_the_canvas_and_classes_exist() -> None:
    batch = random_batch(DATA, batch_size=4, with_masks=True, num_classes=3, seed=7)
    assert batch.images.std() > 60  # noise over 0..255 has 74
    boxes, classes = batch.boxes[:, :8], batch.classes[:, :8]
    assert (boxes[..., 2:] > boxes[..., :2]).all()
    assert (boxes >= 0).all()
    assert (boxes <= [64, 96, 64, 96]).all()
    assert set(np.unique(classes)) == {1, 2, 3}
    assert not batch.boxes[:, 8:].any()
    assert not batch.classes[:, 8:].any()
    assert batch.masks is not None
    assert np.unpackbits(batch.masks[0, 0], axis=-1).mean() == 0.5


def test_an_empty_batch_is_all_zeros() -> None:
    batch = empty_batch(DATA, batch_size=2, with_masks=False)
    assert batch.masks is None
    assert not batch.images.any()
    assert not batch.boxes.any()
