"""Evaluates each checkpoint once, records the metrics and keeps the best checkpoint."""

import dataclasses
import logging
import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from tpudet.trainkit.config.ranges import Count, check
from tpudet.trainkit.errors import UserError
from tpudet.trainkit.training.best_checkpoint import BestCheckpoint
from tpudet.trainkit.training.checkpoint_files import read_index
from tpudet.trainkit.training.checkpoints import (
    Checkpoint,
    UnreadableCheckpointError,
    list_checkpoints,
    load_checkpoint,
)
from tpudet.trainkit.training.engine import OPTIMIZER, Engine
from tpudet.trainkit.training.preemption import Preemption
from tpudet.trainkit.training.run_log import Ledger, MetricsWriter, finite_number

logger = logging.getLogger(__name__)


class Evaluation(NamedTuple):
    """The result of evaluating the model."""

    metrics: dict[str, float]  # by log name
    images: dict[str, np.ndarray]  # for TensorBoard, by name: [H, W, 3] uint8


@dataclass(frozen=True, kw_only=True)
class EvaluationSettings:
    """How a model is evaluated, and at which steps.

    `evaluate` takes the step and is called with the averaged weights in the model. A signal may
    interrupt it; it is then called again after the restart.
    """

    evaluate: Callable[[int], Evaluation]
    every_steps: Count  # and at the end of the run
    best_metric: str  # its highest value decides which checkpoint `best/` holds
    headline: Sequence[str]  # metrics to log as `NAME: 0.1234`
    # Split and rules of the metrics, in words; metrics of another split or rules are not compared.
    measured: str = ""

    __post_init__ = check

    def is_due(self, step: int, total_steps: int) -> bool:
        """Returns whether a checkpoint of this step is evaluated."""
        return step % self.every_steps == 0 or step >= total_steps


