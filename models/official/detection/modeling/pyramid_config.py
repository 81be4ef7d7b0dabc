"""The keys of the `model` section that every detector has: backbone, neck and their levels."""

from dataclasses import dataclass, field
from typing import Annotated, ClassVar, Literal

from tpudet.trainkit.backbones.config import (
    COARSEST_BACKBONE_LEVEL,
    BackboneConfig,
    BatchNormConfig,
    DropBlockConfig,
    Normalization,
    ResNetConfig,
)
from tpudet.trainkit.config.idle_keys import IdleKeys
from tpudet.trainkit.config.ranges import Count, Range, check

CoarseLevels = Literal["convolution", "subsample"]


@dataclass(frozen=True, kw_only=True)
class FPNConfig:
    """Feature pyramid network."""

    kind: Literal["fpn"] = "fpn"
    num_filters: Count = 256
    separable: bool = False
    # How levels 6 and up are made: by strided convolutions, or as every second pixel of the
    # level before; null: convolution in one stage, subsample in two.
    coarse_levels: CoarseLevels | None = None
    # Whose level 5 the strided convolutions start from; torchvision's first version: pyramid.
    coarse_input: Literal["pyramid", "backbone"] = "pyramid"
    # Whether they pad all sides, as PyTorch's do, or bottom and right first.
    symmetric_padding: bool = False
    # Whether each but the first starts from the ReLU of the level before; MMDetection: false.
    coarse_relu: bool = True
    # Norms after the lateral convolutions too, and no biases, as in torchvision's second version.
    lateral_norms: bool = False
    # 6: of a MobileNetV3, whose levels 5 and 6 have one stride, as in torchvision's Faster R-CNN.
    last_backbone_level: Literal[5, 6] = COARSEST_BACKBONE_LEVEL

    __post_init__ = check


@dataclass(frozen=True, kw_only=True)
class NASFPNConfig:
    """NAS-FPN, levels 3 to 7 (arXiv 1904.07392)."""

    kind: Literal["nas_fpn"] = "nas_fpn"
    num_filters: Count = 256
    num_repeats: Count = 7
    separable: bool = False
    drop_block: DropBlockConfig | None = None

    __post_init__ = check


@dataclass(frozen=True, kw_only=True)
class BiFPNConfig:
    """EfficientDet's pyramid with fast normalised fusion (arXiv 1911.09070)."""

    kind: Literal["bifpn"] = "bifpn"
    num_filters: Count = 64
    num_repeats: Count = 3

    __post_init__ = check


@dataclass(frozen=True, kw_only=True)
class IdentityNeckConfig:
    """A single level of the backbone, unchanged: min_level and max_level must be equal."""

    kind: Literal["identity"] = "identity"


NeckConfig = FPNConfig | NASFPNConfig | BiFPNConfig | IdentityNeckConfig


