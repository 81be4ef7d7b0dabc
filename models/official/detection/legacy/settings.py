"""Every key of the predecessor's RetinaNet config with its default and its rules.

The names are the predecessor's: those of 2019 and what tensorflow/tpu added until each part lost
its own `batch_norm` and levels. A file is decoded into these classes as strictly as an experiment
file, so a key that never existed is an error. Values without a counterpart here are refused here,
at the line and under the name of the old file.
"""

import itertools
from dataclasses import dataclass, field
from typing import Annotated, Literal

from tpudet.detection.legacy.train_settings import Fraction, Train
from tpudet.trainkit.config.ranges import (
    Count,
    NaturalNumber,
    NotNegative,
    Positive,
    Range,
    Share,
    check,
)

_POLICIES = ("v0", "v1", "v2", "v3", "test")


@dataclass(frozen=True, kw_only=True)
class Eval:
    """`eval`."""

    eval_batch_size: int = 8
    eval_samples: int | None = 5000
    min_eval_interval: int = 180
    eval_timeout: int | None = None
    num_steps_per_eval: Count = 1000
    type: Literal["box"] = "box"
    use_json_file: bool = True
    val_json_file: str = ""
    eval_file_pattern: str = ""
    eval_dataset_type: str = "tfrecord"

    __post_init__ = check


@dataclass(frozen=True, kw_only=True)
class Predict:
    """`predict`; its batch was the one that evaluations ran with."""

    predict_batch_size: Count = 8

    __post_init__ = check


@dataclass(frozen=True, kw_only=True)
class Architecture:
    """`architecture`."""

    parser: Literal["retinanet_parser"] = "retinanet_parser"
    backbone: str = "resnet"
    multilevel_features: Literal["fpn", "nasfpn", "identity"] = "fpn"
    use_bfloat16: bool = True


@dataclass(frozen=True, kw_only=True)
class Anchor:
    """`anchor`."""

    min_level: int = 3
    max_level: int = 7
    num_scales: Count = 3
    aspect_ratios: tuple[Positive, ...] = (1.0, 2.0, 0.5)
    anchor_size: Positive = 4.0

    def __post_init__(self) -> None:
        low, high = self.min_level, self.max_level
        text = f"2 <= min_level <= max_level <= 7 is what there is here, got {low} and {high}"
        check(
            self,
            (2 <= low <= high <= 7, text),
            (len(self.aspect_ratios) > 0, "aspect_ratios must be one or more"),
        )


@dataclass(frozen=True, kw_only=True)
class Parser:
    """`retinanet_parser`."""

    use_bfloat16: bool = True
    output_size: tuple[Count, Count] = (640, 640)  # height, width
    match_threshold: float = 0.5
    unmatched_threshold: float = 0.5
    aug_rand_hflip: bool = True
    aug_scale_min: float = 1.0
    aug_scale_max: float = 1.0
    use_autoaugment: bool = False
    autoaugment_policy_name: Literal["v0", "v1", "v2", "v3", "test"] = "v0"
    aug_policy: str = ""  # in place of the two above
    skip_crowd_during_training: bool = True
    max_num_instances: Count = 100
    regenerate_source_id: bool = False

    @property
    def policy(self) -> str:
        """The policy of AutoAugment; empty where there is none."""
        return self.aug_policy or (self.autoaugment_policy_name if self.use_autoaugment else "")

    def __post_init__(self) -> None:
        low, high = self.unmatched_threshold, self.match_threshold
        smallest, largest = self.aug_scale_min, self.aug_scale_max
        check(
            self,
            (
                self.aug_policy in ("", *_POLICIES),
                f"aug_policy {self.aug_policy} has no counterpart; {', '.join(_POLICIES)} have one",
            ),
            (
                0.0 <= low <= high <= 1.0,
                f"0 <= unmatched_threshold <= match_threshold <= 1, got {low:g} and {high:g}",
            ),
            (
                0.1 <= smallest <= largest <= 2.0,
                f"0.1 <= aug_scale_min <= aug_scale_max <= 2.0 is what there is here, got "
                f"{smallest:g} and {largest:g}",
            ),
        )


@dataclass(frozen=True, kw_only=True)
class BatchNorm:
    """`batch_norm` of a part."""

    batch_norm_momentum: Fraction = 0.997
    batch_norm_epsilon: Positive = 1e-4
    batch_norm_trainable: bool = True
    use_sync_bn: bool | None = None

    __post_init__ = check


@dataclass(frozen=True, kw_only=True)
class DropBlock:
    """`dropblock` of a part; off where one of the two is not given."""

    dropblock_keep_prob: Annotated[float, Range("(0, 1]")] | None = None
    dropblock_size: Count | None = None

    __post_init__ = check


@dataclass(frozen=True, kw_only=True)
class ResNet:
    """`resnet`; its depth is that of SE-ResNeXt too."""

    resnet_depth: Literal[18, 34, 50, 101, 152, 200] = 50
    dropblock: DropBlock = field(default_factory=DropBlock)
    batch_norm: BatchNorm = field(default_factory=BatchNorm)


