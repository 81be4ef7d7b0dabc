"""The `train` section of an experiment file: duration, optimizer, learning rate, weights."""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Annotated, Literal

from tpudet.trainkit.config.idle_keys import IdleKeys
from tpudet.trainkit.config.ranges import (
    Count,
    NaturalNumber,
    NotNegative,
    Positive,
    Range,
    check,
)
from tpudet.trainkit.weights.config import WeightsConfig

Device = Literal["auto", "cpu", "gpu", "tpu"]
Precision = Literal["float32", "mixed_bfloat16", "mixed_float16"]
LoggerName = Literal["tensorboard", "wandb", "mlflow"]


def _check_warmed_up(config: "WarmedUpScheduleConfig", *rules: tuple[bool, str]) -> None:
    start, peak = config.warmup_start, config.peak
    text = f"warmup_start must be at most peak, got {start} and {peak}"
    check(config, (start <= peak, text), *rules)


@dataclass(frozen=True, kw_only=True)
class StepScheduleConfig:
    """A constant learning rate that drops at given steps."""

    kind: Literal["step"] = "step"
    peak: Positive
    drop_steps: tuple[int, ...] = ()
    # The learning rate from each step on; null: a tenth of the rate before.
    drop_rates: tuple[NotNegative, ...] | None = None
    warmup_steps: NaturalNumber = 500
    warmup_start: NotNegative = 0.0

    @property
    def rates_after_drops(self) -> tuple[float, ...]:
        """The learning rate from each of `drop_steps` on."""
        if self.drop_rates is not None:
            return self.drop_rates
        return tuple(self.peak / 10**drops for drops in range(1, len(self.drop_steps) + 1))

    def __post_init__(self) -> None:
        steps, rates = self.drop_steps, self.rates_after_drops
        _check_warmed_up(
            self,
            (
                len(steps) == len(rates),
                f"drop_steps and drop_rates must have the same length, got {len(steps)}, "
                f"{len(rates)}",
            ),
            (
                all(after <= rate for rate, after in itertools.pairwise((self.peak, *rates))),
                f"drop_rates must fall from the peak of {self.peak:g} on, got {list(rates)}: set "
                "them to null for a tenth of the rate before, or to rates below the peak",
            ),
            (list(steps) == sorted(set(steps)), f"drop_steps must increase, got {list(steps)}"),
            (
                all(step >= self.warmup_steps for step in steps),
                f"drop_steps must not come before the end of the {self.warmup_steps} warmup_steps, "
                f"got {list(steps)}",
            ),
        )


@dataclass(frozen=True, kw_only=True)
class CosineScheduleConfig:
    """Half a cosine from the peak to zero at train.total_steps."""

    kind: Literal["cosine"] = "cosine"
    peak: Positive
    warmup_steps: NaturalNumber = 500
    warmup_start: NotNegative = 0.0

    __post_init__ = _check_warmed_up


@dataclass(frozen=True, kw_only=True)
class CyclicCosineScheduleConfig:
    """A cosine that falls to 0 at trough_step, returns to the peak as long after, and repeats."""

    kind: Literal["cosine_cyclic"] = "cosine_cyclic"
    peak: Positive
    trough_step: Count
    warmup_steps: NaturalNumber = 500
    warmup_start: NotNegative = 0.0

    def __post_init__(self) -> None:
        steps, trough = self.warmup_steps, self.trough_step
        text = f"trough_step must be above warmup_steps, got {trough} and {steps}"
        _check_warmed_up(self, (trough > steps, text))


@dataclass(frozen=True, kw_only=True)
class OneCycleScheduleConfig:
    """Up to the peak and down to almost 0 within train.total_steps (arXiv 1708.07120)."""

    kind: Literal["one_cycle"] = "one_cycle"
    peak: Positive
    rise_share: Annotated[float, Range("(0, 1)")] = 0.4  # of train.total_steps
    start_divisor: Annotated[float, Range("[1, inf)")] = 25.0  # first rate = peak / start_divisor
    end_divisor: Annotated[float, Range("[1, inf)")] = 1e4  # last rate = first rate / end_divisor
    # Of the optimizer's momentum, Adam's beta1, at the ends and at the peak, such as [0.95, 0.85];
    # null: that of the optimizer throughout.
    momentum_range: (
        tuple[Annotated[float, Range("[0, 1)")], Annotated[float, Range("[0, 1)")]] | None
    ) = None

    def __post_init__(self) -> None:
        ends, at_peak = self.momentum_range or (0.0, 0.0)
        text = (
            f"momentum_range is [at the ends, at the peak] and must not rise, as a high rate wants "
            f"a low momentum: got [{ends:g}, {at_peak:g}]; swap the two"
        )
        check(self, (ends >= at_peak, text))


