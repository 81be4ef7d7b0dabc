"""The log of a run: lines for the screen, the ledger `metrics.jsonl`, and TensorBoard.

The ledger holds one JSON object per line. Each has `kind`, `step` and `time` (seconds since 1970);
in addition
- `train`: the losses by name, `learning_rate`, `images_per_second`, `input_wait_share` (0..1),
  `peak_share` (0..1, used of the devices' bfloat16 peak, where the compiler and the kind say it),
  `eta_seconds`, `steps` (how many steps the losses are the mean of);
- `eval`: the metrics by name, the `seconds` that the evaluation took, and `measured`: of which
  split, by which rules;
- `state`: `state` (running, finished, stopped, failed), `total_steps`, `reason`; `exit_code` where
  a run ended by its own rules before `total_steps`; where an attempt begins also `started`, the
  digest of its `training_records`, and `last_seen` and `discarded_seconds` of the lines before it.
Train and state lines have `wall_seconds` by part (see `wall_time`).

Numbers that JSON cannot hold are the strings "nan", "inf" and "-inf".

Lines are appended and flushed to the disk. If a store cannot append, the whole small file is
written again; buckets do that internally too, so there a trainer and an evaluator that append
within the same second may lose one of the two lines (the evaluation is then repeated).
"""

import json
import logging
import math
import numbers
import os
import time
from collections.abc import Mapping
from typing import Any, Literal, Protocol

import numpy as np

from tpudet.trainkit.errors import listing, shorten
from tpudet.trainkit.files import storage
from tpudet.trainkit.files.json_text import parse_json
from tpudet.trainkit.files.remote import write_errors
from tpudet.trainkit.training.engine import L2, StepReport

_MAX_STEP = 1 << 53  # beyond it a chart, which has floats, would show another

FILE_NAME = "metrics.jsonl"
Kind = Literal["train", "eval", "state"]
State = Literal["running", "finished", "stopped", "failed"]

_MAX_FILE_BYTES = 1 << 17  # of events in a bucket, before another file is begun
_SCALAR_BYTES = 100  # of an event with one number, about

logger = logging.getLogger(__name__)


class Progress:
    """Sums up the reports since the last log line or checkpoint, whichever is later.

    Starting again at each checkpoint makes a line the same whether or not the run was killed and
    restored there.

    Args:
        batch_size: images per step, over all replicas.
    """

    def __init__(self, *, batch_size: int) -> None:
        self._batch_size = batch_size
        self.reset()

    def reset(self) -> None:
        """Starts new sums."""
        self._steps = 0
        self._seconds = 0.0
        self._waited_seconds = 0.0
        self._learning_rate = 0.0
        self._peak_seconds: float | None = None  # share of the peak, times seconds
        self._loss_sums: dict[str, float] = {}

    def add(self, report: StepReport) -> None:
        """Adds one call of `engine.train`."""
        self._steps += report.steps_done
        self._seconds += report.seconds
        self._waited_seconds += report.input_wait_share * report.seconds
        self._learning_rate = report.learning_rate
        if report.peak_share is not None:
            self._peak_seconds = (self._peak_seconds or 0.0) + report.peak_share * report.seconds
        for name, value in report.losses.items():
            self._loss_sums[name] = self._loss_sums.get(name, 0.0) + value * report.steps_done

    def summary(self, *, remaining_steps: int, remaining_eval_seconds: float) -> dict[str, Any]:
        """Returns the values of a train line."""
        steps, seconds = max(self._steps, 1), max(self._seconds, 1e-9)
        peak = self._peak_seconds
        return {
            **{name: total / steps for name, total in self._loss_sums.items()},
            "learning_rate": self._learning_rate,
            "images_per_second": round(self._steps * self._batch_size / seconds, 3),
            "input_wait_share": round(self._waited_seconds / seconds, 4),
            **({} if peak is None else {"peak_share": round(peak / seconds, 4)}),
            "eta_seconds": round(remaining_steps * seconds / steps + remaining_eval_seconds, 1),
            "steps": self._steps,
        }


