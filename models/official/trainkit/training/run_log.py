"""The ledger of a run: `metrics.jsonl`, one JSON object a line.

Each line has `kind`, `step` and `time` (seconds since 1970), and beside them
- `train`: the losses by name, `learning_rate`, `images_per_second`, `input_wait_share` (0..1),
  `eta_seconds`, `steps` (how many steps the losses are the mean of);
- `eval`: the metrics by name, `seconds` the evaluation took;
- `state`: `state` (running, finished, stopped, failed), `total_steps`, `reason`.

Numbers that JSON cannot hold are the strings "nan", "inf" and "-inf".

Lines are appended with gfile and flushed to the disk. Where a store cannot append, the whole small
file is written anew; buckets do that under the hood too, so there a trainer and an evaluator that
append within the same second may lose one of the two lines (the evaluation is then repeated).
"""

import json
import logging
import math
import numbers
import os
import time
from collections.abc import Mapping
from typing import Any, Literal

import tensorflow as tf

from tpudet.trainkit.files import storage
from tpudet.trainkit.training.task import StepReport


def open_writer(model_dir: str, *, restored_step: int | None) -> tf.summary.SummaryWriter:
    """Opens a writer; after a restart TensorBoard forgets what lies beyond `restored_step`.

    TensorFlow 2 has no `purge_step` for its writer, so the event that asks for it, a session
    start, goes into a small file of its own. The first start needs one too: TensorBoard takes the
    first that it sees for the beginning. It reads files in the order of their names: seconds, then
    the host, and "0." sorts before the names of hosts.
    """
    first_step = 0 if restored_step is None else restored_step + 1
    path = os.path.join(model_dir, f"events.out.tfevents.{int(time.time())}.0.start")
    start = tf.compat.v1.SessionLog(status=tf.compat.v1.SessionLog.START)
    with tf.io.TFRecordWriter(path) as records:
        for event in (
            tf.compat.v1.Event(wall_time=time.time(), file_version="brain.Event:2"),
            tf.compat.v1.Event(wall_time=time.time(), step=first_step, session_log=start),
        ):
            records.write(event.SerializeToString())
    return tf.summary.create_file_writer(model_dir)


def write_scalars(
    writer: tf.summary.SummaryWriter, group: str, step: int, values: Mapping[str, float]
) -> None:
    """Writes `group/name` scalars and flushes, so that a killed run shows all it has logged."""
    with writer.as_default(step=step):
        for name, value in values.items():
            tf.summary.scalar(f"{group}/{name}", value)
    writer.flush()


class Progress:
    """Sums up the reports since the last log line or checkpoint, whichever is later.

    Starting anew at each checkpoint makes a line the same whether or not the run was killed and
    restored there.
    """

    def __init__(self, *, batch_size: int) -> None:
        """Takes the images a step over all replicas."""
        self._batch_size = batch_size
        self.reset()

    def reset(self) -> None:
        """Forgets what was summed up."""
        self._steps = 0
        self._seconds = 0.0
        self._waited_seconds = 0.0
        self._learning_rate = 0.0
        self._loss_sums: dict[str, float] = {}

    def add(self, report: StepReport) -> None:
        """Takes in one call of `engine.train`."""
        self._steps += report.steps_done
        self._seconds += report.seconds
        self._waited_seconds += report.input_wait_share * report.seconds
        self._learning_rate = report.learning_rate
        for name, value in report.losses.items():
            self._loss_sums[name] = self._loss_sums.get(name, 0.0) + value * report.steps_done

    def summary(self, *, remaining_steps: int, remaining_eval_seconds: float) -> dict[str, Any]:
        """The values of a train line, as `ledger` lists them."""
        steps, seconds = max(self._steps, 1), max(self._seconds, 1e-9)
        return {
            **{name: total / steps for name, total in self._loss_sums.items()},
            "learning_rate": self._learning_rate,
            "images_per_second": round(self._steps * self._batch_size / seconds, 3),
            "input_wait_share": round(self._waited_seconds / seconds, 4),
            "eta_seconds": round(remaining_steps * seconds / steps + remaining_eval_seconds, 1),
            "steps": self._steps,
        }


