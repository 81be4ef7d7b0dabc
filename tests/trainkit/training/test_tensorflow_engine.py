"""Training steps: against NumPy, on two devices as on one, stopped, starved and spoiled."""

import threading
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import ops

from tpudet.trainkit.training.checkpoints import Checkpoints
from tpudet.trainkit.training.devices import Devices, choose_tensorflow_devices
from tpudet.trainkit.training.freezing import freeze
from tpudet.trainkit.training.optimizers import Momentum, decayed_variables, with_loss_scaling
from tpudet.trainkit.training.schedules import stepwise
from tpudet.trainkit.training.tensorflow_engine import TensorFlowEngine

NUM_RECORDS = 40
BATCH_SIZE = 4


class Batch(NamedTuple):
    inputs: Any
    targets: Any
    records: Any
    unused: Any = None  # batches may have optional fields


class Regression:
    """The mean squared error of a model with one output, over the batch of all replicas."""

    def __init__(self, model: keras.Model, change: Callable[[Any], Any], devices: Devices) -> None:
        self.model = model
        self.sum_over_replicas = devices.sum_over_replicas
        self.change = change
        self.traces = 0

    def losses(self, batch: Batch) -> dict[str, Any]:
        self.traces += 1
        outputs: Any = ops.cast(self.model(batch.inputs, training=True), "float32")
        errors: Any = ops.square(outputs[:, 0] - batch.targets)
        loss = ops.sum(errors) / self.sum_over_replicas(tf.cast(tf.size(errors), tf.float32))
        return {"loss_square": loss, "loss": self.change(loss)}

    def predict(self, batch: Batch) -> Any:
        return self.model(batch.inputs)


def linear_model() -> keras.Model:
    inputs = keras.Input((3,))
    return keras.Model(inputs, keras.layers.Dense(1, name="dense")(inputs))


def convolutional_model() -> keras.Model:
    images = keras.Input((6, 6, 2))
    features = keras.layers.Conv2D(4, 3, name="stem")(images)
    features = keras.layers.BatchNormalization(name="stem_norm", synchronized=True)(features)
    features = keras.layers.Conv2D(4, 3, activation="relu", name="conv")(features)
    features = keras.layers.BatchNormalization(name="norm", synchronized=True)(features)
    features = keras.layers.GlobalAveragePooling2D()(features)
    return keras.Model(images, keras.layers.Dense(1, name="dense")(features))


def records(input_shape: tuple[int, ...]) -> Batch:
    generator = np.random.default_rng(0)
    inputs = generator.normal(size=(NUM_RECORDS, *input_shape)).astype(np.float32)
    targets = generator.normal(size=NUM_RECORDS).astype(np.float32)
    return Batch(inputs, targets, np.arange(NUM_RECORDS, dtype=np.int64))


def batches(data: Batch) -> Callable[[int], tf.data.Dataset]:
    endless = tf.data.Dataset.from_tensor_slices(data[:3]).map(Batch).repeat()
    return lambda start: endless.skip(start).batch(BATCH_SIZE, drop_remainder=True)


def build(
    make_model: Callable[[], keras.Model] = linear_model,
    *,
    num_devices: int = 1,
    batch_size: int = BATCH_SIZE,
    seed: int = 1,
    frozen: tuple[str, ...] = (),
    loss_scaling: bool = False,
    change_loss: Callable[[Any], Any] = lambda loss: loss,
    make_dataset: Callable[[int], tf.data.Dataset] | None = None,
    **arguments: Any,
) -> tuple[TensorFlowEngine, Any]:
    devices = choose_tensorflow_devices("cpu", num_devices)
    with devices.scope():
        keras.utils.set_random_seed(seed)
        model = make_model()
        freeze(model, frozen)
        schedule = stepwise(peak=0.1, drop_rates=[0.05], drop_steps=[3])
        optimizer = Momentum(schedule, momentum=0.9, nesterov=False)
        optimizer = with_loss_scaling(optimizer) if loss_scaling else optimizer
    task = Regression(model, change_loss, devices)
    engine = TensorFlowEngine(
        task=task,
        optimizer=optimizer,
        devices=devices,
        make_dataset=make_dataset or batches(records(model.input_shape[1:])),
        batch_size=batch_size,
        decayed=decayed_variables(model),
        record_numbers=lambda batch: batch.records,
        **arguments,
    )
    return engine, task