def format_line(step: int, total_steps: int, summary: Mapping[str, Any]) -> str:
    """Returns one line for the screen."""
    losses = "  ".join(
        f"{name} {value:.4g}"
        for name, value in summary.items()
        if name.startswith("loss") or name == L2  # the parts of the loss add up to it
    )
    peak = f"{summary['peak_share']:.0%} of peak  " if "peak_share" in summary else ""
    return (
        f"step {step}/{total_steps}  {losses}  learning rate {summary['learning_rate']:.4g}  "
        f"{summary['images_per_second']:.1f} images/s  "
        f"waiting for input {summary['input_wait_share']:.0%}  {peak}"
        f"ETA {format_duration(summary['eta_seconds'])}"
    )


def format_duration(seconds: float) -> str:
    """Returns hours, minutes and seconds, as `1:02:03`."""
    minutes, whole_seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{whole_seconds:02d}"


class Ledger:
    """The file `metrics.jsonl` of one model_dir.

    Args:
        model_dir: any folder or bucket.
        writes: whether this process appends; for others `append` and `rewind` do nothing.
    """

    def __init__(self, model_dir: str, *, writes: bool = True) -> None:
        self.path = os.path.join(model_dir, FILE_NAME)
        self._writes = writes
        self._ends_whole: bool | None = None  # unknown before the first append

    def lines(self) -> list[dict[str, Any]]:
        """Returns every whole line in order."""
        return read_ledger(self.path)

    def last_state(self) -> str | None:
        """Returns the state of the newest state line; None if there is none."""
        return self.last_state_line().get("state")

    def last_end(self) -> tuple[Any, Any, Any]:
        """Returns state, step and total steps of the newest state line; Nones without one."""
        line = self.last_state_line()
        return line.get("state"), line.get("step"), line.get("total_steps")

    def last_state_line(self) -> dict[str, Any]:
        """Returns the newest state line; empty if there is none."""
        return next((line for line in reversed(self.lines()) if line["kind"] == "state"), {})

    def append(self, kind: Kind, step: int, values: Mapping[str, Any]) -> None:
        """Appends one line and flushes it to the disk; a torn line before it stays separate."""
        if not self._writes:
            return
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
        except OSError as error:
            storage.name_file(error, self.path)
            raise
        storage.sync(self.path)
        self._ends_whole = True

    def rewind(self, step: int | None) -> list[dict[str, Any]]:
        """Repairs the ledger and drops the lines that a run restored at `step` writes again.

        Those are train and eval lines beyond `step`; with None (nothing restored) all of them.
        State lines stay, they are history. Only a trainer may call this, since it replaces the
        file.

        Returns:
            The lines that it dropped.
        """
        text = storage.read_text(self.path)
        if text is None or not self._writes:
            return []
        last = 0 if step is None else step
        kept, dropped = [], []
        for line in self.lines():
            stays = line["kind"] == "state" or line["step"] <= last
            (kept if stays else dropped).append(line)
        repaired = "".join(json.dumps(line) + "\n" for line in kept)
        if repaired != text:
            storage.write_text(self.path, repaired)
        self._ends_whole = True
        return dropped


def read_ledger(path: str) -> list[dict[str, Any]]:
    """Returns the whole lines of a ledger; none if the file does not exist.

    A torn last line, as a kill leaves it, is skipped; so are other unreadable lines, with one
    warning that counts them.
    """
    texts = (storage.read_text(path) or "").split("\n")
    lines, unreadable = [], []
    for number, text in enumerate(texts, start=1):
        if not text.strip():
            continue
        try:
            line = parse_json(text)
            step = int(line["step"])
            if abs(step) > _MAX_STEP:
                raise ValueError(step)
            lines.append({**line, "kind": str(line["kind"]), "step": step})
        except (ValueError, KeyError, TypeError, OverflowError):
            if number < len(texts):
                unreadable.append(f"{number} ({shorten(text, 80)})")
    if unreadable:
        logger.warning("%s: not lines of a ledger: %s", path, listing(unreadable, 3))
    return lines


