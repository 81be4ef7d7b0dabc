"""Choice of devices and precision, sums over replicas, and predictions of whole data sets."""

from typing import Any, NamedTuple

import numpy as np
import pytest
import tensorflow as tf

from tpudet.trainkit.training.devices import (
    choose_precision,
    choose_tensorflow_devices,
)

no_gpu = pytest.mark.skipif(
    bool(tf.config.list_physical_devices("GPU")), reason="for machines without a GPU"
)


@pytest.mark.parametrize("num_devices", [None, 1, 2])
def test_cpus_are_counted(num_devices: int | None) -> None:
    devices = choose_tensorflow_devices("cpu", num_devices)
    assert devices.num_replicas == (num_devices or 1)
    assert devices.precision == "float32"


@no_gpu
def test_auto_takes_one_cpu_where_there_is_no_gpu() -> None:
    assert choose_tensorflow_devices().strategy.extended.worker_devices == (
        "/job:localhost/replica:0/task:0/device:CPU:0",
    )


@no_gpu
def test_a_missing_gpu_is_said_with_a_way_out() -> None:
    with pytest.raises(ValueError, match=r"2 CPU and 0 GPU.*Use device='cpu'"):
        choose_tensorflow_devices("gpu")


@pytest.mark.parametrize("num_devices", [0, 3])
def test_too_many_or_no_devices(num_devices: int) -> None:
    with pytest.raises(ValueError, match=f"num_devices={num_devices} .*Choose 1 to 2 devices"):
        choose_tensorflow_devices("cpu", num_devices)


def test_an_unknown_device() -> None:
    with pytest.raises(ValueError, match="device is 'cuda'; Keras on TensorFlow allows"):
        choose_tensorflow_devices("cuda")  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize(
    ("device_type", "capability", "expected"),
    [
        ("CPU", None, "float32"),
        ("TPU", None, "mixed_bfloat16"),
        ("GPU", (9, 0), "mixed_bfloat16"),  # H100
        ("GPU", (8, 0), "mixed_bfloat16"),  # A100
        ("GPU", (7, 5), "mixed_float16"),  # T4
        ("GPU", (7, 0), "mixed_float16"),  # V100
        ("GPU", None, "float32"),
    ],
)
def test_precision(device_type: str, capability: tuple[int, int] | None, expected: str) -> None:
    assert choose_precision(device_type, capability) == expected


def test_sum_over_replicas_is_the_identity_without_replicas() -> None:
    one = choose_tensorflow_devices("cpu", 1)
    assert float(one.sum_over_replicas(tf.constant(3.0))) == 3.0
    assert float(one.strategy.run(lambda: one.sum_over_replicas(tf.constant(3.0)))) == 3.0


def test_shares_normalised_by_a_sum_have_the_gradient_of_the_whole() -> None:
    """The loss sum(w * x) / sum(x) over x = 1, 2 | 3, 4 and its gradient in w, which is 1."""
    devices = choose_tensorflow_devices("cpu", 2)
    strategy = devices.strategy
    with devices.scope():
        weight = tf.Variable(tf.constant(2.0))
    parts = iter([tf.constant([1.0, 2.0]), tf.constant([3.0, 4.0])])
    values = strategy.experimental_distribute_values_from_function(lambda _: next(parts))

    @tf.function
    def step() -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        def share(x: tf.Tensor) -> Any:
            with tf.GradientTape() as tape:
                total = devices.sum_over_replicas(tf.reduce_sum(x))
                loss = tf.reduce_sum(weight * x) / total
            return total, loss, tape.gradient(loss, weight)

        totals, losses, gradients = strategy.run(share, (values,))
        total = tf.stack(strategy.experimental_local_results(totals))
        add = tf.distribute.ReduceOp.SUM
        return total, strategy.reduce(add, losses, None), strategy.reduce(add, gradients, None)

    total, loss, gradient = step()
    np.testing.assert_array_equal(total, [10.0, 10.0])
    assert float(loss) == pytest.approx(2.0)
    assert float(gradient) == pytest.approx(1.0)


class Numbers(NamedTuple):
    values: Any
    extra: Any = None


class Doubled(NamedTuple):
    values: Any
    replica: Any
    missing: Any = None


@pytest.mark.parametrize("num_devices", [1, 2])
def test_every_batch_is_predicted_once_and_compiled_once(num_devices: int) -> None:
    """Two evaluations of the numbers 0 to 11 in batches of 4; a field that is None stays so."""
    devices = choose_tensorflow_devices("cpu", num_devices)
    traces = []

    def predict(batch: Numbers) -> Doubled:
        traces.append(batch.values.shape)
        context = tf.distribute.get_replica_context()
        index = tf.cast(context.replica_id_in_sync_group, tf.int32)
        return Doubled(2 * batch.values, tf.fill(tf.shape(batch.values), index))

    dataset = tf.data.Dataset.range(12).batch(4, drop_remainder=True).map(Numbers)
    for _ in range(2):
        found = list(devices.predict_batches(predict, dataset))
        assert [type(batch) for batch, _ in found] == [Numbers] * 3
        for number, (batch, outputs) in enumerate(found):
            expected = np.arange(4 * number, 4 * number + 4)
            np.testing.assert_array_equal(batch.values, expected)
            np.testing.assert_array_equal(outputs.values, 2 * expected)
            replicas = [0, 0, 0, 0] if num_devices == 1 else [0, 0, 1, 1]
            np.testing.assert_array_equal(outputs.replica, replicas)
            assert batch.extra is None
            assert outputs.missing is None
    assert len(traces) == num_devices


def test_a_batch_smaller_than_the_number_of_devices_is_predicted_whole() -> None:
    """The second device gets no row of it."""
    devices = choose_tensorflow_devices("cpu", 2)
    dataset = tf.data.Dataset.range(3).batch(1, drop_remainder=True).map(Numbers)
    outputs = [
        output.values.tolist()
        for _, output in devices.predict_batches(
            lambda batch: Doubled(2 * batch.values, batch.values), dataset
        )
    ]
    assert outputs == [[0], [2], [4]]
