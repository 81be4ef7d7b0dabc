"""The interface between the trainer and a task: a model, its losses and its predictions."""

from typing import Any, Protocol

import keras

from tpudet.trainkit.types import Tensor


class Task(Protocol):
    """A model with its losses and its predictions.

    Every variable of the model exists before an engine is built, and its path is unique: paths are
    the keys of the checkpoints.
    """

    @property
    def model(self) -> keras.Model:
        """The network with everything that is trained; it owns every variable."""
        ...

    def losses(self, batch: Any) -> dict[str, Tensor]:
        """Returns float32 scalars keyed by their log names; "loss" is their sum.

        Called with this replica's part of the batch, it returns this replica's share: shares add
        up over the replicas. A mean therefore divides by a sum over all replicas
        (`Devices.sum_over_replicas`). Weight decay is left to the trainer.
        """
        ...

    def predict(self, batch: Any) -> Any:
        """Returns the NamedTuple that the task's evaluation takes."""
        ...