@dataclass(frozen=True, kw_only=True)
class PyramidConfig:
    """Image to feature pyramid: the keys that every detector has."""

    _own_coarse_levels: ClassVar[CoarseLevels] = "convolution"  # where the neck does not say

    kind: str  # of the detector
    min_level: Annotated[int, Range("[2, 5]")] = 3  # level l has a stride of 2^l pixels
    max_level: Annotated[int, Range("[2, 7]")] = 7  # backbones end at 5, the neck adds the rest
    # How pixels are scaled for the backbone; auto: as the pretrained weights expect, else imagenet.
    normalization: Normalization = "auto"
    # What the network sees beyond the image: black pixels, or the mean colour, which is 0 after
    # normalisation, as where others pad.
    padding: Literal["black", "mean"] = "black"
    backbone: BackboneConfig = field(default_factory=ResNetConfig)
    neck: NeckConfig = field(default_factory=FPNConfig)
    # Of neck and heads; null: convolutions with biases instead, as in the papers.
    batch_norm: BatchNormConfig | None = field(default_factory=BatchNormConfig)

    @property
    def predicts_masks(self) -> bool:
        """Whether the detector is trained on masks and predicts them."""
        return False

    @property
    def region_keys(self) -> tuple[str, ...]:
        """The keys by which training looks at the image and not at the rest of its canvas."""
        return ("model.padding mean",) if self.padding == "mean" else ()

    @property
    def last_backbone_level(self) -> int:
        """The coarsest level that is taken from the backbone, if the pyramid goes so far."""
        return getattr(self.neck, "last_backbone_level", COARSEST_BACKBONE_LEVEL)

    @property
    def coarse_levels(self) -> CoarseLevels:
        """How an FPN's levels beyond the backbone's are made."""
        return getattr(self.neck, "coarse_levels", None) or self._own_coarse_levels

    @property
    def idle_neck_keys(self) -> tuple[str, ...]:
        """The keys of an FPN that no level of this pyramid depends on."""
        if not isinstance(self.neck, FPNConfig):
            return ()
        beyond = self.max_level - self.last_backbone_level  # levels that the neck adds
        convolved = beyond if self.coarse_levels == "convolution" else 0
        is_idle = {
            "coarse_levels": beyond < 1,
            "coarse_input": convolved < 1,
            "symmetric_padding": convolved < 1,
            "coarse_relu": convolved < 2,
        }
        return tuple(key for key, idle in is_idle.items() if idle)

    def idle_keys(self) -> list[IdleKeys]:
        """Returns the keys that change nothing, whether they are set or not."""
        reason = (
            f"no level depends on it, with max_level {self.max_level} and coarse_levels "
            f"{self.coarse_levels}"
        )
        return [IdleKeys("model.neck", self.neck, FPNConfig(), self.idle_neck_keys, reason)]

    @property
    def strides(self) -> tuple[int, ...]:
        """Pixels between the cells of each level, finest first."""
        again = self.last_backbone_level - COARSEST_BACKBONE_LEVEL  # levels that halve nothing
        return tuple(
            2 ** (level if level <= COARSEST_BACKBONE_LEVEL else level - again)
            for level in range(self.min_level, self.max_level + 1)
        )

    @property
    def stride(self) -> int:
        """Pixels that canvas sides are multiples of.

        The stride of the coarsest level that another one is enlarged to or from: an FPN makes
        levels 6 and up from finer ones only, rounding their sides up.
        """
        one_way = self.neck.kind in ("fpn", "identity")
        return 2 ** (min(self.max_level, COARSEST_BACKBONE_LEVEL) if one_way else self.max_level)

    def __post_init__(self) -> None:
        low, high = self.min_level, self.max_level
        nas_levels = self.neck.kind != "nas_fpn" or (low, high) == (3, 7)
        identity_levels = self.neck.kind != "identity" or low == high
        bifpn_levels = self.neck.kind != "bifpn" or low < high
        has_norm = self.batch_norm is not None or self.neck.kind not in ("nas_fpn", "bifpn")
        last = self.last_backbone_level
        is_there = last == COARSEST_BACKBONE_LEVEL or (
            self.backbone.kind == "mobilenet_v3" and high >= last
        )
        text = (
            f"neck.last_backbone_level is {last}, which only a mobilenet_v3 has and a max_level of "
            f"{last} or 7 needs; the backbone is {self.backbone.kind}, max_level {high}"
        )
        has_lateral = self.batch_norm is not None or not getattr(self.neck, "lateral_norms", False)
        check(
            self,
            (low <= high, f"min_level must be at most max_level, got {low} and {high}"),
            (nas_levels, f"neck nas_fpn has levels 3 to 7, got {low} to {high}"),
            (identity_levels, f"neck identity has one level, got {low} to {high}"),
            (bifpn_levels, f"neck bifpn has two levels or more, got {low} to {high}"),
            (is_there, text),
            (
                has_lateral,
                "neck.lateral_norms is true, but batch_norm is null: set batch_norm, or "
                "neck.lateral_norms to false",
            ),
            (
                has_norm,
                f"batch_norm is null, but neck {self.neck.kind} needs it: set batch_norm, or "
                "choose neck fpn",
            ),
        )