def test_steps_are_those_that_numpy_takes() -> None:
    """Momentum 0.9, L2 0.2 on the kernel, clipping at 2.5, averages; traced once."""
    engine, task = build(l2_weight_decay=0.2, gradient_clip_norm=2.5, ema_decay=0.25)
    data = records((3,))
    state = engine.snapshot()
    weights = np.append(state["dense/kernel"][:, 0], state["dense/bias"]).astype(np.float64)
    velocity, average, losses, norms = np.zeros(4), np.zeros(4), [], []
    for step in range(5):
        batch = slice(step * BATCH_SIZE, (step + 1) * BATCH_SIZE)
        inputs = np.append(data.inputs[batch], np.ones((BATCH_SIZE, 1)), axis=1)
        errors = inputs @ weights - data.targets[batch]
        l2 = 0.1 * np.sum(weights[:3] ** 2)
        losses.append([np.mean(errors**2), np.mean(errors**2) + l2, l2])
        gradient = 2 * errors @ inputs / BATCH_SIZE + 0.2 * weights * [1, 1, 1, 0]
        norms.append(np.linalg.norm(gradient))
        velocity = 0.9 * velocity - (0.1 if step < 3 else 0.05) * gradient * min(1, 2.5 / norms[-1])
        weights += velocity
        kept = min(0.25, step / (step + 9))  # 0, 0.1, 0.1818, 0.25, 0.25
        average = kept * average + (1 - kept) * weights
    assert min(norms) < 2.5 < max(norms)

    first, second = engine.train(2), engine.train(3)

    for report, steps in ((first, slice(0, 2)), (second, slice(2, 5))):
        expected = [*np.mean(losses[steps], axis=0), np.mean(norms[steps])]
        assert list(report.losses) == ["loss_square", "loss", "l2", "gradient_norm"]
        np.testing.assert_allclose(list(report.losses.values()), expected, rtol=1e-5)
        assert report.steps_done == steps.stop - steps.start
        assert report.nonfinite is None
    assert first.learning_rate == pytest.approx(0.1)
    assert second.learning_rate == pytest.approx(0.05)
    assert (engine.step, engine.records_consumed, task.traces) == (5, 20, 1)
    state = engine.snapshot()
    for prefix, expected in (("", weights), ("ema/", average)):
        got = np.append(state[f"{prefix}dense/kernel"][:, 0], state[f"{prefix}dense/bias"])
        np.testing.assert_allclose(got, expected, rtol=1e-5)
    got = np.append(
        state["optimizer/dense/kernel/momentum"][:, 0], state["optimizer/dense/bias/momentum"]
    )
    np.testing.assert_allclose(got, velocity, rtol=1e-5)


def test_two_devices_are_one() -> None:
    """Synchronised BatchNorm, L2, momentum, clipping and averages, after 6 steps."""
    options: dict[str, Any] = {"l2_weight_decay": 0.01, "gradient_clip_norm": 0.5, "ema_decay": 0.9}
    one, _ = build(convolutional_model, **options)
    two, _ = build(convolutional_model, num_devices=2, **options)
    for num_steps in (2, 4):
        expected, report = one.train(num_steps), two.train(num_steps)
        assert report.losses == pytest.approx(expected.losses, rel=1e-5)
    expected = one.snapshot()
    assert any("moving_variance" in key for key in expected)
    for key, value in two.snapshot().items():
        np.testing.assert_allclose(value, expected[key], rtol=1e-4, atol=1e-6, err_msg=key)
    for variable in two._state().values():
        for copy in getattr(variable, "values", []):
            np.testing.assert_array_equal(copy.numpy(), variable.numpy())


def test_a_resumed_run_ends_bit_for_bit_as_one_that_was_not_stopped() -> None:
    options: dict[str, Any] = {"l2_weight_decay": 0.01, "gradient_clip_norm": 0.5, "ema_decay": 0.9}
    whole, _ = build(convolutional_model, **options)
    whole.train(7)
    stopped, _ = build(convolutional_model, **options)
    stopped.train(3)
    resumed, task = build(convolutional_model, seed=2, **options)
    resumed.train(1)  # its input has to be left behind
    resumed.load(stopped.snapshot())
    resumed.restart_input()
    resumed.train(4)
    assert task.traces == 1
    expected = whole.snapshot()
    assert resumed.snapshot().keys() == expected.keys()
    for key, value in resumed.snapshot().items():
        np.testing.assert_array_equal(value, expected[key], err_msg=key)


