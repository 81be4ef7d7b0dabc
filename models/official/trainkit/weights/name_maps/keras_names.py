"""Names of keras.applications, EfficientNet and ResNet (version 1), and of KerasHub's ResNet."""

from collections.abc import Collection

from tpudet.trainkit.weights.name_maps.recipes import (
    Recipe,
    Unit,
    as_is,
    mean_without_bias,
    reversed_colours,
)


def efficientnet(unit: Unit, part: str, names: Collection[str]) -> Recipe:
    """`stem_conv`, `block4c_expand_conv`: a digit a stage, a letter a block."""
    if unit.stage == 0:
        return _recipe("stem_conv", "stem_bn", part, names)
    block = f"block{unit.stage}{chr(ord('a') + unit.in_stage)}_"
    conv, norm = {
        "expand": ("expand_conv", "expand_bn"),
        "depthwise": ("dwconv", "bn"),
        "squeeze": ("se_reduce", ""),
        "excite": ("se_expand", ""),
        "project": ("project_conv", "project_bn"),
    }[unit.name]
    return _recipe(block + conv, block + norm, part, names)


def resnet(unit: Unit, part: str, names: Collection[str]) -> Recipe:
    """`conv1_conv`, `conv2_block1_0_conv`: the stem is stage 1, the shortcut convolution 0.

    Convolutions have a bias, and the first one takes blue before green before red.
    """
    if unit.stage == 0:
        recipe = _recipe("conv1_conv", "conv1_bn", part, names)
        return recipe._replace(convert=reversed_colours) if part == "kernel" else recipe
    number = 0 if unit.name == "shortcut" else int(unit.name.removeprefix("conv"))
    place = f"conv{unit.stage + 1}_block{unit.in_stage + 1}_{number}_"
    return _recipe(place + "conv", place + "bn", part, names)


def kerashub_resnet(unit: Unit, part: str, names: Collection[str]) -> Recipe:
    """`conv1_conv`, `stack0_block0_0_conv`: stacks from 0, the shortcut convolution is 0."""
    if unit.stage == 0:
        return _recipe("conv1_conv", "conv1_bn", part, names)
    number = 0 if unit.name == "shortcut" else int(unit.name.removeprefix("conv"))
    place = f"stack{unit.stage - 1}_block{unit.in_stage}_{number}_"
    return _recipe(place + "conv", place + "bn", part, names)


def _recipe(conv: str, norm: str, part: str, names: Collection[str]) -> Recipe:
    if part == "norm/moving_mean" and f"{conv}/bias" in names:
        return Recipe((f"{norm}/moving_mean", f"{conv}/bias"), mean_without_bias)
    if part.startswith("norm/"):
        return as_is(f"{norm}/{part[5:]}")
    # Keras 3 calls the kernel of a depthwise convolution `kernel` too.
    if part == "depthwise_kernel" and f"{conv}/kernel" in names:
        return as_is(f"{conv}/kernel")
    return as_is(f"{conv}/{part}")
