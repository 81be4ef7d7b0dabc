"""The engine on JAX: one compiled training step over all devices of a mesh."""

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import keras
import numpy as np
import tensorflow as tf

from tpudet.trainkit.training.engine import NonfiniteStep, Signature, StepReport, model_faults
from tpudet.trainkit.training.jax_devices import JaxDevices
from tpudet.trainkit.training.jax_step import JaxStep, State
from tpudet.trainkit.training.optimizers import slot_variables
from tpudet.trainkit.training.task import Task

# Steps that the host may be ahead of the devices. It hides the host's work, bounds the batches that
# wait in device memory, and keeps the records of a failed step at hand.
STEPS_AHEAD = 2

# What TensorFlow stores as int64, JAX keeps in 32 bits: seeds and counters. Checkpoints hold int64.
_LONG = {"int32": "int64", "uint32": "int64"}


class _Pending(NamedTuple):
    """A step that the devices may still be working on."""

    values: jax.Array  # [values] losses, gradient norm, learning rate
    records: list[int]


class JaxEngine:
    """Trains a task's model with Keras on JAX; implements `engine.Engine`.

    Each step is one call of a compiled function with donated state. It is not a scan over
    `iterations_per_loop` steps, whose batches would all have to lie in device memory (79 MB each at
    64 x 640 x 640 x 3): calls return at once, so the devices never wait for the host as long as the
    input keeps up.

    The arguments are those of `TensorFlowEngine`, except:

    Args:
        optimizer: without loss scaling.
        devices: from `choose_jax_devices`.
        make_dataset: its batches are this process's part of the batch.

    Raises:
        ValueError: lists every argument that does not fit.
    """

    def __init__(
        self,
        *,
        task: Task,
        optimizer: keras.Optimizer,
        devices: JaxDevices,
        make_dataset: Callable[[int], tf.data.Dataset],
        batch_size: int,
        decayed: Sequence[keras.Variable] = (),
        l2_weight_decay: float = 0.0,
        gradient_clip_norm: float | None = None,
        ema_decay: float | None = None,
        record_numbers: Callable[[Any], Any] | None = None,
    ) -> None:
        _check_arguments(task.model, optimizer, devices, batch_size)
        model = task.model
        self._model = model
        self._optimizer: Any = optimizer
        self._devices = devices
        self._make_dataset = make_dataset
        self._batch_size = batch_size
        self._record_numbers = record_numbers
        self._step_function = JaxStep(
            task=task,
            optimizer=optimizer,
            decayed=decayed,
            l2_weight_decay=l2_weight_decay,
            gradient_clip_norm=gradient_clip_norm,
            ema_decay=ema_decay,
        )
        self._variables = self._step_function.variables
        for variable in (*model.variables, *self._optimizer.variables):
            variable.assign(jax.device_put(variable.value, devices.replicated))
        self._averages = [jnp.copy(variable.value) for variable in self._variables.averages]
        self._executable: Any = None  # compiled for the shapes of the first batch
        self._records_consumed = 0
        self._stop = threading.Event()
        self._input: Iterator[Any] | None = None

    @property
    def step(self) -> int:
        """As in `Engine`."""
        return int(self._optimizer.iterations.value)

    @property
    def batch_size(self) -> int:
        """As in `Engine`."""
        return self._batch_size

    @property
    def is_chief(self) -> bool:
        """As in `Engine`."""
        return jax.process_index() == 0

    def train(self, num_steps: int) -> StepReport:
        """As in `Engine`.

        Raises:
            ValueError: `num_steps` is below 1, or the dataset ended or does not fit the batch size.
        """
        if num_steps < 1:
            raise ValueError(f"num_steps is {num_steps}; it must be 1 or more")
        if self._input is None:
            self._input = self._start_input()
        first_step, begin, waited = self.step, time.monotonic(), 0.0
        state, pending, done = self._state(), deque[_Pending](), list[np.ndarray]()
        failed: _Pending | None = None
        try:
            while len(done) + len(pending) < num_steps and failed is None:
                if self._stop.is_set():
                    break
                begin_input = time.monotonic()
                host_batch = self._next_batch()
                batch = self._devices.place(host_batch)
                if not pending or pending[-1].values.is_ready():  # else the devices are at work
                    waited += time.monotonic() - begin_input
                if self._executable is None:
                    begin_compiling = time.monotonic()
                    self._executable = self.lower_step(batch).compile()
                    begin += time.monotonic() - begin_compiling  # reports leave compilation out
                state, values = self._executable(state, batch)
                self._records_consumed += self._batch_size
                pending.append(_Pending(values, self._records(host_batch)))
                if len(pending) > STEPS_AHEAD:
                    failed = _finish(pending, done)
            while pending and failed is None:
                failed = _finish(pending, done)
        finally:
            self._keep(state)
        return self._report(done, failed, first_step, time.monotonic() - begin, waited)

    def request_stop(self) -> None:
        """As in `Engine`."""
        self._stop.set()

    def signature(self) -> Signature:
        """As in `Engine`; integers have the types of the TensorFlow engine."""
        return {
            key: (tuple(value.shape), _stored_dtype(key, value))
            for key, value in self._values().items()
        }

    def snapshot(self) -> dict[str, np.ndarray]:
        """As in `Engine`."""
        return {
            key: np.asarray(value).astype(_stored_dtype(key, value))
            for key, value in self._values().items()
        }

    def load(self, arrays: Mapping[str, np.ndarray]) -> None:
        """As in `Engine`."""
        present = self._values()
        if arrays.keys() != present.keys():
            different = ", ".join(sorted(arrays.keys() ^ present.keys()))
            raise ValueError(f"these are not the engine's variables; different are {different}")
        variables = {variable.path: variable for variable in self._model.variables}
        variables |= {
            f"optimizer/{key}": variable
            for key, variable in slot_variables(self._optimizer, self._variables.trained).items()
        }
        variables["global_step"] = self._optimizer.iterations
        for key, variable in variables.items():
            variable.assign(self._replicate(arrays[key].astype(variable.value.dtype)))
        self._averages = [
            self._replicate(arrays[f"ema/{variable.path}"]) for variable in self._variables.averages
        ]
        self._records_consumed = int(arrays["records_consumed"])

    def restart_input(self) -> None:
        """As in `Engine`."""
        self._input = None

    @contextmanager
    def averaged_weights(self) -> Iterator[None]:
        """As in `Engine`."""
        kept = [variable.value for variable in self._variables.averages]
        try:
            for variable, average in zip(self._variables.averages, self._averages, strict=True):
                variable.assign(average)
            yield
        finally:
            for variable, value in zip(self._variables.averages, kept, strict=True):
                variable.assign(value)

    def lower_step(self, batch: Any) -> Any:
        """Lowers the step for a batch of arrays or shapes, without running it."""
        take = jax.jit(self._step_function.take, donate_argnums=0)
        return take.lower(self._state(), batch)

    def _state(self) -> State:
        return State(
            [variable.value for variable in self._variables.trained],
            [variable.value for variable in self._variables.others],
            [variable.value for variable in self._variables.optimizer],
            list(self._averages),
        )

    def _keep(self, state: State) -> None:
        """Puts the state of the last step into the variables."""
        for variables, values in (
            (self._variables.trained, state.trained),
            (self._variables.others, state.others),
            (self._variables.optimizer, state.optimizer),
        ):
            for variable, value in zip(variables, values, strict=True):
                variable.assign(value)
        self._averages = state.averages

    def _values(self) -> dict[str, Any]:
        """Everything that a checkpoint holds, by its key."""
        slots = slot_variables(self._optimizer, self._variables.trained)
        averages = zip(self._variables.averages, self._averages, strict=True)
        return (
            {variable.path: variable.value for variable in self._model.variables}
            | {f"optimizer/{key}": variable.value for key, variable in slots.items()}
            | {f"ema/{variable.path}": average for variable, average in averages}
            | {
                "global_step": self._optimizer.iterations.value,
                "records_consumed": np.int64(self._records_consumed),
            }
        )

    def _replicate(self, array: np.ndarray) -> jax.Array:
        return jax.device_put(array, self._devices.replicated)

    def _start_input(self) -> Iterator[Any]:
        dataset = self._make_dataset(self._records_consumed)
        local_size = self._batch_size // self._devices.num_processes
        for spec in tf.nest.flatten(dataset.element_spec):
            if isinstance(spec, tf.TensorSpec) and spec.shape[:1] != [local_size]:
                raise ValueError(
                    f"the dataset yields {spec}; its first dimension must be {local_size}, the "
                    "batch size of one process. Batch with drop_remainder=True"
                )
        return dataset.as_numpy_iterator()

    def _next_batch(self) -> Any:
        assert self._input is not None
        try:
            return next(self._input)
        except StopIteration:
            raise ValueError(
                "the training data ended; make_dataset must return a dataset that repeats forever"
            ) from None

    def _records(self, batch: Any) -> list[int]:
        return np.asarray(self._record_numbers(batch)).tolist() if self._record_numbers else []

    def _report(
        self,
        done: list[np.ndarray],
        failed: _Pending | None,
        first_step: int,
        seconds: float,
        waited: float,
    ) -> StepReport:
        names, nonfinite = self._step_function.value_names, None
        if failed is not None:
            losses = dict(zip(names, np.asarray(failed.values)[:-1].tolist(), strict=True))
            nonfinite = NonfiniteStep(first_step + len(done) + 1, losses, failed.records)
        means = np.stack(done).mean(axis=0)[:-1].tolist() if done else []
        return StepReport(
            losses=dict(zip(names, means, strict=True)) if done else {},
            steps_done=len(done),
            input_wait_share=min(waited / seconds, 1.0) if seconds > 0 else 0.0,
            learning_rate=float(done[-1][-1] if done else self._optimizer.learning_rate),
            seconds=seconds,
            nonfinite=nonfinite,
        )


