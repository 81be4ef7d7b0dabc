"""Which variables decay, update rules by hand, and the keys of the slots."""

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from tpudet.trainkit.training import optimizers
from tpudet.trainkit.training.devices import choose_tensorflow_devices
from tpudet.trainkit.training.freezing import freeze
from tpudet.trainkit.training.optimizer_slots import slot_variables
from tpudet.trainkit.training.schedules import Schedule, stepwise


def constant(value: float) -> Schedule:
    return stepwise(peak=value, drop_rates=(), drop_steps=())


def small_model() -> keras.Model:
    inputs = keras.Input((4, 4, 3))
    features = keras.layers.Conv2D(2, 3, name="stem")(inputs)
    features = keras.layers.BatchNormalization(name="norm")(features)
    features = keras.layers.SeparableConv2D(2, 2, name="separable")(features)
    features = keras.layers.Flatten()(features)
    return keras.Model(inputs, keras.layers.Dense(1, name="head")(features))


def test_kernels_that_train_decay() -> None:
    model = small_model()
    assert [variable.path for variable in optimizers.decayed_variables(model)] == [
        "stem/kernel",
        "separable/depthwise_kernel",
        "separable/pointwise_kernel",
        "head/kernel",
    ]
    freeze(model, ["separable/"])
    decayed = [variable.path for variable in optimizers.decayed_variables(model)]
    assert decayed == ["stem/kernel", "head/kernel"]


@pytest.mark.parametrize(
    ("path", "decays"),
    [
        ("backbone/stem/conv/kernel", True),
        ("blocks_1/depthwise_kernel", True),
        ("kernel", True),
        ("kernel/bias", False),
        ("norm/gamma", False),
        ("kernel_scale", False),
    ],
)
def test_kernels_are_told_by_the_end_of_their_name(path: str, decays: bool) -> None:
    assert optimizers.is_decayed(path) is decays


def test_adamw_decays_only_what_it_is_told_to() -> None:
    """With gradients of 0 a step is the decay alone: v * (1 - rate * decay)."""
    model = small_model()
    schedule = stepwise(peak=0.5, drop_rates=[0.25], drop_steps=[1])
    kernel, bias = model.get_layer("head").weights
    bias.assign([3.0])
    optimizer = optimizers.Adam(
        schedule, weight_decay=0.1, decayed=[kernel], beta_1=0.9, beta_2=0.999
    )
    before = {variable.path: variable.numpy() for variable in model.trainable_variables}
    optimizer.build(model.trainable_variables)
    for _ in range(2):
        zeros = [np.zeros(variable.shape, np.float32) for variable in model.trainable_variables]
        optimizer.apply(zeros)
    for variable in model.trainable_variables:
        factor = 0.95 * 0.975 if variable is kernel else 1.0
        np.testing.assert_allclose(
            variable.numpy(), before[variable.path] * factor, rtol=1e-6, err_msg=variable.path
        )


def test_momentum_by_hand() -> None:
    """Gradient 1 thrice, rate 0.5, 0.5, 0.1, momentum 0.5: velocity -0.5, -0.75, -0.475."""
    schedule = stepwise(peak=0.5, drop_rates=[0.1], drop_steps=[2])
    weight = keras.Variable(2.0)
    optimizer = optimizers.Momentum(schedule, momentum=0.5, nesterov=False)
    optimizer.build([weight])
    seen = []
    for _ in range(3):
        optimizer.apply([np.float32(1.0)])
        seen.append(float(weight.numpy()))
    assert seen == pytest.approx([1.5, 0.75, 0.275])


def test_rmsprop_by_hand() -> None:
    """Gradients 2 and 0, rate 1, rho and momentum 0.5, epsilon 2.

    Squares: 0.5 * 4 = 2, then 1. Moved: 2 / sqrt(2 + 2) = 1, then 0.5 * 1 + 0.
    """
    weight = keras.Variable(3.0)
    optimizer = optimizers.RMSprop(constant(1.0), rho=0.5, momentum=0.5, epsilon=2.0)
    optimizer.build([weight])
    seen = []
    for gradient in (2.0, 0.0):
        optimizer.apply([np.float32(gradient)])
        seen.append(float(weight.numpy()))
    assert seen == pytest.approx([2.0, 1.5])
    assert slot_variables(optimizer, [weight]).keys() == {
        f"{weight.path}/momentum",
        f"{weight.path}/velocity",
    }


