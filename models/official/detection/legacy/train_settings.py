"""The predecessor's `train`: its keys with their defaults and rules, see `settings`."""

from dataclasses import dataclass, field
from typing import Annotated, Literal

from tpudet.trainkit.config.ranges import Count, NaturalNumber, NotNegative, Positive, Range, check

Fraction = Annotated[float, Range("[0, 1)")]

# The convolutions of stem and first stage, by the order of their creation.
DEFAULT_FROZEN = r"resnet\d+/conv2d(|_([1-9]|10))/"


@dataclass(frozen=True, kw_only=True)
class Optimizer:
    """`train.optimizer`."""

    type: Literal["momentum", "adam", "adadelta", "adagrad", "rmsprop"] = "momentum"
    momentum: Fraction = 0.9

    __post_init__ = check


@dataclass(frozen=True, kw_only=True)
class LearningRate:
    """`train.learning_rate`; `total_steps` acts on the cosine alone."""

    type: Literal["step", "cosine"] = "step"
    warmup_learning_rate: NotNegative = 0.0067
    warmup_steps: NaturalNumber = 500
    init_learning_rate: Positive = 0.08
    learning_rate_levels: tuple[NotNegative, ...] = (0.008, 0.0008)
    learning_rate_steps: tuple[int, ...] = (15000, 20000)
    total_steps: Count = 22500

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
    skip_variables_regex: str = ""


@dataclass(frozen=True, kw_only=True)
class Train:
    """`train`."""

    iterations_per_loop: Count = 100
    train_batch_size: Count = 64
    total_steps: Count = 22500
    num_cores_per_replica: int | None = None
    input_partition_dims: tuple[int, ...] | None = None
    num_shards: int | None = None
    optimizer: Optimizer = field(default_factory=Optimizer)
    learning_rate: LearningRate = field(default_factory=LearningRate)
    checkpoint: Checkpoint = field(default_factory=Checkpoint)
    frozen_variable_prefix: str | None = DEFAULT_FROZEN
    train_file_pattern: str = ""
    train_dataset_type: str = "tfrecord"
    transpose_input: bool = True
    # Not written: all but BatchNorm, as in 2019, when there was no such key.
    regularization_variable_regex: str | None = ""
    l2_weight_decay: NotNegative = 1e-4
    gradient_clip_norm: NotNegative = 0.0  # 0: not clipped

    __post_init__ = check