def finite_number(value: Any) -> float | None:
    """Returns a value of a line as a number; None if it is missing or not finite."""
    if not isinstance(value, numbers.Real) or isinstance(value, bool):
        return None
    try:
        return float(value) if math.isfinite(value) else None
    except OverflowError:  # an integer that no float holds
        return None


def _to_json(value: Any) -> Any:
    if value is None or isinstance(value, str | bool | int):
        return value
    if isinstance(value, Mapping):
        return {key: _to_json(item) for key, item in value.items()}
    number = float(value)
    return number if math.isfinite(number) else str(number)


class MetricsWriter(Protocol):
    """A display of a run's numbers and images."""

    def write(self, kind: Kind, step: int, values: Mapping[str, float | np.ndarray]) -> None:
        """Writes numbers, and images [H, W, 3] uint8, under `kind/name`.

        They are readable when this returns, so that a killed run shows all that it has logged.
        """
        ...

    def close(self, *, failed: bool = False) -> None:
        """Releases what is open; nothing is written afterwards.

        Args:
            failed: whether the run ended by an error.
        """
        ...


class DiscardingWriter:
    """Writes nothing: for a run that is not restored yet, and for processes beside the chief."""

    def write(self, kind: Kind, step: int, values: Mapping[str, float | np.ndarray]) -> None:
        """As in `MetricsWriter`."""

    def close(self, *, failed: bool = False) -> None:
        """As in `MetricsWriter`."""


class TensorBoardWriter:
    """Event files in a folder, written through TensorFlow.

    Every flush uploads a bucket's file from its first byte, and every write ends with a flush. So
    another file is begun there after `_MAX_FILE_BYTES`: one that images went into is left alone.
    """

    def __init__(self, directory: str) -> None:
        import tensorflow as tf  # takes seconds, and readers of ledgers do without

        self._summary = tf.summary
        self._directory = directory
        self._num_bytes = 0  # of the open file, about
        self._writer = self._open()

    def _open(self) -> Any:
        self._num_bytes = 0
        with write_errors(self._directory):
            return self._summary.create_file_writer(self._directory)

    def write(self, kind: Kind, step: int, values: Mapping[str, float | np.ndarray]) -> None:
        """As in `MetricsWriter`."""
        writer = self._writer = self._writer or self._open()
        with write_errors(self._directory):
            with writer.as_default(step=step):
                for name, value in values.items():
                    if isinstance(value, np.ndarray):
                        self._summary.image(f"{kind}/{name}", value[None])
                        self._num_bytes += value.nbytes
                    else:
                        self._summary.scalar(f"{kind}/{name}", value)
                        self._num_bytes += _SCALAR_BYTES
            writer.flush()
        if storage.is_remote(self._directory) and self._num_bytes > _MAX_FILE_BYTES:
            self.close()

    def close(self, *, failed: bool = False) -> None:
        """As in `MetricsWriter`; event files cannot record a failure."""
        if self._writer is not None:
            with write_errors(self._directory):
                self._writer.close()
            self._writer = None


def open_tensorboard(model_dir: str, *, restored_step: int | None) -> TensorBoardWriter:
    """Opens a writer for a run; TensorBoard then drops earlier events beyond `restored_step`.

    TensorFlow 2's writer has no `purge_step`, so the event that stands for it, a session start,
    goes into a small file of its own. The first start needs one too: TensorBoard takes the first
    one that it sees for the beginning. It reads files in the order of their names: seconds, then
    the host, and "0." sorts before the names of hosts.
    """
    import tensorflow as tf  # as in TensorBoardWriter

    first_step = 0 if restored_step is None else restored_step + 1
    path = os.path.join(model_dir, f"events.out.tfevents.{int(time.time())}.0.start")
    start = tf.compat.v1.SessionLog(status=tf.compat.v1.SessionLog.START)
    with write_errors(model_dir), tf.io.TFRecordWriter(path) as records:
        for event in (
            tf.compat.v1.Event(wall_time=time.time(), file_version="brain.Event:2"),
            tf.compat.v1.Event(wall_time=time.time(), step=first_step, session_log=start),
        ):
            records.write(event.SerializeToString())
    return TensorBoardWriter(model_dir)
