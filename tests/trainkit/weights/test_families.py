"""Whose weights a file holds, told by its names, its own name, and what timm lays beside it."""

import json

import numpy as np
import pytest

from tpudet.trainkit.weights.families import NORMALIZATIONS
from tpudet.trainkit.weights.name_maps import torch_names
from tpudet.trainkit.weights.name_maps.recipes import Unit
from tpudet.trainkit.weights.recognize import recognize
from tpudet.trainkit.weights.stored_weights import WeightsError

RESNET = "PyTorch ResNet (torchvision, timm)"
NAMES = {
    "efficientnet-pytorch": ("_conv_stem.weight", "_blocks.0._se_reduce.weight"),
    "timm EfficientNet": ("conv_stem.weight", "blocks.0.0.conv_dw.weight"),
    RESNET: ("conv1.weight", "bn1.weight", "layer1.0.conv1.weight", "layer1.0.bn1.weight"),
    "torchvision MobileNetV3": (
        *("0.0.weight", "0.1.weight", "1.block.0.0.weight"),
        "4.block.2.fc1.weight",
    ),
    "keras.applications ResNet": (
        "conv1_conv/kernel",
        "conv1_bn/gamma",
        "conv2_block1_1_conv/kernel",
    ),
}


@pytest.mark.parametrize(("family", "names"), NAMES.items())
def test_recognizes_whose_weights_they_are(family, names):
    assert recognize(names).family.name == family
    behind = recognize([f"student/net/{name}" for name in names])
    assert (behind.family.name, behind.prefix) == (family, "student/net/")
    # A prefix given: of two copies the one behind it.
    both = [*names, *(f"teacher/{name}" for name in names)]
    assert recognize(both).prefix == ""
    assert recognize(both, prefix="teacher/").prefix == "teacher/"


@pytest.mark.parametrize(
    ("path", "epsilon"),
    [("retinanet_resnet50_fpn_coco-eeacb38b.pth", 0.0), ("mine/retinanet.pth", 1e-5)],
)
def test_torchvisions_detectors_have_another_epsilon_where_it_sets_it(path, epsilon):
    names = [f"backbone.body.{name}" for name in NAMES[RESNET]]
    recognized = recognize([*names, "backbone.fpn.inner_blocks.0.weight"], path=path)
    assert recognized.prefix == "backbone.body."
    assert recognized.family.batch_norm_epsilon == epsilon
    assert recognized.family.name.startswith("torchvision detector")
    assert recognize(names, path=path).family.name == RESNET


@pytest.mark.parametrize(
    ("path", "family", "normalization", "style"),
    [
        ("x/efficientnet_b0_ra-3dd342df.pth", "timm EfficientNet", "imagenet", "torch"),
        ("x/tf_efficientnet_b0_aa-827b6e33.pth", "timm tf_efficientnet", "imagenet", "tensorflow"),
        ("tf_efficientnet_b0.ns_jft_in1k/a.bin", "timm tf_efficientnet", "imagenet", "tensorflow"),
        (
            "/tf_efficientnet_runs/efficientnet_b0_ra-3d.pth",
            "timm EfficientNet",
            "imagenet",
            "torch",
        ),
        (
            "tf_efficientnet_b0_ap-f262efe1.pth",
            "timm tf_efficientnet AdvProp",
            "inception",
            "tensorflow",
        ),
        (
            "tf_efficientnet_lite0-0aa007d2.pth",
            "timm tf_efficientnet_lite",
            "inception",
            "tensorflow",
        ),
        (
            "models--timm--efficientnet_b1.ra4_e3600_r240_in1k/snapshots/1/model.safetensors",
            "timm EfficientNet, recipe ra4",
            "inception",
            "torch",
        ),
    ],
)
def test_timms_weights_are_told_apart_by_the_file_alone(path, family, normalization, style):
    found = recognize(NAMES["timm EfficientNet"], path=path).family
    assert (found.name, found.normalization, found.style) == (family, normalization, style)


@pytest.mark.parametrize(
    ("path", "family", "style", "takes_blue_first"),
    [
        ("resnet50_caffe-788b5fa3.pth", "MMDetection, Caffe", "keras", True),
        ("/home/me/caffe/resnet50-0676ba61.pth", RESNET, "torch", False),
    ],
)
def test_caffes_resnets_are_told_by_the_files_name(path, family, style, takes_blue_first):
    found = recognize(NAMES[RESNET], path=path)
    assert (found.family.name, found.family.style) == (family, style)
    assert takes_blue_first == (found.name_map is torch_names.caffe_resnet)


@pytest.mark.parametrize(
    ("variant", "normalization", "style", "takes_blue_first"),
    [
        ("", "caffe2", "keras", True),
        ("ResNeXt", "imagenet", "torch", True),
        ("torchvision", "imagenet", "torch", False),
    ],
)
def test_the_three_resnets_of_detectron2(variant, normalization, style, takes_blue_first):
    names = ("stem.conv1.weight", "stem.conv1.norm.weight", "res2.0.conv1.norm.weight")
    found = recognize(names, variant=variant)
    assert (found.family.normalization, found.family.style) == (normalization, style)
    kernel = np.arange(3.0).reshape(1, 3, 1, 1)  # as PyTorch has it: of red, green, blue
    unit = Unit(0, 0, 0, "conv", 0, frozenset({"conv"}))
    converted = found.name_map(unit, "kernel", names).convert(kernel).ravel()
    assert converted.tolist() == ([2, 1, 0] if takes_blue_first else [0, 1, 2])


