"""The engine on TensorFlow: training steps on one device, or mirrored over several."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tpudet.trainkit.training.averaging import WeightAverage
from tpudet.trainkit.training.devices import TensorFlowDevices
from tpudet.trainkit.training.engine import (
    OPTIMIZER,
    RECORDS_CONSUMED,
    NonfiniteStep,
    Signature,
    StepReport,
    batch_faults,
    check_keys,
    model_faults,
)
from tpudet.trainkit.training.optimizer_slots import slot_variables
from tpudet.trainkit.training.step import has_failed
from tpudet.trainkit.training.task import Task
from tpudet.trainkit.training.tensorflow_step import (
    LoopState,
    ReplicaStep,
    initial_state,
    state_shapes,
)
from tpudet.trainkit.types import Tensor

SEED_NAME = "seed_generator_state"  # of the variable of a keras.random.SeedGenerator

# Between the seeds of replicas; those of a model's layers lie closer together.
_SEED_DISTANCE = 1 << 24


class TensorFlowEngine:
    """Trains a task's model with Keras on TensorFlow; implements `engine.Engine`.

    Replicas: each computes its share of the losses on its part of the batch; shares are added up
    and gradients summed, so that several devices do what one does, if BatchNorm is synchronised.
    The norm of the summed gradients takes an all-reduce of its own before the one of the Keras
    optimizer, which would clip each replica's part alone: with several replicas each step reduces
    the gradients twice.

    The loop over the steps runs inside one graph and is traced once, however many steps a call
    takes. No `jit_compile`: Keras variables do not work in it under a strategy.

    The constructor builds the optimizer's slots and the averages; it reads no data yet.

    Args:
        task: its model was created in the devices' scope, has all its variables, and what is frozen
            is frozen.
        optimizer: created in the devices' scope, by the functions of `optimizers`, not yet used.
            One with loss scaling skips the steps whose gradients overflow.
        devices: from `devices.choose_tensorflow_devices`.
        make_dataset: from the number of records already consumed to an infinite dataset of
            batches of static shape that starts there.
        batch_size: records per step, over all replicas.
        decayed: variables of the L2 term; `optimizers.decayed_variables`.
        l2_weight_decay: the loss gets `l2_weight_decay * sum(v ** 2) / 2` over `decayed`, 0 or
            more. Leave it at 0 with AdamW and LARS, which decay the weights themselves.
        gradient_clip_norm: gradients whose global norm is larger are scaled down to it; None
            means never.
        ema_decay: see `averaging.WeightAverage`; None keeps no average.
        record_numbers: from a batch to its record numbers [B] int64, which the report of a
            non-finite loss names; None if batches have none.

    Raises:
        ValueError: lists every argument that does not fit.
    """

    is_chief = True
    num_processes = 1

    def __init__(
        self,
        *,
        task: Task,
        optimizer: keras.Optimizer,
        devices: TensorFlowDevices,
        make_dataset: Callable[[int], tf.data.Dataset],
        batch_size: int,
        decayed: Sequence[keras.Variable] = (),
        l2_weight_decay: float = 0.0,
        gradient_clip_norm: float | None = None,
        ema_decay: float | None = None,
        record_numbers: Callable[[Any], tf.Tensor] | None = None,
    ) -> None:
        model = task.model
        _check_arguments(model, optimizer, devices, batch_size)
        self._model = model
        self._optimizer: Any = optimizer
        self._strategy = devices.strategy
        self._make_dataset = make_dataset
        self._batch_size = batch_size
        self._scales_loss = isinstance(optimizer, keras.optimizers.LossScaleOptimizer)
        self._trained = list(model.trainable_variables)
        with devices.scope():
            optimizer.build(self._trained)
        self._devices = devices
        self._separate_seeds()
        self._average = (
            WeightAverage(model=model, decay=ema_decay, devices=devices) if ema_decay else None
        )
        self._replica_step = ReplicaStep(
            task=task,
            optimizer=optimizer,
            trained=self._trained,
            decayed=decayed,
            l2_weight_decay=l2_weight_decay,
            gradient_clip_norm=gradient_clip_norm,
            average=self._average,
            record_numbers=record_numbers,
        )
        with tf.device("CPU:0"):
            self._records_consumed = tf.Variable(tf.zeros([], tf.int64), trainable=False)
            self._stop = tf.Variable(tf.constant(False), trainable=False)
        self._iterator: Any = None
        self._run_steps = tf.function(self._steps, autograph=False)

    @property
    def batch_size(self) -> int:
        """Records per step, over all replicas."""
        return self._batch_size

    @property
    def step(self) -> int:
        """Steps done since the start of the run: the optimizer's iterations."""
        return int(self._optimizer.iterations.numpy())

    @property
    def records_consumed(self) -> int:
        """Records read since the start of the run; the input resumes there."""
        return int(self._records_consumed.numpy())

    def train(self, num_steps: int) -> StepReport:
        """As in `Engine`.

        Raises:
            ValueError: `num_steps` is below 1, or the dataset ended or does not fit the batch size.
        """
        if num_steps < 1:
            raise ValueError(f"num_steps is {num_steps}; it must be 1 or more")
        if self._iterator is None:
            self._iterator = self._start_input()
        first_step = self.step
        try:
            state, seconds = self._run_steps(self._iterator, tf.constant(num_steps, dtype=tf.int64))
        except tf.errors.OutOfRangeError as error:
            raise ValueError(
                "the training data ended; make_dataset must return a dataset that repeats forever"
            ) from error
        return self._report(state, float(seconds), first_step)

    def request_stop(self) -> None:
        """As in `Engine`.

        In a signal handler of the main thread it comes too late: Python runs such a handler only
        after the graph has returned.
        """
        self._stop.assign(True)

    def any_process(self, flag: bool) -> bool:
        """As in `Engine`."""
        return flag

    def agree_on_step(self) -> None:
        """As in `Engine`."""

    def signature(self) -> Signature:
        """As in `Engine`."""
        return {
            key: (tuple(variable.shape), variable.dtype.name)
            for key, variable in self._state().items()
        }

    def snapshot(self) -> dict[str, np.ndarray]:
        """As in `Engine`; on several replicas one value of each variable."""
        return {
            key: np.asarray(tf.convert_to_tensor(variable))
            for key, variable in self._state().items()
        }

    def load(self, arrays: Mapping[str, np.ndarray]) -> None:
        """As in `Engine`."""
        state = self._state()
        check_keys(arrays.keys(), state.keys())
        for key in state.keys() & arrays.keys():
            state[key].assign(arrays[key])
        self._separate_seeds()

    def restart_input(self) -> None:
        """As in `Engine`.

        Closing an iterator can wait for tf.data's autotuning thread: seconds on a busy machine.
        """
        self._iterator = None

    def averaged_weights(self) -> AbstractContextManager[None]:
        """As in `Engine`."""
        return self._average.swapped_in() if self._average else nullcontext()

    def _separate_seeds(self) -> None:
        """Gives each replica seeds of its own, or all would drop the same units of their images.

        The first replica keeps those of the model, which are the ones in checkpoints.
        """
        for variable in self._model.variables:
            if variable.name != SEED_NAME:
                continue
            first, *others = self._devices.replica_values(variable.value)
            for replica, copy in enumerate(others, start=1):
                copy.assign(first + tf.constant([replica * _SEED_DISTANCE, 0], first.dtype))

    def _state(self) -> dict[str, Any]:
        """Every tf.Variable that a checkpoint holds, by its key."""
        slots = slot_variables(self._optimizer, self._trained)
        averages = self._average.variables if self._average else {}
        return (
            {variable.path: variable.value for variable in self._model.variables}
            | {f"{OPTIMIZER}{key}": variable.value for key, variable in slots.items()}
            | {f"ema/{path}": variable for path, variable in averages.items()}
            | {
                "global_step": self._optimizer.iterations.value,
                RECORDS_CONSUMED: self._records_consumed,
            }
        )

    def _start_input(self) -> Any:
        dataset = self._make_dataset(self.records_consumed)
        specs = tf.nest.flatten(dataset.element_spec)
        for spec in (spec for spec in specs if isinstance(spec, tf.TensorSpec)):  # not of None
            if spec.shape.rank is None or spec.shape[:1] != [self._batch_size]:
                raise ValueError(
                    f"the dataset yields {spec}; its first dimension must be the batch size, "
                    f"{self._batch_size}. Batch with drop_remainder=True"
                )
        return iter(self._strategy.experimental_distribute_dataset(dataset))

    def _report(self, state: LoopState, seconds: float, first_step: int) -> StepReport:
        steps = int(state.steps)
        values = state.values.numpy()
        names = self._replica_step.value_names
        nonfinite = None
        if state.failed:
            losses = dict(zip(names, values[:-1].tolist(), strict=True))
            records = state.records.numpy().tolist()
            nonfinite = NonfiniteStep(first_step + steps + 1, losses, records)
        means = (state.totals.numpy()[:-1] / steps).tolist() if steps else []
        return StepReport(
            losses=dict(zip(names, means, strict=True)) if steps else {},
            steps_done=steps,
            input_wait_share=min(float(state.waited) / seconds, 1.0) if seconds > 0 else 0.0,
            learning_rate=float(values[-1] if values.ndim else self._optimizer.learning_rate),
            seconds=seconds,
            nonfinite=nonfinite,
        )

    def _steps(self, iterator: Any, num_steps: tf.Tensor) -> tuple[LoopState, tf.Tensor]:
        """The graph of one call of `train`: its loop, and the loop's duration in seconds."""

        def continues(state: LoopState) -> Tensor:
            remaining = state.steps < num_steps
            return remaining & ~state.failed & ~self._stop.read_value()

        with tf.device("CPU:0"):  # the loop's own arithmetic; each replica places its step itself
            begin = tf.timestamp()
            with tf.control_dependencies([begin]):
                start = initial_state()
            (state,) = tf.while_loop(
                continues,
                lambda state: (self._advance(iterator, state),),
                (start,),
                shape_invariants=(state_shapes(),),
                parallel_iterations=1,
            )
            with tf.control_dependencies(list(state)):
                return state, tf.timestamp() - begin

    def _advance(self, iterator: Any, state: LoopState) -> LoopState:
        """Draws a batch and trains on it, in cross-replica context."""
        # The step before must be over, or its time would be counted as waiting.
        with tf.control_dependencies([state.values]):
            requested = tf.timestamp()
        with tf.control_dependencies([requested]):
            batch = next(iterator)
        fields = tf.nest.flatten(batch, expand_composites=True)
        with tf.control_dependencies([field for field in fields if field is not None]):
            waited = tf.timestamp() - requested
        self._records_consumed.assign_add(self._batch_size)
        before = tf.identity(self._optimizer.iterations.value)
        shares, common, records = self._strategy.run(self._replica_step.take, (batch,))
        losses = self._strategy.reduce(tf.distribute.ReduceOp.SUM, shares, axis=None)
        common = self._strategy.experimental_local_results(common)[0]
        records = tf.concat(self._strategy.experimental_local_results(records), axis=0)
        scale = self._optimizer.dynamic_scale.value if self._scales_loss else None
        failed = has_failed(losses, common[0], scale)
        step_applied = ~failed & (self._optimizer.iterations.value > before)
        values = tf.concat([losses, common], axis=0)
        return LoopState(
            steps=state.steps + tf.cast(step_applied, tf.int64),
            totals=tf.where(step_applied, state.totals + values, state.totals),
            values=values,
            records=records,
            waited=state.waited + waited,
            failed=failed,
        )


def _check_arguments(
    model: keras.Model, optimizer: Any, devices: TensorFlowDevices, batch_size: int
) -> None:
    faults = model_faults(model) + batch_faults(batch_size, num_devices=devices.num_replicas)
    in_scope = devices.strategy.extended.variable_created_in_scope
    for owner, variables in (("model", model.variables), ("optimizer", [optimizer.iterations])):
        if not all(in_scope(variable.value) for variable in variables):
            faults.append(f"the {owner} was not created inside devices.scope()")
    if faults:
        raise ValueError("the engine cannot be built: " + "; ".join(faults))