def test_lars_by_hand() -> None:
    """A kernel of norm 5 with a gradient of norm 10, decay 0.2, trust 0.1, rate 2, momentum 0.5.

    Local rate 0.1 * 5 / (10 + 0.2 * 5) = 1 / 22; decayed gradient (6, 8) + 0.2 * (3, 4) =
    (6.6, 8.8); the step is 2 / 22 of it, (0.6, 0.8). The bias takes a step of momentum alone.
    """
    kernel = keras.Variable([[3.0, 4.0]], name="kernel")
    bias = keras.Variable([3.0, 4.0], name="bias")
    optimizer = optimizers.LARS(
        constant(2.0),
        weight_decay=0.2,
        decayed=[kernel, bias],
        momentum=0.5,
        trust_coefficient=0.1,
    )
    optimizer.build([kernel, bias])
    gradients = np.array([6.0, 8.0], np.float32)
    optimizer.apply([gradients[None], gradients])
    np.testing.assert_allclose(kernel.numpy(), [[2.4, 3.2]], rtol=1e-6)
    np.testing.assert_allclose(bias.numpy(), [3.0 - 12.0, 4.0 - 16.0], rtol=1e-6)
    # Without a gradient the decay has no direction to be measured by: 0.2 * w at a local rate of 1.
    optimizer.apply([0 * gradients[None], 0 * gradients])
    np.testing.assert_allclose(
        kernel.numpy(), [[2.4 - 0.3 - 2 * 0.2 * 2.4, 3.2 - 0.4 - 2 * 0.2 * 3.2]], rtol=1e-5
    )
    np.testing.assert_allclose(bias.numpy(), [-9.0 - 6.0, -12.0 - 8.0], rtol=1e-6)


def test_lars_does_not_care_how_large_a_gradient_is() -> None:
    """Without decay the step is trust * |w| * rate: 0.001 * 5 * 10, whatever the gradient."""
    for size in (1e-6, 1.0, 1e6):
        kernel = keras.Variable([[3.0, 4.0]], name="kernel")
        optimizer = optimizers.LARS(
            constant(10.0),
            weight_decay=0.0,
            decayed=[kernel],
            momentum=0.9,
            trust_coefficient=0.001,
        )
        optimizer.build([kernel])
        optimizer.apply([np.array([[0.0, size]], np.float32)])
        np.testing.assert_allclose(kernel.numpy(), [[3.0, 3.95]], rtol=1e-5)


def test_slots_are_keyed_by_the_path_of_their_variable() -> None:
    model = small_model()
    optimizer = optimizers.Adam(constant(0.1), beta_1=0.9, beta_2=0.999)
    optimizer.build(model.trainable_variables)
    slots = slot_variables(optimizer, model.trainable_variables)
    assert sorted(slots) == sorted(
        f"{variable.path}/{slot}"
        for variable in model.trainable_variables
        for slot in ("momentum", "velocity")
    )
    assert slots["stem/kernel/velocity"].shape == (3, 3, 3, 2)


def test_slots_of_paths_that_keras_spells_alike_are_told_apart() -> None:
    first, second = keras.Variable([1.0], name="x"), keras.Variable([1.0, 2.0], name="x")
    # Keras takes the path where there is one, with every / as _: both become a_b_c.
    first._path, second._path = "a/b_c", "a_b/c"
    optimizer = optimizers.Momentum(constant(0.1), momentum=0.9, nesterov=False)
    optimizer.build([first, second])
    slots = slot_variables(optimizer, [first, second])
    shapes = {key: tuple(variable.shape) for key, variable in slots.items()}
    assert shapes == {"a/b_c/momentum": (1,), "a_b/c/momentum": (2,)}


def test_state_that_would_be_lost_is_refused() -> None:
    weight = keras.Variable([1.0], name="weight")
    optimizer = keras.optimizers.Adagrad(0.1)
    optimizer.build([weight])
    with pytest.raises(ValueError, match="Adagrad keeps .*learning_rate, weight_accumulator"):
        slot_variables(optimizer, [weight])


def test_loss_scaling_keeps_its_scale_beside_the_slots() -> None:
    weight = keras.Variable([1.0], name="weight")
    optimizer = optimizers.with_loss_scaling(
        optimizers.Momentum(constant(0.1), momentum=0.9, nesterov=False)
    )
    optimizer.build([weight])
    slots = slot_variables(optimizer, [weight])
    assert set(slots) == {
        "loss_scale/dynamic_scale",
        "loss_scale/step_counter",
        "weight/momentum",
    }


def moved_by(optimizer: keras.Optimizer, gradients: list[float]) -> list[float]:
    """The values of one variable, from 0, after each step."""
    variable = keras.Variable(np.zeros(1, np.float32), name="kernel")
    optimizer.build([variable])
    values = []
    for gradient in gradients:
        optimizer.apply([np.full(1, gradient, np.float32)])
        values.append(float(variable.numpy()[0]))
    return values


def test_a_momentum_that_moves_is_that_of_each_step() -> None:
    """Velocities -0.1, 0.8 * -0.1 - 0.1, 0.6 * -0.18 - 0.1; the momentum of step 0 finds none."""
    rate = constant(0.1)
    momentum = stepwise(peak=0.9, drop_rates=[0.8, 0.6], drop_steps=[1, 2])
    optimizer = optimizers.Momentum(rate, momentum=momentum, nesterov=False)
    np.testing.assert_allclose(moved_by(optimizer, [1.0] * 3), [-0.1, -0.28, -0.488], rtol=1e-5)
    assert list(slot_variables(optimizer, optimizer._trainable_variables)) == ["kernel/momentum"]


