import functools
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from tpudet.trainkit.backbones import batch_norm
from tpudet.trainkit.backbones.batch_norm import BatchNorm
from tpudet.trainkit.backbones.layers import Conv, ConvNorm, convolve_and_normalize
from tpudet.trainkit.training.devices import choose_tensorflow_devices

NORM = functools.partial(BatchNorm, momentum=0.99, epsilon=1e-3)


def random_images(shape, seed=0):
    return np.random.default_rng(seed).normal(1.0, 2.0, shape).astype(np.float32)


def randomize(layer, seed=1):
    rng = np.random.default_rng(seed)
    for variable in layer.variables:
        variable.assign(rng.uniform(0.5, 1.5, variable.shape))


def run_batch_norm(layer, inputs, upstream) -> tuple[Any, Any]:
    inputs = tf.convert_to_tensor(inputs)
    variables = [layer.gamma.value, layer.beta.value]
    with tf.GradientTape() as tape:
        tape.watch(inputs)
        outputs = layer(inputs, training=True)
    return outputs, tape.gradient(outputs, [inputs, *variables], output_gradients=upstream)


@pytest.fixture(params=[True, False], ids=["fused", "plain"])
def fused(request, monkeypatch) -> bool:
    """TensorFlow's operation for one replica on a CPU, and what replicas, GPUs and JAX compute."""
    if not request.param:
        monkeypatch.setattr(batch_norm, "is_fused", lambda inputs, synchronized: False)
    return request.param


@pytest.mark.usefixtures("fused")
def test_training_equals_the_layer_of_keras():
    inputs, upstream = random_images((3, 6, 5, 4)), random_images((3, 6, 5, 4), seed=9)
    ours = BatchNorm(momentum=0.9, epsilon=1e-3)
    theirs = keras.layers.BatchNormalization(momentum=0.9, epsilon=1e-3)
    for layer in (ours, theirs):
        layer.build(inputs.shape)
        randomize(layer)
    outputs, gradients = run_batch_norm(ours, inputs, upstream)
    expected_outputs, expected = run_batch_norm(theirs, inputs, upstream)
    np.testing.assert_allclose(outputs, expected_outputs, atol=2e-6)
    for one, other in zip(gradients, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-5)
    for one, other in zip(ours.variables, theirs.variables, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-6, err_msg=one.path)


@pytest.mark.usefixtures("fused")
def test_moving_statistics_by_hand():
    # Channel values 1, 3: mean 2, biased variance 1. Momentum .75 moves a quarter of the way.
    layer = BatchNorm(momentum=0.75, epsilon=0.0)
    outputs = layer(np.array([1.0, 3.0], np.float32).reshape(1, 1, 2, 1), training=True)
    np.testing.assert_allclose(np.ravel(outputs), [-1.0, 1.0])
    np.testing.assert_allclose(layer.moving_mean, [0.5])
    np.testing.assert_allclose(layer.moving_variance, [1.0])


@pytest.mark.parametrize(
    ("mean", "deviation", "share"), [(10.0, 1.0, 1e-4), (10.0, 0.1, 1e-2), (100.0, 0.1, 0.4)]
)
@pytest.mark.usefixtures("fused")
def test_variance_of_numbers_far_from_zero(mean, deviation, share):
    """The limits that the docstring states, at 10, 100 and 1000 deviations from 0."""
    layer = BatchNorm(momentum=0.0, epsilon=1e-3)
    inputs = np.random.default_rng(0).normal(mean, deviation, (4, 20, 20, 3)).astype(np.float32)
    layer(inputs, training=True)
    exact = np.var(inputs.astype(np.float64), axis=(0, 1, 2))
    np.testing.assert_allclose(layer.moving_variance, exact, rtol=share)


@pytest.mark.parametrize("freeze", ["layer", "gamma"])
def test_frozen_in_training_is_inference(freeze):
    layer = BatchNorm(momentum=0.99, epsilon=1e-3)
    inputs = random_images((2, 4, 4, 3))
    layer.build(inputs.shape)
    randomize(layer)
    expected = layer(inputs, training=False)
    (layer if freeze == "layer" else layer.gamma).trainable = False
    before = layer.moving_mean.numpy()
    np.testing.assert_array_equal(layer(inputs, training=True), expected)
    np.testing.assert_array_equal(layer.moving_mean.numpy(), before)


@pytest.mark.parametrize("kind", ["full", "depthwise", "separable"])
@pytest.mark.parametrize("use_bias", [True, False])
def test_folded_equals_unfolded(kind, use_bias):
    conv = Conv(4, 3, kind=kind, use_bias=use_bias)
    norm = BatchNorm(momentum=0.99, epsilon=1e-3)
    inputs = random_images((2, 8, 8, 4))
    conv.build(inputs.shape)
    norm.build(inputs.shape)
    randomize(norm)
    if use_bias:
        conv.bias.assign(np.arange(4.0))
    folded = convolve_and_normalize(inputs, conv, norm, training=False)
    np.testing.assert_allclose(folded, norm(conv(inputs), training=False), rtol=1e-5, atol=1e-5)


def test_conv_norm_is_convolution_norm_and_activation():
    layer = ConvNorm(5, 3, activation="silu", make_norm=NORM)
    inputs = random_images((2, 8, 8, 4))
    layer.build(inputs.shape)
    randomize(layer.norm)
    for training in (False, True):
        expected: Any = keras.ops.silu(layer.norm(layer.convolve(inputs), training=training))
        np.testing.assert_allclose(layer(inputs, training=training), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("explicit", "corner"), [(True, 4.0), (False, 9.0)])
