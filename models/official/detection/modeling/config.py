"""The model's part of the experiment file: what each key means, its unit, and what is allowed."""

from dataclasses import dataclass, field
from typing import Annotated, Literal

from tpudet.trainkit.backbones.config import (
    BatchNormConfig,
    DropBlockConfig,
    EfficientNetConfig,
    Normalization,
    ResNetConfig,
    SEResNeXtConfig,
)
from tpudet.trainkit.config.ranges import (
    Count,
    NaturalNumber,
    NotNegative,
    Positive,
    Range,
    Share,
    check,
)


@dataclass(frozen=True, kw_only=True)
class FPNConfig:
    """Feature pyramid network."""

    kind: Literal["fpn"] = "fpn"
    num_filters: Count = 256
    separable: bool = False

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
    """EfficientDet's pyramid, fast normalised fusion (arXiv 1911.09070)."""

    kind: Literal["bifpn"] = "bifpn"
    num_filters: Count = 64
    num_repeats: Count = 3

    __post_init__ = check


@dataclass(frozen=True, kw_only=True)
class IdentityNeckConfig:
    """One level of the backbone as it is: min_level, which is max_level too."""

    kind: Literal["identity"] = "identity"


@dataclass(frozen=True, kw_only=True)
class HeadConfig:
    """The two towers of convolutions, shared by all levels."""

    num_convs: NaturalNumber = 4
    num_filters: Count = 256
    separable: bool = False
    activation: Literal["relu", "silu"] = "relu"

    __post_init__ = check


@dataclass(frozen=True, kw_only=True)
class AnchorConfig:
    """Anchors of one location: num_scales times len(aspect_ratios)."""

    num_scales: Count = 3
    aspect_ratios: tuple[Positive, ...] = (1.0, 2.0, 0.5)  # width / height
    size: Positive = 4.0  # side of the smallest square anchor, in strides of its level

    @property
    def per_location(self) -> int:
        """Anchors of one location."""
        return self.num_scales * len(self.aspect_ratios)

    def __post_init__(self) -> None:
        check(self, (len(self.aspect_ratios) > 0, "aspect_ratios must be one or more"))


@dataclass(frozen=True, kw_only=True)
class ArgmaxIoUConfig:
    """Anchors stand for the object that they overlap most, by intersection over union."""

    kind: Literal["argmax_iou"] = "argmax_iou"
    match_threshold: float = 0.5
    unmatched_threshold: float = 0.5  # anchors between the two are ignored
    force_match: bool = True  # each object takes its best anchor, however small the overlap

    def __post_init__(self) -> None:
        low, high = self.unmatched_threshold, self.match_threshold
        text = f"0 <= unmatched_threshold <= match_threshold <= 1, got {low} and {high}"
        check(self, (0.0 <= low <= high <= 1.0, text))


@dataclass(frozen=True, kw_only=True)
class ATSSConfig:
    """Adaptive training sample selection (arXiv 1912.02424): no threshold to choose."""

    kind: Literal["atss"] = "atss"
    # Locations nearest to an object's centre, each with all its anchors.
    candidates_per_level: Count = 9

    __post_init__ = check


@dataclass(frozen=True, kw_only=True)
class FocalLossConfig:
    """Focal loss (arXiv 1708.02002)."""

    kind: Literal["focal"] = "focal"
    alpha: Share = 0.25
    gamma: NotNegative = 1.5
    label_smoothing: Annotated[float, Range("[0, 1)")] = 0.0

    __post_init__ = check


@dataclass(frozen=True, kw_only=True)
class QualityFocalLossConfig:
    """Quality focal loss: the target is the overlap of the predicted box (arXiv 2006.04388)."""

    kind: Literal["quality_focal"] = "quality_focal"
    beta: Annotated[float, Range("[1, inf)")] = 2.0

    __post_init__ = check


