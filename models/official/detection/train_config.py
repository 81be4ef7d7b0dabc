"""The training run's part of the experiment file: schedules, optimizers, weights, intervals."""

from dataclasses import dataclass, field
from typing import Literal

from trainkit.config import require


def _rates(peak: float, warmup_start: float, warmup_steps: int) -> list[tuple[bool, str]]:
    return [
        (peak > 0, f"peak must be above 0, got {peak}"),
        (warmup_start >= 0, f"warmup_start must be 0 or more, got {warmup_start}"),
        (warmup_steps >= 0, f"warmup_steps must be 0 or more, got {warmup_steps}"),
    ]


@dataclass(frozen=True, kw_only=True)
class StepScheduleConfig:
    """A constant learning rate that drops at given steps."""

    kind: Literal["step"] = "step"
    peak: float = 0.08
    drop_steps: tuple[int, ...] = (15000, 20000)
    drop_rates: tuple[float, ...] = (0.008, 0.0008)  # the learning rate from each step on
    warmup_steps: int = 500
    warmup_start: float = 0.0067

    def __post_init__(self) -> None:
        steps, rates = self.drop_steps, self.drop_rates
        require(
            (
                len(steps) == len(rates),
                f"drop_steps and drop_rates must be equally long, got {len(steps)}, {len(rates)}",
            ),
            (list(steps) == sorted(set(steps)), f"drop_steps must rise, got {list(steps)}"),
            (
                all(step > self.warmup_steps for step in steps),
                f"drop_steps must come after the {self.warmup_steps} warmup_steps, "
                f"got {list(steps)}",
            ),
            (all(rate >= 0 for rate in rates), f"drop_rates must be 0 or more, got {list(rates)}"),
            *_rates(self.peak, self.warmup_start, self.warmup_steps),
        )


@dataclass(frozen=True, kw_only=True)
class CosineScheduleConfig:
    """Half a cosine from the peak to zero at train.total_steps."""

    kind: Literal["cosine"] = "cosine"
    peak: float = 0.08
    warmup_steps: int = 500
    warmup_start: float = 0.0067

    def __post_init__(self) -> None:
        require(*_rates(self.peak, self.warmup_start, self.warmup_steps))


@dataclass(frozen=True, kw_only=True)
class CyclicCosineScheduleConfig:
    """A cosine that reaches 0 at trough_step, comes back to the peak as long after, and so on."""

    kind: Literal["cosine_cyclic"] = "cosine_cyclic"
    peak: float = 0.08
    trough_step: int = 10000
    warmup_steps: int = 500
    warmup_start: float = 0.0067

    def __post_init__(self) -> None:
        steps, trough = self.warmup_steps, self.trough_step
        text = f"trough_step must be above warmup_steps, got {trough} and {steps}"
        require(*_rates(self.peak, self.warmup_start, steps), (trough > steps, text))


@dataclass(frozen=True, kw_only=True)
class OneCycleScheduleConfig:
    """Up to the peak and down to nearly nothing within train.total_steps (arXiv 1708.07120)."""

    kind: Literal["one_cycle"] = "one_cycle"
    peak: float = 0.08
    rise_share: float = 0.4  # of train.total_steps
    start_divisor: float = 25.0  # the first rate is the peak over it
    end_divisor: float = 1e4  # the last rate is the first rate over it

    def __post_init__(self) -> None:
        share, start, end = self.rise_share, self.start_divisor, self.end_divisor
        require(
            (self.peak > 0, f"peak must be above 0, got {self.peak}"),
            (0 < share < 1, f"rise_share must be between 0 and 1, got {share}"),
            (start >= 1, f"start_divisor must be 1 or more, got {start}"),
            (end >= 1, f"end_divisor must be 1 or more, got {end}"),
        )


@dataclass(frozen=True, kw_only=True)
class PolynomialScheduleConfig:
    """From the peak to `end` at train.total_steps as a power of what is left of the way."""

    kind: Literal["polynomial"] = "polynomial"
    peak: float = 0.08
    end: float = 0.0
    power: float = 1.0
    warmup_steps: int = 500
    warmup_start: float = 0.0067

    def __post_init__(self) -> None:
        require(
            *_rates(self.peak, self.warmup_start, self.warmup_steps),
            (self.end >= 0, f"end must be 0 or more, got {self.end}"),
            (self.power > 0, f"power must be above 0, got {self.power}"),
        )


@dataclass(frozen=True, kw_only=True)
class ExponentialScheduleConfig:
    """The peak times decay_rate to the power of steps / decay_steps, after the warm-up."""

    kind: Literal["exponential"] = "exponential"
    peak: float = 0.08
    decay_rate: float = 0.97
    decay_steps: int = 1000
    staircase: bool = False  # whole powers only
    warmup_steps: int = 500
    warmup_start: float = 0.0067

    def __post_init__(self) -> None:
        rate, steps = self.decay_rate, self.decay_steps
        require(
            *_rates(self.peak, self.warmup_start, self.warmup_steps),
            (0 < rate <= 1, f"decay_rate must be in (0, 1], got {rate}"),
            (steps > 0, f"decay_steps must be above 0, got {steps}"),
        )


