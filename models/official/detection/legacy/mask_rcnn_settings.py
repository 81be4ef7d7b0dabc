"""Every key of the predecessor's Mask R-CNN config with its default and its rules, see `settings`.

They are those of tensorflow/tpu `models/official/detection/configs/maskrcnn_config.py` while each
part had a `batch_norm` of its own. What the code there fixed, as the number of convolutions of a
head, has no key.
"""

from dataclasses import dataclass, field
from typing import Annotated, Literal

from tpudet.detection.legacy.shared_settings import (
    FPN,
    NASFPN,
    Anchor,
    Architecture,
    BatchNorm,
    Eval,
    Parser,
    Postprocess,
    SharedSettings,
)
from tpudet.detection.legacy.train_settings import Fraction, Train
from tpudet.trainkit.config.ranges import Count, NotNegative, Positive, Range, Share, check

_Threshold = Annotated[float, Range("(0, 1]")]


@dataclass(frozen=True, kw_only=True)
class MaskTrain(Train):
    """`train`, with the defaults that came after 2019."""

    frozen_variable_prefix: str | None = (
        r"(resnet\d+)\/(conv2d(|_([1-9]|10))|batch_normalization(|_([1-9]|10)))\/"
    )
    regularization_variable_regex: str | None = r".*(kernel|weight):0$"


@dataclass(frozen=True, kw_only=True)
class MaskEval(Eval):
    """`eval`."""

    type: Literal["box", "box_and_mask"] = "box_and_mask"


@dataclass(frozen=True, kw_only=True)
class MaskArchitecture(Architecture):
    """`architecture`."""

    parser: Literal["maskrcnn_parser"] = "maskrcnn_parser"
    include_mask: bool = False


@dataclass(frozen=True, kw_only=True)
class MaskAnchor(Anchor):
    """`anchor`."""

    min_level: int = 2
    max_level: int = 6
    num_scales: Count = 1
    anchor_size: Positive = 8.0


@dataclass(frozen=True, kw_only=True)
class MaskFPN(FPN):
    """`fpn`."""

    min_level: int = 2
    max_level: int = 6


@dataclass(frozen=True, kw_only=True)
class MaskNASFPN(NASFPN):
    """`nasfpn`."""

    min_level: int = 2
    max_level: int = 6


@dataclass(frozen=True, kw_only=True)
class MaskPostprocess(Postprocess):
    """`postprocess`; its levels and classes had no effect."""

    score_threshold: Fraction = 0.0
    pre_nms_num_boxes: Count = 1000


@dataclass(frozen=True, kw_only=True)
class MaskParser(Parser):
    """`maskrcnn_parser`."""

    output_size: tuple[Count, Count] = (1024, 1024)  # height, width
    rpn_match_threshold: Share = 0.7
    rpn_unmatched_threshold: Share = 0.3
    rpn_batch_size_per_im: Count = 256
    rpn_fg_fraction: _Threshold = 0.5
    include_mask: bool = False
    mask_crop_size: Count = 112

    @property
    def policy(self) -> str:
        """The policy of AutoAugment: none."""
        return ""

    def __post_init__(self) -> None:
        low, high = self.rpn_unmatched_threshold, self.rpn_match_threshold
        check(
            self,
            (
                low <= high,
                "rpn_unmatched_threshold must be at most rpn_match_threshold, got "
                f"{low:g} and {high:g}",
            ),
            self.scale_rule,
        )


@dataclass(frozen=True, kw_only=True)
class RPNHead:
    """`rpn_head`."""

    min_level: int = 2
    max_level: int = 6
    anchors_per_location: int = 3
    use_batch_norm: bool = True
    batch_norm: BatchNorm = field(default_factory=BatchNorm)


@dataclass(frozen=True, kw_only=True)
class FastRCNNHead:
    """`frcnn_head`; `num_classes` counts the background."""

    num_classes: int = 91
    fast_rcnn_mlp_head_dim: Count = 1024
    use_batch_norm: bool = True
    batch_norm: BatchNorm = field(default_factory=BatchNorm)

    __post_init__ = check


@dataclass(frozen=True, kw_only=True)
class MaskHead:
    """`mrcnn_head`."""

    num_classes: int = 91
    mask_target_size: Literal[28] = 28
    use_batch_norm: bool = True
    batch_norm: BatchNorm = field(default_factory=BatchNorm)


@dataclass(frozen=True, kw_only=True)
class RPNScoreLoss:
    """`rpn_score_loss`."""

    rpn_batch_size_per_im: Count = 256

    __post_init__ = check


@dataclass(frozen=True, kw_only=True)
class RPNBoxLoss:
    """`rpn_box_loss`."""

    huber_loss_delta: Positive = 1.0 / 9.0

    __post_init__ = check


@dataclass(frozen=True, kw_only=True)
class FastRCNNBoxLoss:
    """`frcnn_box_loss`."""

    huber_loss_delta: Positive = 1.0

    __post_init__ = check