@dataclass(frozen=True, kw_only=True)
class RangeTestScheduleConfig:
    """A rate that grows by the same factor each step: the range test of tpudet find_lr."""

    kind: Literal["range_test"] = "range_test"
    start: Positive = 1e-8
    end: Positive = 100.0  # at train.total_steps

    def __post_init__(self) -> None:
        text = f"start must be below end, got {self.start:g} and {self.end:g}"
        check(self, (self.start < self.end, text))

    @property
    def peak(self) -> float:
        """The highest rate."""
        return self.end


@dataclass(frozen=True, kw_only=True)
class PolynomialScheduleConfig:
    """From the peak to `end` at train.total_steps, as a power of the remaining share of steps."""

    kind: Literal["polynomial"] = "polynomial"
    peak: Positive
    end: NotNegative = 0.0
    power: Positive = 1.0
    warmup_steps: NaturalNumber = 500
    warmup_start: NotNegative = 0.0

    def __post_init__(self) -> None:
        text = f"end must be at most peak, got {self.end:g} and {self.peak:g}"
        _check_warmed_up(self, (self.end <= self.peak, text))


@dataclass(frozen=True, kw_only=True)
class ExponentialScheduleConfig:
    """After the warm-up, the peak times decay_rate ** (steps / decay_steps)."""

    kind: Literal["exponential"] = "exponential"
    peak: Positive
    decay_rate: Annotated[float, Range("(0, 1]")] = 0.97
    decay_steps: Count = 1000
    staircase: bool = False  # whole powers only
    warmup_steps: NaturalNumber = 500
    warmup_start: NotNegative = 0.0

    __post_init__ = _check_warmed_up


WarmedUpScheduleConfig = (
    StepScheduleConfig
    | CosineScheduleConfig
    | CyclicCosineScheduleConfig
    | PolynomialScheduleConfig
    | ExponentialScheduleConfig
)
ScheduleConfig = WarmedUpScheduleConfig | OneCycleScheduleConfig | RangeTestScheduleConfig


@dataclass(frozen=True, kw_only=True)
class MomentumConfig:
    """Stochastic gradient descent; weight_decay is an L2 term in the loss."""

    kind: Literal["momentum"] = "momentum"
    momentum: Annotated[float, Range("[0, 1)")] = 0.9
    nesterov: bool = False
    weight_decay: NotNegative = 1e-4

    __post_init__ = check


@dataclass(frozen=True, kw_only=True)
class AdamConfig:
    """Adam; weight_decay is an L2 term in the loss."""

    kind: Literal["adam"] = "adam"
    beta1: Annotated[float, Range("[0, 1)")] = 0.9
    beta2: Annotated[float, Range("[0, 1)")] = 0.999
    weight_decay: NotNegative = 0.0

    __post_init__ = check


@dataclass(frozen=True, kw_only=True)
class AdamWConfig:
    """Adam with decoupled weight decay (arXiv 1711.05101)."""

    kind: Literal["adamw"] = "adamw"
    beta1: Annotated[float, Range("[0, 1)")] = 0.9
    beta2: Annotated[float, Range("[0, 1)")] = 0.999
    weight_decay: NotNegative = 0.05

    __post_init__ = check


@dataclass(frozen=True, kw_only=True)
class LARSConfig:
    """Momentum with a learning rate per kernel (arXiv 1708.03888), for large batches."""

    kind: Literal["lars"] = "lars"
    momentum: Annotated[float, Range("[0, 1)")] = 0.9
    trust_coefficient: Positive = 0.001
    weight_decay: NotNegative = 1e-4

    __post_init__ = check


