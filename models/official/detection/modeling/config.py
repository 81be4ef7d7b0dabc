"""The `model` section of the experiment file."""

from dataclasses import dataclass, field
from typing import Annotated, Literal

from tpudet.trainkit.backbones.config import (
    COARSEST_BACKBONE_LEVEL,
    BackboneConfig,
    BatchNormConfig,
    DropBlockConfig,
    Normalization,
    ResNetConfig,
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
    # How levels from 6 on come about: by strided convolutions, or as every second pixel of the
    # level before; null: convolution in one stage, subsample in two.
    coarse_levels: Literal["convolution", "subsample"] | None = None
    # Whose level 5 a RetinaNet's level 6 is convolved from; torchvision's first version: pyramid.
    coarse_input: Literal["pyramid", "backbone"] = "pyramid"
    # Whether strided convolutions pad all sides, as PyTorch's do, or bottom and right first.
    symmetric_padding: bool = False
    # Whether a level above 6 is convolved from the ReLU of the level before; MMDetection: false.
    coarse_relu: bool = True
    # Norms after the lateral convolutions too, and no biases, as torchvision's second versions.
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


@dataclass(frozen=True, kw_only=True)
class HeadConfig:
    """Two towers of convolutions, shared by all levels."""

    num_convs: NaturalNumber = 4
    num_filters: Count = 256
    separable: bool = False
    activation: Literal["relu", "silu"] = "relu"
    # Of group norms after the convolutions, instead of model.batch_norm; null: none of them.
    norm_groups: Count | None = None
    norm_epsilon: Positive = 1e-5  # of group norms; Keras's own default, as in KerasHub: 1e-3
    level_scales: bool = False  # a trained factor of the boxes for each level, as in ATSS and FCOS
    # Whether the box tower also predicts how central each anchor is in its object, as in ATSS: a
    # factor of its scores, and in training the weight of its box.
    centerness: bool = False

    def __post_init__(self) -> None:
        groups, filters = self.norm_groups, self.num_filters
        text = f"norm_groups {groups} must divide num_filters {filters}"
        check(self, (groups is None or filters % groups == 0, text))


@dataclass(frozen=True, kw_only=True)
class AnchorConfig:
    """Anchors per location: num_scales times len(aspect_ratios)."""

    num_scales: Count = 3
    aspect_ratios: tuple[Positive, ...] = (1.0, 2.0, 0.5)  # width / height
    size: Positive = 4.0  # side of the smallest square anchor, in strides of its level
    # Sides of the square anchors of every level, in pixels; if any, instead of num_scales and size.
    sides: tuple[Positive, ...] = ()
    # Whether anchors lie around the centres of cells; around their first corners, as in Detectron2
    # and MMDetection; or where and as torchvision rounds them.
    layout: Literal["centered", "corner", "torchvision"] = "centered"

    @property
    def per_location(self) -> int:
        """Number of anchors per location."""
        return (len(self.sides) or self.num_scales) * len(self.aspect_ratios)

    def __post_init__(self) -> None:
        check(self, (len(self.aspect_ratios) > 0, "aspect_ratios must be one or more"))


@dataclass(frozen=True, kw_only=True)
class ArgmaxIoUConfig:
    """Each anchor is assigned to the object that it overlaps most, by intersection over union."""

    kind: Literal["argmax_iou"] = "argmax_iou"
    match_threshold: float = 0.5
    unmatched_threshold: float = 0.5  # anchors between the two are ignored
    force_match: bool = True  # each object gets its best anchor, however small the overlap
    # What a forced anchor is trained on: the object that forced it, or, as in torchvision, the one
    # that it overlaps most itself; then all anchors that are equally good for an object are forced.
    forced_target: Literal["object", "argmax"] = "object"

    def __post_init__(self) -> None:
        low, high = self.unmatched_threshold, self.match_threshold
        text = f"0 <= unmatched_threshold <= match_threshold <= 1, got {low} and {high}"
        check(self, (0.0 <= low <= high <= 1.0, text))


@dataclass(frozen=True, kw_only=True)
class ATSSConfig:
    """Adaptive training sample selection (arXiv 1912.02424), without thresholds."""

    kind: Literal["atss"] = "atss"
    # Locations closest to an object's centre, each with all its anchors.
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
    """Varifocal loss: as quality focal, but only negatives are modulated (arXiv 2008.13367)."""

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
    """Smooth L1 loss of the encoded boxes: the Huber loss divided by beta."""

    kind: Literal["smooth_l1"] = "smooth_l1"
    beta: Positive = 0.1
    weight: Positive = 1.0

    __post_init__ = check


@dataclass(frozen=True, kw_only=True)
class L1LossConfig:
    """Absolute difference of the encoded boxes, the mean of the four: 4 is the weight of sums."""

    kind: Literal["l1"] = "l1"
    weight: Positive = 4.0

    __post_init__ = check


@dataclass(frozen=True, kw_only=True)
class OverlapLossConfig:
    """1 minus the intersection over union of the decoded boxes, or one of its extensions."""

    kind: Literal["iou", "giou", "diou", "ciou"] = "giou"
    weight: Positive = 2.0

    __post_init__ = check


@dataclass(frozen=True, kw_only=True)
class PostprocessConfig:
    """Selection of the detections and suppression of duplicates."""

    score_threshold: Annotated[float, Range("[0, 1)")] = 0.05
    nms_iou_threshold: Annotated[float, Range("(0, 1]")] = 0.5
    max_candidates: Count = 5000  # best (anchor, class) pairs per image that enter suppression
    max_detections: Count = 100  # per image

    def __post_init__(self) -> None:
        most, candidates = self.max_detections, self.max_candidates
        text = f"max_detections must be at most max_candidates, got {most} and {candidates}"
        check(self, (most <= candidates, text))


@dataclass(frozen=True, kw_only=True)
class OneStagePostprocessConfig(PostprocessConfig):
    """The same for the anchors of all levels."""

    max_candidates_per_level: Count | None = None  # limit on the candidates of one level
    # Whether boxes of different classes suppress each other too, as in KerasHub.
    class_agnostic: bool = False


NeckConfig = FPNConfig | NASFPNConfig | BiFPNConfig | IdentityNeckConfig
MatchingConfig = ArgmaxIoUConfig | ATSSConfig
ClassLossConfig = FocalLossConfig | QualityFocalLossConfig | VarifocalLossConfig
BoxLossConfig = HuberLossConfig | SmoothL1LossConfig | L1LossConfig | OverlapLossConfig


@dataclass(frozen=True, kw_only=True)
class PyramidConfig:
    """Image to feature pyramid: the keys that every detector has."""

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

        The stride of the coarsest level that another one is enlarged to or from: an FPN's levels
        from 6 on only come of finer ones, and round their sides up.
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
            (has_lateral, "neck.lateral_norms is true, but batch_norm is null: there are none"),
            (has_norm, f"batch_norm is null, which neck {self.neck.kind} does not do without"),
        )


@dataclass(frozen=True, kw_only=True)
class RetinaNetConfig(PyramidConfig):
    """One-stage detector (arXiv 1708.02002)."""

    kind: Literal["retinanet"] = "retinanet"
    head: HeadConfig = field(default_factory=HeadConfig)
    anchors: AnchorConfig = field(default_factory=AnchorConfig)
    matching: MatchingConfig = field(default_factory=ArgmaxIoUConfig)
    # What the losses' sums are divided by: the positive anchors of the batch, plus 1; or those of
    # each image, 1 at least, and then by the number of images.
    loss_normalization: Literal["batch", "image"] = "batch"
    class_loss: ClassLossConfig = field(default_factory=FocalLossConfig)
    box_loss: BoxLossConfig = field(default_factory=HuberLossConfig)
    postprocess: OneStagePostprocessConfig = field(default_factory=OneStagePostprocessConfig)
