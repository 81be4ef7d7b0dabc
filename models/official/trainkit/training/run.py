"""One training run in its model_dir: restores, trains to a step, logs, saves, reports its end."""

import logging
import math
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tpudet.trainkit.command_line import command_start
from tpudet.trainkit.config.ranges import Count, check
from tpudet.trainkit.files.claims import ClaimError
from tpudet.trainkit.records import RECORDS_PER_SHARD_LIMIT
from tpudet.trainkit.training import run_log
from tpudet.trainkit.training.best_checkpoint import forget_best
from tpudet.trainkit.training.checkpoints import Checkpoint, Checkpoints
from tpudet.trainkit.training.config import LoggerName, ProfileConfig
from tpudet.trainkit.training.engine import Engine, NonfiniteStep
from tpudet.trainkit.training.evaluator import Evaluator
from tpudet.trainkit.training.jax_hosts import LostHostError
from tpudet.trainkit.training.loggers import open_loggers
from tpudet.trainkit.training.preemption import Interrupted, Preemption
from tpudet.trainkit.training.profiling import Profiler
from tpudet.trainkit.training.progress_display import ProgressDisplay
from tpudet.trainkit.training.run_log import Ledger, MetricsWriter, State, finite_number
from tpudet.trainkit.training.run_outlook import FIRST_STEPS, FirstSteps
from tpudet.trainkit.training.stopping import EXIT_FINISHED, EarlyEnd
from tpudet.trainkit.training.wall_time import (
    DISCARDED,
    LAST_SEEN,
    STARTED,
    WALL_SECONDS,
    Part,
    WallClock,
    wall_seconds,
)
from tpudet.trainkit.weights.tensor_bundle import UnavailableCheckpointError

TRAINING_RECORDS = "training_records"

logger = logging.getLogger(__name__)


class NonfiniteLossError(RuntimeError):
    """A loss became NaN or infinite; nothing since the last save was saved."""

    def __init__(self, nonfinite: NonfiniteStep) -> None:
        self.step = nonfinite.step
        self.losses = nonfinite.losses
        self.records = nonfinite.records
        parts = ", ".join(f"{name} = {value:g}" for name, value in self.losses.items())
        places = (divmod(record, RECORDS_PER_SHARD_LIMIT) for record in self.records)
        super().__init__(
            f"The loss is not finite at step {self.step}: {parts}. Records of the batch, as "
            f"shard:index: {', '.join(f'{shard}:{index}' for shard, index in places)}. "
            "Nothing was saved since the last checkpoint. Look at these records (check_data), "
            "or lower the learning rate, lengthen the warm-up or clip gradients."
        )


@dataclass(frozen=True, kw_only=True)
class RunSettings:
    """How long a run is, and how often it logs and saves, in steps."""

    total_steps: Count
    iterations_per_loop: Count  # steps per call of the engine, at most
    log_every_steps: Count  # and at the end
    checkpoint_every_steps: Count  # and before each evaluation, of another process too
    keep_checkpoints: Count  # how many of the newest stay
    training_records: str = ""  # digest of the records; a run that resumes with others says so
    records_replaced: Callable[[], bool] = lambda: False  # asked before each save
    deadline: float = math.inf  # by time.monotonic: the process then saves and stops
    advice_if_slow: str = ""  # what to do if the run will take hours
    stop_at: Mapping[str, float] | None = None  # see `stopping.early_end`
    patience: Count | None = None
    profile: ProfileConfig | None = None
    loggers: tuple[LoggerName, ...] = ("tensorboard",)

    __post_init__ = check

    def next_cut(self, step: int, target: int) -> int:
        """Where the next call ends: a function of the step alone, so that a restart cuts alike.

        The first calls are short: steps 1, 2, 4 and 8 end one, so that a reader soon sees a loss
        and the duration of the run.
        """
        every = (self.iterations_per_loop, self.log_every_steps, self.checkpoint_every_steps)
        first = 1 << step.bit_length() if step < FIRST_STEPS else target
        return min(target, first, *(next_multiple(step, interval) for interval in every))


