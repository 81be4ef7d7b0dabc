"""From the run's part of a config to its learning rate and its optimizer."""

from collections.abc import Sequence

import keras

from detection.train_config import (
    AdamConfig,
    AdamWConfig,
    CosineScheduleConfig,
    CyclicCosineScheduleConfig,
    ExponentialScheduleConfig,
    LARSConfig,
    MomentumConfig,
    OneCycleScheduleConfig,
    PolynomialScheduleConfig,
    RMSPropConfig,
    StepScheduleConfig,
    TrainConfig,
)
from trainkit.training import optimizers, schedules


def build_schedule(train: TrainConfig) -> schedules.Schedule:
    """Returns the learning rate as a function of the step.

    Raises:
        ValueError: numbers that do not go together.
    """
    schedule = _unscaled_schedule(train)
    if train.reference_batch_size is None:
        return schedule
    return schedules.scaled(schedule, train.batch_size / train.reference_batch_size)


def _unscaled_schedule(train: TrainConfig) -> schedules.Schedule:
    rate = train.learning_rate
    if isinstance(rate, OneCycleScheduleConfig):
        return schedules.one_cycle(
            init_learning_rate=rate.peak,
            total_steps=train.total_steps,
            rise_share=rate.rise_share,
            start_divisor=rate.start_divisor,
            end_divisor=rate.end_divisor,
        )
    warmup = {
        "init_learning_rate": rate.peak,
        "warmup_learning_rate": rate.warmup_start,
        "warmup_steps": rate.warmup_steps,
    }
    match rate:
        case StepScheduleConfig():
            return schedules.stepwise(levels=rate.drop_rates, boundaries=rate.drop_steps, **warmup)
        case CosineScheduleConfig():
            return schedules.cosine(total_steps=train.total_steps, **warmup)
        case CyclicCosineScheduleConfig():
            return schedules.cosine_cyclic(trough_step=rate.trough_step, **warmup)
        case PolynomialScheduleConfig():
            return schedules.polynomial(
                total_steps=train.total_steps,
                end_learning_rate=rate.end,
                power=rate.power,
                **warmup,
            )
        case ExponentialScheduleConfig():
            return schedules.exponential(
                decay_rate=rate.decay_rate,
                decay_steps=rate.decay_steps,
                staircase=rate.staircase,
                **warmup,
            )


def l2_in_loss(train: TrainConfig) -> float:
    """Returns the L2 term's factor: 0 for the optimizers that decay the weights themselves."""
    chosen = train.optimizer
    return 0.0 if isinstance(chosen, AdamWConfig | LARSConfig) else chosen.weight_decay


def build_optimizer(
    train: TrainConfig, model: keras.Model, decayed: Sequence[keras.Variable]
) -> keras.Optimizer:
    """Returns the optimizer on its schedule; with loss scaling where the precision is float16."""
    optimizer = _unscaled_optimizer(train, model, decayed)
    scaled = keras.config.dtype_policy().name == "mixed_float16"
    return optimizers.with_loss_scaling(optimizer) if scaled else optimizer


def _unscaled_optimizer(
    train: TrainConfig, model: keras.Model, decayed: Sequence[keras.Variable]
) -> keras.Optimizer:
    schedule, chosen = build_schedule(train), train.optimizer
    match chosen:
        case MomentumConfig():
            return optimizers.momentum_sgd(
                schedule, momentum=chosen.momentum, nesterov=chosen.nesterov
            )
        case AdamConfig():
            return optimizers.adam(schedule, beta_1=chosen.beta1, beta_2=chosen.beta2)
        case AdamWConfig():
            return optimizers.adamw(
                schedule,
                weight_decay=chosen.weight_decay,
                model=model,
                decayed=decayed,
                beta_1=chosen.beta1,
                beta_2=chosen.beta2,
            )
        case LARSConfig():
            return optimizers.lars(
                schedule,
                weight_decay=chosen.weight_decay,
                decayed=decayed,
                momentum=chosen.momentum,
                trust_coefficient=chosen.trust_coefficient,
            )
        case RMSPropConfig():
            return optimizers.rmsprop(
                schedule, rho=chosen.rho, momentum=chosen.momentum, epsilon=chosen.epsilon
            )
