"""Everything that training on JAX changes: on the devices, and as checkpoints hold it."""

import hashlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import jax
import keras
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from tpudet.trainkit.training.engine import OPTIMIZER, Signature
from tpudet.trainkit.training.jax_devices import JaxDevices
from tpudet.trainkit.training.jax_step import State
from tpudet.trainkit.training.optimizer_slots import slot_variables

# What TensorFlow stores as int64, JAX keeps in 32 bits: seeds and counters. Checkpoints hold int64.
_LONG = {"int32": "int64", "uint32": "int64"}


class TrainingState:
    """The variables of a model and its optimizer on the devices, and the averages of the weights.

    Args:
        model: built.
        optimizer: built.
        variables: those that a step changes, from `JaxStep`.
        devices: they hold the state.
        shards: whether each device holds only its part of the optimizer's variables and of the
            averages; otherwise each holds all of them. Weights are on every device either way.
    """

    def __init__(
        self,
        model: keras.Model,
        optimizer: Any,
        variables: State,
        devices: JaxDevices,
        *,
        shards: bool,
    ) -> None:
        self._model = model
        self._optimizer = optimizer
        self._variables = variables
        self._devices = devices
        self._shards = shards
        # One function: jit compiles it once for each shape, but a new one at every call.
        self._replicate = jax.jit(lambda array: array, out_shardings=devices.replicated)
        owned = {id(variable) for variable in variables.optimizer}
        for variable in (*model.variables, *optimizer.variables):
            divided = id(variable) in owned
            variable.assign(self._put(variable.value, divided=divided))
        self._averages = [self._put(v.value, divided=True) for v in variables.averages]

    @property
    def step(self) -> int:
        """Steps done since the start of the run."""
        return int(self._optimizer.iterations.value)

    @property
    def shardings(self) -> State:
        """How the arrays of `values` lie on the devices."""
        return State(*([array.sharding for array in arrays] for arrays in self.values()))

    def values(self) -> State:
        """Returns the arrays that a step takes."""
        return State(
            [variable.value for variable in self._variables.trained],
            [variable.value for variable in self._variables.others],
            [variable.value for variable in self._variables.optimizer],
            list(self._averages),
        )

    def keep(self, state: State) -> None:
        """Puts the arrays that a step has returned into the variables."""
        for variables, values in (
            (self._variables.trained, state.trained),
            (self._variables.others, state.others),
            (self._variables.optimizer, state.optimizer),
        ):
            for variable, value in zip(variables, values, strict=True):
                variable.assign(value)
        self._averages = state.averages

    def signature(self) -> Signature:
        """Returns shape and dtype by key; integers have the types of the TensorFlow engine."""
        return {
            key: (tuple(value.shape), _stored_dtype(key, value))
            for key, value in self._by_key().items()
        }

    def snapshot(self) -> dict[str, np.ndarray]:
        """Returns copies of all that `signature` lists. Collective if the state is sharded."""
        return {
            key: self._whole(value).astype(_stored_dtype(key, value))
            for key, value in self._by_key().items()
        }

    def digest(self) -> str:
        """Returns a digest of the weights as this process has them."""
        digest = hashlib.sha256()
        for variable in self._model.variables:
            digest.update(np.asarray(variable.value).tobytes())
        return digest.hexdigest()

    def load(self, arrays: Mapping[str, np.ndarray]) -> None:
        """Sets everything that `signature` lists."""
        variables = {variable.path: variable for variable in self._model.variables}
        slots = slot_variables(self._optimizer, self._variables.trained)
        variables |= {f"{OPTIMIZER}{key}": variable for key, variable in slots.items()}
        variables["global_step"] = self._optimizer.iterations
        divided = {id(variable) for variable in self._variables.optimizer}
        for key, variable in variables.items():
            array = arrays[key].astype(variable.value.dtype)
            variable.assign(self._put(array, divided=id(variable) in divided))
        self._averages = [
            self._put(arrays[f"ema/{variable.path}"], divided=True)
            for variable in self._variables.averages
        ]

    @contextmanager
    def averaged_weights(self) -> Iterator[None]:
        """As in `Engine`."""
        kept = [variable.value for variable in self._variables.averages]
        try:
            for variable, average in zip(self._variables.averages, self._averages, strict=True):
                variable.assign(self._put(self._whole(average), divided=False))
            yield
        finally:
            for variable, value in zip(self._variables.averages, kept, strict=True):
                variable.assign(value)

    def _by_key(self) -> dict[str, Any]:
        """Everything that a checkpoint holds, by its key."""
        slots = slot_variables(self._optimizer, self._variables.trained)
        averages = zip(self._variables.averages, self._averages, strict=True)
        return (
            {variable.path: variable.value for variable in self._model.variables}
            | {f"{OPTIMIZER}{key}": variable.value for key, variable in slots.items()}
            | {f"ema/{variable.path}": average for variable, average in averages}
            | {"global_step": self._optimizer.iterations.value}
        )

    def _put(self, value: Any, *, divided: bool) -> jax.Array:
        """Puts a value, which all processes have, onto the devices."""
        array = np.array(value)  # a copy: a CPU device would share the memory, and steps reuse it
        sharding = self._devices.replicated
        if divided and self._shards:
            sharding = divided_sharding(array.shape, self._devices)
        return jax.make_array_from_callback(array.shape, sharding, lambda part: array[part])

    def _whole(self, value: jax.Array) -> np.ndarray:
        if not value.is_fully_replicated and self._devices.num_processes > 1:
            value = self._replicate(value)
        return np.asarray(value)


def divided_sharding(shape: tuple[int, ...], devices: JaxDevices) -> NamedSharding:
    """Divides the first axis whose length the devices divide; what has none is on every device."""
    for axis, length in enumerate(shape):
        if length and length % devices.num_replicas == 0:
            parts = PartitionSpec(*[None] * axis, *devices.split.spec)
            return NamedSharding(devices.split.mesh, parts)
    return devices.replicated


def _stored_dtype(key: str, value: Any) -> str:
    """The dtype of a value in checkpoints, which the TensorFlow engine writes and reads too."""
    dtype = str(value.dtype)
    is_long = key == "global_step" or key.endswith("seed_generator_state")
    return _LONG.get(dtype, dtype) if is_long else dtype
