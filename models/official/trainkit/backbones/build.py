"""Builds a backbone, and the layers it shares with the rest of a model, from their config."""

import functools
from collections.abc import Callable
from typing import Any

import keras

from tpudet.trainkit.backbones.batch_norm import BatchNorm, MakeNorm
from tpudet.trainkit.backbones.config import (
    BackboneConfig,
    BatchNormConfig,
    DropBlockConfig,
    EfficientNetConfig,
    MobileNetV3Config,
    ResNetConfig,
    SEResNeXtConfig,
    resolve_backbone,
)
from tpudet.trainkit.backbones.drop_block import DropBlock
from tpudet.trainkit.backbones.efficientnet import EfficientNet
from tpudet.trainkit.backbones.mobilenet_v3 import MobileNetV3
from tpudet.trainkit.backbones.resnet import ResNet
from tpudet.trainkit.backbones.seresnext import SEResNeXt


def build_backbone(
    config: BackboneConfig, *, max_level: int, synchronized: bool, seed: int
) -> keras.layers.Layer:
    """Builds the layer [B, H, W, 3] -> {level: features}.

    Args:
        config: the backbone; values that are still `auto` become those of a backbone without
            pretrained weights.
        max_level: the coarsest level, 2 to 5, or 6 of a MobileNetV3; the stages beyond it are not
            built.
        synchronized: whether batch statistics span all replicas, where the config allows it.
        seed: of DropBlock and drop-connect.
    """
    config = resolve_backbone(config)
    style: Any = getattr(config, "style", None)  # no longer auto
    shared: dict[str, Any] = {
        "max_level": max_level,
        "gradient_checkpointing": config.gradient_checkpointing,
        "make_norm": norm_factory(config.batch_norm, synchronized=synchronized),
    }
    match config:
        case ResNetConfig():
            return ResNet(
                depth=config.depth,
                groups=config.groups,
                group_width=config.group_width,
                style=style,
                drop_block=drop_block_factory(config.drop_block),
                seed=seed,
                **shared,
            )
        case EfficientNetConfig():
            return EfficientNet(
                variant=config.variant,
                style=style,
                drop_connect_rate=config.drop_connect_rate,
                seed=seed,
                **shared,
            )
        case SEResNeXtConfig():
            return SEResNeXt(depth=config.depth, **shared)
        case MobileNetV3Config():
            return MobileNetV3(**shared)


def norm_factory(config: BatchNormConfig, *, synchronized: bool) -> MakeNorm:
    """Returns a function that makes a `BatchNorm` with these settings.

    Raises:
        ValueError: epsilon is still `auto`.
    """
    if config.epsilon == "auto":
        raise ValueError("batch_norm.epsilon is still auto: resolve the config first")
    return functools.partial(
        BatchNorm,
        momentum=config.momentum,
        epsilon=config.epsilon,
        frozen=config.frozen,
        synchronized=synchronized and config.synchronized,
    )


def drop_block_factory(config: DropBlockConfig | None) -> Callable[..., DropBlock] | None:
    """Returns a function that makes a `DropBlock` with these settings; None without a config."""
    if config is None:
        return None
    return functools.partial(
        DropBlock,
        keep_prob=config.keep_prob,
        size=config.size,
        schedule_steps=config.schedule_steps,
    )
