"""Checkpoints under the names of the original TensorFlow 1 code give that code's features.

So does the same network under the names of efficientnet-pytorch, which took it over.
"""

import runpy
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest
import tensorflow as tf

from tpudet.trainkit.backbones.batch_norm import BatchNorm
from tpudet.trainkit.backbones.efficientnet import EfficientNet
from tpudet.trainkit.backbones.resnet import ResNet
from tpudet.trainkit.weights.load import load_weights
from tpudet.trainkit.weights.read import read_weights
from tpudet.trainkit.weights.stored_weights import StoredWeights

NORM = partial(BatchNorm, momentum=0.99, epsilon=1e-3)


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
    backbone = ResNet(depth=50, make_norm=partial(NORM, epsilon=epsilon))
    backbone.build((None, None, None, 3))
    report = load_weights(backbone, stored, min_backbone_share=0.9, normalization="imagenet")
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
    backbone = EfficientNet(variant="b0", drop_connect_rate=0.2, make_norm=NORM)
    backbone.build((None, None, None, 3))
    report = load_weights(backbone, stored, min_backbone_share=0.9, normalization="imagenet")
    assert (report.family.name, report.prefix) == ("TensorFlow EfficientNet", scope)
    assert report.missing == report.unused == report.shape_skipped == report.differences == ()
    networks.assert_same_features(backbone(networks.images()), expected)


def in_pytorch(values):
    """The variables of `efficientnet_b0` as efficientnet-pytorch names and lays them out.

    Its block makes `_expand_conv _bn0` where it expands, `_depthwise_conv _bn1`, `_se_reduce`,
    `_se_expand` and `_project_conv _bn2`.
    """
    parts = {"gamma": "weight", "beta": "bias"}
    parts |= {"moving_mean": "running_mean", "moving_variance": "running_var"}
    norms = ["batch_normalization", "batch_normalization_1", "batch_normalization_2"]
    tensors = {}
    for name, value in values.items():
        block, layer, part = name.replace("/se/", "/se ").split("/")
        if block == "stem":
            place = {"conv2d": "_conv_stem", "batch_normalization": "_bn0"}[layer]
        else:
            number = int(block.removeprefix("blocks_"))
            first = 0 if number else 1  # the first block alone does not expand
            convs = ["_expand_conv", "_project_conv"][first:]
            layers = dict(zip(["conv2d", "conv2d_1"], convs, strict=False))
            layers |= {norm: f"_bn{at}" for at, norm in enumerate(norms, start=first)}
            layers |= {"se conv2d": "_se_reduce", "se conv2d_1": "_se_expand"}
            layers["depthwise_conv2d"] = "_depthwise_conv"
            place = f"_blocks.{number}.{layers[layer]}"
        axes = (2, 3, 0, 1) if part == "depthwise_kernel" else (3, 2, 0, 1)
        tensors[f"{place}.{parts.get(part, 'bias' if part == 'bias' else 'weight')}"] = (
            value.transpose(axes) if value.ndim == 4 else value
        )
    return tensors


def test_efficientnet_pytorch(networks, originals):
    """Squeeze and excitation too, which efficientnet-lite lacks."""
    layers = originals.Layers(networks.draw, 1e-3)
    expected = originals.efficientnet_b0(layers, networks.images(), "", "batch_normalization")
    stored = StoredWeights(in_pytorch(layers.values), "a test")
    # 48 units with a norm but for the first block's expansion, and 32 of squeeze and excitation.
    assert len(stored.tensors) == 5 * (1 + 3 * 16 - 1) + 2 * 32
    assert stored.tensors["_blocks.3._se_expand.weight"].shape == (144, 6, 1, 1)
    backbone = EfficientNet(variant="b0", drop_connect_rate=0.2, make_norm=NORM)
    backbone.build((None, None, None, 3))
    report = load_weights(backbone, stored, min_backbone_share=0.9, normalization="imagenet")
    assert report.family.name == "efficientnet-pytorch"
    assert report.missing == report.unused == report.shape_skipped == report.differences == ()
    networks.assert_same_features(backbone(networks.images()), expected)
