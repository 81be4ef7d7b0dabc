"""Every kind of schedule and optimizer, built from values that are not its defaults."""

from typing import Any, NamedTuple, get_args

import keras
import numpy as np
import pytest

from tpudet.trainkit.errors import UserError
from tpudet.trainkit.training.build_optimizer import (
    build_optimizer,
    build_schedule,
    l2_in_loss,
    warmup_warning,
)
from tpudet.trainkit.training.config import (
    AdamConfig,
    AdamWConfig,
    CosineScheduleConfig,
    CyclicCosineScheduleConfig,
    ExponentialScheduleConfig,
    LARSConfig,
    MomentumConfig,
    OneCycleScheduleConfig,
    OptimizerConfig,
    PolynomialScheduleConfig,
    RangeTestScheduleConfig,
    RMSPropConfig,
    ScheduleConfig,
    StepScheduleConfig,
    TrainConfig,
)
from tpudet.trainkit.training.optimizers import LARS, Adam, Momentum, RMSprop

TOTAL_STEPS = 100
WARMUP: dict[str, Any] = {"peak": 0.5, "warmup_start": 0.1}

# Rates at three steps. The first is the middle of the rise, from 0.1 to 0.5.
SCHEDULES: list[tuple[ScheduleConfig, dict[int, float]]] = [
    (
        StepScheduleConfig(**WARMUP, warmup_steps=10, drop_steps=(40,), drop_rates=(0.2,)),
        {5: 0.3, 39: 0.5, 40: 0.2},
    ),
    # The middle of 80 steps, and the end.
    (CosineScheduleConfig(**WARMUP, warmup_steps=20), {10: 0.3, 60: 0.25, 100: 0.0}),
    (
        CyclicCosineScheduleConfig(**WARMUP, warmup_steps=10, trough_step=30),
        {5: 0.3, 20: 0.25, 50: 0.5},
    ),
    # 0.5 / 5 at first; at last 0.1 / 10.
    (
        OneCycleScheduleConfig(peak=0.5, rise_share=0.2, start_divisor=5.0, end_divisor=10.0),
        {10: 0.3, 20: 0.5, 100: 0.01},
    ),
    # 0.1 + 0.4 * (1 / 2) ** 2.
    (
        PolynomialScheduleConfig(**WARMUP, warmup_steps=20, end=0.1, power=2.0),
        {10: 0.3, 60: 0.2, 100: 0.1},
    ),
    # 0.5 / 4 from 20 steps after the warm-up on.
    (
        ExponentialScheduleConfig(
            **WARMUP, warmup_steps=10, decay_rate=0.25, decay_steps=20, staircase=True
        ),
        {5: 0.3, 29: 0.5, 30: 0.125},
    ),
]


class Case(NamedTuple):
    """An optimizer, and what becomes of it."""

    config: OptimizerConfig
    made: type[keras.Optimizer]
    attributes: dict[str, float | bool | None]
    l2_in_loss: float  # where it is 0 the optimizer decays the weights itself


OPTIMIZERS = [
    Case(
        MomentumConfig(momentum=0.8, nesterov=True, weight_decay=0.3),
        Momentum,
        {"momentum": 0.8, "nesterov": True, "weight_decay": None},
        0.3,
    ),
    Case(
        AdamConfig(beta1=0.7, beta2=0.6, weight_decay=0.3),
        Adam,
        {"beta_1": 0.7, "beta_2": 0.6, "weight_decay": None},
        0.3,
    ),
    Case(
        AdamWConfig(beta1=0.7, beta2=0.6, weight_decay=0.3),
        Adam,
        {"beta_1": 0.7, "beta_2": 0.6, "weight_decay": None},  # Keras's own is not used
        0.0,
    ),
    Case(
        LARSConfig(momentum=0.8, trust_coefficient=0.2, weight_decay=0.3),
        LARS,
        {"momentum": 0.8, "nesterov": False, "weight_decay": None},  # as with AdamW
        0.0,
    ),
    Case(
        RMSPropConfig(rho=0.7, momentum=0.6, epsilon=0.5, weight_decay=0.3),
        RMSprop,
        {"rho": 0.7, "momentum": 0.6, "epsilon": 0.5, "centered": False, "weight_decay": None},
        0.3,
    ),
]


def kind_of(case: Any) -> str:
    return case.config.kind if isinstance(case, Case) else getattr(case, "kind", "rates")


def small_model() -> keras.Model:
    """A kernel of (3, 4), norm 5, and a bias of (3, 4)."""
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(2, name="head")])
    model.get_layer("head").set_weights([np.array([[3.0, 4.0]]), np.array([3.0, 4.0])])
    return model


def built(config: OptimizerConfig, model: keras.Model) -> keras.Optimizer:
    """The optimizer with a constant rate of 0.5, ready for a step."""
    rate = StepScheduleConfig(peak=0.25, warmup_steps=0)
    train = TrainConfig(
        optimizer=config, learning_rate=rate, batch_size=128, reference_batch_size=64
    )
    optimizer = build_optimizer(train, [model.get_layer("head").kernel])
    optimizer.build(model.trainable_variables)
    return optimizer


def test_no_kind_is_left_out() -> None:
    # The range test has its own tests: its rates do not follow the batch.
    followed = set(get_args(ScheduleConfig)) - {RangeTestScheduleConfig}
    assert {type(rate) for rate, _ in SCHEDULES} == followed
    assert {type(case.config) for case in OPTIMIZERS} == set(get_args(OptimizerConfig))


