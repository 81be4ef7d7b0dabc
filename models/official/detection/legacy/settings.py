"""Every key of the predecessor's RetinaNet config with its default and its rules.

The names are the predecessor's. `trainkit.config.decode` reads a file into them as strictly as one
of ours, so a key that it never had is an error here too.
"""

import itertools
from dataclasses import dataclass, field
from typing import Literal

from trainkit.ranges import check

# The convolutions of stem and first stage, by the order of their creation.
DEFAULT_FROZEN = r"resnet\d+/conv2d(|_([1-9]|10))/"


@dataclass(frozen=True, kw_only=True)
class Optimizer:
    """`train.optimizer`."""

    type: Literal["momentum", "adam", "adadelta", "adagrad", "rmsprop"] = "momentum"
    momentum: float = 0.9


@dataclass(frozen=True, kw_only=True)
class LearningRate:
    """`train.learning_rate`; `total_steps` acts on the cosine alone."""

    type: Literal["step", "cosine"] = "step"
    warmup_learning_rate: float = 0.0067
    warmup_steps: int = 500
    init_learning_rate: float = 0.08
    learning_rate_levels: tuple[float, ...] = (0.008, 0.0008)
    learning_rate_steps: tuple[int, ...] = (15000, 20000)
    total_steps: int = 22500

    def __post_init__(self) -> None:
        levels, steps = self.learning_rate_levels, self.learning_rate_steps
        check(
            self,
            (
                len(levels) == len(steps),
                f"learning_rate_levels and learning_rate_steps must be equally long, got "
                f"{len(levels)} and {len(steps)}",
            ),
            (
                self.type != "cosine" or self.total_steps > self.warmup_steps,
                f"the cosine's total_steps must be above warmup_steps, got {self.total_steps} and "
                f"{self.warmup_steps}",
            ),
        )


@dataclass(frozen=True, kw_only=True)
class Checkpoint:
    """`train.checkpoint`; the prefix is a scope of the model's names, not of the file's."""

    path: str = ""
    prefix: str = ""


@dataclass(frozen=True, kw_only=True)
class Train:
    """`train`."""

    iterations_per_loop: int = 100
    train_batch_size: int = 64
    total_steps: int = 22500
    num_cores_per_replica: int | None = None
    input_partition_dims: tuple[int, ...] | None = None
    num_shards: int | None = None
    optimizer: Optimizer = field(default_factory=Optimizer)
    learning_rate: LearningRate = field(default_factory=LearningRate)
    checkpoint: Checkpoint = field(default_factory=Checkpoint)
    frozen_variable_prefix: str | None = DEFAULT_FROZEN
    train_file_pattern: str = ""
    transpose_input: bool = True
    l2_weight_decay: float = 1e-4


@dataclass(frozen=True, kw_only=True)
class Eval:
    """`eval`."""

    eval_batch_size: int = 8
    eval_samples: int = 5000
    min_eval_interval: int = 180
    eval_timeout: int | None = None
    num_steps_per_eval: int = 1000
    type: Literal["box"] = "box"
    val_json_file: str = ""
    eval_file_pattern: str = ""


@dataclass(frozen=True, kw_only=True)
class Predict:
    """`predict`; its batch was the one that evaluations ran with."""

    predict_batch_size: int = 8


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
    num_scales: int = 3
    aspect_ratios: tuple[float, ...] = (1.0, 2.0, 0.5)
    anchor_size: float = 4.0


@dataclass(frozen=True, kw_only=True)
class Parser:
    """`retinanet_parser`."""

    use_bfloat16: bool = True
    output_size: tuple[int, int] = (640, 640)  # height, width
    match_threshold: float = 0.5
    unmatched_threshold: float = 0.5
    aug_rand_hflip: bool = True
    aug_scale_min: float = 1.0
    aug_scale_max: float = 1.0
    use_autoaugment: bool = False
    autoaugment_policy_name: Literal["v0", "v1", "v2", "v3", "test"] = "v0"
    skip_crowd_during_training: bool = True
    max_num_instances: int = 100


@dataclass(frozen=True, kw_only=True)
class BatchNorm:
    """`batch_norm` of a part."""

    batch_norm_momentum: float = 0.997
    batch_norm_epsilon: float = 1e-4
    batch_norm_trainable: bool = True


@dataclass(frozen=True, kw_only=True)
class DropBlock:
    """`dropblock` of a part; off where one of the two is not given."""

    dropblock_keep_prob: float | None = None
    dropblock_size: int | None = None


@dataclass(frozen=True, kw_only=True)
class ResNet:
    """`resnet`; its depth is that of SE-ResNeXt too."""

    resnet_depth: Literal[18, 34, 50, 101, 152, 200] = 50
    dropblock: DropBlock = field(default_factory=DropBlock)
    batch_norm: BatchNorm = field(default_factory=BatchNorm)


@dataclass(frozen=True, kw_only=True)
class FPN:
    """`fpn`."""

    min_level: int = 3
    max_level: int = 7
    fpn_feat_dims: int = 256
    use_separable_conv: bool = False
    batch_norm: BatchNorm = field(default_factory=BatchNorm)


@dataclass(frozen=True, kw_only=True)
class NASFPN(FPN):
    """`nasfpn`."""

    num_repeats: int = 5
    dropblock: DropBlock = field(default_factory=DropBlock)


@dataclass(frozen=True, kw_only=True)
class Head:
    """`retinanet_head`; `num_classes` counts the background."""

    min_level: int = 3
    max_level: int = 7
    num_classes: int = 91
    anchors_per_location: int = 9
    retinanet_head_num_convs: int = 4
    retinanet_head_num_filters: int = 256
    use_separable_conv: bool = False
    batch_norm: BatchNorm = field(default_factory=BatchNorm)


@dataclass(frozen=True, kw_only=True)
class Loss:
    """`retinanet_loss`."""

    num_classes: int = 91
    focal_loss_alpha: float = 0.25
    focal_loss_gamma: float = 1.5
    huber_loss_delta: float = 0.1
    box_loss_weight: float = 50.0


@dataclass(frozen=True, kw_only=True)
class Postprocess:
    """`postprocess`."""

    use_batched_nms: bool = False
    min_level: int = 3
    max_level: int = 7
    num_classes: int = 91
    max_total_size: int = 100
    nms_iou_threshold: float = 0.5
    score_threshold: float = 0.05


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
        """The restrictions under which the predecessor ran, and one that it lacked."""
        anchor, head = self.anchor, self.retinanet_head
        parts = ("fpn", "nasfpn", "retinanet_head", "postprocess")
        classes = (self.retinanet_loss.num_classes, self.postprocess.num_classes)
        per_location = anchor.num_scales * len(anchor.aspect_ratios)
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
        )


def _same_level(part: str, level: str, value: int, anchor: int) -> tuple[bool, str]:
    return value == anchor, f"{part}.{level} must be anchor.{level}, {anchor}, got {value}"
