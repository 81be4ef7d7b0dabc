"""The exponential moving average of a model's weights, on TensorFlow."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import keras
import tensorflow as tf

from tpudet.trainkit.training.freezing import frozen_paths


class WeightAverage:
    """Holds the average of every float variable that changes in training.

    BatchNorm's statistics are averaged too: they belong to the weights they were measured with.
    Frozen variables are left out, since they are their own average. Costs one more copy of the
    weights.
    """

    def __init__(
        self, *, model: keras.Model, decay: float, strategy: tf.distribute.Strategy
    ) -> None:
        """Makes the averages, equal to the present weights.

        Args:
            model: every variable exists; what is frozen is frozen.
            decay: part of the average that a step keeps, above 0 and below 1.
            strategy: in whose scope the model was made.
        """
        frozen = frozen_paths(model)
        self._decay = decay
        self._strategy = strategy
        self._sources = {
            variable.path: variable.value
            for variable in model.variables
            if variable.value.dtype.is_floating and variable.path not in frozen
        }
        with strategy.scope():
            self.variables: dict[str, tf.Variable] = {
                path: tf.Variable(source, trainable=False, name="average")
                for path, source in self._sources.items()
            }

    def update(self, step: Any) -> None:
        """Takes the weights in, after the step numbered `step` (from 0), in a replica's context.

        Step t keeps min(decay, t / (t + 9)) of the average: nothing at first, so that neither the
        initial values nor those before a restore linger, and `decay` once some steps have passed.
        """
        progress = tf.cast(step, tf.float32)
        kept = tf.minimum(self._decay, progress / (progress + 9.0))
        for path, average in self.variables.items():
            part = tf.cast(kept, average.dtype)
            average.assign(part * average + (1 - part) * self._sources[path])

    @contextmanager
    def swapped_in(self) -> Iterator[None]:
        """The model holds the averages inside; afterwards its own weights again, bit for bit.

        Replica by replica, since unsynchronised statistics differ between them. Holds a third copy
        of the weights inside.
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
        local = self._strategy.experimental_local_results(variable)
        return [component.read_value() for component in local]

    def _write(self, variable: tf.Variable, values: list[tf.Tensor]) -> None:
        local = self._strategy.experimental_local_results(variable)
        for component, value in zip(local, values, strict=True):
            component.assign(value)