class TrainingRun:
    """A training run in its model_dir: the part that train and train_and_eval share.

    Every process has one; only that of the chief writes files.

    Args:
        engine: built for this model and input.
        model_dir: any folder or bucket, claimed by this process.
        settings: how long the run is, and how often it logs and saves.
        verify: called before each write; raises ClaimError once another process owns the model_dir.
    """

    def __init__(
        self,
        engine: Engine,
        model_dir: str,
        settings: RunSettings,
        verify: Callable[[], None] = lambda: None,
    ) -> None:
        self._engine = engine
        self._model_dir = model_dir
        self._settings = settings
        self.checkpoints = Checkpoints(
            model_dir, keep=settings.keep_checkpoints, writes=engine.is_chief, verify=verify
        )
        self._verify = verify
        self.preemption = Preemption(engine.request_stop, deadline=settings.deadline)
        self._ledger = Ledger(model_dir, writes=engine.is_chief)
        self._progress = run_log.Progress(batch_size=engine.batch_size)
        self._first_steps = FirstSteps(settings.total_steps, settings.advice_if_slow)
        self._display = ProgressDisplay(lambda: engine.step, settings.total_steps)
        # Of the chief alone: all hosts do the same.
        self._profiler = Profiler(model_dir, settings.profile if engine.is_chief else None)
        self._has_warned = False  # of records that are replaced
        self._saved_step = engine.step  # a run stopped before its first step saves nothing
        self._started = command_start() or time.time()
        self._clock = WallClock(self._started)
        self.writer: MetricsWriter = run_log.DiscardingWriter()  # until restore() knows the step

    def supervise(self, body: Callable[[], None]) -> int:
        """Runs `body`, records its state in the ledger and turns early ends into the exit code."""
        self.checkpoints.prepare()
        failed = False
        try:
            with self.preemption:
                try:
                    body()
                finally:
                    self._clock.lap("other")
                    self.checkpoints.wait()
                    self._clock.lap("save")
        except Interrupted as end:
            return self._interrupted(end)
        except EarlyEnd as end:
            return self._ended_early(end)
        except ClaimError:
            raise
        except (LostHostError, UnavailableCheckpointError) as error:  # the same command resumes
            self._record_state("stopped", str(error))
            raise
        except Exception as error:
            failed = True
            self._record_state("failed", f"{type(error).__name__}: {error}")
            raise
        finally:
            self._profiler.close()
            self.writer.close(failed=failed)
        if self._ledger.last_end() != ("finished", self._engine.step, self._settings.total_steps):
            self._record_state("finished")
        logger.info("Finished at step %d: %s", self._engine.step, self._model_dir)
        return EXIT_FINISHED

    def _interrupted(self, end: Interrupted) -> int:
        self._record_state("stopped", str(end))
        logger.info(
            "Stopped by %s at step %d; all steps are saved, and the same command resumes from "
            "there (exit code %d).",
            end,
            self._engine.step,
            end.exit_code,
        )
        return end.exit_code

    def _ended_early(self, end: EarlyEnd) -> int:
        self._record_state("stopped", str(end), exit_code=end.exit_code)
        logger.info(
            "Ended at step %d of %d: %s. All steps are saved, and the same command continues once "
            "%s (exit code %d).",
            self._engine.step,
            self._settings.total_steps,
            end,
            end.remedy,
            end.exit_code,
        )
        return end.exit_code

    def restore(self) -> int | None:
        """Sets the engine, its input and the ledger to the step of the newest checkpoint.

        Returns:
            That step; None if there is no checkpoint.
        """
        restored = None
        arrays = self.checkpoints.load_newest(self._engine.signature())
        if arrays is None:
            logger.info("Starting at step 0: %s holds no checkpoint", self._model_dir)
        else:
            self._engine.load(arrays)
            self._engine.restart_input()
            restored = self._engine.step
            logger.info("Restored %s", self.newest().prefix)
        before = self._ledger.lines()
        self._engine.agree_on_step()  # a run that is refused has lost nothing
        self._verify()
        if restored:
            self._compare_records([line for line in before if line["step"] < restored])
        attempt = self._describe_attempt(before, self._ledger.rewind(restored))
        if self._engine.is_chief:
            forget_best(self._model_dir, beyond=restored)
        self._engine.any_process(False)  # before others read what the chief has rewritten
        self._saved_step = self._engine.step
        total_steps = self._settings.total_steps
        if self._engine.step > total_steps:
            logger.warning(
                "The checkpoint is at step %d, beyond total_steps %d: there is nothing to train",
                self._engine.step,
                total_steps,
            )
        if self._engine.step < total_steps or self._ledger.last_state() != "finished":
            self._record_state("running", part="start", **attempt)
        if self._engine.is_chief:
            self.writer = open_loggers(
                self._settings.loggers, self._model_dir, restored_step=restored
            )
        self._clock.lap("start")
        return restored

    def _describe_attempt(
        self, before: Sequence[dict[str, Any]], discarded: Sequence[dict[str, Any]]
    ) -> dict[str, Any]:
        """The fields of an attempt's first line: of itself, and of the lines before it."""
        records = self._settings.training_records
        attempt: dict[str, Any] = {STARTED: round(self._started, 3), TRAINING_RECORDS: records}
        if before:
            attempt[LAST_SEEN] = max(finite_number(line.get("time")) or 0.0 for line in before)
        lost: Counter[str] = Counter()
        for line in discarded:
            lost.update(wall_seconds(line))
        return {**attempt, DISCARDED: dict(lost)} if lost else attempt

    def _compare_records(self, before: Sequence[dict[str, Any]]) -> None:
        """Compares the records with those of the last attempt that trained to the restored step."""
        known = (line[TRAINING_RECORDS] for line in reversed(before) if line.get(TRAINING_RECORDS))
        if next(known, self._settings.training_records) != self._settings.training_records:
            logger.warning(
                "The training records are not those that this run was trained on so far. If the "
                "images were split again, the model has trained on some that it is now evaluated "
                "on, and the metrics are too high: train in another model_dir"
            )

    def newest(self) -> Checkpoint:
        """Returns the checkpoint that holds the engine's present state."""
        return self.checkpoints.published[-1]

    def evaluate(self, evaluator: Evaluator) -> None:
        """Evaluates the newest checkpoint, unless that was done before.

        Raises:
            Interrupted, ValueError: as Evaluator.evaluate_once.
        """
        self._clock.lap("other")
        try:
            evaluator.evaluate_once(self.newest(), self.preemption, self.writer)
        finally:
            self._clock.lap("evaluation")

    def train_to(self, target: int, *, remaining_eval_seconds: float = 0.0) -> None:
        """Trains to step `target` and saves there.

        Raises:
            Interrupted: a signal came; the state is saved.
            NonfiniteLossError: a loss or the gradient is not finite.
        """
        while self._engine.step < target:
            if self._engine.any_process(self.preemption.requested):
                self._save()
                raise Interrupted(self.preemption.signal_name or "a signal to another host")
            before = self._engine.step
            self._profiler.at_boundary(before)
            self._clock.lap("other")
            with self._display.shown():
                report = self._engine.train(self._settings.next_cut(before, target) - before)
            self._clock.lap_steps(report)
            if report.nonfinite is not None:
                raise NonfiniteLossError(report.nonfinite)
            step = self._engine.step
            if step == before and not self.preemption.requested:
                raise RuntimeError(f"The engine made no step at step {step}: has the input ended?")
            if step > before:
                self._progress.add(report)
                self._first_steps.add(report, step)
                self._log_and_save(step, target, remaining_eval_seconds)

    def _log_and_save(self, step: int, target: int, remaining_eval_seconds: float) -> None:
        """Writes the line before the checkpoint: a kill in between must not lose it."""
        settings = self._settings
        if step % settings.log_every_steps == 0 or step == settings.total_steps:
            summary = self._progress.summary(
                remaining_steps=settings.total_steps - step,
                remaining_eval_seconds=remaining_eval_seconds,
            )
            logger.info("%s", run_log.format_line(step, settings.total_steps, summary))
            self._display.note_line()
            self._verify()
            self._clock.lap("other")
            wall = {WALL_SECONDS: self._clock.take()}
            self._ledger.append("train", step, {**summary, **wall})
            self.writer.write("train", step, summary)
            self._progress.reset()
        if step % settings.checkpoint_every_steps == 0 or step == target:
            self._save()

    def _save(self) -> None:
        if self._engine.step != self._saved_step:
            self._warn_of_replaced_records()
            self._clock.lap("other")
            checkpoint = self.checkpoints.save(self._engine.snapshot())
            self._saved_step = checkpoint.step
            self._progress.reset()
            self._clock.lap("save")

    def _warn_of_replaced_records(self) -> None:
        if not self._has_warned and self._engine.is_chief and self._settings.records_replaced():
            self._has_warned = True
            logger.warning(
                "The training records were rewritten while they were being read: records of both "
                "sets have been trained on, with the labels of both. Train on them from a "
                "checkpoint before step %d, or in another model_dir",
                self._engine.step,
            )

    def _record_state(
        self, state: State, reason: str = "", *, part: Part = "other", **values: Any
    ) -> None:
        self._verify()  # also says why another error came: the files were taken away
        self._clock.lap(part)
        known = {"state": state, "total_steps": self._settings.total_steps, "reason": reason}
        wall = {WALL_SECONDS: self._clock.take()}
        self._ledger.append("state", self._engine.step, {**known, **values, **wall})


def next_multiple(step: int, interval: int) -> int:
    """Returns the first multiple of `interval` beyond `step`."""
    return (step // interval + 1) * interval
