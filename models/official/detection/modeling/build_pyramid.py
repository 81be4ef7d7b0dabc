"""Builds the parts that one- and two-stage detectors share from their config."""

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import keras
import numpy as np

from tpudet.detection.modeling.bifpn import BiFPN
from tpudet.detection.modeling.config import AnchorConfig, ArgmaxIoUConfig
from tpudet.detection.modeling.fpn import FPN, IdentityNeck
from tpudet.detection.modeling.mask_rcnn_config import RPNConfig
from tpudet.detection.modeling.nas_fpn import NASFPN
from tpudet.detection.modeling.pyramid_config import (
    BiFPNConfig,
    FPNConfig,
    IdentityNeckConfig,
    NASFPNConfig,
    PyramidConfig,
)
from tpudet.detection.ops.anchors import anchors_for_canvas, locations_per_level
from tpudet.detection.ops.matching import Matches, match_argmax_iou
from tpudet.trainkit.backbones.batch_norm import MakeNorm
from tpudet.trainkit.backbones.build import build_backbone, drop_block_factory, norm_factory
from tpudet.trainkit.backbones.config import BatchNormConfig
from tpudet.trainkit.weights.families import NORMALIZATIONS

_NECK_SEED = 1 << 20  # added to the seed, or backbone and neck would drop the same units


class Pyramid(NamedTuple):
    """The parts between image and feature pyramid."""

    backbone: keras.layers.Layer  # [B, H, W, 3] -> {level: features}
    neck: keras.layers.Layer  # {level: features} -> {level: features}
    pixel_mean: Sequence[float]  # of red, green, blue, of pixels in 0..1
    pixel_std: Sequence[float]


def build_pyramid(config: PyramidConfig, *, synchronized: bool, seed: int) -> Pyramid:
    """Builds backbone and neck.

    Args:
        config: of the detector, without `auto`.
        synchronized: whether batch statistics span all replicas.
        seed: of the layers that drop units.
    """
    pixel_mean, pixel_std = NORMALIZATIONS[config.normalization]
    backbone = build_backbone(
        config.backbone,
        max_level=min(config.max_level, config.last_backbone_level),
        synchronized=synchronized,
        seed=seed,
    )
    neck = _build_neck(
        config,
        make_norm=optional_norm_factory(config.batch_norm, synchronized=synchronized),
        seed=seed + _NECK_SEED,
    )
    return Pyramid(backbone, neck, pixel_mean, pixel_std)


def build_anchors(
    config: PyramidConfig, anchors: AnchorConfig, canvas_size: tuple[int, int]
) -> np.ndarray:
    """Returns the anchors [A, 4] of all levels, see `anchors_for_canvas`."""
    return anchors_for_canvas(
        canvas_size=canvas_size,
        strides=config.strides,
        num_scales=anchors.num_scales,
        aspect_ratios=anchors.aspect_ratios,
        anchor_size=anchors.size,
        sides=anchors.sides,
        layout=anchors.layout,
    )


def count_anchors(
    config: PyramidConfig, anchors: AnchorConfig, canvas_size: tuple[int, int]
) -> list[int]:
    """Returns the number of anchors of each level."""
    locations = locations_per_level(canvas_size=canvas_size, strides=config.strides)
    return [count * anchors.per_location for count in locations]


def build_argmax_match(config: ArgmaxIoUConfig | RPNConfig) -> Callable[..., Matches]:
    """Returns `match_argmax_iou` with its settings."""
    return functools.partial(
        match_argmax_iou,
        match_threshold=config.match_threshold,
        unmatched_threshold=config.unmatched_threshold,
        force_match=config.force_match,
        forced_target=config.forced_target,
    )


def optional_norm_factory(config: BatchNormConfig | None, *, synchronized: bool) -> MakeNorm | None:
    """Returns `norm_factory(config)`; None where the config has no norm."""
    return config and norm_factory(config, synchronized=synchronized)


def _build_neck(
    config: PyramidConfig, *, make_norm: MakeNorm | None, seed: int
) -> keras.layers.Layer:
    neck = config.neck
    if isinstance(neck, IdentityNeckConfig):
        return IdentityNeck(level=config.min_level)
    settings: dict[str, Any] = {
        "num_filters": neck.num_filters,
        "min_level": config.min_level,
        "max_level": config.max_level,
        "make_norm": make_norm,
    }
    match neck:
        case FPNConfig():
            return FPN(
                separable=neck.separable,
                coarse_levels=config.coarse_levels,
                coarse_input=neck.coarse_input,
                coarse_relu=neck.coarse_relu,
                symmetric_padding=neck.symmetric_padding,
                lateral_norms=neck.lateral_norms,
                last_backbone_level=neck.last_backbone_level,
                **settings,
            )
        case NASFPNConfig():
            return NASFPN(
                num_repeats=neck.num_repeats,
                separable=neck.separable,
                drop_block=drop_block_factory(neck.drop_block),
                seed=seed,
                **settings,
            )
        case BiFPNConfig():
            return BiFPN(num_repeats=neck.num_repeats, **settings)
