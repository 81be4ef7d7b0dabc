"""Evaluates a checkpoint once, writes the result down and keeps the best."""

import logging
import time
from collections.abc import Callable, Sequence

import tensorflow as tf

from tpudet.trainkit.training import run_log
from tpudet.trainkit.training.best_checkpoint import BestCheckpoint
from tpudet.trainkit.training.checkpoints import (
    Checkpoint,
    UnreadableCheckpointError,
    list_checkpoints,
    restore_checkpoint,
)
from tpudet.trainkit.training.preemption import Preemption
from tpudet.trainkit.training.run import Engine, is_eval_step
from tpudet.trainkit.training.run_log import Ledger, finite_number

Evaluate = Callable[[int], dict[str, float]]

logger = logging.getLogger(__name__)


class Evaluator:
    """Evaluations of one model_dir, with the ledger as their memory."""

    def __init__(
        self,
        engine: Engine,
        model_dir: str,
        evaluate: Evaluate,
        headline: Sequence[str],
        best_metric: str,
    ) -> None:
        self._engine = engine
        self._model_dir = model_dir
        self._evaluate = evaluate
        self._headline = headline
        self._best_metric = best_metric
        self._ledger = Ledger(model_dir)
        self._best = BestCheckpoint(model_dir, metric=best_metric)
        self._unusable: set[str] = set()  # prefixes that could not be read
        self.evaluated_steps: set[int] = set()
        self.last_seconds = 0.0  # of the latest evaluation, for the ETA

    def prepare(self, published: Sequence[Checkpoint]) -> None:
        """Reads what was evaluated, and makes up for a best copy that a kill cut off.

        Args:
            published: the checkpoints in model_dir. Where there is none this is a new training,
                and a best one left from an earlier does not count.
        """
        self.evaluated_steps = self._ledger.evaluated_steps()
        self._best.prepare()
        if not published and self._best.record is not None:
            logger.warning("%s is of an earlier training and will be replaced", self._best.record)
            self._best.record = None
        by_step = {checkpoint.step: checkpoint for checkpoint in published}
        values = [
            (finite_number(line.get(self._best_metric)), line["step"])
            for line in self._ledger.lines()
            if line["kind"] == "eval"
        ]
        for value, step in values:
            if value is not None and step in by_step:
                self._offer_best(by_step[step], value)

    def pending(self, eval_every_steps: int, total_steps: int) -> list[Checkpoint]:
        """The checkpoints in model_dir that are to be evaluated and are not yet, oldest first."""
        return [
            found
            for found in list_checkpoints(self._model_dir)
            if is_eval_step(found.step, eval_every_steps, total_steps)
            and found.step not in self.evaluated_steps
            and found.prefix not in self._unusable
        ]

    def restore_and_evaluate(
        self, checkpoint: Checkpoint, preemption: Preemption, writer: tf.summary.SummaryWriter
    ) -> None:
        """Evaluates a checkpoint of another process; passes over a torn or vanished one.

        Raises:
            CheckpointMismatchError: it belongs to another model.
            Interrupted, ValueError: as evaluate_once.
        """
        try:
            restore_checkpoint(checkpoint.prefix, self._engine.state())
        except UnreadableCheckpointError as error:
            logger.warning("Not evaluated, it is torn or was removed meanwhile: %s", error)
            self._unusable.add(checkpoint.prefix)
            return
        self.evaluate_once(checkpoint, preemption, writer)

    def evaluate_once(
        self, checkpoint: Checkpoint, preemption: Preemption, writer: tf.summary.SummaryWriter
    ) -> None:
        """Evaluates what the engine holds, which is `checkpoint`, unless that is on record.

        Raises:
            Interrupted: a signal came; the evaluation is not on record.
            ValueError: a metric that was asked for is not among the results.
        """
        step = checkpoint.step
        if step in self.evaluated_steps:
            return
        started = time.monotonic()
        with (
            self._engine.averaged_weights(),
            writer.as_default(step=step),
            preemption.interruptible(),
        ):
            metrics = self._evaluate(step)
        self.last_seconds = time.monotonic() - started
        missing = sorted({*self._headline, self._best_metric} - set(metrics))
        if missing:
            raise ValueError(
                f"The evaluation has no metric {', '.join(missing)}; it has {', '.join(metrics)}"
            )
        run_log.write_scalars(writer, "eval", step, metrics)
        self._ledger.append("eval", step, {**metrics, "seconds": round(self.last_seconds, 3)})
        self.evaluated_steps.add(step)
        logger.info("Evaluated step %d in %.1f s", step, self.last_seconds)
        for name in self._headline:
            logger.info("%s: %.4f", name, metrics[name])
        self._offer_best(checkpoint, metrics[self._best_metric])

    def _offer_best(self, checkpoint: Checkpoint, value: float) -> None:
        if not self._best.is_better(value):
            return
        try:
            self._best.keep(checkpoint, value)
        except UnreadableCheckpointError as error:
            logger.warning("The best checkpoint so far could not be kept: %s", error)
            return
        logger.info("Best %s so far: %.4f at step %d", self._best_metric, value, checkpoint.step)
