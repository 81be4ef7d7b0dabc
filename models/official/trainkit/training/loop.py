"""Training, evaluation, and both in turn, over any number of kills and restarts.

What holds (each is a test in tests/trainkit/training/test_loop.py):

1. Targets are the multiples of `eval_every_steps` and `total_steps`, wherever a run was restored;
   it never trains beyond `total_steps`, and a finished run that was never evaluated still is.
2. The ledger says what was evaluated. After a kill between a save and its evaluation only that
   evaluation is made up for; none is done twice.
3. SIGTERM or SIGINT saves at the next step boundary; the functions then return EXIT_PREEMPTED.
4. A loss that is not finite raises NonfiniteLossError and saves nothing.

At each step boundary the log line comes first, then the checkpoint, then the evaluation. Whatever
a kill cuts off is therefore done again after the restart, and nothing is lost.
"""

import logging
import math
import os
import time
from collections.abc import Sequence

import tensorflow as tf

from tpudet.trainkit.training import checkpoints
from tpudet.trainkit.training.evaluator import Evaluate, Evaluator
from tpudet.trainkit.training.preemption import Interrupted, Preemption
from tpudet.trainkit.training.run import (
    EXIT_FINISHED,
    EXIT_PREEMPTED,
    Engine,
    Intervals,
    NonfiniteLossError,
    TrainingRun,
    check_at_least_one,
    is_eval_step,
    next_multiple,
)

__all__ = [
    "EXIT_FINISHED",
    "EXIT_PREEMPTED",
    "Engine",
    "NonfiniteLossError",
    "evaluate_checkpoints",
    "train",
    "train_and_eval",
]

logger = logging.getLogger(__name__)


def train(
    *,
    engine: Engine,
    model_dir: str,
    total_steps: int,
    iterations_per_loop: int,
    log_every_steps: int,
    checkpoint_every_steps: int,
    keep_checkpoints: int = 5,
) -> int:
    """Trains to `total_steps` from the newest checkpoint in `model_dir`, without evaluating.

    Returns:
        The exit code of the process: EXIT_FINISHED or EXIT_PREEMPTED.

    Raises:
        NonfiniteLossError, CheckpointMismatchError, UnreadableCheckpointError.
    """
    intervals = Intervals(
        total_steps=total_steps,
        iterations_per_loop=iterations_per_loop,
        log_every_steps=log_every_steps,
        checkpoint_every_steps=checkpoint_every_steps,
    )
    run = TrainingRun(engine, model_dir, intervals, keep_checkpoints)

    def body() -> None:
        run.restore()
        run.train_to(total_steps)

    return run.supervise(body)


