"""The engine on JAX: one compiled training step over all devices of a mesh."""

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import keras
import numpy as np
import tensorflow as tf

from tpudet.trainkit.errors import UserError
from tpudet.trainkit.training.device_peaks import compiled_flops, peak_share
from tpudet.trainkit.training.engine import (
    RECORDS_CONSUMED,
    NonfiniteStep,
    Signature,
    StepReport,
    batch_faults,
    check_keys,
    model_faults,
)
from tpudet.trainkit.training.jax_compile_cache import cache_hits
from tpudet.trainkit.training.jax_devices import JaxDevices, small_batch_warning
from tpudet.trainkit.training.jax_state import TrainingState
from tpudet.trainkit.training.jax_step import JaxStep, State
from tpudet.trainkit.training.task import Task

# Steps that the host may be ahead of the devices. It hides the host's work, bounds the batches that
# wait in device memory, and keeps the records of a failed step at hand.
STEPS_AHEAD = 2


logger = logging.getLogger(__name__)


class _Pending(NamedTuple):
    """A step that the devices may still be working on."""

    number: int  # of the step, from 1
    values: jax.Array  # [values] losses, gradient norm, learning rate, whether a host must stop
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
        accumulate_steps: see `JaxStep`.
        shard_state: see `TrainingState`.

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
        accumulate_steps: int = 1,
        shard_state: bool = False,
        record_numbers: Callable[[Any], Any] | None = None,
    ) -> None:
        _check_arguments(task.model, optimizer, devices, batch_size, accumulate_steps)
        per_device = batch_size // devices.num_replicas // accumulate_steps
        if devices.devices[0].platform == "tpu" and (warning := small_batch_warning(per_device)):
            logger.warning("%s", warning)
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
            accumulate_steps=accumulate_steps,
            num_devices=devices.num_replicas,
        )
        self._state = TrainingState(
            task.model, optimizer, self._step_function.variables, devices, shards=shard_state
        )
        # Whether its host must stop goes with each device into a step, and comes out on all hosts.
        self._stops = {stops: devices.place(self._stop_flags(stops)) for stops in (False, True)}
        self._executable: Any = None  # compiled for the shapes of the first batch
        self._flops: float | None = None  # of a step on each device
        self._is_one_pass = accumulate_steps == 1  # else the compiler counts one part of it
        self._records_consumed = 0
        self._stop = threading.Event()
        self._step = self._state.step  # known also where the devices' counter is lost with a host
        self._input: Iterator[Any] | None = None

    @property
    def step(self) -> int:
        """As in `Engine`."""
        return self._step

    @property
    def batch_size(self) -> int:
        """As in `Engine`."""
        return self._batch_size

    @property
    def is_chief(self) -> bool:
        """As in `Engine`."""
        return self._devices.process_index == 0

    @property
    def num_processes(self) -> int:
        """As in `Engine`."""
        return self._devices.num_processes

    def train(self, num_steps: int) -> StepReport:
        """As in `Engine`.

        Raises:
            ValueError: `num_steps` is below 1, or the dataset ended or does not fit the batch size.
        """
        if num_steps < 1:
            raise ValueError(f"num_steps is {num_steps}; it must be 1 or more")
        if self._input is None:
            self._input = self._start_input()
        first_step, begin, waited = self._step, time.monotonic(), 0.0
        state, pending, done = self._state.values(), deque[_Pending](), list[np.ndarray]()
        failed: _Pending | None = None
        try:
            while len(done) + len(pending) < num_steps and failed is None:
                if self._must_stop(done):
                    break
                begin_input = time.monotonic()
                host_batch = self._next_batch()
                batch = self._devices.place(host_batch)
                if not pending or pending[-1].values.is_ready():  # else the devices are at work
                    waited += time.monotonic() - begin_input
                if self._executable is None:
                    self._executable, seconds = self._compile(batch)
                    begin += seconds  # reports leave compilation out
                number = first_step + len(done) + len(pending) + 1
                with self._devices.waiting(f"Step {number}"):
                    state, values = self._executable(state, batch, self._stops[self._stop.is_set()])
                self._records_consumed += self._batch_size
                pending.append(_Pending(number, values, self._records(host_batch)))
                if len(pending) > STEPS_AHEAD:
                    failed = self._finish(pending, done)
                self._step = first_step + len(done)
            while pending and failed is None:
                failed = self._finish(pending, done)
        finally:
            self._state.keep(state)
            self._step = first_step + len(done)
        return self._report(done, failed, first_step, time.monotonic() - begin, waited)

    def request_stop(self) -> None:
        """As in `Engine`."""
        self._stop.set()

    def any_process(self, flag: bool) -> bool:
        """As in `Engine`."""
        # Process 0 may come long after the others: it reports evaluations and writes checkpoints.
        self._devices.meet("before the next steps")
        return any(self._devices.gather(flag))

    def agree_on_step(self) -> None:
        """As in `Engine`."""
        self._devices.meet("restored")
        steps = self._devices.gather(self.step)
        if len(set(steps)) > 1:
            raise UserError(
                f"the hosts restored different steps: {', '.join(map(str, steps))}. All must share "
                "one model_dir: a bucket, or a folder that all of them mount"
            )
        if self.num_processes > 1 and len(set(self._devices.gather(self._state.digest()))) > 1:
            raise UserError(
                "the hosts begin with different weights: the file that train.weights names is not "
                "the same on all of them, or the run that it belongs to has saved meanwhile. Name "
                "a copy that does not change, in a bucket or on a disk that all of them mount"
            )

    def signature(self) -> Signature:
        """As in `Engine`."""
        return {**self._state.signature(), RECORDS_CONSUMED: ((), "int64")}

    def snapshot(self) -> dict[str, np.ndarray]:
        """As in `Engine`."""
        with self._devices.waiting(f"The snapshot of step {self.step}"):
            return {
                **self._state.snapshot(),
                RECORDS_CONSUMED: np.array(self._records_consumed, np.int64),
            }

    def load(self, arrays: Mapping[str, np.ndarray]) -> None:
        """As in `Engine`."""
        check_keys(arrays.keys(), self.signature().keys())
        self._state.load(arrays)
        self._step = self._state.step
        self._records_consumed = int(arrays[RECORDS_CONSUMED])

    def restart_input(self) -> None:
        """As in `Engine`."""
        self._input = None

    def averaged_weights(self) -> AbstractContextManager[None]:
        """As in `Engine`."""
        return self._state.averaged_weights()

    def lower_step(self, batch: Any) -> Any:
        """Lowers the step for a batch of arrays or shapes, without running it."""

        def take(state: State, batch: Any, stops: jax.Array) -> tuple[State, jax.Array]:
            state, values = self._step_function.take(state, batch)
            return state, jnp.append(values, jnp.max(stops))

        shardings = (self._state.shardings, self._devices.replicated)
        take = jax.jit(take, donate_argnums=0, out_shardings=shardings)
        return take.lower(self._state.values(), batch, self._stops[False])

    def _compile(self, batch: Any) -> tuple[Any, float]:
        """Compiles the step for a batch; returns it with the seconds that this took."""
        begin, hits = time.monotonic(), cache_hits()
        executable = self.lower_step(batch).compile()
        seconds = time.monotonic() - begin
        source = "from the compile cache" if cache_hits() > hits else "traced and compiled"
        self._flops = compiled_flops(executable) if self._is_one_pass else None
        logger.info("The training step is ready after %.1f s, %s", seconds, source)
        self._devices.meet("compiled")
        return executable, seconds

    def _stop_flags(self, stops: bool) -> np.ndarray:
        return np.full(self._devices.num_replicas // self.num_processes, stops, np.float32)

    def _must_stop(self, done: list[np.ndarray]) -> bool:
        """Whether to take no further step: one process decides alone, several by their last step.

        All hosts see the same values of the same steps, so all of them stop at the same one.
        """
        if self.num_processes == 1:
            return self._stop.is_set()
        return bool(done) and bool(done[-1][-1])

    def _finish(self, pending: deque[_Pending], done: list[np.ndarray]) -> _Pending | None:
        """Waits for the oldest step; returns it if it failed, else adds its values to `done`."""
        oldest = pending.popleft()
        with self._devices.waiting(f"Step {oldest.number}"):
            values = np.asarray(oldest.values)
        if not np.isfinite(values[:-2]).all():
            return oldest
        done.append(values)
        return None

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
            losses = dict(zip(names, np.asarray(failed.values)[:-2].tolist(), strict=True))
            nonfinite = NonfiniteStep(first_step + len(done) + 1, losses, failed.records)
        means = np.stack(done).mean(axis=0)[:-2].tolist() if done else []
        return StepReport(
            losses=dict(zip(names, means, strict=True)) if done else {},
            steps_done=len(done),
            input_wait_share=min(waited / seconds, 1.0) if seconds > 0 else 0.0,
            learning_rate=float(done[-1][-2] if done else self._optimizer.learning_rate),
            seconds=seconds,
            nonfinite=nonfinite,
            peak_share=peak_share(
                self._flops,
                steps=len(done),
                seconds=seconds,
                device_kind=self._devices.devices[0].device_kind,
            ),
        )


def _check_arguments(
    model: keras.Model,
    optimizer: Any,
    devices: JaxDevices,
    batch_size: int,
    accumulate_steps: int,
) -> None:
    faults = model_faults(model) + batch_faults(
        batch_size, num_devices=devices.num_replicas, accumulate_steps=accumulate_steps
    )
    if isinstance(optimizer, keras.optimizers.LossScaleOptimizer):
        faults.append(
            "mixed_float16 needs loss scaling, which the JAX engine does not have: use "
            "mixed_bfloat16 or float32"
        )
    if faults:
        raise ValueError("the engine cannot be built: " + "; ".join(faults))
