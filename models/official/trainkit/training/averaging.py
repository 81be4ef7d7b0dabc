"""The exponential moving average of a model's weights, on TensorFlow."""

from collections.abc import Iterator
from contextlib import contextmanager

import keras
import tensorflow as tf

from tpudet.trainkit.training.devices import TensorFlowDevices
from tpudet.trainkit.training.freezing import frozen_paths
from tpudet.trainkit.training.fused_updates import subtract_scaled
from tpudet.trainkit.training.step import average_decay
from tpudet.trainkit.types import Tensor


class WeightAverage:
    """The average of every float variable that changes in training.

    It starts at the present weights. BatchNorm's statistics are averaged too: they belong to the
    weights they were measured with. Frozen variables are left out, since they are their own
    average. Costs one more copy of the weights.

    Args:
        model: all its variables exist; what is frozen is frozen.
        decay: part of the average that a step keeps, above 0 and below 1.
        devices: those in whose scope the model was created.
    """

    def __init__(self, *, model: keras.Model, decay: float, devices: TensorFlowDevices) -> None:
        frozen = frozen_paths(model)
        self._decay = decay
        self._devices = devices
        self._sources = {
            variable.path: variable.value
            for variable in model.variables
            if variable.value.dtype.is_floating and variable.path not in frozen
        }
        with devices.scope():
            self.variables: dict[str, tf.Variable] = {
                path: tf.Variable(source, trainable=False, name="average")
                for path, source in self._sources.items()
            }

    def update(self, step: Tensor, *, step_applied: Tensor | bool = True) -> None:
        """Updates as `step.update_average` does after step `step`, from 0; called on every replica.

        Args:
            step: [] int64.
            step_applied: [] bool; False for a step that loss scaling skipped: it changes nothing.
        """
        lost = 1 - average_decay(step, self._decay)
        for path, average in self.variables.items():
            change = average - self._sources[path]
            if step_applied is not True:  # what was skipped may be infinite
                change = tf.where(step_applied, change, tf.zeros_like(change))
            subtract_scaled(average, tf.cast(lost, average.dtype), change)

    @contextmanager
    def swapped_in(self) -> Iterator[None]:
        """Puts the averages into the model; afterwards its own weights again, bit for bit.

        Replica by replica, since unsynchronised statistics differ between them. Holds a third copy
        of the weights meanwhile.
        """
        kept = {path: self._read(source) for path, source in self._sources.items()}
        try:
            for path, average in self.variables.items():
                self._write(self._sources[path], self._read(average))
            yield
        finally:
            for path, values in kept.items():
                self._write(self._sources[path], values)

    def _read(self, variable: tf.Variable) -> list[tf.Tensor]:
        return [copy.read_value() for copy in self._devices.replica_values(variable)]

    def _write(self, variable: tf.Variable, values: list[tf.Tensor]) -> None:
        for copy, value in zip(self._devices.replica_values(variable), values, strict=True):
            copy.assign(value)
