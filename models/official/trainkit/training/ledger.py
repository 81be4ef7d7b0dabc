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

from trainkit import durable_files

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
            self._ends_whole = (durable_files.read_text(self.path) or "\n").endswith("\n")
        if not self._ends_whole:
            text = "\n" + text
        try:
            with tf.io.gfile.GFile(self.path, "a") as file:
                file.write(text)
        except tf.errors.UnimplementedError:
            durable_files.write_text(self.path, (durable_files.read_text(self.path) or "") + text)
        durable_files.sync(self.path)
        self._ends_whole = True

    def rewind(self, step: int | None) -> None:
        """Makes the ledger that of a run that was restored at `step`, and repairs it.

        Train lines beyond `step` go, because the run writes them again. Evaluations stay: the
        same seed gives the same weights again. With None (nothing restored) both go. State lines
        stay, they are history. Only a trainer may call this, since it replaces the file.
        """
        text = durable_files.read_text(self.path)
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
            durable_files.write_text(self.path, repaired)
        self._ends_whole = True


def read_ledger(path: str) -> list[dict[str, Any]]:
    """The whole lines of a ledger; empty where the file does not exist.

    A torn last line is what a kill leaves and is passed over; any other unreadable line is too,
    with a warning that names it.
    """
    texts = (durable_files.read_text(path) or "").split("\n")
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
