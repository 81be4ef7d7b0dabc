"""Checkpoints under the names of the original TensorFlow 1 code give that code's features."""

import runpy
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest
import tensorflow as tf

from trainkit.backbones.batch_norm import BatchNorm
from trainkit.backbones.efficientnet import EfficientNet
from trainkit.backbones.resnet import ResNet
from trainkit.weights.load import load_weights
from trainkit.weights.read import read_weights


@pytest.fixture(scope="module")
def originals():
    path = Path(__file__).with_name("original_networks.py")
    return SimpleNamespace(**runpy.run_path(str(path)))


def save(values, prefix):
    """Writes what `tf.compat.v1.train.Saver` writes."""
    names = sorted(values)
    tf.raw_ops.SaveV2(
        prefix=str(prefix),
        tensor_names=names,
        shape_and_slices=[""] * len(names),
        tensors=[values[name] for name in names],
    )
    return read_weights(str(prefix))


@pytest.mark.parametrize(
    ("scope", "epsilon", "family", "besides"),
    [
        ("", 1e-5, "TensorFlow ResNet", "dense/kernel"),
        ("backbone/resnet50/", 1e-4, "tensorflow/tpu detection ResNet", "fpn/l3/kernel"),
    ],
)
def test_resnet(scope, epsilon, family, besides, networks, originals, tmp_path):
    layers = originals.Layers(networks.draw, epsilon)
    expected = originals.resnet50(layers, networks.images(), scope)
    assert f"{scope}conv2d_52/kernel" in layers.values
    stored = save(layers.values | {besides: networks.images()}, tmp_path / "model.ckpt-1")
    backbone = ResNet(depth=50, make_norm=partial(BatchNorm, epsilon=epsilon))
    backbone.build((None, None, None, 3))
    report = load_weights(backbone, stored, normalization="imagenet")
    assert (report.family.name, report.prefix) == (family, scope)
    assert len(report.loaded) == 53 * 5
    assert report.unused == (besides,)
    assert report.missing == report.shape_skipped == report.differences == ()
    networks.assert_same_features(backbone(networks.images()), expected)


@pytest.mark.parametrize(
    ("scope", "norm"),
    [
        ("efficientnet-b0/", "batch_normalization"),
        ("backbone/efficientnet-b0/", "tpu_batch_normalization"),
    ],
)
def test_efficientnet(scope, norm, networks, originals, tmp_path):
    layers = originals.Layers(networks.draw, 1e-3)
    expected = originals.efficientnet_b0(layers, networks.images(), scope, norm)
    stored = save(layers.values, tmp_path / "model.ckpt")
    backbone = EfficientNet(variant="b0")
    backbone.build((None, None, None, 3))
    report = load_weights(backbone, stored, normalization="imagenet")
    assert (report.family.name, report.prefix) == ("TensorFlow EfficientNet", scope)
    assert report.missing == report.unused == report.shape_skipped == report.differences == ()
    networks.assert_same_features(backbone(networks.images()), expected)