@pytest.mark.parametrize("nesterov", [False, True])
def test_a_momentum_that_stays_is_plain_momentum(nesterov: bool) -> None:
    rate, momentum = constant(0.1), constant(0.9)
    gradients = [1.0, -0.5, 0.25, 2.0]
    plain = optimizers.Momentum(rate, momentum=0.9, nesterov=nesterov)
    moving = optimizers.Momentum(rate, momentum=momentum, nesterov=nesterov)
    np.testing.assert_allclose(moved_by(moving, gradients), moved_by(plain, gradients), rtol=1e-5)


def test_a_beta1_that_stays_is_plain_adam_and_one_that_moves_is_not() -> None:
    rate, gradients = constant(0.1), [1.0, -0.5, 0.25, 2.0]
    plain = moved_by(optimizers.Adam(rate, beta_1=0.9, beta_2=0.99), gradients)
    staying = optimizers.Adam(rate, beta_1=constant(0.9), beta_2=0.99)
    np.testing.assert_allclose(moved_by(staying, gradients), plain, rtol=1e-5)
    falling = stepwise(peak=0.9, drop_rates=[0.5], drop_steps=[1])
    moved = moved_by(optimizers.Adam(rate, beta_1=falling, beta_2=0.99), gradients)
    # Step 1: m is 0.5 * 0.1 + 0.5 * -0.5 = -0.2, and 1 - 0.5^2 its correction.
    v = 0.99 * 0.01 + 0.01 * 0.25
    step = 0.1 * (-0.2 / 0.75) / np.sqrt(v / (1 - 0.99**2))
    np.testing.assert_allclose(moved[1], -0.1 - step, rtol=1e-4)


def keras_twins() -> dict[str, tuple[Callable[[Any], keras.Optimizer], type, dict[str, Any]]]:
    """Of each of our optimizers, made for decayed variables: Keras's own with the same settings."""
    rate = stepwise(peak=0.1, drop_rates=[0.02], drop_steps=[2])
    adam: dict[str, Any] = {"beta_1": 0.8, "beta_2": 0.95}
    own = keras.optimizers
    return {
        "momentum": (
            lambda _: optimizers.Momentum(rate, momentum=0.9),
            own.SGD,
            {"momentum": 0.9},
        ),
        "nesterov": (
            lambda _: optimizers.Momentum(rate, momentum=0.9, nesterov=True),
            own.SGD,
            {"momentum": 0.9, "nesterov": True},
        ),
        "no momentum": (lambda _: optimizers.Momentum(rate, momentum=0.0), own.SGD, {}),
        "adam": (lambda _: optimizers.Adam(rate, **adam), own.Adam, adam),
        "adamw": (
            lambda decayed: optimizers.Adam(rate, **adam, weight_decay=0.3, decayed=decayed),
            own.AdamW,
            adam | {"weight_decay": 0.3},
        ),
        "rmsprop": (
            lambda _: optimizers.RMSprop(rate, rho=0.8, momentum=0.7, epsilon=1e-3),
            own.RMSprop,
            {"rho": 0.8, "momentum": 0.7, "epsilon": 1e-3},
        ),
    }


@pytest.mark.parametrize("num_devices", [1, 2])
@pytest.mark.parametrize("name", keras_twins())
def test_steps_equal_those_of_kerass_optimizer(name: str, num_devices: int) -> None:
    """Four steps in a traced loop; each of two replicas adds half of the gradient."""
    rng = np.random.default_rng(0)
    kernel, bias = rng.normal(size=(3, 3, 4, 8)), rng.normal(size=8)
    gradients = [rng.normal(size=(4, *value.shape)).astype("float32") for value in (kernel, bias)]
    make, kind, settings = keras_twins()[name]
    devices = choose_tensorflow_devices("cpu", num_devices)
    rate = optimizers.ScheduledLearningRate(stepwise(peak=0.1, drop_rates=[0.02], drop_steps=[2]))
    results = []
    for make_one in (make, lambda _: kind(rate, **settings)):
        with devices.scope():
            variables = [keras.Variable(value, dtype="float32") for value in (kernel, bias)]
            optimizer = make_one(variables[:1])
            if name == "adamw" and kind is type(optimizer):
                optimizer.exclude_from_weight_decay(var_list=variables[1:])
            optimizer.build(variables)

        def apply(number: tf.Tensor) -> None:
            share = [tf.constant(one)[number] / num_devices for one in gradients]
            optimizer.apply(share, variables)  # noqa: B023

        @tf.function(autograph=False)
        def take(number: tf.Tensor) -> None:
            devices.strategy.run(apply, (number,))  # noqa: B023

        for number in range(4):
            take(tf.constant(number))
        slots = slot_variables(optimizer, variables)
        slots = {path.rpartition("/")[2] + str(k): slots[path] for k, path in enumerate(slots)}
        results.append([value.numpy() for value in [*variables, *slots.values()]])
        if num_devices == 2:
            first, second = devices.replica_values(variables[0].value)
            np.testing.assert_array_equal(first.numpy(), second.numpy())
    for ours, theirs in zip(*results, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=2e-6, atol=1e-7)
    assert abs(results[0][0] - kernel).max() > 0.01
