"""The devices of a run: how many replicas, in which precision, and how their shares add up."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol, TypeVar

import numpy as np
import tensorflow as tf

from tpudet.trainkit.errors import UserError
from tpudet.trainkit.training.config import Device, Precision
from tpudet.trainkit.types import Tensor

# A NamedTuple of tensors, or None, whose first dimension is the batch.
Batch = TypeVar("Batch")
Outputs = TypeVar("Outputs")
Value = TypeVar("Value")  # that pickle knows

# NVIDIA's GPUs compute in bfloat16 from Ampere on.
BFLOAT16_COMPUTE_CAPABILITY = (8, 0)


class Devices(Protocol):
    """Devices that train and predict together, each with its replica of the model."""

    @property
    def num_replicas(self) -> int:
        """How many replicas share each batch, over all processes."""
        ...

    @property
    def num_processes(self) -> int:
        """How many processes each read their part of every batch."""
        ...

    @property
    def process_index(self) -> int:
        """The number of this process, from 0; process 0 writes the files."""
        ...

    @property
    def precision(self) -> Precision:
        """The Keras dtype policy that suits the devices."""
        ...

    def scope(self) -> AbstractContextManager[Any]:
        """Returns the context in which models and optimizers are created."""
        ...

    def sum_over_replicas(self, value: Tensor) -> Tensor:
        """Returns the sum of `value` over all replicas, the same on each.

        The identity with one replica and outside of a replica's step. Its gradient is the sum of
        the replicas' gradients, so a loss made of shares that add up has the gradient of the whole.
        """
        ...

    def predict_batches(
        self, predict: Callable[[Batch], Outputs], dataset: tf.data.Dataset
    ) -> Iterator[tuple[Batch, Outputs]]:
        """Yields each batch of the dataset once, with its predictions, as NumPy arrays.

        Args:
            predict: from a replica's part of a batch to its outputs. Compiled at the first call;
                later calls with the same function reuse that.
            dataset: finite, of NamedTuples of tensors; a field may be None. With several processes
                each has its own, of as many batches of the same sizes.
        """
        ...

    def gather(self, value: Value) -> list[Value]:
        """Returns the value of each process, in their order. Collective: every process calls it."""
        ...


class TensorFlowDevices:
    """The devices of a `tf.distribute` strategy: one, or several of one machine."""

    def __init__(self, strategy: tf.distribute.Strategy) -> None:
        self.strategy = strategy
        self._compiled: dict[Callable[[Any], Any], Any] = {}

    @property
    def num_replicas(self) -> int:
        """As in `Devices`."""
        return self.strategy.num_replicas_in_sync

    @property
    def num_processes(self) -> int:
        """As in `Devices`."""
        return 1

    @property
    def process_index(self) -> int:
        """As in `Devices`."""
        return 0

    @property
    def precision(self) -> Precision:
        """As in `Devices`: reduced where that is faster; among mixed GPUs the oldest decides."""
        names = self.strategy.extended.worker_devices
        devices = [tf.DeviceSpec.from_string(name) for name in names]
        capabilities = [
            gpu_compute_capability(device.device_index or 0)
            for device in devices
            if device.device_type == "GPU"
        ]
        oldest = min((known for known in capabilities if known is not None), default=None)
        kind = devices[0].device_type or "CPU"
        return choose_precision(kind, oldest if all(capabilities) else None)

    def scope(self) -> AbstractContextManager[Any]:
        """As in `Devices`."""
        return self.strategy.scope()

    def sum_over_replicas(self, value: Tensor) -> Tensor:
        """As in `Devices`."""
        context = tf.distribute.get_replica_context()
        if context is None or context.num_replicas_in_sync == 1:
            return value
        return context.all_reduce(tf.distribute.ReduceOp.SUM, value)

    def predict_batches(
        self, predict: Callable[[Batch], Outputs], dataset: tf.data.Dataset
    ) -> Iterator[tuple[Batch, Outputs]]:
        """As in `Devices`."""
        if predict not in self._compiled:
            self._compiled[predict] = tf.function(
                lambda batch: self.strategy.run(predict, (batch,)), autograph=False
            )
        compiled = self._compiled[predict]
        for batch in self.strategy.experimental_distribute_dataset(dataset):
            yield self._join(batch), self._join(compiled(batch))

    def gather(self, value: Value) -> list[Value]:
        """As in `Devices`."""
        return [value]

    def replica_values(self, value: Any) -> Sequence[Any]:
        """Returns the tensor or variable of each replica."""
        return self.strategy.experimental_local_results(value)

    def _join(self, fields: Any) -> Any:
        """Joins the replicas' parts of every field along the batch, as NumPy arrays."""

        def join(field: Any) -> np.ndarray | None:
            parts = self.replica_values(field)
            return None if parts[0] is None else np.concatenate([part.numpy() for part in parts])

        return type(fields)(*map(join, fields))


