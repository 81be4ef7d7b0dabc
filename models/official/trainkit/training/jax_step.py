"""One training step on JAX, as a pure function of everything that it changes."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import keras

from tpudet.trainkit.backbones.drop_block import STEP_COUNT
from tpudet.trainkit.training import step as arithmetic
from tpudet.trainkit.training.engine import GRADIENT_NORM
from tpudet.trainkit.training.freezing import frozen_paths
from tpudet.trainkit.training.jax_accumulation import known_totals, split_batch, totals_of_parts
from tpudet.trainkit.training.task import Task


class State(NamedTuple):
    """Everything that a step changes: arrays, or the variables that they belong to."""

    trained: list[Any]
    others: list[Any]  # the model's other variables: statistics, seeds
    optimizer: list[Any]
    averages: list[Any]  # of variables of the model


class JaxStep:
    """A training step of a task; the arguments are those of `JaxEngine`.

    Args:
        accumulate_steps: number of parts in which the batch is computed, to save memory. The
            gradient is that of the whole batch, also of losses that are divided by a sum over it
            (`Devices.sum_over_replicas`, whose own gradient is left out); but BatchNorm normalises
            with each part's statistics, and each part makes random draws of its own, such as a
            two-stage detector's of anchors and regions.
        num_devices: they share the batch.
    """

    def __init__(
        self,
        *,
        task: Task,
        optimizer: keras.Optimizer,
        decayed: Sequence[keras.Variable],
        l2_weight_decay: float,
        gradient_clip_norm: float | None,
        ema_decay: float | None,
        accumulate_steps: int,
        num_devices: int,
    ) -> None:
        model, trained = task.model, list(task.model.trainable_variables)
        ids = {id(variable) for variable in trained}
        optimizer.build(trained)
        self.value_names: tuple[
            str, ...
        ] = ()  # of the values but the learning rate; set by tracing
        self.variables = State(
            trained=trained,
            others=[variable for variable in model.variables if id(variable) not in ids],
            optimizer=list(optimizer.variables),
            averages=_averaged_variables(model) if ema_decay else [],
        )
        self._task = task
        self._optimizer: Any = optimizer
        decayed_ids = {id(variable) for variable in decayed}
        self._decays = [id(variable) in decayed_ids for variable in trained]
        self._l2_weight_decay = l2_weight_decay
        self._gradient_clip_norm = gradient_clip_norm
        self._ema_decay = ema_decay
        self._is_step_count = [variable.name == STEP_COUNT for variable in self.variables.others]
        self._accumulate_steps = accumulate_steps
        self._num_devices = num_devices

    def take(self, state: State, batch: Any) -> tuple[State, jax.Array]:
        """Takes one step.

        Returns:
            The new state; the losses, the gradient norm and the learning rate in one array.
        """

        if self._accumulate_steps == 1:
            gradients, losses, others = self._gradients(state.trained, state.others, batch)
        else:
            gradients, losses, others = self._accumulated_gradients(state, batch)
        norm = arithmetic.global_norm(gradients)
        if self._gradient_clip_norm is not None:
            factor = arithmetic.clip_factor(norm, self._gradient_clip_norm)
            gradients = [gradient * factor for gradient in gradients]
        mapping = list(zip(self.variables.optimizer, state.optimizer, strict=True))
        with keras.StatelessScope(state_mapping=mapping):
            number = jnp.asarray(self._optimizer.iterations.value)
            learning_rate = jnp.asarray(self._optimizer.learning_rate, jnp.float32)
        trained, optimizer = self._optimizer.stateless_apply(
            state.optimizer, gradients, state.trained
        )
        averages = self._update_averages(state.averages, trained, others, number)
        values = jnp.append(losses, jnp.stack([norm, learning_rate]))
        return State(list(trained), others, list(optimizer), averages), values

    def _gradients(
        self, trained: list[jax.Array], others: list[jax.Array], batch: Any
    ) -> tuple[list[jax.Array], jax.Array, list[jax.Array]]:
        """Returns the gradients of a batch or a part of it, its losses and the other variables."""

        def objective(trained: list[jax.Array]) -> tuple[jax.Array, Any]:
            losses, scope = self._losses(trained, others, batch)
            decayed = [value for value, decays in zip(trained, self._decays, strict=True) if decays]
            losses = arithmetic.add_l2(
                losses,
                decayed,
                weight_decay=self._l2_weight_decay,
                num_replicas=self._accumulate_steps,
            )
            self.value_names = (*losses, GRADIENT_NORM)
            return losses["loss"], (jnp.stack(list(losses.values())), self._others_after(scope))

        gradients, (losses, after) = jax.grad(objective, has_aux=True)(trained)
        return gradients, losses, after

    def _losses(
        self, trained: list[jax.Array], others: list[jax.Array], batch: Any
    ) -> tuple[dict[str, Any], keras.StatelessScope]:
        mapping = [
            *zip(self.variables.trained, trained, strict=True),
            *zip(self.variables.others, others, strict=True),
        ]
        with keras.StatelessScope(state_mapping=mapping) as scope:
            return arithmetic.check_losses(self._task.losses(batch)), scope

    def _others_after(self, scope: keras.StatelessScope) -> list[Any]:
        return [scope.get_current_value(variable) for variable in self.variables.others]

    def _accumulated_gradients(
        self, state: State, batch: Any
    ) -> tuple[list[jax.Array], jax.Array, list[jax.Array]]:
        """Adds up the parts' shares; BatchNorm's statistics and the seeds go from part to part."""
        parts = split_batch(batch, self._accumulate_steps, self._num_devices)

        def others_before(others: list[jax.Array]) -> list[jax.Array]:
            """Resets counts of steps before every part, so that all of them count as one step."""
            found = zip(others, state.others, self._is_step_count, strict=True)
            return [before if is_count else value for value, before, is_count in found]

        def others_after(others: list[jax.Array], part: Any) -> list[jax.Array]:
            return self._others_after(self._losses(state.trained, others_before(others), part)[1])

        totals = totals_of_parts(others_after, state.others, parts)

        def add_part(sums: tuple[Any, Any], part: Any) -> tuple[tuple[Any, Any], jax.Array]:
            gradients, others = sums
            with known_totals(totals):
                shares, losses, others = self._gradients(state.trained, others_before(others), part)
            return (jax.tree.map(jnp.add, gradients, shares), others), losses

        nothing = [jnp.zeros_like(value) for value in state.trained]
        (gradients, others), losses = jax.lax.scan(add_part, (nothing, state.others), parts)
        return gradients, jnp.sum(losses, axis=0), others

    def _update_averages(
        self,
        averages: list[jax.Array],
        trained: Sequence[jax.Array],
        others: Sequence[jax.Array],
        number: jax.Array,
    ) -> list[jax.Array]:
        if self._ema_decay is None:
            return averages
        variables, values = (*self.variables.trained, *self.variables.others), (*trained, *others)
        by_variable = {id(v): value for v, value in zip(variables, values, strict=True)}
        kept = arithmetic.average_decay(number, self._ema_decay)
        return [
            arithmetic.update_average(average, by_variable[id(variable)], kept)
            for average, variable in zip(averages, self.variables.averages, strict=True)
        ]


def _averaged_variables(model: keras.Model) -> list[keras.Variable]:
    """The float variables that change: weights, and the statistics that belong to them."""
    frozen = frozen_paths(model)
    return [
        variable
        for variable in model.variables
        if keras.backend.is_float_dtype(variable.dtype) and variable.path not in frozen
    ]
