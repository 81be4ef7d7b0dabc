"""The moving average by hand; swapped in and out, it leaves the model unchanged."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from tpudet.trainkit.training.averaging import WeightAverage
from tpudet.trainkit.training.devices import choose_tensorflow_devices
from tpudet.trainkit.training.freezing import freeze


def make_model() -> keras.Model:
    inputs = keras.Input((2,))
    features = keras.layers.Dense(1, name="dense")(inputs)
    features = keras.layers.Dropout(0.5, name="dropout")(features)
    features = keras.layers.BatchNormalization(name="norm")(features)
    return keras.Model(inputs, keras.layers.Dense(1, name="frozen")(features))


def test_averages_by_hand_and_what_they_are_of() -> None:
    devices = choose_tensorflow_devices("cpu")
    with devices.scope():
        model = make_model()
    freeze(model, ["frozen/"])
    average = WeightAverage(model=model, decay=0.15, devices=devices)
    assert set(average.variables) == {"dense/kernel", "dense/bias"} | {
        f"norm/{name}" for name in ("gamma", "beta", "moving_mean", "moving_variance")
    }
    bias = model.get_layer("dense").bias
    seen = []
    for step, value in enumerate([10.0, 20.0, 40.0]):
        bias.assign([value])
        average.update(tf.constant(step))
        seen.append(float(average.variables["dense/bias"].numpy()[0]))
    # Kept are 0, 1 / 10, and 0.15 where 2 / 11 would be more.
    assert seen == pytest.approx([10.0, 0.1 * 10 + 0.9 * 20, 0.15 * 19 + 0.85 * 40])


def test_a_step_that_does_not_count_leaves_the_averages() -> None:
    devices = choose_tensorflow_devices("cpu")
    with devices.scope():
        model = make_model()
    average = WeightAverage(model=model, decay=0.5, devices=devices)
    before = average.variables["dense/bias"].numpy()
    model.get_layer("dense").bias.assign([np.inf])  # as a step that overflows may leave statistics
    average.update(tf.constant(100), step_applied=tf.constant(False))
    np.testing.assert_array_equal(average.variables["dense/bias"].numpy(), before)


@pytest.mark.parametrize("num_devices", [1, 2])
def test_the_weights_come_back_bit_for_bit_on_every_replica(num_devices: int) -> None:
    devices = choose_tensorflow_devices("cpu", num_devices)
    with devices.scope():
        model = make_model()
    average = WeightAverage(model=model, decay=0.5, devices=devices)
    mean = model.get_layer("norm").moving_mean
    for replica, copy in enumerate(devices.replica_values(mean.value)):
        copy.assign([0.1 + replica])  # as BatchNorm leaves them that is not synchronised
    for variable in average.variables.values():
        variable.assign(tf.fill(variable.shape, 7.0))

    def copies() -> list[np.ndarray]:
        return [
            copy.numpy()
            for variable in model.variables
            for copy in devices.replica_values(variable.value)
        ]

    def evaluate() -> None:
        for path in ("dense", "frozen"):
            np.testing.assert_array_equal(model.get_layer(path).kernel.numpy(), 7.0)
        raise ZeroDivisionError

    before = copies()
    with pytest.raises(ZeroDivisionError), average.swapped_in():
        evaluate()
    assert all(map(np.array_equal, copies(), before))
