"""The sections that the predecessor's detectors share, with their defaults and rules.

The defaults are those of RetinaNet; `mask_rcnn_settings` overrides its own.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Annotated, Literal

from tpudet.detection.legacy.train_settings import Fraction, Train
from tpudet.trainkit.config.ranges import Count, Positive, Range, check


@dataclass(frozen=True, kw_only=True)
class Eval:
    """`eval`."""

    eval_batch_size: int = 8
    eval_samples: int | None = 5000
    min_eval_interval: int = 180
    eval_timeout: int | None = None
    num_steps_per_eval: Count = 1000
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

    backbone: str = "resnet"
    multilevel_features: Literal["fpn", "nasfpn", "identity"] = "fpn"
    use_bfloat16: bool = True


@dataclass(frozen=True, kw_only=True)
class Parser:
    """The settings that the parsers of images share."""

    use_bfloat16: bool = True
    output_size: tuple[Count, Count] = (640, 640)  # height, width
    aug_rand_hflip: bool = True
    aug_scale_min: float = 1.0
    aug_scale_max: float = 1.0
    skip_crowd_during_training: bool = True
    max_num_instances: Count = 100
    regenerate_source_id: bool = False

    @property
    def scale_rule(self) -> tuple[bool, str]:
        """The rule of the scales that there are here, for `check`."""
        smallest, largest = self.aug_scale_min, self.aug_scale_max
        return (
            0.1 <= smallest <= largest <= 2.0,
            "0.1 <= aug_scale_min <= aug_scale_max <= 2.0 is what there is here, got "
            f"{smallest:g} and {largest:g}",
        )


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
class SharedSettings:
    """The part of a file that does not depend on the detector."""

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
    resnet: ResNet = field(default_factory=ResNet)
    fpn: FPN = field(default_factory=FPN)
    nasfpn: NASFPN = field(default_factory=NASFPN)
    postprocess: Postprocess = field(default_factory=Postprocess)

    @property
    def pyramid(self) -> Pyramid:
        """The settings of the neck that `multilevel_features` names; of FPN for the identity."""
        return self.nasfpn if self.architecture.multilevel_features == "nasfpn" else self.fpn

    def equal_rule(self, first: str, second: str, key: str) -> tuple[bool, str]:
        """The rule that two sections have the same value of a key, for `check`."""
        here, there = (getattr(getattr(self, section), key) for section in (first, second))
        return (
            here == there,
            f"{first}.{key} is {here} and {second}.{key} {there}; they must be equal",
        )

    def location_rule(self, part: str) -> tuple[bool, str]:
        """The rule that a part has as many anchors per location as `anchor`, for `check`."""
        expected = self.anchor.num_scales * len(self.anchor.aspect_ratios)
        value = getattr(self, part).anchors_per_location
        return (
            value == expected,
            f"{part}.anchors_per_location must be anchor.num_scales x the number of aspect_ratios, "
            f"{expected}, got {value}",
        )

    def level_rules(self, *parts: str) -> Iterator[tuple[bool, str]]:
        """The rules that `parts` have the levels of `anchor`, and our necks' own, for `check`."""
        anchor = self.anchor
        for part in parts:
            for level in ("min_level", "max_level"):
                value, wanted = getattr(getattr(self, part), level), getattr(anchor, level)
                yield (
                    value == wanted,
                    f"{part}.{level} must be anchor.{level}, {wanted}, got {value}",
                )
        neck, levels = self.architecture.multilevel_features, (anchor.min_level, anchor.max_level)
        yield (
            neck != "nasfpn" or levels == (3, 7),
            "multilevel_features nasfpn has anchor.min_level 3 and anchor.max_level 7 here, "
            f"got {levels[0]} and {levels[1]}",
        )
        yield (
            neck != "identity" or levels[0] == levels[1] <= 5,
            "multilevel_features identity has one level of the backbone here, 2 to 5: "
            f"anchor.min_level and anchor.max_level must be equal, got {levels[0]} and "
            f"{levels[1]}",
        )