def choose_tensorflow_devices(
    device: Device = "auto", num_devices: int | None = None
) -> TensorFlowDevices:
    """Returns devices of this machine for Keras on TensorFlow.

    Args:
        device: "auto" takes the GPUs if there are any, else the CPU.
        num_devices: how many; None means every GPU, but one CPU device. Several CPU devices exist
            only if the process created logical ones; they share the cores, which is useful only in
            tests.

    Raises:
        UserError: an unknown device, or more devices than there are.
    """
    if device not in ("auto", "cpu", "gpu"):
        raise UserError(
            f"device is {device!r}; Keras on TensorFlow allows 'auto', 'cpu' and 'gpu'. TPUs need "
            "--backend jax"
        )
    found = {"cpu": _device_names("CPU"), "gpu": _device_names("GPU")}
    kind = ("gpu" if found["gpu"] else "cpu") if device == "auto" else device
    names = found[kind]
    wanted = num_devices if num_devices is not None else (len(names) if kind == "gpu" else 1)
    if not names or not 1 <= wanted <= len(names):
        raise UserError(
            f"num_devices={num_devices} with device={device!r} is not available: TensorFlow sees "
            f"{len(found['cpu'])} CPU and {len(found['gpu'])} GPU device(s). "
            + (
                f"Choose 1 to {len(names)} devices"
                if names
                else "Use device='cpu', or install the [cuda] extra and check the driver with "
                "nvidia-smi"
            )
        )
    if wanted == 1:
        return TensorFlowDevices(tf.distribute.OneDeviceStrategy(names[0]))
    # TensorFlow would join CPU devices by collective operations, whose keys start over with each
    # strategy: a second strategy in one process then dies of "shape mismatch in the collective".
    reduction = tf.distribute.ReductionToOneDevice() if kind == "cpu" else None
    return TensorFlowDevices(
        tf.distribute.MirroredStrategy(names[:wanted], cross_device_ops=reduction)
    )


def _device_names(kind: str) -> list[str]:
    return [device.name for device in tf.config.list_logical_devices(kind)]


def gpu_compute_capability(index: int) -> tuple[int, int] | None:
    """Returns a GPU's compute capability as (major, minor), None if unknown."""
    gpu = tf.config.list_physical_devices("GPU")[index]
    return tf.config.experimental.get_device_details(gpu).get("compute_capability")


def choose_precision(device_type: str, compute_capability: tuple[int, int] | None) -> Precision:
    """Returns the Keras dtype policy for one kind of device.

    Args:
        device_type: "CPU", "GPU" or "TPU".
        compute_capability: of a GPU; None if unknown, which gives float32.
    """
    if device_type == "TPU":
        return "mixed_bfloat16"
    if device_type == "GPU" and compute_capability is not None:
        recent = compute_capability >= BFLOAT16_COMPUTE_CAPABILITY
        return "mixed_bfloat16" if recent else "mixed_float16"
    # Also where a CPU is faster with bfloat16: EfficientNet-lite0 ended 0.01 to 0.02 AP lower
    # there in each of three trainings, though ResNet-18 did not (docs/benchmarks.md).
    return "float32"