@dataclass(frozen=True, kw_only=True)
class Pyramid:
    """The settings that `fpn` and `nasfpn` share."""

    min_level: int = 3
    max_level: int = 7
    fpn_feat_dims: Count = 256
    use_separable_conv: bool = False
    batch_norm: BatchNorm = field(default_factory=BatchNorm)

    __post_init__ = check


@dataclass(frozen=True, kw_only=True)
class FPN(Pyramid):
    """`fpn`."""

    use_batch_norm: bool = True


@dataclass(frozen=True, kw_only=True)
class NASFPN(Pyramid):
    """`nasfpn`."""

    num_repeats: Count = 5
    dropblock: DropBlock = field(default_factory=DropBlock)


@dataclass(frozen=True, kw_only=True)
class Head:
    """`retinanet_head`; `num_classes` counts the background."""

    min_level: int = 3
    max_level: int = 7
    num_classes: int = 91
    anchors_per_location: int = 9
    retinanet_head_num_convs: NaturalNumber = 4
    retinanet_head_num_filters: Count = 256
    use_separable_conv: bool = False
    use_batch_norm: bool = True
    batch_norm: BatchNorm = field(default_factory=BatchNorm)

    __post_init__ = check


@dataclass(frozen=True, kw_only=True)
class Loss:
    """`retinanet_loss`."""

    num_classes: int = 91
    focal_loss_alpha: Share = 0.25
    focal_loss_gamma: NotNegative = 1.5
    huber_loss_delta: Positive = 0.1
    box_loss_weight: Positive = 50.0

    __post_init__ = check


@dataclass(frozen=True, kw_only=True)
class Postprocess:
    """`postprocess`."""

    apply_nms: bool = True
    use_batched_nms: bool = False
    min_level: int = 3
    max_level: int = 7
    num_classes: int = 91
    max_total_size: Count = 100
    pre_nms_num_boxes: Count = 5000  # of each class
    nms_iou_threshold: Annotated[float, Range("(0, 1]")] = 0.5
    score_threshold: Fraction = 0.05

    __post_init__ = check


@dataclass(frozen=True, kw_only=True)
class Platform:
    """`platform`."""

    eval_master: str | None = ""
    tpu: str | None = ""
    tpu_zone: str | None = ""
    gcp_project: str | None = ""


@dataclass(frozen=True, kw_only=True)
class Settings:
    """A whole file."""

    type: Literal["retinanet"] = "retinanet"
    model_dir: str = ""
    use_tpu: bool | None = True
    isolate_session_state: bool = False
    enable_summary: bool = False
    platform: Platform = field(default_factory=Platform)
    train: Train = field(default_factory=Train)
    eval: Eval = field(default_factory=Eval)
    predict: Predict = field(default_factory=Predict)
    architecture: Architecture = field(default_factory=Architecture)
    anchor: Anchor = field(default_factory=Anchor)
    retinanet_parser: Parser = field(default_factory=Parser)
    resnet: ResNet = field(default_factory=ResNet)
    fpn: FPN = field(default_factory=FPN)
    nasfpn: NASFPN = field(default_factory=NASFPN)
    retinanet_head: Head = field(default_factory=Head)
    retinanet_loss: Loss = field(default_factory=Loss)
    postprocess: Postprocess = field(default_factory=Postprocess)

    def __post_init__(self) -> None:
        """The restrictions under which the predecessor ran, one that it lacked, and our necks'."""
        anchor, head = self.anchor, self.retinanet_head
        parts = ("fpn", "nasfpn", "retinanet_head", "postprocess")
        classes = (self.retinanet_loss.num_classes, self.postprocess.num_classes)
        per_location = anchor.num_scales * len(anchor.aspect_ratios)
        neck, levels = self.architecture.multilevel_features, (anchor.min_level, anchor.max_level)
        here, there = self.architecture.use_bfloat16, self.retinanet_parser.use_bfloat16
        check(
            self,
            (
                here == there,
                f"architecture.use_bfloat16 is {here} and retinanet_parser.use_bfloat16 {there}; "
                "they must be equal",
            ),
            *(
                _same_level(
                    part, level, getattr(getattr(self, part), level), getattr(anchor, level)
                )
                for part, level in itertools.product(parts, ("min_level", "max_level"))
            ),
            (
                set(classes) == {head.num_classes},
                "num_classes of retinanet_head, retinanet_loss and postprocess must be equal, got "
                f"{[head.num_classes, *classes]}",
            ),
            (
                head.anchors_per_location == per_location,
                f"retinanet_head.anchors_per_location must be anchor.num_scales x the number of "
                f"aspect_ratios, {per_location}, got {head.anchors_per_location}",
            ),
            (
                neck != "nasfpn" or levels == (3, 7),
                "multilevel_features nasfpn has anchor.min_level 3 and anchor.max_level 7 here, "
                f"got {levels[0]} and {levels[1]}",
            ),
            (
                neck != "identity" or levels[0] == levels[1] <= 5,
                "multilevel_features identity has one level of the backbone here, 2 to 5: "
                f"anchor.min_level and anchor.max_level must be equal, got {levels[0]} and "
                f"{levels[1]}",
            ),
        )


def _same_level(part: str, level: str, value: int, anchor: int) -> tuple[bool, str]:
    return value == anchor, f"{part}.{level} must be anchor.{level}, {anchor}, got {value}"