@dataclass(frozen=True, kw_only=True)
class RoIProposal:
    """`roi_proposal`; `test_` is of predictions."""

    rpn_pre_nms_top_k: Count = 2000  # of each level
    rpn_post_nms_top_k: Count = 1000
    rpn_nms_threshold: _Threshold = 0.7
    rpn_score_threshold: float = 0.0
    rpn_min_size_threshold: NotNegative = 0.0  # pixels
    test_rpn_pre_nms_top_k: Count = 1000
    test_rpn_post_nms_top_k: Count = 1000
    test_rpn_nms_threshold: _Threshold = 0.7
    test_rpn_score_threshold: float = 0.0
    test_rpn_min_size_threshold: NotNegative = 0.0
    use_batched_nms: bool = False

    def __post_init__(self) -> None:
        scores = (self.rpn_score_threshold, self.test_rpn_score_threshold)
        check(
            self,
            (scores == (0.0, 0.0), f"rpn_score_threshold 0 is what there is here, got {scores}"),
            *(
                (
                    getattr(self, key) == getattr(self, f"test_{key}"),
                    f"{key} and test_{key} are one here and must be equal, got "
                    f"{getattr(self, key):g} and {getattr(self, f'test_{key}'):g}",
                )
                for key in ("rpn_nms_threshold", "rpn_min_size_threshold")
            ),
        )


@dataclass(frozen=True, kw_only=True)
class RoISampling:
    """`roi_sampling`."""

    num_samples_per_image: Count = 512
    fg_fraction: _Threshold = 0.25
    fg_iou_thresh: Share = 0.5
    bg_iou_thresh_hi: Share = 0.5
    bg_iou_thresh_lo: Share = 0.0
    mix_gt_boxes: bool = True

    def __post_init__(self) -> None:
        low, high = self.bg_iou_thresh_lo, self.bg_iou_thresh_hi
        check(
            self,
            (
                (low, high) == (0.0, self.fg_iou_thresh),
                "bg_iou_thresh_lo 0 and bg_iou_thresh_hi as fg_iou_thresh, "
                f"{self.fg_iou_thresh:g}, are what there is here, got {low:g} and {high:g}",
            ),
            (self.mix_gt_boxes, "mix_gt_boxes true is what there is here, got false"),
        )


@dataclass(frozen=True, kw_only=True)
class MaskSampling:
    """`mask_sampling`."""

    num_mask_samples_per_image: Count = 128
    mask_target_size: Literal[28] = 28

    __post_init__ = check


@dataclass(frozen=True, kw_only=True)
class MaskRCNNSettings(SharedSettings):
    """A whole file of a Mask R-CNN."""

    type: Literal["mask_rcnn"] = "mask_rcnn"
    train: MaskTrain = field(default_factory=MaskTrain)
    eval: MaskEval = field(default_factory=MaskEval)
    architecture: MaskArchitecture = field(default_factory=MaskArchitecture)
    anchor: MaskAnchor = field(default_factory=MaskAnchor)
    fpn: MaskFPN = field(default_factory=MaskFPN)
    nasfpn: MaskNASFPN = field(default_factory=MaskNASFPN)
    postprocess: MaskPostprocess = field(default_factory=MaskPostprocess)
    maskrcnn_parser: MaskParser = field(default_factory=MaskParser)
    rpn_head: RPNHead = field(default_factory=RPNHead)
    frcnn_head: FastRCNNHead = field(default_factory=FastRCNNHead)
    mrcnn_head: MaskHead = field(default_factory=MaskHead)
    rpn_score_loss: RPNScoreLoss = field(default_factory=RPNScoreLoss)
    rpn_box_loss: RPNBoxLoss = field(default_factory=RPNBoxLoss)
    frcnn_box_loss: FastRCNNBoxLoss = field(default_factory=FastRCNNBoxLoss)
    roi_proposal: RoIProposal = field(default_factory=RoIProposal)
    roi_sampling: RoISampling = field(default_factory=RoISampling)
    mask_sampling: MaskSampling = field(default_factory=MaskSampling)

    @property
    def parser(self) -> MaskParser:
        """The settings of the parser of images."""
        return self.maskrcnn_parser

    def __post_init__(self) -> None:
        """The restrictions under which the predecessor ran, and those that it lacked."""
        check(
            self,
            self.equal_rule("architecture", "maskrcnn_parser", "use_bfloat16"),
            self.equal_rule("architecture", "maskrcnn_parser", "include_mask"),
            self.equal_rule("maskrcnn_parser", "rpn_score_loss", "rpn_batch_size_per_im"),
            self.equal_rule("frcnn_head", "mrcnn_head", "num_classes"),
            *self.level_rules(self._neck, "rpn_head"),
            self.location_rule("rpn_head"),
        )

    @property
    def _neck(self) -> str:
        return "nasfpn" if self.architecture.multilevel_features == "nasfpn" else "fpn"
