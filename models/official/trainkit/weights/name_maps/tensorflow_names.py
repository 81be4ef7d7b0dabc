"""Names of TensorFlow 1: the original EfficientNet, and the numbered layers of its ResNet."""

import re
from collections.abc import Collection, Mapping

from tpudet.trainkit.weights.name_maps.recipes import Recipe, Unit, as_is
from tpudet.trainkit.weights.stored_weights import WeightsError

_NORMS = ("tpu_batch_normalization", "batch_normalization")


def efficientnet(unit: Unit, part: str, names: Collection[str]) -> Recipe:
    """`stem/conv2d`, `blocks_7/conv2d_1`: each block counts its layers from 0."""
    block = f"blocks_{unit.block}/" if unit.stage else "stem/"
    expands = "expand" in unit.siblings
    conv, norm = {
        "conv": ("conv2d", 0),
        "expand": ("conv2d", 0),
        "depthwise": ("depthwise_conv2d", int(expands)),
        "squeeze": ("se/conv2d", 0),
        "excite": ("se/conv2d_1", 0),
        "project": (_numbered("conv2d", int(expands)), 1 + int(expands)),
    }[unit.name]
    if not part.startswith("norm/"):
        return as_is(f"{block}{conv}/{part}")
    spellings = [f"{block}{_numbered(name, norm)}/{part[5:]}" for name in _NORMS]
    return as_is(next((name for name in spellings if name in names), spellings[0]))


def resnet(unit: Unit, part: str, names: Collection[str]) -> Recipe:
    """`conv2d_12`, `batch_normalization_12`: numbers in the order in which layers are made."""
    if part.startswith("norm/"):
        return as_is(f"{_numbered('batch_normalization', unit.order)}/{part[5:]}")
    return as_is(f"{_numbered('conv2d', unit.order)}/{part}")


def _numbered(name: str, number: int) -> str:
    return f"{name}_{number}" if number else name


def check_depth(units: Mapping[str, Unit], names: Collection[str]) -> None:
    """Refuses a numbered ResNet of another depth, of which other layers have the same numbers.

    Raises:
        WeightsError: the file has more or fewer convolutions than the model.
    """
    stored = sum(bool(re.fullmatch(r"conv2d(_\d+)?/kernel", name)) for name in names)
    if stored != len(units):
        raise WeightsError(
            f"The ResNet in the weights has {stored} convolutions, the model's has {len(units)}; "
            "numbers are the only names they have. Choose model.backbone.depth as in the weights. "
            "(ResNet-18 and -34 of TensorFlow have one more convolution than those of the paper.)"
        )
