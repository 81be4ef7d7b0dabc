"""Builds the learning-rate schedule and the optimizer of a TrainConfig."""

from collections.abc import Sequence

import keras

from tpudet.trainkit.errors import UserError
from tpudet.trainkit.training import optimizers, schedules
from tpudet.trainkit.training.config import (
    AdamConfig,
    AdamWConfig,
    CosineScheduleConfig,
    CyclicCosineScheduleConfig,
    ExponentialScheduleConfig,
    LARSConfig,
    MomentumConfig,
    OneCycleScheduleConfig,
    PolynomialScheduleConfig,
    RangeTestScheduleConfig,
    RMSPropConfig,
    StepScheduleConfig,
    TrainConfig,
    WarmedUpScheduleConfig,
)


def build_schedule(train: TrainConfig) -> schedules.Schedule:
    """Returns the learning rate as a function of the step, scaled to the batch size."""
    schedule = _unscaled_schedule(train)
    if train.reference_batch_size is None:
        return schedule
    return schedules.scaled(schedule, train.batch_size / train.reference_batch_size)


def warmup_warning(train: TrainConfig) -> str:
    """Returns a warning if training ends before warm-up, else an empty string."""
    warmup_steps = getattr(train.learning_rate, "warmup_steps", 0)
    if train.total_steps > warmup_steps:
        return ""
    return (
        f"all {train.total_steps:,} steps are warm-up, {warmup_steps:,} long: the learning rate "
        "never reaches its peak"
    )


def drops_warning(train: TrainConfig) -> str:
    """Returns a warning if training ends before the learning rate drops, else an empty string."""
    late = [
        step for step in getattr(train.learning_rate, "drop_steps", ()) if step >= train.total_steps
    ]
    if not late:
        return ""
    return (
        f"training ends at step {train.total_steps:,}, before the learning rate drops at "
        f"{', '.join(f'{step:,}' for step in late)}"
    )


def _unscaled_schedule(train: TrainConfig) -> schedules.Schedule:
    rate = train.learning_rate
    if isinstance(rate, RangeTestScheduleConfig):
        return schedules.range_test(start=rate.start, end=rate.end, total_steps=train.total_steps)
    if isinstance(rate, OneCycleScheduleConfig):
        return schedules.one_cycle(
            peak=rate.peak,
            total_steps=train.total_steps,
            rise_share=rate.rise_share,
            start_divisor=rate.start_divisor,
            end_divisor=rate.end_divisor,
        )
    return schedules.after_warmup(
        _schedule_after_warmup(rate, train.total_steps - rate.warmup_steps),
        warmup_start=rate.warmup_start,
        peak=rate.peak,
        warmup_steps=rate.warmup_steps,
    )


def _schedule_after_warmup(
    rate: WarmedUpScheduleConfig, steps_after_warmup: int
) -> schedules.Schedule:
    """The schedule from the end of the warm-up; configs count from the first step instead."""
    total_steps = max(steps_after_warmup, 1)  # a run may end before the warm-up does
    match rate:
        case StepScheduleConfig():
            drop_steps = [step - rate.warmup_steps for step in rate.drop_steps]
            return schedules.stepwise(
                peak=rate.peak, drop_rates=rate.rates_after_drops, drop_steps=drop_steps
            )
        case CosineScheduleConfig():
            return schedules.cosine(peak=rate.peak, total_steps=total_steps)
        case CyclicCosineScheduleConfig():
            return schedules.cosine_cyclic(
                peak=rate.peak, trough_step=rate.trough_step - rate.warmup_steps
            )
        case PolynomialScheduleConfig():
            return schedules.polynomial(
                peak=rate.peak,
                total_steps=total_steps,
                end=rate.end,
                power=rate.power,
            )
        case ExponentialScheduleConfig():
            return schedules.exponential(
                peak=rate.peak,
                decay_rate=rate.decay_rate,
                decay_steps=rate.decay_steps,
                staircase=rate.staircase,
            )


def l2_in_loss(train: TrainConfig) -> float:
    """Returns the factor of the L2 term: 0 for optimizers that decay the weights themselves."""
    chosen = train.optimizer
    return 0.0 if isinstance(chosen, AdamWConfig | LARSConfig) else chosen.weight_decay


def build_optimizer(train: TrainConfig, decayed: Sequence[keras.Variable]) -> keras.Optimizer:
    """Returns the optimizer on its schedule, with loss scaling if the precision is float16."""
    optimizer = _unscaled_optimizer(train, decayed)
    scaled = keras.config.dtype_policy().name == "mixed_float16"
    return optimizers.with_loss_scaling(optimizer) if scaled else optimizer


def build_momentum(train: TrainConfig) -> schedules.Schedule | None:
    """Returns the momentum as a function of the step; None where it is the optimizer's constant.

    Raises:
        UserError: the optimizer has no momentum that moves.
    """
    rate = train.learning_rate
    if not isinstance(rate, OneCycleScheduleConfig) or rate.momentum_range is None:
        return None
    if not isinstance(train.optimizer, MomentumConfig | AdamConfig | AdamWConfig):
        raise UserError(
            f"train.learning_rate.momentum_range needs train.optimizer momentum, adam or adamw, "
            f"which is {train.optimizer.kind}: choose one of them, or set momentum_range to null"
        )
    highest, lowest = rate.momentum_range
    return schedules.one_cycle_momentum(
        highest=highest,
        lowest=lowest,
        total_steps=train.total_steps,
        rise_share=rate.rise_share,
    )


def _unscaled_optimizer(train: TrainConfig, decayed: Sequence[keras.Variable]) -> keras.Optimizer:
    schedule, chosen, momentum = build_schedule(train), train.optimizer, build_momentum(train)
    match chosen:
        case MomentumConfig():
            return optimizers.Momentum(
                schedule, momentum=momentum or chosen.momentum, nesterov=chosen.nesterov
            )
        case AdamConfig():
            return optimizers.Adam(schedule, beta_1=momentum or chosen.beta1, beta_2=chosen.beta2)
        case AdamWConfig():
            return optimizers.Adam(
                schedule,
                beta_1=momentum or chosen.beta1,
                beta_2=chosen.beta2,
                weight_decay=chosen.weight_decay,
                decayed=decayed,
            )
        case LARSConfig():
            return optimizers.LARS(
                schedule,
                weight_decay=chosen.weight_decay,
                decayed=decayed,
                momentum=chosen.momentum,
                trust_coefficient=chosen.trust_coefficient,
            )
        case RMSPropConfig():
            return optimizers.RMSprop(
                schedule, rho=chosen.rho, momentum=chosen.momentum, epsilon=chosen.epsilon
            )
