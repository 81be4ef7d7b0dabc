"""Training, evaluation, and both in turn, over any number of kills and restarts.

The guarantees (each is a test in tests/trainkit/training/test_loop.py):

1. Targets are the multiples of the evaluation interval and `total_steps`, wherever a run was
   restored; it never trains beyond `total_steps`, and a finished run that was never evaluated
   still is.
2. The ledger lists the evaluated steps. After a kill between a save and its evaluation only that
   evaluation is made up for; none is done twice. A run that restores an earlier step than before
   discards the evaluations and the best checkpoint beyond it.
3. SIGTERM, SIGINT or the time limit saves at the next step boundary; the functions then return
   EXIT_START_AGAIN or EXIT_TIME_LIMIT. A target reached, or too many evaluations without
   improvement, ends the run after the evaluation that showed it, with EXIT_TARGET_REACHED or
   EXIT_NO_IMPROVEMENT.
4. A loss that is not finite raises NonfiniteLossError and saves nothing.

At each step boundary the log line comes first, then the checkpoint, then the evaluation. Whatever
a kill cuts off is therefore done again after the restart, and nothing is lost.
"""

import logging
import math
import os
import time
from collections.abc import Callable, Sequence

from tpudet.trainkit.errors import count_of
from tpudet.trainkit.files import storage
from tpudet.trainkit.training import checkpoints
from tpudet.trainkit.training.checkpoints import Checkpoint
from tpudet.trainkit.training.engine import Engine
from tpudet.trainkit.training.evaluator import EvaluationSettings, Evaluator
from tpudet.trainkit.training.model_dir import claim_path
from tpudet.trainkit.training.preemption import Interrupted, Preemption
from tpudet.trainkit.training.run import (
    NonfiniteLossError,
    RunSettings,
    TrainingRun,
    next_multiple,
)
from tpudet.trainkit.training.run_log import Ledger, TensorBoardWriter
from tpudet.trainkit.training.stopping import (
    EXIT_FINISHED,
    EXIT_NO_IMPROVEMENT,
    EXIT_START_AGAIN,
    EXIT_TARGET_REACHED,
    EXIT_TIME_LIMIT,
    early_end,
)

__all__ = [
    "EXIT_FINISHED",
    "EXIT_NO_IMPROVEMENT",
    "EXIT_START_AGAIN",
    "EXIT_TARGET_REACHED",
    "EXIT_TIME_LIMIT",
    "EvaluationSettings",
    "NonfiniteLossError",
    "RunSettings",
    "evaluate_checkpoints",
    "train",
    "train_and_eval",
]

logger = logging.getLogger(__name__)


def train(
    *,
    engine: Engine,
    model_dir: str,
    settings: RunSettings,
    evaluate_every_steps: int | None = None,
    verify: Callable[[], None] = lambda: None,
) -> int:
    """Trains to `total_steps` from the newest checkpoint in `model_dir`, without evaluating.

    Args:
        engine: built for this model and input; its state is restored here.
        model_dir: any folder or bucket.
        settings: how long, and how often what is logged and saved.
        evaluate_every_steps: saves at the multiples of this, too, which `evaluate_checkpoints`
            waits for; None: nothing evaluates.
        verify: called before each write; raises ClaimError once another process owns the folder.

    Returns:
        The exit code of the process: EXIT_FINISHED, EXIT_START_AGAIN or EXIT_TIME_LIMIT.

    Raises:
        NonfiniteLossError, CheckpointMismatchError, UnreadableCheckpointError.
    """
    total_steps = settings.total_steps
    run = TrainingRun(engine, model_dir, settings, verify)

    def body() -> None:
        run.restore()
        while engine.step < total_steps:
            target = next_multiple(engine.step, evaluate_every_steps or total_steps)
            run.train_to(min(target, total_steps))

    return run.supervise(body)


def train_and_eval(
    *,
    engine: Engine,
    model_dir: str,
    settings: RunSettings,
    evaluation: EvaluationSettings,
    verify: Callable[[], None] = lambda: None,
) -> int:
    """Trains to the next target, saves, evaluates, and so on to `total_steps`.

    Args:
        engine: as in `train`.
        model_dir: as in `train`.
        settings: as in `train`.
        evaluation: how the model is evaluated, and how often.
        verify: as in `train`.

    Returns:
        The exit code of the process: EXIT_FINISHED, EXIT_START_AGAIN, EXIT_TIME_LIMIT,
        EXIT_TARGET_REACHED or EXIT_NO_IMPROVEMENT.

    Raises:
        NonfiniteLossError, CheckpointMismatchError, UnreadableCheckpointError; UserError if the
        evaluation lacks a metric that its settings or stop_at name.
    """
    total_steps = settings.total_steps
    run = TrainingRun(engine, model_dir, settings, verify)
    stop_at = settings.stop_at or {}
    evaluator = Evaluator(engine, model_dir, evaluation, verify, needed=stop_at)

    def body() -> None:
        restored = run.restore()
        evaluator.prepare(run.checkpoints.published)
        if restored is not None and evaluation.is_due(engine.step, total_steps):
            run.evaluate(evaluator)
        while engine.step < total_steps:
            end = early_end(
                evaluator.history,
                best_metric=evaluation.best_metric,
                stop_at=stop_at,
                patience=settings.patience,
            )
            if end is not None:
                raise end
            target = min(next_multiple(engine.step, evaluation.every_steps), total_steps)
            evaluations_left = math.ceil((total_steps - engine.step) / evaluation.every_steps)
            run.train_to(target, remaining_eval_seconds=evaluations_left * evaluator.last_seconds)
            run.evaluate(evaluator)

    return run.supervise(body)


