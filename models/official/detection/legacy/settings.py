"""Every key of the predecessor's RetinaNet config with its default and its rules.

The names are the predecessor's: those of 2019 and what tensorflow/tpu added until each part lost
its own `batch_norm` and levels. A file is decoded into these classes as strictly as an experiment
file, so a key that never existed is an error. Values without a counterpart here are refused here,
at the line and under the name of the old file.
"""

from dataclasses import dataclass, field
from typing import Literal

from tpudet.detection.legacy.shared_settings import (
    Architecture,
    BatchNorm,
    Eval,
    Parser,
    SharedSettings,
)
from tpudet.trainkit.config.ranges import (
    Count,
    NaturalNumber,
    NotNegative,
    Positive,
    Share,
    check,
)

_POLICIES = ("v0", "v1", "v2", "v3", "test")


@dataclass(frozen=True, kw_only=True)
class BoxEval(Eval):
    """`eval`."""

    type: Literal["box"] = "box"


@dataclass(frozen=True, kw_only=True)
class BoxArchitecture(Architecture):
    """`architecture`."""

    parser: Literal["retinanet_parser"] = "retinanet_parser"


@dataclass(frozen=True, kw_only=True)
class BoxParser(Parser):
    """`retinanet_parser`."""

    match_threshold: float = 0.5
    unmatched_threshold: float = 0.5
    use_autoaugment: bool = False
    autoaugment_policy_name: Literal["v0", "v1", "v2", "v3", "test"] = "v0"
    aug_policy: str = ""  # in place of the two above

    @property
    def policy(self) -> str:
        """The policy of AutoAugment; empty where there is none."""
        return self.aug_policy or (self.autoaugment_policy_name if self.use_autoaugment else "")

    def __post_init__(self) -> None:
        low, high = self.unmatched_threshold, self.match_threshold
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
            self.scale_rule,
        )


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
class Settings(SharedSettings):
    """A whole file of a RetinaNet."""

    type: Literal["retinanet"] = "retinanet"
    eval: BoxEval = field(default_factory=BoxEval)
    architecture: BoxArchitecture = field(default_factory=BoxArchitecture)
    retinanet_parser: BoxParser = field(default_factory=BoxParser)
    retinanet_head: Head = field(default_factory=Head)
    retinanet_loss: Loss = field(default_factory=Loss)

    @property
    def parser(self) -> BoxParser:
        """The settings of the parser of images."""
        return self.retinanet_parser

    def __post_init__(self) -> None:
        """The restrictions under which the predecessor ran, and one that it lacked."""
        head = self.retinanet_head
        classes = (self.retinanet_loss.num_classes, self.postprocess.num_classes)
        check(
            self,
            self.equal_rule("architecture", "retinanet_parser", "use_bfloat16"),
            *self.level_rules("fpn", "nasfpn", "retinanet_head", "postprocess"),
            (
                set(classes) == {head.num_classes},
                "num_classes of retinanet_head, retinanet_loss and postprocess must be equal, got "
                f"{[head.num_classes, *classes]}",
            ),
            self.location_rule("retinanet_head"),
        )