def test_padding_at_the_corner(explicit, corner):
    # A 3x3 kernel of ones over ones: padded on all sides it sees 2x2 pixels at the corner,
    # padded at the end only, 3x3.
    conv = Conv(1, 3, strides=2, explicit_padding=explicit, kernel_initializer="ones")
    outputs = conv(np.ones((1, 4, 4, 1), np.float32))
    assert outputs.shape == (1, 2, 2, 1)
    assert float(outputs[0, 0, 0, 0]) == corner


def test_depthwise_refuses_other_channels():
    with pytest.raises(ValueError, match="filters=8 and its input has 4 channels"):
        Conv(8, 3, kind="depthwise").build((None, None, None, 4))


@pytest.mark.parametrize("kind", ["full", "separable"])
@pytest.mark.parametrize("channels", [4, 16])
def test_inputs_of_other_channels_are_refused(kind, channels):
    """Also where they are a multiple: TensorFlow would convolve in two groups and say nothing."""
    for layer in (Conv(6, 3, kind=kind), ConvNorm(6, 3, kind=kind, make_norm=NORM)):
        layer.build((None, None, None, 8))
        for training in (False, True):
            with pytest.raises(ValueError, match=f"for 8 channels; its input has {channels}"):
                layer(random_images((1, 4, 4, channels)), training=training)


def test_two_layers_of_one_initializer_draw_different_numbers():
    first, second = (ConvNorm(4, 3, make_norm=NORM) for _ in range(2))
    for layer in (first, second):
        layer.build((None, None, None, 4))
    assert np.any(first.kernel.numpy() != second.kernel.numpy())


@pytest.mark.usefixtures("fused")
def test_half_precision_keeps_statistics_in_float32():
    policy = keras.config.dtype_policy()
    keras.config.set_dtype_policy("mixed_bfloat16")
    try:
        layer = ConvNorm(4, 3, make_norm=NORM)
        outputs = layer(random_images((2, 8, 8, 3)), training=True)
    finally:
        keras.config.set_dtype_policy(policy)
    assert keras.backend.standardize_dtype(outputs.dtype) == "bfloat16"
    assert {keras.backend.standardize_dtype(v.dtype) for v in layer.variables} == {"float32"}
    np.testing.assert_allclose(np.mean(outputs, axis=(0, 1, 2)), 0.0, atol=0.02)


def test_in_bfloat16_the_fused_operation_agrees_with_the_plain_one(monkeypatch):
    """8 bits of mantissa are 0.2 % of a number; sums over pixels are of float32 in both."""
    rounded = [tf.cast(random_images((4, 12, 10, 8), seed), "bfloat16") for seed in (0, 9)]
    keras.config.set_dtype_policy("mixed_bfloat16")
    found = []
    for fuse in (True, False):
        if not fuse:
            monkeypatch.setattr(batch_norm, "is_fused", lambda inputs, synchronized: False)
        layer = BatchNorm(momentum=0.9, epsilon=1e-3)
        layer.build(rounded[0].shape)
        randomize(layer)
        outputs, gradients = run_batch_norm(layer, *rounded)
        assert keras.backend.standardize_dtype(outputs.dtype) == "bfloat16"
        found.append([np.asarray(value, np.float32) for value in (outputs, *gradients)])
        found[-1] += [layer.moving_mean.numpy(), layer.moving_variance.numpy()]
    for one, other, share in zip(*found, (4e-3, 4e-3, 1e-4, 1e-4, 1e-6, 1e-5), strict=True):
        assert np.linalg.norm(one - other) < share * np.linalg.norm(other)


@pytest.mark.usefixtures("fused")
def test_two_replicas_equal_one():
    inputs, upstream = random_images((4, 6, 5, 3)), random_images((4, 6, 5, 3), seed=9)
    one = BatchNorm(momentum=0.99, epsilon=1e-3)
    one.build(inputs.shape)
    randomize(one)
    outputs, gradients = run_batch_norm(one, inputs, upstream)

    strategy = choose_tensorflow_devices("cpu", 2).strategy
    with strategy.scope():
        two = BatchNorm(synchronized=True, momentum=0.99, epsilon=1e-3)
        two.build(inputs.shape)
        randomize(two)

    @tf.function
    def run():
        def replica():
            index = tf.distribute.get_replica_context().replica_id_in_sync_group
            return run_batch_norm(
                two,
                tf.constant(inputs)[index * 2 : index * 2 + 2],
                tf.constant(upstream)[index * 2 : index * 2 + 2],
            )

        return strategy.run(replica)

    split_outputs, split_gradients = tf.nest.map_structure(
        strategy.experimental_local_results, run()
    )
    np.testing.assert_allclose(np.concatenate(split_outputs), outputs, atol=1e-5)
    np.testing.assert_allclose(np.concatenate(split_gradients[0]), gradients[0], atol=1e-5)
    for shares, whole in zip(split_gradients[1:], gradients[1:], strict=True):
        np.testing.assert_allclose(sum(shares), whole, rtol=1e-5, atol=1e-4)
    for mirrored, single in zip(two.variables, one.variables, strict=True):
        for value in strategy.experimental_local_results(mirrored.value):
            np.testing.assert_allclose(value, single, rtol=1e-5)