def test_a_snapshot_has_the_signature_and_is_a_copy() -> None:
    engine, task = build(ema_decay=0.5)
    before = engine.snapshot()
    found = {key: (array.shape, array.dtype.name) for key, array in before.items()}
    assert found == dict(engine.signature())
    assert found["dense/kernel"] == ((3, 1), "float32")
    assert found["global_step"] == found["records_consumed"] == ((), "int64")
    kernel = before["dense/kernel"].copy()
    engine.train(2)
    np.testing.assert_array_equal(before["dense/kernel"], kernel)
    assert not np.array_equal(task.model.get_layer("dense").kernel.numpy(), kernel)


def test_loading_reaches_every_replica(ram_dir: str) -> None:
    """Through a file, as a restart does it."""
    engine, _ = build(num_devices=2, ema_decay=0.5)
    arrays = {key: np.asarray(array + 1, array.dtype) for key, array in engine.snapshot().items()}
    writer = Checkpoints(ram_dir, keep=1)
    writer.save(arrays)
    writer.wait()
    loaded = writer.load_newest(engine.signature())
    assert loaded is not None
    engine.load(loaded)
    for key, variable in engine._state().items():
        for copy in getattr(variable, "values", [variable]):
            np.testing.assert_array_equal(copy.numpy(), arrays[key], err_msg=key)


def test_other_variables_are_not_loaded() -> None:
    engine, _ = build()
    before = engine.snapshot()
    others = {key: np.ones_like(array) for key, array in before.items() if key != "dense/bias"}
    with pytest.raises(ValueError, match="different are dense/bias, ema/dense/kernel"):
        engine.load(others | {"ema/dense/kernel": others["dense/kernel"]})
    for key, value in engine.snapshot().items():
        np.testing.assert_array_equal(value, before[key], err_msg=key)


def test_frozen_layers_stand_still() -> None:
    engine, _ = build(
        convolutional_model,
        frozen=("stem", "stem_norm", "dense"),
        l2_weight_decay=0.1,
        ema_decay=0.9,
    )
    before = engine.snapshot()
    engine.train(2)
    after = engine.snapshot()
    still = {"stem/kernel", "stem/bias", "dense/kernel", "dense/bias"} | {
        f"stem_norm/{name}" for name in ("gamma", "beta", "moving_mean", "moving_variance")
    }
    for key, value in before.items():
        assert np.array_equal(value, after[key]) == (key in still), key
    for path in still:
        assert f"ema/{path}" not in before
        assert not any(key.startswith(f"optimizer/{path}") for key in before)


def test_averaged_weights_are_in_the_model_for_a_while() -> None:
    engine, task = build(ema_decay=0.5)
    engine.train(4)
    before = engine.snapshot()
    kernel = task.model.get_layer("dense").kernel
    with engine.averaged_weights():
        np.testing.assert_array_equal(kernel.numpy(), before["ema/dense/kernel"])
    assert not np.array_equal(before["dense/kernel"], before["ema/dense/kernel"])
    np.testing.assert_array_equal(kernel.numpy(), before["dense/kernel"])
    without, task = build()
    before = task.model.get_weights()
    with without.averaged_weights():
        assert all(map(np.array_equal, before, task.model.get_weights()))


def test_a_stop_comes_at_the_next_step_boundary_and_stays(
    act_when: Callable[..., threading.Thread],
) -> None:
    engine, _ = build()
    engine.train(1)
    sender = act_when(lambda: engine.step > 1, engine.request_stop)
    report = engine.train(10**9)
    sender.join()
    assert 0 < report.steps_done == engine.step - 1
    assert engine.records_consumed == BATCH_SIZE * engine.step
    again = engine.train(5)
    assert (again.steps_done, again.losses, again.nonfinite) == (0, {}, None)
    assert again.learning_rate == pytest.approx(0.05)


@pytest.mark.parametrize("num_devices", [1, 2])
def test_a_loss_that_is_not_finite_is_told_with_its_records(num_devices: int) -> None:
    data = records((3,))
    data.inputs[22] = np.inf  # in the second half of batch 20, 21, 22, 23
    engine, _ = build(make_dataset=batches(data), num_devices=num_devices)
    engine.train(2)
    report = engine.train(100)
    assert report.steps_done == 3
    assert np.isfinite(list(report.losses.values())).all()
    assert report.nonfinite is not None
    assert (report.nonfinite.step, report.nonfinite.records) == (6, [20, 21, 22, 23])
    assert report.nonfinite.losses.keys() == {"loss_square", "loss", "gradient_norm"}
    assert not np.isfinite(report.nonfinite.losses["loss_square"])


