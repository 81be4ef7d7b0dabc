"""Devices of Keras on JAX: a mesh over all devices of all hosts, along which the batch is split."""

import logging
import math
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import jax
import keras
import numpy as np
import tensorflow as tf
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from tpudet.trainkit.backend_arguments import jax_start_error
from tpudet.trainkit.errors import UserError
from tpudet.trainkit.record_numbers import mix_shard
from tpudet.trainkit.training.config import Precision
from tpudet.trainkit.training.devices import (
    BFLOAT16_COMPUTE_CAPABILITY,
    Batch,
    Outputs,
    Value,
)
from tpudet.trainkit.training.jax_accumulation import sum_over_parts
from tpudet.trainkit.training.jax_hosts import (
    gather_objects,
    lost_host_error,
    lost_tpu_error,
    wait_for_hosts,
    watch_hosts,
)
from tpudet.trainkit.training.watchdog import Watchdog
from tpudet.trainkit.types import Tensor

# The program's errors, which the same command would meet again. All others of a TPU come from the
# machine, such as UNAVAILABLE, ABORTED and INTERNAL in a maintenance or where a chip halts.
_OWN_FAULTS = ("RESOURCE_EXHAUSTED", "INVALID_ARGUMENT", "UNIMPLEMENTED")


class JaxDevices:
    """A mesh of JAX devices; implements `devices.Devices`.

    One program runs on all of them: it sees the whole batch, and the compiler inserts the messages
    between devices. Means and BatchNorm statistics therefore span the whole batch by themselves.

    Args:
        devices: of all hosts, in the order of JAX.
        watchdog: limits the wait for the devices; None: no limit.
    """

    def __init__(self, devices: list[Any], *, watchdog: Watchdog | None = None) -> None:
        mesh = Mesh(np.array(devices), ("batch",))
        self.devices = devices
        self._watchdog = watchdog or Watchdog(math.inf)
        self.replicated = NamedSharding(mesh, PartitionSpec())
        self.split = NamedSharding(mesh, PartitionSpec("batch"))
        self._compiled: dict[Callable[[Any], Any], Any] = {}

    @property
    def platform(self) -> str:
        """Of the devices: "cpu", "gpu" or "tpu"."""
        return self.devices[0].platform

    @property
    def num_replicas(self) -> int:
        """As in `Devices`."""
        return len(self.devices)

    @property
    def num_processes(self) -> int:
        """As in `Devices`."""
        return len({device.process_index for device in self.devices})

    @property
    def process_index(self) -> int:
        """As in `Devices`."""
        return jax.process_index()

    @property
    def precision(self) -> Precision:
        """As in `Devices`: bfloat16 on TPUs and on GPUs from Ampere on, else float32."""
        if self.platform == "gpu":
            capability = str(getattr(self.devices[0], "compute_capability", "0.0"))
            recent = tuple(map(int, capability.split("."))) >= BFLOAT16_COMPUTE_CAPABILITY
            return "mixed_bfloat16" if recent else "float32"
        return "mixed_bfloat16" if self.platform == "tpu" else "float32"

    def scope(self) -> AbstractContextManager[Any]:
        """As in `Devices`."""
        return nullcontext()

    def sum_over_replicas(self, value: Tensor) -> Tensor:
        """As in `Devices`: the identity, unless a step computes its batch in parts."""
        return sum_over_parts(value)

    def place(self, batch: Batch) -> Batch:
        """Returns this process's part of a batch of NumPy arrays as arrays over all devices.

        int64 becomes int32, JAX's integer: only record numbers are longer, and `mix_shard` keeps
        them apart. Random draws in a step depend on them.

        Raises:
            LostHostError: this host trains alone, and its TPU has failed.
        """

        def place_field(field: np.ndarray) -> jax.Array:
            short = mix_shard(field).astype(np.int32) if field.dtype == np.int64 else field
            return jax.make_array_from_process_local_data(self.split, short)

        try:
            return jax.tree.map(place_field, batch)
        except jax.errors.JaxRuntimeError as error:
            if self._has_lost_tpu(error):
                raise lost_tpu_error("The transfer of a batch", error) from error
            raise

    @contextmanager
    def waiting(self, what: str, *, is_timed: bool = True) -> Iterator[None]:
        """Names what hangs or fails while the devices of all hosts work together.

        Args:
            what: begins the sentence.
            is_timed: whether the time limit holds; not where something is compiled.

        Raises:
            LostHostError: the block failed because another host is gone, or the TPU of the only
                host.
        """
        try:
            with self._watchdog.watch(what, is_timed=is_timed):
                yield
        except (ValueError, RuntimeError) as error:  # of JAX, which has no narrower ones
            if self._has_lost_tpu(error):
                raise lost_tpu_error(what, error) from error
            if self.num_processes == 1 or "RESOURCE_EXHAUSTED" in str(error):
                raise
            raise lost_host_error(what, error) from error

    def _has_lost_tpu(self, error: Exception) -> bool:
        is_machines = self.platform == "tpu" and not any(code in str(error) for code in _OWN_FAULTS)
        is_jax = isinstance(error, jax.errors.JaxRuntimeError)
        return self.num_processes == 1 and is_jax and is_machines

    def meet(self, what: str) -> None:
        """Waits until all processes have come here: only then connections can be made."""
        if self.num_processes > 1:
            with self.waiting(f"The meeting of all hosts ({what})", is_timed=False):
                wait_for_hosts(what)

    def predict_batches(
        self, predict: Callable[[Batch], Outputs], dataset: tf.data.Dataset
    ) -> Iterator[tuple[Any, Any]]:
        """As in `Devices`; a batch of another size is filled up with its last row."""
        for number, batch in enumerate(dataset.as_numpy_iterator(), start=1):
            size = len(jax.tree.leaves(batch)[0])
            filled = _fill(batch, -size % (self.num_replicas // self.num_processes))
            compiled = self._compile(predict)
            with self.waiting(f"Batch {number} of the evaluation", is_timed=number > 1):
                outputs = compiled(self._variables(predict), self.place(filled))
                found = _first_rows(outputs, size)
            yield batch, found

    def gather(self, value: Value) -> list[Value]:
        """As in `Devices`."""
        if self.num_processes == 1:
            return [value]
        with self.waiting("An agreement between the hosts"):
            return gather_objects(value)

    def _variables(self, predict: Callable[[Any], Any]) -> list[jax.Array]:
        return [variable.value for variable in _bound_model(predict).variables]

    def _compile(self, predict: Callable[[Batch], Outputs]) -> Any:
        if predict not in self._compiled:
            variables = _bound_model(predict).variables

            def run(values: list[jax.Array], batch: Batch) -> Outputs:
                mapping = list(zip(variables, values, strict=True))
                with keras.StatelessScope(state_mapping=mapping):
                    return predict(batch)

            self._compiled[predict] = jax.jit(run, out_shardings=self.split)
        return self._compiled[predict]


def small_batch_warning(per_device: int) -> str:
    """Says why a TPU is idle for a part of each step; empty if it is not.

    Args:
        per_device: images that a device works on at a time.
    """
    if per_device >= 8 and per_device % 8 == 0:
        return ""
    return (
        f"Each core of the TPU gets {per_device} images at a time. It works on 8 rows at once, so "
        "choose train.batch_size, and train.accumulate_steps, for a multiple of 8"
    )


def _bound_model(predict: Callable[[Any], Any]) -> keras.Model:
    """The model whose weights a task's bound `predict` uses."""
    return predict.__self__.model  # pyright: ignore[reportFunctionMemberAccess]


def _fill(batch: Any, missing: int) -> Any:
    def fill(field: np.ndarray) -> np.ndarray:
        return np.concatenate([field, np.repeat(field[-1:], missing, axis=0)])

    return jax.tree.map(fill, batch) if missing else batch


def _first_rows(outputs: Any, size: int) -> Any:
    return jax.tree.map(lambda field: _own_rows(field)[:size], outputs)


def _own_rows(array: jax.Array) -> np.ndarray:
    """The rows that the devices of this process hold: the inverse of `place`."""
    shards = {shard.index[0].start or 0: shard.data for shard in array.addressable_shards}
    return np.concatenate([np.asarray(shards[start]) for start in sorted(shards)])


def choose_jax_devices(
    device: str, num_devices: int | None, *, step_timeout_seconds: float
) -> JaxDevices:
    """Returns the devices that JAX sees, those of other hosts among them.

    Args:
        device: "auto" takes the fastest kind, "cpu", "gpu" or "tpu" that kind.
        num_devices: how many to use, the first ones; None means all.
        step_timeout_seconds: after which a step, or a batch of an evaluation, counts as stuck.

    Raises:
        UserError: there are none of the kind, or fewer than requested, or JAX cannot start.
    """
    logging.getLogger("jax").setLevel(logging.WARNING)  # it reports each backend that is missing
    try:
        seen = jax.devices()
    except RuntimeError as error:
        raise jax_start_error(error) from error
    try:
        devices = seen if device == "auto" else jax.devices(device)
    except RuntimeError as error:
        raise UserError(
            f"train.device is {device}, and JAX sees only {_describe(seen)}. Choose auto, "
            "or install the extra for that device: [tpu] or jax[cuda12]"
        ) from error
    if num_devices is not None and jax.process_count() > 1:
        raise UserError(
            f"train.num_devices is {num_devices}, and there are {jax.process_count()} hosts: only "
            "the devices of a single host can be counted off. Set it to null"
        )
    if num_devices is not None and not 1 <= num_devices <= len(devices):
        raise UserError(
            f"train.num_devices is {num_devices}, and JAX sees {_describe(devices)}: choose 1 to "
            f"{len(devices)}"
        )
    return JaxDevices(devices[:num_devices], watchdog=watch_hosts(step_timeout_seconds))


def _describe(devices: list[Any]) -> str:
    return f"{len(devices)} device(s) of kind {devices[0].device_kind}"