@dataclass(frozen=True, kw_only=True)
class RMSPropConfig:
    """RMSProp with momentum; weight_decay is an L2 term in the loss."""

    kind: Literal["rmsprop"] = "rmsprop"
    rho: Annotated[float, Range("[0, 1)")] = 0.9
    momentum: Annotated[float, Range("[0, 1)")] = 0.9
    epsilon: Positive = 1e-3
    weight_decay: NotNegative = 1e-5

    __post_init__ = check


OptimizerConfig = MomentumConfig | AdamConfig | AdamWConfig | LARSConfig | RMSPropConfig


@dataclass(frozen=True, kw_only=True)
class ProfileConfig:
    """Traces for TensorBoard's profiler: of one, every_steps or every_seconds."""

    every_steps: Count | None = None
    every_seconds: Positive | None = None  # at least 10 pass between two, in steps too
    duration_ms: Count = 2000

    def __post_init__(self) -> None:
        given = [value for value in (self.every_steps, self.every_seconds) if value is not None]
        check(self, (len(given) == 1, "give either every_steps or every_seconds"))


def stop_at_rule(train: "TrainConfig", known: Sequence[str]) -> tuple[bool, str]:
    """Returns the rule, for `ranges.check`, that train.stop_at names metrics of the task.

    Args:
        train: the config of a run.
        known: names of the task's metrics.
    """
    unknown = [name for name in train.stop_at or () if name not in known]
    text = f"train.stop_at has no metric {', '.join(unknown)}; known are {', '.join(known)}"
    return not unknown, text


@dataclass(frozen=True, kw_only=True)
class TrainConfig:
    """One training run."""

    total_steps: Count = 22500
    total_epochs: Positive | None = None  # over the training images; instead of total_steps
    batch_size: Count = 64  # over all devices together
    seed: Annotated[int, Range("[0, 2147483648)")] = 0  # layers add to it, within 32 bits
    iterations_per_loop: Count = 100  # steps per call of the compiled function
    log_every_steps: Count = 100
    checkpoint_every_steps: Count = 1000
    keep_checkpoints: Count = 3
    # Training ends at the first evaluation with these values, all of them: {AP50: 0.9}.
    stop_at: dict[str, float] | None = None
    patience: Count | None = None  # evaluations without improvement that end the run
    optimizer: OptimizerConfig = field(default_factory=MomentumConfig)
    learning_rate: ScheduleConfig = field(
        default_factory=lambda: StepScheduleConfig(
            peak=0.08,
            drop_steps=(15000, 20000),
            warmup_steps=500,
            warmup_start=0.0067,
        )
    )
    # The batch size that learning_rate is given for: rates are multiplied by batch_size over it.
    # null: rates are those of learning_rate whatever the batch size.
    reference_batch_size: Count | None = None
    gradient_clip_norm: Positive | None = None  # norm over all gradients
    # Of the averaged weights, which evaluation and export use; null: no averages.
    ema_decay: Annotated[float, Range("(0, 1)")] | None = None
    weights: WeightsConfig | None = None  # null: random initialisation
    freeze: tuple[str, ...] = ()  # stem, stage1, backbone, neck, head; or regular expressions
    precision: Literal["auto", Precision] = "auto"
    device: Device = "auto"  # tpu: with --backend jax
    num_devices: Count | None = None  # use the first N; None: all GPUs or TPUs, or one CPU
    profile: ProfileConfig | None = None  # null: no traces
    loggers: tuple[LoggerName, ...] = ("tensorboard",)  # metrics.jsonl is always written
    # With --backend jax only:
    accumulate_steps: Count = 1  # parts of a batch, one after another: less memory, more time
    shard_state: bool = False  # each device holds its part of the optimizer's state and averages
    step_timeout_seconds: Positive = 600.0  # a longer step is stuck: the process ends

    __post_init__ = check

    def idle_keys(self) -> list[IdleKeys]:
        """Returns the keys that change nothing, whether they are set or not."""
        rate = self.learning_rate
        keys = ("warmup_start",) if getattr(rate, "warmup_steps", None) == 0 else ()
        return [IdleKeys("train.learning_rate", rate, type(rate), keys, "there is no warm-up")]