def evaluate_checkpoints(
    *,
    engine: Engine,
    model_dir: str,
    total_steps: int,
    evaluation: EvaluationSettings,
    poll_seconds: float = 30.0,
    timeout_seconds: float | None = None,
    deadline: float = math.inf,
    verify: Callable[[], None] = lambda: None,
) -> int:
    """Evaluates the checkpoints that another process writes, until that of `total_steps`.

    The same steps are evaluated as train_and_eval would, oldest first, each once. A checkpoint that
    the trainer removes meanwhile is skipped. It ends earlier if the training did: finished with
    fewer steps, failed, at its target or without improvement. A training that was stopped or killed
    is waited for, as the same command continues it. TensorBoard finds the results in
    `<model_dir>/eval`: two processes cannot write events to one folder.

    Args:
        engine: built as for training; each checkpoint is restored into it.
        model_dir: where the trainer writes.
        total_steps: the evaluation of this step is the last.
        evaluation: as in `train_and_eval`; checkpoints of other steps are skipped.
        poll_seconds: between two looks.
        timeout_seconds: give up after so long without a new checkpoint; None: never.
        deadline: when to stop, by `time.monotonic`.
        verify: as in `train`.

    Returns:
        EXIT_FINISHED, also after the timeout (with a warning), EXIT_START_AGAIN or EXIT_TIME_LIMIT.

    Raises:
        CheckpointMismatchError: a checkpoint belongs to another model.
    """
    evaluator = Evaluator(engine, model_dir, evaluation, verify)
    writer = TensorBoardWriter(os.path.join(model_dir, "eval"))
    wait = _CheckpointWait(model_dir, timeout_seconds)
    try:
        with Preemption(engine.request_stop, deadline=deadline) as preemption:
            while not preemption.requested:
                # Each time, because the trainer may have been taken back to an earlier step.
                published = checkpoints.list_checkpoints(model_dir)
                evaluator.prepare(published)
                if pending := evaluator.pending(published, total_steps):
                    evaluator.restore_and_evaluate(pending[0], preemption, writer)
                    wait.renew()
                    continue
                last = max(evaluator.evaluated_steps, default=0)
                if last >= total_steps or wait.is_over(published):
                    return EXIT_FINISHED
                preemption.wait(poll_seconds)
            raise Interrupted(preemption.signal_name)
    except Interrupted as end:
        logger.info("Stopped by %s; the same command resumes from there", end)
        return end.exit_code
    finally:
        writer.close()


class _CheckpointWait:
    """Decides when no more checkpoints will come to a model_dir."""

    def __init__(self, model_dir: str, seconds: float | None) -> None:
        self._model_dir = model_dir
        self._seconds = math.inf if seconds is None else seconds
        self._last_seen = time.monotonic()
        self._ended: tuple[str, str] | None = None
        self._has_said = False  # what is waited for

    def renew(self) -> None:
        """Waits from now on."""
        self._last_seen = time.monotonic()
        self._has_said = False

    def is_over(self, published: Sequence[Checkpoint]) -> bool:
        """Returns whether to stop waiting, and logs why."""
        if time.monotonic() - self._last_seen >= self._seconds:
            logger.warning("No new checkpoint in %s for %gs", self._model_dir, self._seconds)
            return True
        ended = _end_of_training(self._model_dir, published)
        # Twice, for a trainer that starts at the same time as this process.
        if ended and ended == self._ended:
            logger.warning("No more checkpoints in %s: the training %s", *ended)
            return True
        self._ended = ended
        if not self._has_said:
            there = count_of(len(published), "checkpoint", "checkpoints")
            logger.info("Waiting for new checkpoints in %s (%s now)", self._model_dir, there)
            if not published and not Ledger(self._model_dir, writes=False).lines():
                logger.warning(
                    "No training has begun in %s yet: is that the trainer's --model_dir?",
                    self._model_dir,
                )
            self._has_said = True
        return False


def _end_of_training(model_dir: str, published: Sequence[Checkpoint]) -> tuple[str, str] | None:
    """Returns the model_dir and how its training ended for good; None if it may continue."""
    line = Ledger(model_dir, writes=False).last_state_line()
    state = line.get("state")
    is_early = line.get("exit_code") in (EXIT_TARGET_REACHED, EXIT_NO_IMPROVEMENT)
    if state not in ("finished", "failed") and not is_early:
        return None
    # Of a training that was removed, or of the attempt before the one that now begins.
    is_stale = not published or (state != "failed" and published[-1].step < line["step"])
    if is_stale or storage.exists(claim_path(model_dir, "train")):
        return None
    reason = f": {line['reason']}" if line.get("reason") else ""
    return model_dir, f"{state} at step {line['step']}{reason}"