class Evaluator:
    """Evaluations of one model_dir, with the ledger as their memory.

    Args:
        engine: built for the model.
        model_dir: of the run.
        settings: how the model is evaluated.
        verify: called before each write; raises ClaimError once another process evaluates here.
        needed: metrics that the results must have, beside those that the settings name.
    """

    def __init__(
        self,
        engine: Engine,
        model_dir: str,
        settings: EvaluationSettings,
        verify: Callable[[], None] = lambda: None,
        *,
        needed: Iterable[str] = (),
    ) -> None:
        self._engine = engine
        self._settings = settings
        self._needed = {*settings.headline, settings.best_metric, *needed}
        self._ledger = Ledger(model_dir, writes=engine.is_chief)
        self._best = BestCheckpoint(model_dir, metric=settings.best_metric, verify=verify)
        self._verify = verify
        self._unusable: dict[str, bytes | None] = {}  # index of what could not be read, by prefix
        self._history: dict[int, dict[str, float]] = {}  # finite metrics by step
        self.last_seconds = 0.0  # of the latest evaluation, for the ETA

    def prepare(self, published: Sequence[Checkpoint]) -> None:
        """Reads which steps were evaluated, and finishes a copy to `best/` that a kill cut off.

        Args:
            published: the checkpoints in model_dir. Evaluations beyond the newest are of a training
                that was discarded.
        """
        newest = max((checkpoint.step for checkpoint in published), default=0)
        lines = [
            line
            for line in self._ledger.lines()
            if line["kind"] == "eval" and line["step"] <= newest
        ]
        self._history = {line["step"]: _finite(line) for line in lines}
        if not self._engine.is_chief:
            return
        metric = self._settings.best_metric
        values = {step: found[metric] for step, found in self._history.items() if metric in found}
        self._verify()
        self._best.prepare(values)
        by_step = {checkpoint.step: checkpoint for checkpoint in published}
        for step in sorted(values.keys() & by_step.keys()):
            self._keep_if_better(by_step[step], values[step])

    @property
    def evaluated_steps(self) -> set[int]:
        """The steps whose evaluation counts."""
        return set(self._history)

    @property
    def history(self) -> dict[int, dict[str, float]]:
        """The finite metrics of each evaluated step, by name."""
        return dict(self._history)

    def pending(self, published: Sequence[Checkpoint], total_steps: int) -> list[Checkpoint]:
        """Returns those of the checkpoints that are still to be evaluated, oldest first."""
        return [
            found
            for found in published
            if self._settings.is_due(found.step, total_steps)
            and found.step not in self.evaluated_steps
            and not self._is_known_unusable(found.prefix)
        ]

    def _is_known_unusable(self, prefix: str) -> bool:
        return prefix in self._unusable and self._unusable[prefix] == read_index(prefix)

    def restore_and_evaluate(
        self, checkpoint: Checkpoint, preemption: Preemption, writer: MetricsWriter
    ) -> None:
        """Evaluates a checkpoint of another process; skips one that is torn or gone.

        Nor does the evaluation count if the trainer went back meanwhile, since it is then of a
        training that was discarded.

        Raises:
            CheckpointMismatchError: it belongs to another model.
            Interrupted, UserError: as evaluate_once.
        """
        index = read_index(checkpoint.prefix)
        try:
            arrays = load_checkpoint(checkpoint.prefix, self._engine.signature(), trains=False)
        except UnreadableCheckpointError as error:
            logger.warning("Not evaluated, it is torn or was removed meanwhile: %s", error)
            self._unusable[checkpoint.prefix] = index
            return
        weights = {key: value for key, value in arrays.items() if not key.startswith(OPTIMIZER)}
        self._engine.load(self._engine.snapshot() | weights)

        def is_current() -> bool:
            now = read_index(checkpoint.prefix)
            newer = now is None and list_checkpoints(os.path.dirname(checkpoint.prefix))
            return bool(now == index or (newer and newer[-1].step > checkpoint.step))

        self.evaluate_once(
            checkpoint, preemption, writer, snapshot=lambda: arrays, is_current=is_current
        )

    def evaluate_once(
        self,
        checkpoint: Checkpoint,
        preemption: Preemption,
        writer: MetricsWriter,
        *,
        snapshot: Callable[[], dict[str, np.ndarray]] | None = None,
        is_current: Callable[[], bool] = lambda: True,
    ) -> None:
        """Evaluates the engine's model, restored from `checkpoint`, unless that was done before.

        Args:
            checkpoint: of the model.
            preemption: interrupts it.
            writer: of the metrics and images.
            snapshot: returns what the checkpoint holds; None: the engine's own.
            is_current: whether the checkpoint is still one of the run, asked after the evaluation.

        Raises:
            Interrupted: a signal came; the evaluation is not recorded.
            UserError: a metric that the settings name is not among the results.
        """
        settings, step = self._settings, checkpoint.step
        if step in self.evaluated_steps:
            return
        started = time.monotonic()
        # Several processes finish it: one that left would leave the others waiting.
        alone = self._engine.num_processes == 1
        with (
            self._engine.averaged_weights(),
            preemption.interruptible() if alone else nullcontext(),
        ):
            metrics, images = settings.evaluate(step)
        self.last_seconds = time.monotonic() - started
        missing = sorted(self._needed - set(metrics))
        if missing:
            raise UserError(
                f"The evaluation has no metric {', '.join(missing)}; it has {', '.join(metrics)}"
            )
        self._verify()
        if not is_current():
            logger.warning(
                "The training went back while step %d was evaluated, which does not count", step
            )
            return
        logger.info("Evaluated step %d in %.1f s", step, self.last_seconds)
        for name in settings.headline:
            logger.info("%s: %.4f", name, metrics[name])
        # Before it is recorded: a kill between the two costs one more evaluation. The other way
        # round the best would be lost where the trainer removes its checkpoint meanwhile.
        best = metrics[settings.best_metric]
        self._offer_best(checkpoint, best, snapshot or self._engine.snapshot)
        writer.write("eval", step, {**metrics, **images})
        about = {"seconds": round(self.last_seconds, 3), "measured": settings.measured}
        self._ledger.append("eval", step, {**metrics, **about})
        self._history[step] = _finite(metrics)

    def _offer_best(
        self, checkpoint: Checkpoint, value: float, snapshot: Callable[[], dict[str, np.ndarray]]
    ) -> None:
        """Keeps a checkpoint if it is better; from `snapshot` if its files are torn or gone.

        Collective, since a snapshot is, and the chief alone knows whether one is needed.
        """
        is_lost = self._engine.is_chief and not self._keep_if_better(checkpoint, value)
        if self._engine.any_process(is_lost):
            arrays = snapshot()
            if is_lost:
                self._keep_if_better(checkpoint, value, arrays)

    def _keep_if_better(
        self,
        checkpoint: Checkpoint,
        value: float,
        arrays: Mapping[str, np.ndarray] | None = None,
    ) -> bool:
        """Keeps a checkpoint, or what it holds; returns False if a better one could not be kept."""
        if not self._best.is_better(value):
            return True
        try:
            if arrays is None:
                self._best.keep(checkpoint, value)
            else:
                self._best.keep_arrays(checkpoint, arrays, value)
        except UnreadableCheckpointError as error:
            logger.warning("The files of the best checkpoint so far could not be kept: %s", error)
            return False
        metric = self._settings.best_metric
        logger.info("Best %s so far: %.4f at step %d", metric, value, checkpoint.step)
        return True


def comparable(settings: EvaluationSettings, model_dir: str, measured: str) -> EvaluationSettings:
    """Returns the settings with what they measure, which is what was measured in the model_dir.

    Lines of earlier versions do not say what they measured, or only its first words, and pass.

    Args:
        settings: how the model is evaluated.
        model_dir: of the run; may not exist yet.
        measured: split and rules of the metrics to come, in words.

    Raises:
        UserError: evaluations that count were of another split, or by other rules.
    """
    published = list_checkpoints(model_dir)
    newest = published[-1] if published else Checkpoint(0, "")
    found = {
        str(line["measured"])
        for line in Ledger(model_dir, writes=False).lines()
        if line["kind"] == "eval" and line["step"] <= newest.step and line.get("measured")
    }
    others = {words for words in found if not f"{measured}, ".startswith(f"{words}, ")}
    if others:
        raise UserError(
            f"The evaluations in {model_dir} are of {' and of '.join(sorted(others))}, and now "
            f"they would be of {measured}: best/, train.patience and train.stop_at would compare "
            "values of different things. Evaluate another split with `tpudet evaluate --split`, or "
            f"continue in another model_dir, after copying {model_dir}/config.yaml and "
            f"{newest.prefix}.* into it"
        )
    return dataclasses.replace(settings, measured=measured)


def _finite(values: Mapping[str, Any]) -> dict[str, float]:
    numbers = {name: finite_number(value) for name, value in values.items()}
    return {name: number for name, number in numbers.items() if number is not None}
