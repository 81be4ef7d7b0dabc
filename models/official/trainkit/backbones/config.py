"""Configuration of the backbones and of their batch normalization."""

from dataclasses import dataclass, field
from typing import Annotated, Literal

from tpudet.trainkit.config.ranges import Count, NaturalNumber, Positive, Range, check

Normalization = Literal["auto", "imagenet", "inception", "caffe", "lite"]

# Of batch normalisation: what `auto` is in neck and head, and in each backbone without weights.
AUTO_EPSILON = 1e-4
BACKBONE_AUTO_EPSILON = {"resnet": 1e-4, "efficientnet": 1e-3, "seresnext": 1e-5}


@dataclass(frozen=True, kw_only=True)
class BatchNormConfig:
    """Batch normalisation. Short runs want a momentum below 0.99: statistics must settle."""

    momentum: Annotated[float, Range("[0, 1)")] = 0.997
    epsilon: Positive | Literal["auto"] = "auto"  # auto: of a backbone as the weights want
    frozen: bool = False  # statistics, scale and shift stay as loaded, also in training
    synchronized: bool = True  # statistics over all devices together, where there are several

    __post_init__ = check


@dataclass(frozen=True, kw_only=True)
class DropBlockConfig:
    """DropBlock: in training, squares of the feature maps are zeroed (arXiv 1810.12890)."""

    keep_prob: Annotated[float, Range("(0, 1]")] = (
        0.9  # share of the map that stays, at the end of the schedule
    )
    size: Count = 7  # side of a square, in pixels of the map; clipped to the map
    schedule_steps: NaturalNumber = 0  # the dropped share rises linearly from 0 over so many steps

    __post_init__ = check


@dataclass(frozen=True, kw_only=True)
class ResNetConfig:
    """ResNet v1. The style says whose weights fit: they differ in strides and padding."""

    kind: Literal["resnet"] = "resnet"
    depth: Literal[18, 34, 50, 101, 152, 200] = 50
    style: Literal["auto", "tensorflow", "torch", "keras"] = "auto"  # auto: as the weights want
    drop_block: DropBlockConfig | None = None
    gradient_checkpointing: bool = False  # less memory for more time: blocks run twice
    batch_norm: BatchNormConfig = field(default_factory=BatchNormConfig)


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
    style: Literal["auto", "tensorflow", "torch"] = "auto"  # of padding; auto: as the weights want
    # Of images that skip a block: 0 at the first, linearly to this one block after the last.
    drop_connect_rate: Annotated[float, Range("[0, 1)")] = 0.2
    gradient_checkpointing: bool = False  # less memory for more time: blocks run twice
    batch_norm: BatchNormConfig = field(default_factory=lambda: BatchNormConfig(momentum=0.99))

    __post_init__ = check


@dataclass(frozen=True, kw_only=True)
class SEResNeXtConfig:
    """SE-ResNeXt 32x4d: grouped convolutions, squeeze and excitation."""

    kind: Literal["seresnext"] = "seresnext"
    depth: Literal[50, 101] = 50
    gradient_checkpointing: bool = False  # less memory for more time: blocks run twice
    batch_norm: BatchNormConfig = field(default_factory=lambda: BatchNormConfig(momentum=0.9))


BackboneConfig = ResNetConfig | EfficientNetConfig | SEResNeXtConfig
