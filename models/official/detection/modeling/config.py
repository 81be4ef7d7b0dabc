"""The `model` section of the experiment file."""

from dataclasses import dataclass, field
from typing import Annotated, Literal

from tpudet.detection.modeling.pyramid_config import PyramidConfig
from tpudet.trainkit.config.idle_keys import IdleKeys
from tpudet.trainkit.config.ranges import (
    Count,
    NaturalNumber,
    NotNegative,
    Positive,
    Range,
    Share,
    check,
)

NOT_FORCED = "no anchor is forced, with force_match false"


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

    def idle_keys(self, default: "AnchorConfig") -> list[IdleKeys]:
        """Returns the keys that change nothing, of anchors that are `default` where none is set."""
        keys = ("num_scales", "size") if self.sides else ()
        return [
            IdleKeys("model.anchors", self, default, keys, "model.anchors.sides take its place")
        ]

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


MatchingConfig = ArgmaxIoUConfig | ATSSConfig
ClassLossConfig = FocalLossConfig | QualityFocalLossConfig | VarifocalLossConfig
BoxLossConfig = HuberLossConfig | SmoothL1LossConfig | L1LossConfig | OverlapLossConfig


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

    def idle_keys(self) -> list[IdleKeys]:
        """Returns the keys that change nothing, whether they are set or not."""
        default, head, matching = RetinaNetConfig(), self.head, self.matching
        of_convs = () if head.num_convs else ("num_filters", "activation", "norm_groups")
        of_groups = () if head.norm_groups and head.num_convs else ("norm_epsilon",)
        unforced = isinstance(matching, ArgmaxIoUConfig) and not matching.force_match
        forced = ("forced_target",) if unforced else ()
        return [
            *super().idle_keys(),
            *self.anchors.idle_keys(default.anchors),
            IdleKeys("model.head", head, default.head, of_convs, "there are no convolutions"),
            IdleKeys("model.head", head, default.head, of_groups, "there are no group norms"),
            IdleKeys("model.matching", matching, default.matching, forced, NOT_FORCED),
        ]