def plus_a_nap(value: Any) -> Any:
    """Adds 0 after 50 ms of sleep."""

    def sleep(_: np.ndarray) -> np.floating:
        time.sleep(0.05)
        return np.float32(0)

    (slept,) = tf.numpy_function(sleep, [value], [tf.float32])
    return value + tf.reshape(slept, [])


@pytest.mark.parametrize("num_devices", [1, 2])
def test_waiting_for_input_is_told_from_computing(num_devices: int) -> None:
    make_fast = batches(records((3,)))

    def make_slow(start: int) -> tf.data.Dataset:
        return make_fast(start).map(lambda batch: batch._replace(targets=plus_a_nap(batch.targets)))

    starved, _ = build(make_dataset=make_slow, num_devices=num_devices)
    starved.train(1)
    report = starved.train(10)  # ten naps, of which some were taken ahead
    assert report.input_wait_share > 0.75
    assert 0.25 < report.input_wait_share * report.seconds <= report.seconds
    fed, _ = build(change_loss=plus_a_nap, num_devices=num_devices)
    fed.train(1)
    report = fed.train(6)
    assert report.seconds >= 0.3
    assert report.input_wait_share < 0.25


def test_a_loss_scale_begins_anew_where_it_was_not_saved() -> None:
    """The rest of a state is taken over, in either direction."""
    plain, _ = build()
    plain.train(1)
    scaled, _ = build(loss_scaling=True)
    fresh = scaled.snapshot()["optimizer/loss_scale/dynamic_scale"]
    scaled.load(plain.snapshot())
    state = scaled.snapshot()
    assert state["optimizer/loss_scale/dynamic_scale"] == fresh == 2.0**15
    np.testing.assert_array_equal(state["dense/kernel"], plain.snapshot()["dense/kernel"])
    other, _ = build(seed=2)
    other.load(state)
    np.testing.assert_array_equal(other.snapshot()["dense/kernel"], state["dense/kernel"])
    assert other.step == 1


@pytest.mark.parametrize("num_devices", [1, 2])
def test_float16_leaves_out_the_step_that_overflows(num_devices: int) -> None:
    """Only the last two records of the first batch overflow: with two devices the second's."""
    data = records((3,))
    data.inputs[2:4] *= 100
    keras.config.set_dtype_policy("mixed_float16")
    engine, task = build(make_dataset=batches(data), loss_scaling=True, num_devices=num_devices)
    state = engine.snapshot()
    assert {key for key in state if "/" in key} - {"dense/kernel", "dense/bias"} == {
        "optimizer/dense/kernel/momentum",
        "optimizer/dense/bias/momentum",
        "optimizer/loss_scale/dynamic_scale",
        "optimizer/loss_scale/step_counter",
    }
    engine.load(state | {"optimizer/loss_scale/dynamic_scale": np.array(1024.0, np.float32)})
    weights = [variable.numpy() for variable in task.model.weights]
    report = engine.train(2)
    assert (report.steps_done, engine.step, report.nonfinite) == (2, 2, None)
    assert engine.records_consumed == 3 * BATCH_SIZE
    state = engine.snapshot()
    assert state["optimizer/loss_scale/dynamic_scale"] == 512.0
    # Two steps on the second and third batch, in float32 by hand.
    kernel, bias = weights[0][:, 0], weights[1][0]
    velocity = np.zeros(4)
    for batch in (slice(4, 8), slice(8, 12)):
        errors = data.inputs[batch] @ kernel + bias - data.targets[batch]
        gradient = np.append(errors @ data.inputs[batch], errors.sum()) * 2 / BATCH_SIZE
        velocity = 0.9 * velocity - 0.1 * gradient
        kernel, bias = kernel + velocity[:3], bias + velocity[3]
    np.testing.assert_allclose(state["dense/kernel"][:, 0], kernel, atol=5e-3)
    np.testing.assert_allclose(state["dense/bias"], [bias], atol=5e-3)


