"""What the trainer knows of a task, and what an engine reports of its steps.

Nothing here depends on a backend: the TensorFlow engine and a JAX engine share it.
"""

from typing import Any, NamedTuple, Protocol

import keras

# A tensor of whichever backend is at work.
Tensor = Any


class Task(Protocol):
    """A model with its losses and its predictions.

    Every variable of the model exists before an engine is built, and its path is unique: paths are
    the keys of the checkpoints.
    """

    @property
    def model(self) -> keras.Model:
        """The network with all that is trained; it owns every variable."""
        ...

    def losses(self, batch: Any) -> dict[str, Tensor]:
        """Returns float32 scalars keyed by their log names; "loss" is their sum.

        Called with this replica's part of the batch, it returns this replica's share: shares add
        up over the replicas. A mean therefore divides by a sum over all replicas
        (`devices.sum_over_replicas`). Weight decay is the trainer's, not the task's.
        """
        ...

    def predict(self, batch: Any) -> Any:
        """Returns the NamedTuple that the task's evaluation wants."""
        ...


class NonfiniteStep(NamedTuple):
    """The step at which a loss was not finite."""

    step: int  # the step that failed, counted from 1: the first step of a run is step 1
    losses: dict[str, float]  # its parts, "gradient_norm" among them
    records: list[int]  # the numbers of the records in its batch; empty if the batch has none


class StepReport(NamedTuple):
    """What one call of an engine's `train` did."""

    losses: dict[str, float]  # means over the call's steps; empty where no step was done
    steps_done: int  # steps that counted; a step with a non-finite loss does not
    input_wait_share: float  # 0..1, part of `seconds` spent waiting for the next batch
    learning_rate: float  # of the last step done; of the next one where none was done
    seconds: float  # duration of the steps themselves; tracing the graph is left out
    nonfinite: NonfiniteStep | None  # set: the weights are spoiled, do not save them
