"""The interface between the training loop and an engine, and the report of its steps."""

from collections.abc import Collection, Mapping
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, NamedTuple, Protocol

import numpy as np

if TYPE_CHECKING:
    import keras

# By checkpoint key: the shape and the name of the dtype.
Signature = Mapping[str, tuple[tuple[int, ...], str]]


OPTIMIZER = "optimizer/"  # begins the keys of what only training needs
LOSS_SCALE = f"{OPTIMIZER}loss_scale/"  # reset when the precision changes
RECORDS_CONSUMED = "records_consumed"  # key of the input's position

# Log names of the values that a step reports beside the task's losses.
L2 = "l2"
GRADIENT_NORM = "gradient_norm"


class NonfiniteStep(NamedTuple):
    """The step at which a loss was not finite."""

    step: int  # the step that failed; the first step of a run is step 1
    losses: dict[str, float]  # its parts, "gradient_norm" among them
    records: list[int]  # the record numbers of its batch; empty if batches have none


class StepReport(NamedTuple):
    """The result of one call of an engine's `train`."""

    losses: dict[str, float]  # means over the call's steps; empty if no step was done
    steps_done: int  # steps that counted; a step with a non-finite loss does not
    input_wait_share: float  # 0..1, part of `seconds` spent waiting for the next batch
    learning_rate: float  # of the last step done, or of the next one if none was done
    seconds: float  # duration of the steps themselves, without tracing
    nonfinite: NonfiniteStep | None  # if set, the weights are spoiled: do not save them
    peak_share: float | None = None  # 0..1, used of the devices' bfloat16 peak; None: unknown


class Engine(Protocol):
    """Trains a task's model and owns everything that a checkpoint holds.

    With several processes each has an engine. Only the chief writes files; all restore.
    """

    @property
    def step(self) -> int:
        """Steps done since the start of the run.

        May be read from another thread while `train` runs, and is then approximate.
        """
        ...

    @property
    def batch_size(self) -> int:
        """Records per step, over all replicas."""
        ...

    @property
    def is_chief(self) -> bool:
        """Whether this process writes the checkpoints and the logs."""
        ...

    def train(self, num_steps: int) -> StepReport:
        """Trains at most `num_steps` steps, 1 or more.

        Fewer after `request_stop`, or if a loss or the gradient was not finite: the report then
        names the step. A step that loss scaling skips does not count, and another is taken instead.
        """
        ...

    @property
    def num_processes(self) -> int:
        """How many processes train together."""
        ...

    def request_stop(self) -> None:
        """Ends `train` soon, and every later call at once; thread-safe.

        With one process at the next step boundary. With several, all end at the same one, a few
        steps later.
        """
        ...

    def any_process(self, flag: bool) -> bool:
        """Returns whether the flag is set in any process. Collective: every process calls it."""
        ...

    def agree_on_step(self) -> None:
        """Waits until every process calls it.

        Raises:
            UserError: the processes are not at the same step, since they do not share the
                model_dir, or they have other weights.
        """
        ...

    def signature(self) -> Signature:
        """Returns the shape and dtype of everything that a checkpoint holds.

        The keys are `<path>` for each model variable; `optimizer/<path>/<slot>`, and
        `optimizer/loss_scale/...` with loss scaling; `ema/<path>` for each averaged variable;
        `global_step` and `records_consumed`, int64.
        """
        ...

    def snapshot(self) -> dict[str, np.ndarray]:
        """Returns copies of all that `signature` lists. Collective: every process calls it."""
        ...

    def load(self, arrays: Mapping[str, np.ndarray]) -> None:
        """Sets everything that `signature` lists. Call `restart_input` before training on.

        The loss scale is restored if both the engine and `arrays` have one.

        Raises:
            ValueError: other keys than those of `signature`; nothing was set.
        """
        ...

    def restart_input(self) -> None:
        """Drops the input; the next `train` opens it at `records_consumed`."""
        ...

    def averaged_weights(self) -> AbstractContextManager[None]:
        """Returns a context in which the model holds the averages; no change without averages.

        Afterwards the weights are the model's own again, bit for bit. Not to be trained in.
        """
        ...


def check_keys(given: Collection[str], expected: Collection[str]) -> None:
    """Refuses arrays that are not those of an engine, but for the loss scale.

    Raises:
        ValueError: names the keys that differ.
    """
    different = sorted(key for key in {*given} ^ {*expected} if not key.startswith(LOSS_SCALE))
    if different:
        raise ValueError(
            f"these are not the engine's variables; different are {', '.join(different)}"
        )


def batch_faults(batch_size: int, *, num_devices: int, accumulate_steps: int = 1) -> list[str]:
    """Returns in words why no engine can divide its batches; empty if one can.

    Args:
        batch_size: over all devices.
        num_devices: they share it.
        accumulate_steps: parts of what each gets.
    """
    if batch_size >= 1 and batch_size % (num_devices * accumulate_steps) == 0:
        return []
    parts = f", times the {accumulate_steps} accumulate_steps" if accumulate_steps > 1 else ""
    return [
        f"batch_size is {batch_size}; it must be a multiple of the {num_devices} device(s){parts}"
    ]


def model_faults(model: "keras.Model") -> list[str]:
    """Returns in words why no engine can train the model; empty if one can."""
    faults = []
    if not model.trainable_variables:
        faults.append("the model has no variable to train: it is not built, or all is frozen")
    paths = [variable.path for variable in model.variables]
    repeated = sorted({path for path in paths if paths.count(path) > 1})
    if repeated:
        faults.append(
            f"several variables have the path {', '.join(repeated)}; give the layers distinct names"
        )
    return faults