WarmedUpScheduleConfig = (
    StepScheduleConfig
    | CosineScheduleConfig
    | CyclicCosineScheduleConfig
    | PolynomialScheduleConfig
    | ExponentialScheduleConfig
)
ScheduleConfig = WarmedUpScheduleConfig | OneCycleScheduleConfig


@dataclass(frozen=True, kw_only=True)
class MomentumConfig:
    """Stochastic gradient descent; weight_decay is an L2 term in the loss."""

    kind: Literal["momentum"] = "momentum"
    momentum: float = 0.9
    nesterov: bool = False
    weight_decay: float = 1e-4


@dataclass(frozen=True, kw_only=True)
class AdamConfig:
    """Adam; weight_decay is an L2 term in the loss."""

    kind: Literal["adam"] = "adam"
    beta1: float = 0.9
    beta2: float = 0.999
    weight_decay: float = 0.0


@dataclass(frozen=True, kw_only=True)
class AdamWConfig:
    """Adam with weight decay apart from the gradient."""

    kind: Literal["adamw"] = "adamw"
    beta1: float = 0.9
    beta2: float = 0.999
    weight_decay: float = 0.05


@dataclass(frozen=True, kw_only=True)
class LARSConfig:
    """Momentum with a rate of its own for each kernel (arXiv 1708.03888), for big batches."""

    kind: Literal["lars"] = "lars"
    momentum: float = 0.9
    trust_coefficient: float = 0.001
    weight_decay: float = 1e-4


@dataclass(frozen=True, kw_only=True)
class RMSPropConfig:
    """RMSProp with momentum; weight_decay is an L2 term in the loss."""

    kind: Literal["rmsprop"] = "rmsprop"
    rho: float = 0.9
    momentum: float = 0.9
    epsilon: float = 1e-3
    weight_decay: float = 1e-5


OptimizerConfig = MomentumConfig | AdamConfig | AdamWConfig | LARSConfig | RMSPropConfig


@dataclass(frozen=True, kw_only=True)
class WeightsConfig:
    """Weights to begin with, of TensorFlow, Keras, PyTorch, safetensors or of our own."""

    path: str  # of the file or the checkpoint, local or in a bucket
    prefix: str = ""  # that the names in the file begin with, where it is not found by itself
    exclude: tuple[str, ...] = ()  # regular expressions on our names: these begin at random
    min_backbone_share: float = 0.9  # of the backbone's numbers; less stops the run

    def __post_init__(self) -> None:
        share = self.min_backbone_share
        require((0 <= share <= 1, f"min_backbone_share must be in [0, 1], got {share}"))


@dataclass(frozen=True, kw_only=True)
class TrainConfig:
    """The run: how long, how fast, how often it is saved."""

    total_steps: int = 22500
    batch_size: int = 64  # over all devices together
    seed: int = 0
    iterations_per_loop: int = 100  # steps in one call of the compiled function
    log_every_steps: int = 100
    checkpoint_every_steps: int = 1000
    keep_checkpoints: int = 3
    optimizer: OptimizerConfig = field(default_factory=MomentumConfig)
    learning_rate: ScheduleConfig = field(default_factory=StepScheduleConfig)
    # The batch that learning_rate is meant for; rates are multiplied by batch_size over it.
    reference_batch_size: int | None = None
    gradient_clip_norm: float | None = None  # of all gradients together
    ema_decay: float | None = None  # of the averaged weights that evaluation uses
    weights: WeightsConfig | None = None
    freeze: tuple[str, ...] = ()  # stem, stage1, backbone, neck, head; or regular expressions
    precision: Literal["auto", "float32", "mixed_bfloat16", "mixed_float16"] = "auto"
    device: Literal["auto", "cpu", "gpu"] = "auto"

    def __post_init__(self) -> None:
        names = ("total_steps", "batch_size", "iterations_per_loop", "log_every_steps")
        names += ("checkpoint_every_steps", "keep_checkpoints")
        clip, ema = self.gradient_clip_norm, self.ema_decay
        reference = self.reference_batch_size
        require(
            *(
                (getattr(self, n) > 0, f"{n} must be above 0, got {getattr(self, n)}")
                for n in names
            ),
            (
                reference is None or reference > 0,
                f"reference_batch_size must be above 0 or null, got {reference}",
            ),
            (clip is None or clip > 0, f"gradient_clip_norm must be above 0 or null, got {clip}"),
            (ema is None or 0 < ema < 1, f"ema_decay must be between 0 and 1 or null, got {ema}"),
        )
