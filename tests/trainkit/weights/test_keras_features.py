"""Weights of keras.applications, from all three kinds of files, give the features of Keras."""

from functools import partial
from typing import Any

import keras
import numpy as np
import pytest

from tpudet.trainkit.backbones.batch_norm import BatchNorm
from tpudet.trainkit.backbones.efficientnet import EfficientNet
from tpudet.trainkit.backbones.resnet import ResNet
from tpudet.trainkit.weights.families import NORMALIZATIONS
from tpudet.trainkit.weights.load import load_weights
from tpudet.trainkit.weights.read import read_weights
from tpudet.trainkit.weights.recognize import recognize

# NumPy's word on Keras, which saves its variables so.
pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")

EFFICIENTNET_LAYERS = {
    "B0": ("block2b_add", "block3b_add", "block5c_add", "block7a_project_bn"),
    "B3": ("block2c_add", "block3c_add", "block5e_add", "block7b_add"),
}
RESNET_LAYERS = ("conv2_block3_out", "conv3_block4_out", "conv4_block6_out", "conv5_block3_out")


def randomize(model, networks):
    rng = np.random.default_rng(0)
    for weight in model.weights:
        if not weight.path.startswith("normalization"):
            weight.assign(networks.draw(weight.path, weight.shape, rng))


def features_of(model, layers, images):
    outputs = [model.get_layer(layer).output for layer in layers]
    features = keras.Model(model.input, outputs)(images)
    return {level: np.array(feature) for level, feature in enumerate(features, start=2)}


def settings(family) -> Any:
    """The settings that the weights expect, as the backbone takes them."""
    return {
        "style": family.style,
        "make_norm": partial(BatchNorm, epsilon=family.batch_norm_epsilon, momentum=0.99),
    }


def load(backbone, path, family):
    backbone.build((None, None, None, 3))
    stored = read_weights(str(path))
    report = load_weights(
        backbone, stored, min_backbone_share=0.9, normalization=family.normalization
    )
    assert report.missing == report.shape_skipped == report.differences == ()
    assert report.family == family
    assert report.backbone_share == 1.0
    return report


@pytest.mark.parametrize(
    ("size", "file"),
    [("B0", "w.weights.h5"), pytest.param("B3", "m.keras", marks=pytest.mark.slow)],
)
def test_efficientnet(size, file, networks, tmp_path):
    shape = (64, 96, 3)
    make = getattr(keras.applications, f"EfficientNet{size}")
    model = make(weights=None, include_top=False, input_shape=shape)
    randomize(model, networks)
    save(model, tmp_path / file)
    family = recognize(read_weights(str(tmp_path / file)).tensors).family
    backbone = EfficientNet(variant=size.lower(), drop_connect_rate=0.2, **settings(family))
    report = load(backbone, tmp_path / file, family)
    assert all("top_" in name or "normalization" in name for name in report.unused)
    images = networks.images(*shape[:2])
    # The model's own first layers: over 255, and with untrained weights no more than that.
    expected = features_of(model, EFFICIENTNET_LAYERS[size], images * 255.0)
    networks.assert_same_features(backbone(images), expected)


def test_resnet(networks, tmp_path):
    shape = (64, 96, 3)
    make: Any = keras.applications.ResNet50
    model = make(weights=None, include_top=False, input_shape=shape)
    randomize(model, networks)
    path = tmp_path / "m.h5"
    save(model, path)
    family = recognize(read_weights(str(path)).tensors).family
    backbone = ResNet(depth=50, **settings(family))
    assert load(backbone, path, family).unused == ()
    pixels = np.random.default_rng(2).uniform(0, 255, (2, *shape)).astype(np.float32)
    mean, deviation = (np.array(numbers, np.float32) for numbers in NORMALIZATIONS["caffe"])
    # Red, green, blue for ours; Keras turns them round itself.
    turned = keras.applications.resnet.preprocess_input(pixels.copy())
    expected = features_of(model, RESNET_LAYERS, turned)
    networks.assert_same_features(backbone((pixels / 255 - mean) / deviation), expected)


def save(model, path):
    if path.name.endswith(".weights.h5"):
        model.save_weights(path)
    else:
        model.save(path)
