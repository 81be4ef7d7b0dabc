"""Weights of PyTorch's libraries give the features that they give there.

A Python that has them runs `torch_features.py`, this one or the one that TPUDET_TORCH_PYTHON names:

    python -m venv torch
    torch/bin/pip install torch torchvision timm efficientnet-pytorch efficientnet_lite_pytorch
    TPUDET_TORCH_PYTHON=torch/bin/python make test
"""

import os
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tpudet.trainkit.backbones.batch_norm import BatchNorm
from tpudet.trainkit.backbones.efficientnet import EfficientNet
from tpudet.trainkit.backbones.mobilenet_v3 import MobileNetV3
from tpudet.trainkit.backbones.resnet import ResNet
from tpudet.trainkit.weights.load import load_weights
from tpudet.trainkit.weights.read import read_weights
from tpudet.trainkit.weights.recognize import recognize

TORCH_PYTHON = os.environ.get("TPUDET_TORCH_PYTHON", sys.executable)
EFFICIENTNET = partial(EfficientNet, drop_connect_rate=0.0)
NETWORKS = [
    ("torchvision", "resnet18", ResNet, {"depth": 18}),
    ("torchvision", "resnet50", ResNet, {"depth": 50}),
    ("timm", "resnet34", ResNet, {"depth": 34}),
    ("torchvision", "mobilenet_v3_large", MobileNetV3, {}),
    ("torchvision", "efficientnet_b0", EFFICIENTNET, {"variant": "b0"}),
    ("torchvision", "efficientnet_b5", EFFICIENTNET, {"variant": "b5"}),
    ("timm", "efficientnet_b1", EFFICIENTNET, {"variant": "b1"}),
    ("timm", "efficientnet_lite0", EFFICIENTNET, {"variant": "lite0"}),
    ("timm", "tf_efficientnet_b0", EFFICIENTNET, {"variant": "b0"}),
    ("timm", "tf_efficientnet_lite1", EFFICIENTNET, {"variant": "lite1"}),
    ("efficientnet_pytorch", "efficientnet-b0", EFFICIENTNET, {"variant": "b0"}),
    ("efficientnet_lite_pytorch", "efficientnet-lite0", EFFICIENTNET, {"variant": "lite0"}),
]
LIBRARIES = dict.fromkeys(library for library, *_ in NETWORKS)


@pytest.fixture(scope="module")
def torch_python():
    command = [TORCH_PYTHON, "-c", f"import torch, {', '.join(sorted(LIBRARIES))}"]
    if subprocess.run(command, capture_output=True, check=False).returncode:
        pytest.skip(f"TPUDET_TORCH_PYTHON names no Python with torch, {', '.join(LIBRARIES)}")
    return TORCH_PYTHON


@pytest.mark.parametrize(("library", "name", "make", "settings"), NETWORKS)
def test_same_features(library, name, make, settings, networks, torch_python, tmp_path):
    script = Path(__file__).with_name("torch_features.py")
    subprocess.run([torch_python, str(script), library, name, str(tmp_path)], check=True)
    path = next(str(file) for file in tmp_path.iterdir() if name in file.name)
    stored = read_weights(path)
    family = recognize(stored.tensors, path=path).family
    style: dict[str, Any] = {} if make is MobileNetV3 else {"style": family.style}
    backbone = make(
        **settings,
        **style,
        make_norm=partial(BatchNorm, epsilon=family.batch_norm_epsilon, momentum=0.99),
    )
    backbone.build((None, None, None, 3))
    report = load_weights(
        backbone,
        stored,
        min_backbone_share=0.9,
        path=path,
        normalization=family.normalization,
    )
    assert report.missing == report.shape_skipped == report.differences == ()
    assert report.backbone_share == 1.0
    top = (
        "fc.",
        "classifier.",
        "conv_head.",
        "bn2.",
        "features.8.",
        "_conv_head.",
        "_bn1.",
        "_fc.",
    )
    assert all(n.startswith(top) or n.endswith("num_batches_tracked") for n in report.unused)
    with np.load(tmp_path / "features.npz") as file:
        expected = {int(level): file[level] for level in file}
    networks.assert_same_features(backbone(networks.images()), expected)
