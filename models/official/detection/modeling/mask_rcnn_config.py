"""The `model` section of two-stage detectors."""

from dataclasses import dataclass, field, fields
from typing import Annotated, ClassVar, Literal

from tpudet.detection.modeling.config import NOT_FORCED, AnchorConfig, PostprocessConfig
from tpudet.detection.modeling.pyramid_config import CoarseLevels, PyramidConfig
from tpudet.trainkit.backbones.config import BatchNormConfig
from tpudet.trainkit.config.idle_keys import IdleKeys
from tpudet.trainkit.config.ranges import Count, NaturalNumber, NotNegative, Range, Share, check

_DrawnShare = Annotated[float, Range("(0, 1]")]


@dataclass(frozen=True, kw_only=True)
class RPNConfig:
    """Region proposal network (arXiv 1506.01497): the head, its training and its proposals."""

    num_convs: NaturalNumber = 1
    num_filters: Count = 256
    match_threshold: Share = 0.7
    unmatched_threshold: Share = 0.3  # anchors between the two are ignored
    force_match: bool = True  # each object gets its best anchor, however small the overlap
    forced_target: Literal["object", "argmax"] = "object"  # as in matching of a RetinaNet
    anchors_per_image: Count = 256  # drawn for the losses
    positive_share: _DrawnShare = 0.5  # limit on the share of objects among them
    beta: NotNegative = 0.1111  # of the boxes' smooth L1 loss; 0 is L1
    max_candidates_in_training: Count = 2000  # anchors per level that enter suppression
    max_candidates: Count = 1000  # the same in predictions
    nms_iou_threshold: Annotated[float, Range("(0, 1]")] = 0.7
    max_proposals_in_training: Count = 1000  # per image
    max_proposals: Count = 1000  # per image, in predictions
    min_score: Annotated[float, Range("[0, 1)")] = 0.0  # of anchors that enter suppression
    min_side: NotNegative = 0.0  # pixels; proposals of no more are dropped
    clip_to: Literal["canvas", "image"] = "canvas"  # image: not its padding

    def __post_init__(self) -> None:
        low, high = self.unmatched_threshold, self.match_threshold
        text = f"unmatched_threshold must be at most match_threshold, got {low} and {high}"
        check(self, (low <= high, text))


@dataclass(frozen=True, kw_only=True)
class RoIAlignConfig:
    """Pooling of the features under a region (arXiv 1703.06870, section 3)."""

    box_size: Count = 7  # bins along each side, for boxes
    mask_size: Count = 14  # the same for masks, which have twice as many pixels
    sampling_ratio: Count = 2  # points per bin along each side
    # Whether features stand for the centres of their cells; false: as torchvision's detectors.
    aligned: bool = True

    __post_init__ = check


@dataclass(frozen=True, kw_only=True)
class BoxHeadConfig:
    """Classes and boxes of the regions: convolutions, fully connected layers, predictors."""

    num_convs: NaturalNumber = 0
    num_filters: Count = 256
    num_dense: NaturalNumber = 2
    num_units: Count = 1024
    class_agnostic: bool = False  # one box per region instead of one per class
    iou_threshold: Share = 0.5  # from which a region is an object; a cascade has its own
    regions_per_image: Count = 512  # drawn for the losses
    positive_share: _DrawnShare = 0.25  # limit on the share of objects among them
    beta: NotNegative = 0.0  # of the boxes' smooth L1 loss; 0 is L1

    __post_init__ = check


@dataclass(frozen=True, kw_only=True)
class MaskHeadConfig:
    """Masks of the objects found, one per class."""

    num_convs: NaturalNumber = 4
    num_filters: Count = 256

    __post_init__ = check


@dataclass(frozen=True, kw_only=True)
class MaskRCNNConfig(PyramidConfig):
    """Mask R-CNN (arXiv 1703.06870), Faster R-CNN and Cascade R-CNN on a feature pyramid.

    Regions are pooled from the levels up to 5. With an FPN level 6 is every second pixel of 5.
    """

    _own_coarse_levels: ClassVar[CoarseLevels] = "subsample"

    kind: Literal["mask_rcnn"] = "mask_rcnn"
    include_mask: bool = True  # false: Faster R-CNN, which needs no masks in the data
    # Three box heads in sequence at IoU 0.5, 0.6 and 0.7 (arXiv 1712.00726), whose authors share
    # boxes between the classes: box_head.class_agnostic.
    cascade: bool = False
    min_level: Annotated[int, Range("[2, 5]")] = 2
    max_level: Annotated[int, Range("[2, 7]")] = 6
    batch_norm: BatchNormConfig | None = None
    anchors: AnchorConfig = field(default_factory=lambda: AnchorConfig(num_scales=1, size=8.0))
    rpn: RPNConfig = field(default_factory=RPNConfig)
    roi_align: RoIAlignConfig = field(default_factory=RoIAlignConfig)
    box_head: BoxHeadConfig = field(default_factory=BoxHeadConfig)
    mask_head: MaskHeadConfig = field(default_factory=MaskHeadConfig)
    postprocess: PostprocessConfig = field(
        default_factory=lambda: PostprocessConfig(max_candidates=1000)
    )

    @property
    def predicts_masks(self) -> bool:
        """Whether the detector is trained on masks and predicts them."""
        return self.include_mask

    @property
    def region_keys(self) -> tuple[str, ...]:
        """The keys by which training looks at the image and not at the rest of its canvas."""
        clips = ("model.rpn.clip_to image",) if self.rpn.clip_to == "image" else ()
        return (*super().region_keys, *clips)

    def idle_keys(self) -> list[IdleKeys]:
        """Returns the keys that change nothing, whether they are set or not."""
        default, rpn, box_head = MaskRCNNConfig(), self.rpn, self.box_head
        of_masks = (
            () if self.include_mask else tuple(field.name for field in fields(MaskHeadConfig))
        )
        mask_size = () if self.include_mask else ("mask_size",)
        rpn_filters, box_filters = (
            () if section.num_convs else ("num_filters",) for section in (rpn, box_head)
        )
        forced = () if rpn.force_match else ("forced_target",)
        units = () if box_head.num_dense else ("num_units",)
        no_masks, no_convs = (
            "there are no masks, with include_mask false",
            "there are no convolutions",
        )
        no_dense = "there are no fully connected layers"
        return [
            *super().idle_keys(),
            *self.anchors.idle_keys(default.anchors),
            IdleKeys("model.rpn", rpn, default.rpn, rpn_filters, no_convs),
            IdleKeys("model.rpn", rpn, default.rpn, forced, NOT_FORCED),
            IdleKeys("model.box_head", box_head, default.box_head, box_filters, no_convs),
            IdleKeys("model.box_head", box_head, default.box_head, units, no_dense),
            IdleKeys("model.mask_head", self.mask_head, default.mask_head, of_masks, no_masks),
            IdleKeys("model.roi_align", self.roi_align, default.roi_align, mask_size, no_masks),
        ]

    def __post_init__(self) -> None:
        super().__post_init__()
        # Masks travel with eight pixels of a row in a byte.
        text = f"max_level must be 3 or more with include_mask, got {self.max_level}"
        threshold = self.box_head.iou_threshold
        has_effect = not self.cascade or threshold == BoxHeadConfig.iou_threshold
        check(
            self,
            (not self.include_mask or self.max_level >= 3, text),
            (
                has_effect,
                f"box_head.iou_threshold is {threshold:g}, but the stages of a cascade have 0.5, "
                "0.6 and 0.7: leave it out, or set cascade to false",
            ),
        )