@pytest.mark.parametrize(("rate", "expected"), SCHEDULES, ids=kind_of)
def test_rates_by_hand(rate: ScheduleConfig, expected: dict[int, float]) -> None:
    steps, rates = np.array(list(expected)), np.array(list(expected.values()))
    train = TrainConfig(total_steps=TOTAL_STEPS, learning_rate=rate, batch_size=32)
    np.testing.assert_allclose(build_schedule(train)(steps), rates, atol=1e-7)
    for reference, factor in ((16, 2.0), (64, 0.5), (32, 1.0)):
        train = TrainConfig(
            total_steps=TOTAL_STEPS,
            learning_rate=rate,
            batch_size=32,
            reference_batch_size=reference,
        )
        np.testing.assert_allclose(build_schedule(train)(steps), factor * rates, atol=1e-7)


@pytest.mark.parametrize("case", OPTIMIZERS, ids=kind_of)
def test_an_optimizer_has_the_values_of_its_config(case: Case) -> None:
    optimizer = built(case.config, small_model())
    assert type(optimizer) is case.made
    assert {name: getattr(optimizer, name) for name in case.attributes} == case.attributes
    assert float(np.asarray(optimizer.learning_rate)) == 0.5
    assert l2_in_loss(TrainConfig(optimizer=case.config)) == case.l2_in_loss


@pytest.mark.parametrize("case", OPTIMIZERS, ids=kind_of)
def test_weights_decay_once_in_the_loss_or_in_the_optimizer(case: Case) -> None:
    """Without a gradient a step is the optimizer's own decay, 0.5 * 0.3 of the kernel, or none."""
    model = small_model()
    built(case.config, model).apply([np.zeros((1, 2), np.float32), np.zeros(2, np.float32)])
    kernel, bias = model.get_layer("head").get_weights()
    left = 1.0 if case.l2_in_loss else 0.85
    np.testing.assert_allclose(kernel, [[3.0 * left, 4.0 * left]], rtol=1e-6)
    np.testing.assert_allclose(bias, [3.0, 4.0])


def test_lars_has_its_trust_coefficient_and_decay() -> None:
    """A gradient of (6, 8), norm 10: 0.2 * 5 / (10 + 0.3 * 5) * (6 + 0.9, 8 + 1.2) * 0.5."""
    model = small_model()
    gradient = np.array([6.0, 8.0], np.float32)
    config = LARSConfig(trust_coefficient=0.2, weight_decay=0.3)
    built(config, model).apply([gradient[None], gradient])
    kernel, bias = model.get_layer("head").get_weights()
    np.testing.assert_allclose(kernel, [[3.0 - 0.3, 4.0 - 0.4]], rtol=1e-6)
    np.testing.assert_allclose(bias, [0.0, 0.0], atol=1e-6)


def test_float16_gradients_are_scaled() -> None:
    keras.config.set_dtype_policy("mixed_float16")
    try:
        optimizer = built(MomentumConfig(momentum=0.8), small_model())
    finally:
        keras.config.set_dtype_policy("float32")
    assert isinstance(optimizer, keras.optimizers.LossScaleOptimizer)
    assert isinstance(optimizer.inner_optimizer, keras.optimizers.SGD)


@pytest.mark.parametrize("rate", [rate for rate, _ in SCHEDULES], ids=kind_of)
def test_a_run_that_is_all_warmup_is_told(rate: ScheduleConfig) -> None:
    """Its last step is total_steps - 1, and `warmup_steps` is the first one of the peak."""
    warmup = getattr(rate, "warmup_steps", 0)

    def warning(total_steps: int) -> str:
        return warmup_warning(TrainConfig(total_steps=total_steps, learning_rate=rate))

    assert warning(warmup + 1) == ""
    for total_steps in (warmup, 1) if warmup else ():
        text = f"all {total_steps} steps are warm-up, {warmup} long: the learning rate never"
        assert warning(total_steps).startswith(text)


@pytest.mark.parametrize("config", [MomentumConfig(), AdamConfig(), AdamWConfig()], ids=kind_of)
def test_the_momentum_of_a_cycle_moves_in_every_optimizer_that_has_one(
    config: OptimizerConfig,
) -> None:
    rate = OneCycleScheduleConfig(peak=0.1, rise_share=0.5, momentum_range=(0.95, 0.85))
    train = TrainConfig(optimizer=config, learning_rate=rate, total_steps=100)
    model = small_model()
    optimizer: Any = build_optimizer(train, [model.get_layer("head").kernel])
    optimizer.build(model.trainable_variables)
    optimizer.iterations.assign(25)  # half-way down
    optimizer.apply([np.zeros((1, 2), np.float32), np.zeros(2, np.float32)])
    moved = optimizer.momentum if isinstance(config, MomentumConfig) else optimizer.beta_1
    assert float(moved) == pytest.approx(0.9)


def test_a_momentum_that_cannot_move_is_wrong_usage() -> None:
    rate = OneCycleScheduleConfig(peak=0.1, momentum_range=(0.95, 0.85))
    with pytest.raises(UserError, match="momentum, adam or adamw, which is rmsprop: choose one"):
        build_optimizer(TrainConfig(optimizer=RMSPropConfig(), learning_rate=rate), [])
