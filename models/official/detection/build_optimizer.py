"""From the run's part of a config to its learning rate and its optimizer."""

from collections.abc import Sequence

import keras

from detection.train_config import (
    AdamConfig,
    AdamWConfig,
    CosineScheduleConfig,
    MomentumConfig,
    StepScheduleConfig,
    TrainConfig,
)
from trainkit.training import optimizers, schedules


def build_schedule(train: TrainConfig) -> schedules.Schedule:
    """Returns the learning rate as a function of the step."""
    rate = train.learning_rate
    match rate:
        case StepScheduleConfig():
            return schedules.stepwise(
                init_learning_rate=rate.peak,
                levels=rate.drop_rates,
                boundaries=rate.drop_steps,
                warmup_learning_rate=rate.warmup_start,
                warmup_steps=rate.warmup_steps,
            )
        case CosineScheduleConfig():
            return schedules.cosine(
                init_learning_rate=rate.peak,
                total_steps=train.total_steps,
                warmup_learning_rate=rate.warmup_start,
                warmup_steps=rate.warmup_steps,
            )


def build_optimizer(
    train: TrainConfig, model: keras.Model, decayed: Sequence[keras.Variable]
) -> keras.Optimizer:
    """Returns the optimizer on its schedule; with loss scaling where the precision is float16."""
    schedule, chosen = build_schedule(train), train.optimizer
    match chosen:
        case MomentumConfig():
            optimizer = optimizers.momentum_sgd(
                schedule, momentum=chosen.momentum, nesterov=chosen.nesterov
            )
        case AdamConfig():
            optimizer = optimizers.adam(schedule, beta_1=chosen.beta1, beta_2=chosen.beta2)
        case AdamWConfig():
            optimizer = optimizers.adamw(
                schedule,
                weight_decay=chosen.weight_decay,
                model=model,
                decayed=decayed,
                beta_1=chosen.beta1,
                beta_2=chosen.beta2,
            )
    scaled = keras.config.dtype_policy().name == "mixed_float16"
    return optimizers.with_loss_scaling(optimizer) if scaled else optimizer