@dataclass(frozen=True, kw_only=True)
class VarifocalLossConfig:
    """Varifocal loss: quality focal, negatives alone modulated (arXiv 2008.13367)."""

    kind: Literal["varifocal"] = "varifocal"
    alpha: Share = 0.75
    gamma: NotNegative = 2.0

    __post_init__ = check


@dataclass(frozen=True, kw_only=True)
class HuberLossConfig:
    """Huber loss of the encoded boxes."""

    kind: Literal["huber"] = "huber"
    delta: Positive = 0.1
    weight: Positive = 50.0

    __post_init__ = check


@dataclass(frozen=True, kw_only=True)
class SmoothL1LossConfig:
    """Smooth L1 loss of the encoded boxes: Huber's over beta."""

    kind: Literal["smooth_l1"] = "smooth_l1"
    beta: Positive = 0.1
    weight: Positive = 1.0

    __post_init__ = check


@dataclass(frozen=True, kw_only=True)
class OverlapLossConfig:
    """1 minus the intersection over union of the decoded boxes, or what extends it."""

    kind: Literal["iou", "giou", "diou", "ciou"] = "giou"
    weight: Positive = 2.0

    __post_init__ = check


@dataclass(frozen=True, kw_only=True)
class PostprocessConfig:
    """From scores of anchors to a list of detections."""

    score_threshold: Annotated[float, Range("[0, 1)")] = 0.05
    nms_iou_threshold: Annotated[float, Range("(0, 1]")] = 0.5
    max_candidates: Count = 5000  # best (anchor, class) pairs an image that enter suppression
    max_detections: Count = 100

    def __post_init__(self) -> None:
        most, candidates = self.max_detections, self.max_candidates
        text = f"max_detections must be at most max_candidates, got {most} and {candidates}"
        check(self, (most <= candidates, text))


@dataclass(frozen=True, kw_only=True)
class RetinaNetConfig:
    """One-stage detector, arXiv:1708.02002."""

    kind: Literal["retinanet"] = "retinanet"
    min_level: Annotated[int, Range("[2, 5]")] = 3  # level l has a stride of 2^l pixels
    max_level: Annotated[int, Range("[2, 7]")] = 7  # backbones go to 5, necks make the others
    # What pixels become before the backbone; auto: what the loaded weights expect, else imagenet.
    normalization: Normalization = "auto"
    backbone: ResNetConfig | EfficientNetConfig | SEResNeXtConfig = field(
        default_factory=ResNetConfig
    )
    neck: FPNConfig | NASFPNConfig | BiFPNConfig | IdentityNeckConfig = field(
        default_factory=FPNConfig
    )
    head: HeadConfig = field(default_factory=HeadConfig)
    batch_norm: BatchNormConfig = field(default_factory=BatchNormConfig)  # of neck and head
    anchors: AnchorConfig = field(default_factory=AnchorConfig)
    matching: ArgmaxIoUConfig | ATSSConfig = field(default_factory=ArgmaxIoUConfig)
    class_loss: FocalLossConfig | QualityFocalLossConfig | VarifocalLossConfig = field(
        default_factory=FocalLossConfig
    )
    box_loss: HuberLossConfig | SmoothL1LossConfig | OverlapLossConfig = field(
        default_factory=HuberLossConfig
    )
    postprocess: PostprocessConfig = field(default_factory=PostprocessConfig)

    def __post_init__(self) -> None:
        low, high = self.min_level, self.max_level
        nas_levels = self.neck.kind != "nas_fpn" or (low, high) == (3, 7)
        identity_levels = self.neck.kind != "identity" or low == high
        bifpn_levels = self.neck.kind != "bifpn" or low < high
        check(
            self,
            (low <= high, f"min_level must be at most max_level, got {low} and {high}"),
            (nas_levels, f"neck nas_fpn has levels 3 to 7, got {low} to {high}"),
            (identity_levels, f"neck identity has one level, got {low} to {high}"),
            (bifpn_levels, f"neck bifpn has two levels or more, got {low} to {high}"),
        )
