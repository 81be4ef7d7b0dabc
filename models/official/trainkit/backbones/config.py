"""Configuration of the backbones and of batch normalisation."""

from dataclasses import dataclass, field, replace
from typing import Annotated, Any, Literal

from tpudet.trainkit.config.ranges import Count, NaturalNumber, NotNegative, Range, check

Normalization = Literal["auto", "imagenet", "inception", "caffe", "caffe2", "lite"]

# Levels up to this one halve the canvas exactly; those that a neck adds may round their halves up.
COARSEST_BACKBONE_LEVEL = 5

# Epsilon of batch normalisation in each kind of backbone without pretrained weights.
BACKBONE_EPSILON = {
    "resnet": 1e-4,
    "efficientnet": 1e-3,
    "seresnext": 1e-5,
    "mobilenet_v3": 1e-3,
}


@dataclass(frozen=True, kw_only=True)
class BatchNormConfig:
    """Batch normalisation. Short runs need a momentum below 0.99 for the statistics to converge."""

    momentum: Annotated[float, Range("[0, 1)")] = 0.997
    # auto: of a backbone as its weights expect, else by its kind; of neck and heads 1e-4.
    epsilon: NotNegative | Literal["auto"] = "auto"
    frozen: bool = False  # statistics, scale and shift stay as loaded, also in training
    synchronized: bool = (
        True  # batch statistics span all devices; with --backend jax they always do
    )

    __post_init__ = check


@dataclass(frozen=True, kw_only=True)
class DropBlockConfig:
    """DropBlock: in training, squares of the feature maps are zeroed (arXiv 1810.12890)."""

    # Share of the map that is kept, at the end of the schedule.
    keep_prob: Annotated[float, Range("(0, 1]")] = 0.9
    size: Count = 7  # side of a square, in pixels of the map; clipped to the map
    schedule_steps: NaturalNumber = 0  # steps over which the dropped share rises linearly from 0

    __post_init__ = check


@dataclass(frozen=True, kw_only=True)
class ResNetConfig:
    """ResNet v1. The style is that of the weights' framework: strides and padding differ."""

    kind: Literal["resnet"] = "resnet"
    depth: Literal[18, 34, 50, 101, 152, 200] = 50
    # ResNeXt 32x4d (arXiv 1611.05431) has 32 groups of width 4; for depths from 50 on.
    groups: Count = 1  # of the 3x3 convolutions
    group_width: Count = 64  # channels of a group in the first stage
    style: Literal["auto", "tensorflow", "torch", "keras"] = "auto"  # auto: as the weights expect
    drop_block: DropBlockConfig | None = None
    gradient_checkpointing: bool = False  # blocks run twice: less memory, more time
    batch_norm: BatchNormConfig = field(default_factory=BatchNormConfig)

    def __post_init__(self) -> None:
        groups, width = self.groups, self.group_width
        text = f"depth {self.depth} has no groups: groups 1, group_width 64, got {groups}, {width}"
        check(self, (self.depth >= 50 or (groups, width) == (1, 64), text))


@dataclass(frozen=True, kw_only=True)
class EfficientNetConfig:
    """EfficientNet, or EfficientNet-lite, without its 1280-channel top."""

    kind: Literal["efficientnet"] = "efficientnet"
    # fmt: off
    variant: Literal[
        "b0", "b1", "b2", "b3", "b4", "b5", "b6", "b7", "b8",
        "lite0", "lite1", "lite2", "lite3", "lite4",
    ] = "b0"
    # fmt: on
    style: Literal["auto", "tensorflow", "torch"] = "auto"  # of padding; as for ResNetConfig
    # Share of images that skip a block: 0 at the first block, rising linearly towards this rate.
    drop_connect_rate: Annotated[float, Range("[0, 1)")] = 0.2
    gradient_checkpointing: bool = False  # blocks run twice: less memory, more time
    batch_norm: BatchNormConfig = field(default_factory=lambda: BatchNormConfig(momentum=0.99))

    __post_init__ = check


@dataclass(frozen=True, kw_only=True)
class SEResNeXtConfig:
    """SE-ResNeXt 32x4d: grouped convolutions, squeeze and excitation."""

    kind: Literal["seresnext"] = "seresnext"
    depth: Literal[50, 101] = 50
    gradient_checkpointing: bool = False  # blocks run twice: less memory, more time
    batch_norm: BatchNormConfig = field(default_factory=lambda: BatchNormConfig(momentum=0.9))


@dataclass(frozen=True, kw_only=True)
class MobileNetV3Config:
    """MobileNetV3-Large without its 1280-channel top; strides and padding are PyTorch's."""

    kind: Literal["mobilenet_v3"] = "mobilenet_v3"
    gradient_checkpointing: bool = False  # blocks run twice: less memory, more time
    batch_norm: BatchNormConfig = field(default_factory=lambda: BatchNormConfig(momentum=0.99))


BackboneConfig = ResNetConfig | EfficientNetConfig | SEResNeXtConfig | MobileNetV3Config


def resolve_backbone(
    backbone: BackboneConfig, *, style: str | None = None, epsilon: float | None = None
) -> BackboneConfig:
    """Replaces `auto` in style and epsilon; leaves chosen values alone.

    Args:
        backbone: the config.
        style: as the pretrained weights expect; None means TensorFlow's.
        epsilon: as the pretrained weights expect; None means the default of the kind.
    """
    epsilon = BACKBONE_EPSILON[backbone.kind] if epsilon is None else epsilon
    values: dict[str, Any] = {"batch_norm": resolve_epsilon(backbone.batch_norm, epsilon)}
    if isinstance(backbone, ResNetConfig | EfficientNetConfig) and backbone.style == "auto":
        # Only ResNets have Keras's style; loading such weights elsewhere reports the mismatch.
        is_known = isinstance(backbone, ResNetConfig) or style != "keras"
        values["style"] = style if style and is_known else "tensorflow"
    return replace(backbone, **values)


def resolve_epsilon(batch_norm: BatchNormConfig, epsilon: float) -> BatchNormConfig:
    """Replaces an `auto` epsilon."""
    return replace(batch_norm, epsilon=epsilon) if batch_norm.epsilon == "auto" else batch_norm
