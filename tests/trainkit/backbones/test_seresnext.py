import math
from functools import partial
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from tpudet.trainkit.backbones.batch_norm import BatchNorm
from tpudet.trainkit.backbones.layers import Conv
from tpudet.trainkit.backbones.seresnext import SEResNeXt

NORM = partial(BatchNorm, momentum=0.99, epsilon=1e-3)

# Of timm's seresnext50_32x4d and seresnext101_32x4d, in papers 27.56 M and 48.96 M, without their
# classifier.
TRAINABLE = {50: 27_559_896 - 2_049_000, 101: 48_955_416 - 2_049_000}


def build(depth=50, **settings):
    backbone = SEResNeXt(**{"depth": depth, "make_norm": NORM, **settings})
    backbone.build((None, None, None, 3))
    return backbone


@pytest.mark.parametrize("depth", TRAINABLE)
def test_number_of_parameters(depth):
    with keras.StatelessScope(initialize_variables=False):  # drawing takes most of the time
        backbone = build(depth)
    assert sum(math.prod(v.shape) for v in backbone.trainable_variables) == TRAINABLE[depth]


def test_paths_and_shapes():
    backbone = build()
    shapes = {variable.path: tuple(variable.shape) for variable in backbone.variables}
    assert len(shapes) == len(backbone.variables)
    expected = {
        "stem/conv/kernel": (7, 7, 3, 64),
        "stage1/block0/conv1/norm/moving_mean": (128,),
        "stage1/block0/shortcut/kernel": (1, 1, 64, 256),
        "stage1/block0/conv2/kernel": (3, 3, 4, 128),
        "stage2/block3/conv2/kernel": (3, 3, 8, 256),
        "stage3/block5/squeeze/kernel": (1, 1, 1024, 64),
        "stage4/block2/conv2/kernel": (3, 3, 32, 1024),
        "stage4/block2/squeeze/bias": (128,),
        "stage4/block2/excite/kernel": (1, 1, 128, 2048),
    }
    assert {path: shapes[f"backbone/{path}"] for path in expected} == expected
    assert "backbone/stage1/block1/shortcut/kernel" not in shapes


def test_levels_and_statistics_that_move():
    """Every mean and variance moves a tenth of the way to the batch's, and predictions with it."""
    backbone = build(make_norm=partial(NORM, momentum=0.9))
    images = np.random.default_rng(0).normal(1.0, 2.0, (1, 64, 96, 3)).astype(np.float32)
    before = {v.path: v.numpy() for v in backbone.non_trainable_variables}
    assert len(before) == 2 * (1 + 16 * 3 + 4)
    features = tf.function(backbone)(images, training=True)
    assert {level: tuple(f.shape) for level, f in features.items()} == {
        2: (1, 16, 24, 256),
        3: (1, 8, 12, 512),
        4: (1, 4, 6, 1024),
        5: (1, 2, 3, 2048),
    }
    assert backbone.channels == {2: 256, 3: 512, 4: 1024, 5: 2048}
    for variable in backbone.non_trainable_variables:
        assert np.all(variable.numpy() != before[variable.path]), variable.path
    stem: Any = backbone.stem.convolve(images)
    np.testing.assert_allclose(
        backbone.stem.norm.moving_mean, 0.1 * np.mean(stem, axis=(0, 1, 2)), rtol=1e-4, atol=1e-6
    )


def test_frozen_batch_norm_stays():
    backbone = build(make_norm=partial(NORM, frozen=True))
    block = backbone.stages[0][0]
    inputs = np.random.default_rng(0).normal(size=(2, 6, 8, 64)).astype(np.float32)
    np.testing.assert_array_equal(block(inputs, training=True), block(inputs, training=False))
    assert not any("norm" in variable.path for variable in backbone.trainable_variables)


def test_unknown_depth():
    with pytest.raises(ValueError, match=r"SE-ResNeXt depth is 152; choose one of \[50, 101\]"):
        SEResNeXt(depth=152, make_norm=NORM)


def numpy_convolution(inputs, kernel, strides):
    # Pads one pixel on all sides; [B, H, W, I], [3, 3, I, O] -> [B, H / strides, W / strides, O].
    padded = np.pad(inputs, ((0, 0), (1, 1), (1, 1), (0, 0)))
    windows = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), axis=(1, 2))
    return np.einsum("bhwiyx,yxio->bhwo", windows[:, ::strides, ::strides], kernel)


@pytest.mark.parametrize("strides", [1, 2])
@pytest.mark.parametrize("device", ["cpu:0", "gpu:0"])
def test_groups_are_32_separate_convolutions(device, strides, monkeypatch):
    """Both ways to compute them, and their gradients: those of a sum are convolutions as well."""
    monkeypatch.setattr(keras.distribution, "list_devices", lambda: [device])
    rng = np.random.default_rng(0)
    conv = Conv(96, 3, strides=strides, groups=32, explicit_padding=True, use_bias=False)
    inputs = rng.normal(size=(2, 6, 8, 64)).astype(np.float32)
    conv.build(inputs.shape)
    kernel = conv.kernel.numpy()
    assert kernel.shape == (3, 3, 2, 96)
    tensor = tf.constant(inputs)
    with tf.GradientTape() as tape:
        tape.watch(tensor)
        outputs: Any = conv(tensor)
    upstream = rng.normal(size=outputs.shape).astype(np.float32)
    gradients: Any = tape.gradient(outputs, [tensor, conv.kernel.value], output_gradients=upstream)

    def separately(inputs, kernel):
        parts = zip(np.split(inputs, 32, -1), np.split(kernel, 32, -1), strict=True)
        found = [numpy_convolution(part, weights, strides) for part, weights in parts]
        return np.concatenate(found, axis=-1)

    np.testing.assert_allclose(outputs, separately(inputs, kernel), atol=1e-5)
    # Linear in each argument, so that <gradient, direction> = <upstream, conv(direction)>.
    direction = rng.normal(size=inputs.shape)
    slopes = np.sum(gradients[0] * direction), np.sum(upstream * separately(direction, kernel))
    np.testing.assert_allclose(*slopes, rtol=1e-4)
    direction = rng.normal(size=kernel.shape)
    slopes = np.sum(gradients[1] * direction), np.sum(upstream * separately(inputs, direction))
    np.testing.assert_allclose(*slopes, rtol=1e-4)


@pytest.mark.parametrize(("channels", "filters"), [(48, 64), (64, 48)])
def test_groups_must_divide_the_channels(channels, filters):
    with pytest.raises(ValueError, match=f"groups=32 must divide both its filters={filters} and"):
        Conv(filters, 3, groups=32).build((None, None, None, channels))