def _finish(pending: deque[_Pending], done: list[np.ndarray]) -> _Pending | None:
    """Waits for the oldest step; returns it if it has failed, else adds its values to `done`."""
    oldest = pending.popleft()
    values = np.asarray(oldest.values)
    if not np.isfinite(values[:-1]).all():
        return oldest
    done.append(values)
    return None


def _stored_dtype(key: str, value: Any) -> str:
    """The dtype of a value in checkpoints, which the TensorFlow engine writes and reads too."""
    dtype = str(value.dtype)
    is_long = key == "global_step" or key.endswith("seed_generator_state")
    return _LONG.get(dtype, dtype) if is_long else dtype


def _check_arguments(
    model: keras.Model, optimizer: Any, devices: JaxDevices, batch_size: int
) -> None:
    faults = model_faults(model)
    if batch_size < 1 or batch_size % devices.num_replicas:
        faults.append(
            f"batch_size is {batch_size}; it must be a multiple of the {devices.num_replicas} "
            "device(s)"
        )
    if isinstance(optimizer, keras.optimizers.LossScaleOptimizer):
        faults.append(
            "mixed_float16 needs loss scaling, which the JAX engine does not have: use "
            "mixed_bfloat16 or float32"
        )
    if faults:
        raise ValueError("the engine cannot be built: " + "; ".join(faults))