@pytest.mark.parametrize(
    ("names", "path", "family", "normalization"),
    [
        ("efficientnet-pytorch", "adv-efficientnet-b0-b64d5a18.pth", " AdvProp", "inception"),
        ("efficientnet-pytorch", "efficientnet-b0-355c32eb.pth", "", "imagenet"),
        (RESNET, "resnet34.ra4_e3600_r224_in1k.bin", "timm ResNet, recipe ra4", "inception"),
        (RESNET, "resnet34-b627a593.pth", "PyTorch ResNet (torchvision, timm)", "imagenet"),
    ],
)
def test_recipes_with_other_pixels_are_told_apart_by_the_file_alone(
    names, path, family, normalization
):
    found = recognize(NAMES[names], path=path).family
    assert found.name.endswith(family)
    assert found.normalization == normalization


def hub_folder(folder, architecture, tag, mean, std):
    """A folder as timm's hub gives it, in which no name says whose weights they are."""
    published = {"tag": tag, "mean": mean, "std": std}
    content = {"architecture": architecture, "pretrained_cfg": published, "num_classes": 1000}
    (folder / "config.json").write_text(json.dumps(content))
    return str(folder / "model.safetensors")


@pytest.mark.parametrize(
    ("names", "architecture", "tag", "value", "normalization", "style"),
    [
        ("timm EfficientNet", "tf_efficientnet_b0", "ap_in1k", 0.5, "inception", "tensorflow"),
        ("timm EfficientNet", "efficientnet_b0", "ra4_e3600_r224_in1k", 0.5, "inception", "torch"),
        ("timm EfficientNet", "efficientnet_b0", "mine", 0.5, "inception", "torch"),
        ("timm EfficientNet", "efficientnet_b0", "ra_in1k", None, "imagenet", "torch"),
        (RESNET, "resnet50", "mine", 0.5, "inception", "torch"),
        (RESNET, "resnet34", "ra4_e3600_r224_in1k", None, "imagenet", "torch"),
    ],
)
def test_timms_config_beside_the_file_says_what_pixels_become(
    names, architecture, tag, value, normalization, style, tmp_path
):
    mean, std = NORMALIZATIONS["imagenet"] if value is None else ([value] * 3, [value] * 3)
    path = hub_folder(tmp_path, architecture, tag, mean, std)
    found = recognize(NAMES[names], path=path)
    assert (found.family.normalization, found.family.style) == (normalization, style)
    assert found.notes == ()


def test_pixels_that_have_no_name_here_are_noted(tmp_path):
    path = hub_folder(tmp_path, "resnet50", "mine", [0.1, 0.2, 0.3], [0.4, 0.5, 0.6])
    found = recognize(NAMES[RESNET], path=path)
    assert found.family.normalization == "imagenet"
    assert "config.json has a mean of (0.1, 0.2, 0.3)" in found.notes[0]
    assert "imagenet is assumed" in found.notes[0]


@pytest.mark.parametrize("text", ["", "{", "[" * 9999, "[]", "7", '{"pretrained_cfg": 1}'])
def test_another_config_beside_the_file_says_nothing(text, tmp_path):
    (tmp_path / "config.json").write_text(text)
    found = recognize(NAMES[RESNET], path=str(tmp_path / "resnet34.bin"))
    assert (found.family.normalization, found.notes) == ("imagenet", ())


def test_a_config_that_cannot_be_opened_says_nothing(tmp_path):
    (tmp_path / "config.json").mkdir()
    found = recognize(NAMES[RESNET], path=str(tmp_path / "resnet34.bin"))
    assert found.family.normalization == "imagenet"


def test_a_resnet_that_blurs_is_refused_for_its_tensors_are_named_alike(tmp_path):
    with pytest.raises(
        WeightsError, match=r"resnetblur50.bt_in1k.pth is, by its name, a ResNet that"
    ):
        recognize(NAMES[RESNET], path="resnetblur50.bt_in1k.pth")
    path = hub_folder(tmp_path, "resnetaa50", "a1h_in1k", *NORMALIZATIONS["imagenet"])
    with pytest.raises(WeightsError, match="choose weights of a plain ResNet"):
        recognize(NAMES[RESNET], path=path)


def test_names_of_no_known_system_say_what_is_known():
    with pytest.raises(WeightsError) as error:
        recognize(["encoder.layer.0.weight", "pooler.bias"])
    assert "2 names, for example encoder.layer.0.weight, pooler.bias" in str(error.value)
    assert "torchvision EfficientNet" in str(error.value)
    with pytest.raises(WeightsError, match="begins with the prefix 'bakbone/'; .*backbone/a"):
        recognize(["backbone/a"], prefix="bakbone/")
