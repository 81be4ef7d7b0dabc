"""One training run in its model_dir: restore, train to a step, log, save, say how it ended."""

import dataclasses
import logging
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import Protocol

import tensorflow as tf

from tpudet.trainkit.records import RECORDS_PER_SHARD_LIMIT
from tpudet.trainkit.training import run_log
from tpudet.trainkit.training.checkpoints import Checkpoint, Checkpoints
from tpudet.trainkit.training.preemption import Interrupted, Preemption
from tpudet.trainkit.training.run_log import Ledger, State
from tpudet.trainkit.training.task import NonfiniteStep, StepReport

EXIT_FINISHED = 0
EXIT_PREEMPTED = 75  # EX_TEMPFAIL of sysexits.h: stopped by a signal, state saved, start again

logger = logging.getLogger(__name__)


class Engine(Protocol):
    """What the loop needs of an engine; see tensorflow_engine.TensorFlowEngine."""

    @property
    def step(self) -> int:
        """Steps done since the start of the run."""
        ...

    @property
    def batch_size(self) -> int:
        """Images a step, over all replicas."""
        ...

    def train(self, num_steps: int) -> StepReport:
        """At most `num_steps`; fewer after request_stop() or a loss that is not finite."""
        ...

    def request_stop(self) -> None:
        """Ends train() at the next step boundary; thread-safe."""
        ...

    def state(self) -> dict[str, tf.Variable]:
        """Checkpoint key -> variable."""
        ...

    def restart_input(self) -> None:
        """Reads on from the position in the restored state."""
        ...

    def averaged_weights(self) -> AbstractContextManager[None]:
        """Inside, the model holds the averaged weights, where there are any."""
        ...


class NonfiniteLossError(RuntimeError):
    """A loss became NaN or infinite; nothing of that step or since the last save was saved."""

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


@dataclasses.dataclass(frozen=True, kw_only=True)
class Intervals:
    """How often what happens, in steps; ValueError lists every number below 1."""

    total_steps: int
    iterations_per_loop: int  # steps a call of the engine, at most
    log_every_steps: int
    checkpoint_every_steps: int

    def __post_init__(self) -> None:
        """Checks all of them at once."""
        check_at_least_one(dataclasses.asdict(self))

    def next_cut(self, step: int, target: int) -> int:
        """Where the next call ends: a function of the step alone, so a restart cuts alike."""
        every = (self.iterations_per_loop, self.log_every_steps, self.checkpoint_every_steps)
        return min(target, *(next_multiple(step, interval) for interval in every))


class TrainingRun:
    """A training run in its model_dir: what train and train_and_eval have in common."""

    def __init__(
        self, engine: Engine, model_dir: str, intervals: Intervals, keep_checkpoints: int
    ) -> None:
        self._engine = engine
        self._model_dir = model_dir
        self._intervals = intervals
        self.checkpoints = Checkpoints(model_dir, keep=keep_checkpoints)
        self.preemption = Preemption(engine.request_stop)
        self._ledger = Ledger(model_dir)
        self._progress = run_log.Progress(batch_size=engine.batch_size)
        self._saved_step = engine.step  # a run stopped before its first step saves nothing
        self.writer = tf.summary.create_noop_writer()  # until restore() knows where to go on

    def supervise(self, body: Callable[[], None]) -> int:
        """Runs `body`, keeps the state in the ledger and turns signals into the exit code."""
        self.checkpoints.prepare()
        try:
            with self.preemption:
                body()
        except Interrupted as signal_name:
            self._note_state("stopped", str(signal_name))
            logger.info(
                "Stopped by %s at step %d; all steps are saved, and the same command goes on from "
                "there (exit code %d).",
                signal_name,
                self._engine.step,
                EXIT_PREEMPTED,
            )
            return EXIT_PREEMPTED
        except Exception as error:
            self._note_state("failed", f"{type(error).__name__}: {error}")
            raise
        finally:
            self.writer.close()
        if self._ledger.last_state() != "finished":
            self._note_state("finished")
        logger.info("Finished at step %d: %s", self._engine.step, self._model_dir)
        return EXIT_FINISHED

    def restore(self) -> int | None:
        """Brings back the newest checkpoint, the input and the ledger to the same step."""
        restored = self.checkpoints.restore(self._engine.state())
        if restored is None:
            logger.info("Starting at step 0: %s holds no checkpoint", self._model_dir)
        else:
            self._engine.restart_input()
            logger.info("Restored %s", self.checkpoints.published[-1].prefix)
        self._ledger.rewind(restored)
        self._saved_step = self._engine.step
        total_steps = self._intervals.total_steps
        if self._engine.step > total_steps:
            logger.warning(
                "The checkpoint is at step %d, beyond total_steps %d: there is nothing to train",
                self._engine.step,
                total_steps,
            )
        if self._engine.step < total_steps or self._ledger.last_state() != "finished":
            self._note_state("running")
        self.writer = run_log.open_writer(self._model_dir, restored_step=restored)
        return restored

    def newest(self) -> Checkpoint:
        """The checkpoint that holds the engine's present state."""
        return self.checkpoints.published[-1]

    def train_to(self, target: int, *, remaining_eval_seconds: float = 0.0) -> None:
        """Trains to `target` and saves there; raises Interrupted once a signal's state is saved."""
        while self._engine.step < target:
            if self.preemption.requested:
                self._save()
                raise Interrupted(self.preemption.signal_name)
            before = self._engine.step
            report = self._engine.train(self._intervals.next_cut(before, target) - before)
            if report.nonfinite is not None:
                raise NonfiniteLossError(report.nonfinite)
            step = self._engine.step
            if step == before and not self.preemption.requested:
                raise RuntimeError(f"The engine made no step at step {step}: has the input ended?")
            if step > before:
                self._progress.add(report)
                self._log_and_save(step, target, remaining_eval_seconds)

    def _log_and_save(self, step: int, target: int, remaining_eval_seconds: float) -> None:
        """The line before the checkpoint: a kill in between must not lose it."""
        intervals = self._intervals
        if step % intervals.log_every_steps == 0 or step == intervals.total_steps:
            summary = self._progress.summary(
                remaining_steps=intervals.total_steps - step,
                remaining_eval_seconds=remaining_eval_seconds,
            )
            logger.info("%s", run_log.format_line(step, intervals.total_steps, summary))
            self._ledger.append("train", step, summary)
            run_log.write_scalars(self.writer, "train", step, summary)
            self._progress.reset()
        if step % intervals.checkpoint_every_steps == 0 or step == target:
            self._save()

    def _save(self) -> None:
        if self._engine.step != self._saved_step:
            checkpoint = self.checkpoints.save(self._engine.state())
            logger.info("Saved %s", checkpoint.prefix)
            self._saved_step = checkpoint.step
            self._progress.reset()

    def _note_state(self, state: State, reason: str = "") -> None:
        values = {"state": state, "total_steps": self._intervals.total_steps, "reason": reason}
        self._ledger.append("state", self._engine.step, values)


def next_multiple(step: int, interval: int) -> int:
    """The first multiple of `interval` beyond `step`."""
    return (step // interval + 1) * interval


def is_eval_step(step: int, eval_every_steps: int, total_steps: int) -> bool:
    """Whether a checkpoint of this step is to be evaluated."""
    return step % eval_every_steps == 0 or step >= total_steps


def check_at_least_one(values: Mapping[str, int]) -> None:
    """ValueError that lists every number below 1 with its name."""
    wrong = [f"{name} is {value}" for name, value in values.items() if value < 1]
    if wrong:
        raise ValueError(f"{'; '.join(wrong)}: at least 1 is needed")