def test_float16_leaves_the_averages_where_it_leaves_out_a_step() -> None:
    """N8: with a decay of nearly 0 the average would be the weights after any step."""
    data = records((3,))
    data.inputs[:4] *= 100  # the first batch overflows
    keras.config.set_dtype_policy("mixed_float16")
    engine, task = build(make_dataset=batches(data), loss_scaling=True, ema_decay=0.5)
    state = engine.snapshot()
    scale = {"optimizer/loss_scale/dynamic_scale": np.array(1024.0, np.float32)}
    marked = {"ema/dense/kernel": np.full((3, 1), 7.0, np.float32)}
    step = {"global_step": np.array(20, np.int64)}  # the average keeps half from here on
    engine.load(state | scale | marked | step)
    engine.train(1)
    assert engine.records_consumed == 2 * BATCH_SIZE
    expected = 0.5 * 7 + 0.5 * task.model.weights[0].numpy()
    np.testing.assert_allclose(engine.snapshot()["ema/dense/kernel"], expected, rtol=1e-5)


def random_model() -> keras.Model:
    """Reports what it draws: the loss is that of one weight times a random number."""
    inputs: Any = keras.Input((3,))
    drawn = keras.layers.Dropout(0.5, seed=3, name="dropout")(inputs * 0.0 + 1.0)
    return keras.Model(inputs, keras.layers.Dense(1, name="dense")(drawn))


def test_replicas_draw_different_numbers_and_a_resumed_run_the_same_ones() -> None:
    """N9: two replicas with the same seed dropped the same units of different images."""

    def draw(engine: TensorFlowEngine) -> list[np.ndarray]:
        dropout = engine._model.get_layer("dropout")
        strategy = engine._devices.strategy
        drawn = strategy.run(lambda: dropout(tf.ones((1, 64)), training=True))
        return [copy.numpy() for copy in strategy.experimental_local_results(drawn)]

    engine, _ = build(random_model, num_devices=2)
    first, second = draw(engine)
    assert np.any(first != second)
    (alone,) = draw(build(random_model)[0])
    np.testing.assert_array_equal(first, alone)
    engine.train(2)
    state = engine.snapshot()
    expected = draw(engine)
    assert np.any(expected[0] != expected[1])
    resumed, _ = build(random_model, num_devices=2, seed=9)
    # Keras numbers the seeds of the models that a process builds.
    resumed.load(dict(zip(resumed.signature(), state.values(), strict=True)))
    np.testing.assert_array_equal(draw(resumed), expected)


@pytest.mark.parametrize("loss_scaling", [False, True])
def test_a_gradient_that_is_never_finite_ends_the_run(loss_scaling: bool) -> None:
    engine, _ = build(
        change_loss=lambda loss: loss + tf.sqrt(loss - loss), loss_scaling=loss_scaling
    )
    report = engine.train(100)
    assert (report.steps_done, report.losses) == (0, {})
    assert report.nonfinite is not None
    assert report.nonfinite.step == 1
    assert np.isfinite(report.nonfinite.losses["loss"])
    assert np.isnan(report.nonfinite.losses["gradient_norm"])
    # The loss scale starts at 2 ** 15; the sixteenth halving takes it below 1.
    assert engine.records_consumed == BATCH_SIZE * (16 if loss_scaling else 1)


def test_arguments_that_do_not_fit_are_told_together() -> None:
    def two_of_one_name() -> keras.Model:
        inputs = keras.Input((3,))
        first, second = (keras.layers.Dense(1, name="dense", trainable=False) for _ in "12")
        model = keras.Model(inputs, first(inputs))
        model.second = second
        second.build((None, 3))
        return model

    with pytest.raises(ValueError, match="the engine cannot be built") as error:
        build(two_of_one_name, num_devices=2, batch_size=3)
    assert "batch_size is 3; it must be a multiple of the 2 device(s)" in str(error.value)
    assert "several variables have the path dense/bias, dense/kernel" in str(error.value)
    assert "the model has no variable to train" in str(error.value)


def test_data_that_does_not_fit() -> None:
    with pytest.raises(ValueError, match="num_steps is 0"):
        build()[0].train(0)
    ragged = batches(records((3,)))(0).unbatch().batch(3)
    with pytest.raises(ValueError, match="first dimension must be the batch size, 4"):
        build(make_dataset=lambda _: ragged)[0].train(1)
    short = batches(records((3,)))(0).take(2)
    with pytest.raises(ValueError, match="the training data ended"):
        build(make_dataset=lambda _: short)[0].train(3)
