from functools import partial
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from tpudet.detection.modeling.heads import RetinaNetHead
from tpudet.trainkit.backbones.batch_norm import BatchNorm
from tpudet.trainkit.training.optimizers import is_decayed

NORM = partial(BatchNorm, momentum=0.99, epsilon=1e-3)


def pyramid():
    rng = np.random.default_rng(0)
    return {
        level: rng.normal(size=(2, 64 // 2**level, 32 // 2**level, 8)).astype(np.float32)
        for level in (3, 4)
    }


def build(**settings):
    defaults = {
        "num_classes": 5,
        "anchors_per_location": 2,
        "min_level": 3,
        "max_level": 4,
        "num_convs": 2,
        "num_filters": 8,
        "separable": False,
        "activation": "relu",
        "make_norm": NORM,
        "norm_groups": None,
        "norm_epsilon": 1e-5,
        "level_scales": False,
        "centerness": False,
    }
    head = RetinaNetHead(**{**defaults, **settings})
    head.build((None, None, None, 8))
    return head


@pytest.mark.parametrize("separable", [False, True])
def test_answers_begin_at_the_prior(separable):
    head = build(separable=separable)
    answers = head(pyramid())
    assert answers.class_logits.shape == (2, (8 * 4 + 4 * 2) * 2, 5)
    assert answers.box_deltas.shape == (2, (8 * 4 + 4 * 2) * 2, 4)
    np.testing.assert_array_equal(head.class_predict.bias.numpy(), np.float32(-np.log(99.0)))
    if not separable:
        scores = 1 / (1 + np.exp(-np.array(answers.class_logits)))
        np.testing.assert_allclose(scores, 0.01, rtol=1e-2)
        np.testing.assert_allclose(answers.box_deltas, 0.0, atol=1e-2)


def test_group_norms_are_shared_by_the_levels_and_take_the_place_of_biases():
    head = build(num_convs=1, norm_groups=2, activation="linear")
    paths = sorted(variable.path for variable in head.class_tower.variables)
    names = ("conv0/kernel", "norm0/beta", "norm0/gamma")
    assert paths == [f"head/class_tower/{name}" for name in names]
    for level, features in pyramid().items():
        convolved = np.array(head.class_tower.convs[0](features))
        groups = convolved.reshape(2, -1, 2, 4)  # images, pixels, groups of four channels
        centered = groups - groups.mean(axis=(1, 3), keepdims=True)
        expected = centered / np.sqrt(groups.var(axis=(1, 3), keepdims=True) + 1e-5)
        found = head.class_tower(features, level=level, training=True)
        np.testing.assert_allclose(found, expected.reshape(convolved.shape), atol=1e-3)


def test_answers_come_row_by_row_place_by_place():
    head = build()
    one_hot = np.zeros(head.box_predict.kernel.shape, np.float32)
    head.box_predict.kernel.assign(one_hot)
    head.box_predict.bias.assign(np.arange(8.0))  # 2 anchors of 4 deltas
    deltas = np.array(head(pyramid()).box_deltas)
    np.testing.assert_array_equal(deltas, np.tile(np.arange(8.0).reshape(2, 4), (2, 40, 1)))
    # Mark one pixel of level 3: row 2, column 1 changes only places that its kernel reaches.
    features = pyramid()
    head.class_predict.kernel.assign(np.ones(head.class_predict.kernel.shape))
    before = np.array(head(features).class_logits)
    features[3][0, 7, 3] += 10.0
    changed = np.unique(np.nonzero(np.array(head(features).class_logits) != before)[1])
    # Three 3x3 convolutions reach 3 pixels: rows 4 to 7, all 4 columns, 2 anchors each.
    np.testing.assert_array_equal(changed, np.arange(4 * 4 * 2, 8 * 4 * 2))


@pytest.mark.parametrize("separable", [False, True])
def test_without_a_tower_predictions_are_of_the_features(separable):
    """Of all 8 channels that come in, though `num_filters` is 4, which divides them."""
    head = build(num_filters=4, num_convs=0, separable=separable)
    assert [v.path for v in head.variables if "tower" in v.path] == []
    assert head.class_predict.kernel.shape[2] == head.box_predict.kernel.shape[2] == 8
    assert head(pyramid()).class_logits.shape == (2, (8 * 4 + 4 * 2) * 2, 5)


def test_levels_share_kernels_but_not_norms():
    paths = {variable.path for variable in build().trainable_variables}
    assert sum(path.endswith("kernel") for path in paths) == 2 * 2 + 2
    assert {"head/class_tower/conv0/kernel", "head/box_tower/norm1_level4/gamma"} <= paths
    assert sum(path.endswith("gamma") for path in paths) == 2 * 2 * 2


def test_separable_kernels_are_depthwise_and_1x1():
    head = build(separable=True)
    shapes = {v.path: v.shape for v in head.trainable_variables if v.path.endswith("kernel")}
    assert len(shapes) == 2 * (2 * 2 + 2)
    assert shapes["head/box_tower/conv1/depthwise_kernel"] == (3, 3, 8, 1)
    assert shapes["head/box_tower/conv1/kernel"] == (1, 1, 8, 8)
    assert shapes["head/class_predict/depthwise_kernel"] == (3, 3, 8, 1)
    assert shapes["head/class_predict/kernel"] == (1, 1, 8, 5 * 2)


def test_activation_by_hand():
    """Convolutions of 0 leave the norm's shift of -2, then the activation of it: nothing, or silu.

    A prediction kernel whose middle is 1 sums 8 channels of it.
    """
    for activation, value in (("relu", 0.0), ("silu", -2 / (1 + np.exp(2.0)))):
        head = build(activation=activation)
        for variable in head.box_tower.variables:
            variable.assign(np.zeros(variable.shape))
        for norms in head.box_tower.norms.values():
            norms[-1].beta.assign(np.full(8, -2.0))
        middle = np.zeros(head.box_predict.kernel.shape)
        middle[1, 1] = 1
        head.box_predict.kernel.assign(middle)
        np.testing.assert_allclose(head(pyramid()).box_deltas, 8 * value, rtol=1e-5)


def test_frozen_norms_behave_in_training_as_without():
    head = build(make_norm=partial(NORM, frozen=True))
    before = [variable.numpy() for variable in head.variables]
    answers, trained = head(pyramid()), head(pyramid(), training=True)
    np.testing.assert_array_equal(trained.class_logits, answers.class_logits)
    for variable, value in zip(head.variables, before, strict=True):
        np.testing.assert_array_equal(variable, value)
    assert not [v.path for v in head.trainable_variables if "norm" in v.path]
    # Kernel and bias of two convolutions and a prediction, twice.
    assert len(head.trainable_variables) == 2 * 2 * 3


def test_predictions_are_float32_and_the_gradient_of_a_bias_is_a_sum_of_all_pixels():
    """N1: TensorFlow's own gradient of a bias in bfloat16 stops at 0.5 where the sum is 25.6."""
    keras.config.set_dtype_policy("mixed_bfloat16")
    head = build()
    features = {level: tf.cast(values, "bfloat16") for level, values in pyramid().items()}
    biases = [predict.bias.value for predict in (head.class_predict, head.box_predict)]
    with tf.GradientTape() as tape:
        predictions = head(features)[:2]
        loss = tf.add_n([tf.reduce_sum(0.01 * found) for found in predictions])
    assert {found.dtype for found in predictions} == {tf.float32}
    gradients: Any = tape.gradient(loss, biases)
    for gradient in gradients:
        np.testing.assert_allclose(gradient, 0.01 * 2 * (8 * 4 + 4 * 2), rtol=1e-5)


def test_without_norms_convolutions_have_biases():
    head = build(make_norm=None)
    kinds = {variable.path.rpartition("/")[2] for variable in head.variables}
    assert kinds == {"kernel", "bias"}
    assert head(pyramid()).class_logits.shape == (2, (8 * 4 + 4 * 2) * 2, 5)
    assert list(head(pyramid(), training=True)[0].shape) == [2, 80, 5]


def test_each_level_scales_its_boxes_only():
    head = RetinaNetHead(
        num_classes=2,
        anchors_per_location=1,
        min_level=3,
        max_level=4,
        num_convs=0,
        num_filters=4,
        separable=False,
        activation="relu",
        make_norm=None,
        norm_groups=None,
        norm_epsilon=1e-5,
        level_scales=True,
        centerness=False,
    )
    head.build((None, None, None, 4))
    features = {level: np.ones((1, 2, 2, 4), np.float32) for level in (3, 4)}
    logits, deltas = (np.array(values) for values in head(features)[:2])
    head.box_scales[4].scale.assign(-2.0)
    same, scaled = (np.array(values) for values in head(features)[:2])
    np.testing.assert_array_equal(same, logits)
    np.testing.assert_array_equal(scaled[:, :4], deltas[:, :4])
    np.testing.assert_allclose(scaled[:, 4:], -2 * deltas[:, 4:])
    assert np.any(deltas)
    paths = {variable.path for variable in head.variables if "scale" in variable.path}
    assert paths == {"head/box_scale3/scale", "head/box_scale4/scale"}
    assert not any(is_decayed(path) for path in paths)


def test_centerness_comes_of_the_box_tower_in_the_order_of_anchors():
    """With the kernel of the first number of each box it is that number."""
    head = build(centerness=True)
    predict: Any = head.centerness_predict
    predict.kernel.assign(head.box_predict.kernel.numpy()[..., ::4])
    answers = head(pyramid())
    np.testing.assert_allclose(
        answers.centerness_logits, answers.box_deltas[..., 0], rtol=1e-5, atol=1e-9
    )
    assert np.any(answers.centerness_logits)
    assert build()(pyramid()).centerness_logits is None
