import functools
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from tpudet.detection.modeling.roi_heads import BoxHead, ConvStack, MaskHead
from tpudet.trainkit.backbones.batch_norm import BatchNorm

POOLED = np.random.default_rng(0).normal(size=(2, 3, 4, 4, 5)).astype(np.float32)


def make_box_head(**settings) -> Any:
    head = BoxHead(
        **{
            "num_classes": 6,
            "class_agnostic": False,
            "num_convs": 0,
            "num_filters": 7,
            "num_dense": 2,
            "num_units": 8,
            "make_norm": None,
            **settings,
        }
    )
    head.build((None, None, 4, 4, 5))
    return head


@pytest.mark.parametrize(("num_convs", "num_dense"), [(0, 2), (4, 1)])
@pytest.mark.parametrize("class_agnostic", [False, True])
def test_shapes_of_box_predictions(num_convs, num_dense, class_agnostic):
    head = make_box_head(num_convs=num_convs, num_dense=num_dense, class_agnostic=class_agnostic)
    found = head(POOLED)
    assert found.class_logits.shape == (2, 3, 7)
    assert found.box_deltas.shape == (2, 3, 1 if class_agnostic else 6, 4)
    assert sum(v.path.startswith("box_head/tower/") for v in head.variables) == 2 * num_convs
    assert len({v.path for v in head.variables}) == len(head.variables)


def test_regions_do_not_see_each_other():
    head = make_box_head(num_convs=1)
    whole = head(POOLED)
    for image, region in np.ndindex(2, 3):
        alone = head(POOLED[image : image + 1, region : region + 1])
        for one, other in zip(alone, whole, strict=True):
            np.testing.assert_allclose(one[0, 0], other[image, region], rtol=1e-4, atol=1e-5)


def test_deltas_are_grouped_by_class():
    head = make_box_head()
    before = np.array(head(POOLED).box_deltas)
    bias = np.zeros(24, np.float32)
    bias[8:12] = [1, 2, 3, 4]  # the third class
    head.box_predict.bias.assign(bias)
    moved = np.array(head(POOLED).box_deltas) - before
    np.testing.assert_allclose(moved[:, :, 2], np.broadcast_to([1, 2, 3, 4], (2, 3, 4)), atol=1e-5)
    np.testing.assert_array_equal(moved[:, :, [0, 1, 3, 4, 5]], 0)


def make_mask_head(**settings):
    head = MaskHead(
        **{"num_classes": 6, "num_convs": 2, "num_filters": 7, "make_norm": None, **settings}
    )
    head.build((None, None, 4, 4, 5))
    rng = np.random.default_rng(1)
    head.mask_predict.kernel.assign(rng.normal(size=(1, 1, 7, 6)))
    head.mask_predict.bias.assign(rng.normal(size=6))
    return head


def test_masks_are_those_of_their_class():
    """As if the masks of all classes were computed and then one were picked."""
    head = make_mask_head()
    classes = np.array([[1, 6, 3], [2, 0, 6]], np.int32)
    found = np.array(head(POOLED, classes))
    assert found.shape == (2, 3, 8, 8)
    features = tf.nn.relu(head.upsample(head.tower(POOLED.reshape(6, 4, 4, 5))))
    every = np.array(head.mask_predict(features)).reshape(2, 3, 8, 8, 6)
    for image, region in np.ndindex(2, 3):
        channel = max(classes[image, region] - 1, 0)
        np.testing.assert_allclose(
            found[image, region], every[image, region, ..., channel], rtol=1e-4, atol=1e-5
        )


def test_masks_lie_as_their_region():
    """Of a head that looks at single cells, a loud cell changes the four pixels over it."""
    head = make_mask_head(num_convs=0)
    classes = np.ones((1, 1), np.int32)
    quiet = np.zeros((1, 1, 4, 4, 5), np.float32)
    loud = quiet.copy()
    loud[0, 0, 1, 3] = 5.0
    moved = np.array(head(loud, classes))[0, 0] != np.array(head(quiet, classes))[0, 0]
    assert moved.any()
    rows, columns = np.nonzero(moved)
    assert set(rows) <= {2, 3}
    assert set(columns) <= {6, 7}


def test_norms_take_the_place_of_biases():
    stack = ConvStack(
        num_convs=2,
        num_filters=3,
        make_norm=functools.partial(BatchNorm, momentum=0.5, epsilon=1e-3),
    )
    stack.build((None, 4, 4, 5))
    assert [v.path for v in stack.trainable_variables] == [
        f"tower/conv{index}/{name}"
        for index in range(2)
        for name in ("kernel", "norm/gamma", "norm/beta")
    ]
    before = stack.convs[0].norm.moving_mean.numpy()
    features = POOLED.reshape(6, 4, 4, 5)
    assert stack(features, training=True).shape == (6, 4, 4, 3)
    assert np.any(stack.convs[0].norm.moving_mean.numpy() != before)


def test_the_gradient_of_a_predictors_bias_in_low_precision_is_a_sum_over_all_regions():
    keras.config.set_dtype_policy("mixed_bfloat16")
    head: Any = BoxHead(
        num_classes=2,
        num_convs=0,
        num_filters=4,
        num_dense=1,
        num_units=8,
        class_agnostic=False,
        make_norm=None,
    )
    head.build((None, None, 2, 2, 3))
    with tf.GradientTape() as tape:
        outputs = head(tf.ones((2, 512, 2, 2, 3), "bfloat16"))
        loss = tf.add_n([tf.reduce_sum(0.01 * found) for found in outputs])
    biases = [predict.bias.value for predict in (head.class_predict, head.box_predict)]
    gradients: Any = tape.gradient(loss, biases)
    for gradient in gradients:
        np.testing.assert_allclose(gradient, 0.01 * 2 * 512, rtol=1e-4)