def train_and_eval(
    *,
    engine: Engine,
    model_dir: str,
    evaluate: Evaluate,
    headline: Sequence[str],
    best_metric: str,
    total_steps: int,
    eval_every_steps: int,
    iterations_per_loop: int,
    log_every_steps: int,
    checkpoint_every_steps: int,
    keep_checkpoints: int = 5,
) -> int:
    """Trains to the next target, saves, evaluates, and so on to `total_steps`.

    Args:
        engine: built for this model and input; its state is restored here.
        model_dir: any path of tf.io.gfile.
        evaluate: step -> metrics, called with the averaged weights in the model and a TensorBoard
            writer as default (tf.summary.image works as it is). It may be interrupted by a signal
            and is then called again after the restart.
        headline: metrics to log as `NAME: 0.1234`.
        best_metric: the metric whose highest value decides what `best/` holds.
        total_steps: where training ends.
        eval_every_steps: an evaluation at each multiple, and at the end.
        iterations_per_loop: steps a call of the engine, at most.
        log_every_steps: a train line at each multiple.
        checkpoint_every_steps: a checkpoint at each multiple, and before each evaluation.
        keep_checkpoints: how many of the newest stay.

    Returns:
        The exit code of the process: EXIT_FINISHED or EXIT_PREEMPTED.

    Raises:
        NonfiniteLossError, CheckpointMismatchError, UnreadableCheckpointError; ValueError where
        `evaluate` does not return what `headline` and `best_metric` name.
    """
    intervals = Intervals(
        total_steps=total_steps,
        iterations_per_loop=iterations_per_loop,
        log_every_steps=log_every_steps,
        checkpoint_every_steps=checkpoint_every_steps,
    )
    check_at_least_one({"eval_every_steps": eval_every_steps})
    run = TrainingRun(engine, model_dir, intervals, keep_checkpoints)
    evaluator = Evaluator(engine, model_dir, evaluate, headline, best_metric)

    def body() -> None:
        restored = run.restore()
        evaluator.prepare(run.checkpoints.published)
        if restored is not None and is_eval_step(engine.step, eval_every_steps, total_steps):
            evaluator.evaluate_once(run.newest(), run.preemption, run.writer)
        while engine.step < total_steps:
            target = min(next_multiple(engine.step, eval_every_steps), total_steps)
            evaluations_left = math.ceil((total_steps - engine.step) / eval_every_steps)
            run.train_to(target, remaining_eval_seconds=evaluations_left * evaluator.last_seconds)
            evaluator.evaluate_once(run.newest(), run.preemption, run.writer)

    return run.supervise(body)


def evaluate_checkpoints(
    *,
    engine: Engine,
    model_dir: str,
    evaluate: Evaluate,
    headline: Sequence[str],
    best_metric: str,
    total_steps: int,
    eval_every_steps: int,
    poll_seconds: float = 30.0,
    timeout_seconds: float | None = None,
) -> int:
    """Evaluates the checkpoints that another process writes, until that of `total_steps`.

    The same steps are evaluated as train_and_eval would, oldest first, each once. A checkpoint
    that the trainer removes meanwhile is passed over. TensorBoard finds the results in
    `<model_dir>/eval`: two processes cannot write events to one folder.

    Args:
        engine: built as for training; each checkpoint is restored into it.
        model_dir: where the trainer writes.
        evaluate: as in train_and_eval.
        headline: metrics to log as `NAME: 0.1234`.
        best_metric: the metric whose highest value decides what `best/` holds.
        total_steps: the evaluation of this step is the last.
        eval_every_steps: other checkpoints than those at its multiples are passed over.
        poll_seconds: how long to wait before looking again.
        timeout_seconds: give up after so long without a new checkpoint; None: never.

    Returns:
        EXIT_FINISHED, also after the timeout (with a warning), or EXIT_PREEMPTED.

    Raises:
        CheckpointMismatchError: a checkpoint belongs to another model.
    """
    check_at_least_one({"total_steps": total_steps, "eval_every_steps": eval_every_steps})
    evaluator = Evaluator(engine, model_dir, evaluate, headline, best_metric)
    evaluator.prepare(checkpoints.list_checkpoints(model_dir))
    writer = tf.summary.create_file_writer(os.path.join(model_dir, "eval"))
    patience = math.inf if timeout_seconds is None else timeout_seconds
    last_seen = time.monotonic()
    try:
        with Preemption(engine.request_stop) as preemption:
            while not preemption.requested:
                if pending := evaluator.pending(eval_every_steps, total_steps):
                    evaluator.restore_and_evaluate(pending[0], preemption, writer)
                    last_seen = time.monotonic()
                elif max(evaluator.evaluated_steps, default=0) >= total_steps:
                    return EXIT_FINISHED
                elif time.monotonic() - last_seen >= patience:
                    logger.warning("No new checkpoint in %s for %gs", model_dir, patience)
                    return EXIT_FINISHED
                else:
                    preemption.wait(poll_seconds)
            raise Interrupted(preemption.signal_name)
    except Interrupted as signal_name:
        logger.info("Stopped by %s; the same command goes on from there", signal_name)
        return EXIT_PREEMPTED
    finally:
        writer.close()