def format_line(step: int, total_steps: int, summary: Mapping[str, Any]) -> str:
    """One line for the screen."""
    losses = "  ".join(
        f"{name} {value:.4g}" for name, value in summary.items() if name.startswith("loss")
    )
    return (
        f"step {step}/{total_steps}  {losses}  learning rate {summary['learning_rate']:.4g}  "
        f"{summary['images_per_second']:.1f} images/s  "
        f"waiting for input {summary['input_wait_share']:.0%}  "
        f"ETA {format_duration(summary['eta_seconds'])}"
    )


def format_duration(seconds: float) -> str:
    """Hours, minutes and seconds, as `1:02:03`."""
    minutes, whole_seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{whole_seconds:02d}"


FILE_NAME = "metrics.jsonl"
Kind = Literal["train", "eval", "state"]
State = Literal["running", "finished", "stopped", "failed"]

logger = logging.getLogger(__name__)


class Ledger:
    """Reads and appends the ledger of one model_dir."""

    def __init__(self, model_dir: str) -> None:
        self.path = os.path.join(model_dir, FILE_NAME)
        self._ends_whole: bool | None = None  # unknown before the first append

    def lines(self) -> list[dict[str, Any]]:
        """Every whole line in order."""
        return read_ledger(self.path)

    def evaluated_steps(self) -> set[int]:
        """The steps whose evaluation is on record."""
        return {line["step"] for line in self.lines() if line["kind"] == "eval"}

    def last_state(self) -> str | None:
        """What the newest state line says; None where there is none."""
        states = [line["state"] for line in self.lines() if line["kind"] == "state"]
        return states[-1] if states else None

    def append(self, kind: Kind, step: int, values: Mapping[str, Any]) -> None:
        """Appends one line durably; a torn line before it stays apart from it."""
        record = {"kind": kind, "step": step, "time": round(time.time(), 3), **values}
        text = json.dumps({key: _to_json(value) for key, value in record.items()}) + "\n"
        if self._ends_whole is None:
            self._ends_whole = (storage.read_text(self.path) or "\n").endswith("\n")
        if not self._ends_whole:
            text = "\n" + text
        try:
            with storage.open_file(self.path, "a") as file:
                file.write(text)
        except NotImplementedError:
            storage.write_text(self.path, (storage.read_text(self.path) or "") + text)
        storage.sync(self.path)
        self._ends_whole = True

    def rewind(self, step: int | None) -> None:
        """Makes the ledger that of a run that was restored at `step`, and repairs it.

        Train lines beyond `step` go, because the run writes them again. Evaluations stay: the
        same seed gives the same weights again. With None (nothing restored) both go. State lines
        stay, they are history. Only a trainer may call this, since it replaces the file.
        """
        text = storage.read_text(self.path)
        if text is None:
            return
        first_dropped = 1 if step is None else step + 1
        dropped_kinds = ("train", "eval") if step is None else ("train",)
        kept = [
            line
            for line in self.lines()
            if line["kind"] not in dropped_kinds or line["step"] < first_dropped
        ]
        repaired = "".join(json.dumps(line) + "\n" for line in kept)
        if repaired != text:
            storage.write_text(self.path, repaired)
        self._ends_whole = True


def read_ledger(path: str) -> list[dict[str, Any]]:
    """The whole lines of a ledger; empty where the file does not exist.

    A torn last line is what a kill leaves and is passed over; any other unreadable line is too,
    with a warning that names it.
    """
    texts = (storage.read_text(path) or "").split("\n")
    lines = []
    for number, text in enumerate(texts, start=1):
        if not text.strip():
            continue
        try:
            line = json.loads(text)
            lines.append({**line, "kind": str(line["kind"]), "step": int(line["step"])})
        except (ValueError, KeyError, TypeError):
            if number < len(texts):
                logger.warning("%s:%d is no line of a ledger: %.80s", path, number, text)
    return lines


def finite_number(value: Any) -> float | None:
    """A value of a line as a number; None where it is missing or not finite."""
    is_number = isinstance(value, numbers.Real) and not isinstance(value, bool)
    return float(value) if is_number and math.isfinite(value) else None


def _to_json(value: Any) -> Any:
    if value is None or isinstance(value, str | bool | int):
        return value
    number = float(value)
    return number if math.isfinite(number) else str(number)
