"""Names of PyTorch: torchvision and timm, and the packages called efficientnet-pytorch and -lite.

Parts of a convolution are `weight`, of a norm `weight bias running_mean running_var`.
"""

from collections.abc import Collection

from tpudet.trainkit.weights.name_maps.recipes import (
    Recipe,
    Unit,
    as_is,
    from_torch_depthwise_kernel,
    from_torch_kernel,
    reversed_colours,
)

_NORM_PARTS = {
    "norm/gamma": "weight",
    "norm/beta": "bias",
    "norm/moving_mean": "running_mean",
    "norm/moving_variance": "running_var",
}


def resnet(unit: Unit, part: str, names: Collection[str]) -> Recipe:
    """`conv1`, `layer1.0.conv2`, `layer1.0.downsample.0`: torchvision and timm alike."""
    block = f"layer{unit.stage}.{unit.in_stage}."
    if unit.stage == 0:
        return _recipe("conv1", "bn1", part)
    if unit.name == "shortcut":
        return _recipe(f"{block}downsample.0", f"{block}downsample.1", part)
    return _recipe(block + unit.name, block + unit.name.replace("conv", "bn"), part)


def caffe_resnet(unit: Unit, part: str, names: Collection[str]) -> Recipe:
    """The same names; the first convolution takes blue before green before red, as Caffe's."""
    return _of_caffe(resnet(unit, part, names), unit, part)


def detectron2_resnet(unit: Unit, part: str, names: Collection[str]) -> Recipe:
    """`stem.conv1`, `res2.0.conv2`, each with a `norm` inside; the colours are Caffe's."""
    return _of_caffe(detectron2_rgb_resnet(unit, part, names), unit, part)


def detectron2_rgb_resnet(unit: Unit, part: str, names: Collection[str]) -> Recipe:
    """The same names for torchvision's weights."""
    block = f"res{unit.stage + 1}.{unit.in_stage}."
    conv = "stem.conv1" if unit.stage == 0 else block + unit.name
    return _recipe(conv, f"{conv}.norm", part)


def _of_caffe(recipe: Recipe, unit: Unit, part: str) -> Recipe:
    if unit.stage or part != "kernel":
        return recipe
    return recipe._replace(convert=lambda kernel: reversed_colours(from_torch_kernel(kernel)))


def torchvision_efficientnet(unit: Unit, part: str, names: Collection[str]) -> Recipe:
    """`features.0.0`, `features.2.1.block.0.0`: a sequence, shorter where nothing expands."""
    if unit.stage == 0:
        return _recipe("features.0.0", "features.0.1", part)
    return _in_torchvision_block(f"features.{unit.stage}.{unit.in_stage}.block", unit, part)


def torchvision_mobilenet(unit: Unit, part: str, names: Collection[str]) -> Recipe:
    """`0.0`, `4.block.2.fc1`, `16.0`: the network's blocks, one after the other."""
    if unit.stage == 0:
        return _recipe("0.0", "0.1", part)
    if unit.name == "conv":  # the last, of 960 channels
        return _recipe(f"{unit.block + 1}.0", f"{unit.block + 1}.1", part)
    return _in_torchvision_block(f"{unit.block + 1}.block", unit, part)


def _in_torchvision_block(block: str, unit: Unit, part: str) -> Recipe:
    """Names a module by its number in the block, where absent ones take no number."""
    inside = [
        name for name in ("expand", "depthwise", "squeeze", "project") if name in unit.siblings
    ]
    name = "squeeze" if unit.name == "excite" else unit.name
    module = f"{block}.{inside.index(name)}"
    if name == "squeeze":
        return _recipe(f"{module}.{'fc1' if unit.name == 'squeeze' else 'fc2'}", "", part)
    return _recipe(f"{module}.0", f"{module}.1", part)


def timm_efficientnet(unit: Unit, part: str, names: Collection[str]) -> Recipe:
    """`conv_stem`, `blocks.1.0.conv_pw`: where nothing expands, `conv_pw` is the projection."""
    if unit.stage == 0:
        return _recipe("conv_stem", "bn1", part)
    block = f"blocks.{unit.stage - 1}.{unit.in_stage}."
    places = {
        "expand": ("conv_pw", "bn1"),
        "depthwise": ("conv_dw", "bn2"),
        "squeeze": ("se.conv_reduce", ""),
        "excite": ("se.conv_expand", ""),
        "project": ("conv_pwl", "bn3"),
    }
    if "expand" not in unit.siblings:
        places |= {"depthwise": ("conv_dw", "bn1"), "project": ("conv_pw", "bn2")}
    conv, norm = places[unit.name]
    return _recipe(block + conv, block + norm, part)


def efficientnet_pytorch(unit: Unit, part: str, names: Collection[str]) -> Recipe:
    """`_conv_stem`, `_blocks.7._expand_conv`: blocks count through the network."""
    if unit.stage == 0:
        return _recipe("_conv_stem", "_bn0", part)
    conv, norm = {
        "expand": ("_expand_conv", "_bn0"),
        "depthwise": ("_depthwise_conv", "_bn1"),
        "squeeze": ("_se_reduce", ""),
        "excite": ("_se_expand", ""),
        "project": ("_project_conv", "_bn2"),
    }[unit.name]
    return _recipe(f"_blocks.{unit.block}.{conv}", f"_blocks.{unit.block}.{norm}", part)


def _recipe(conv: str, norm: str, part: str) -> Recipe:
    if part in _NORM_PARTS:
        return as_is(f"{norm}.{_NORM_PARTS[part]}")
    if part == "bias":
        return as_is(f"{conv}.bias")
    turned = from_torch_kernel if part == "kernel" else from_torch_depthwise_kernel
    return Recipe((f"{conv}.weight",), turned)
