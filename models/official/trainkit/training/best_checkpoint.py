"""The best checkpoint of a run, kept in `best/` with its value and step."""

import json
import logging
import math
import os
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

import numpy as np

from tpudet.trainkit.files import storage
from tpudet.trainkit.files.json_text import parse_json
from tpudet.trainkit.training import checkpoints
from tpudet.trainkit.training.checkpoint_files import (
    publish_checkpoint,
    remove_checkpoint,
    remove_leftovers,
    temporary_prefix,
    verify_checkpoint,
    write_checkpoint,
    write_pointer,
)
from tpudet.trainkit.weights.tensor_bundle import BEST_FOLDER, DATA_SUFFIX, INDEX_SUFFIX

RECORD_NAME = "best.json"

logger = logging.getLogger(__name__)


class BestRecord(NamedTuple):
    """Content of `best/best.json`."""

    metric: str
    value: float
    step: int


class BestCheckpoint:
    """A copy of the checkpoint with the highest `metric` so far, in `<model_dir>/best`.

    `best.json` is published after the files that it names and before older ones are removed, so
    that it names a whole checkpoint after a kill at any moment. Of equal values the earlier step
    stays.

    Args:
        model_dir: of the run.
        metric: its highest value decides.
        verify: called before each write; raises if another process owns `best/`.
    """

    def __init__(
        self, model_dir: str, *, metric: str, verify: Callable[[], None] = lambda: None
    ) -> None:
        self.directory = os.path.join(model_dir, BEST_FOLDER)
        self._metric = metric
        self._verify = verify
        self.record: BestRecord | None = None

    def prepare(self, values: Mapping[int, float] = MappingProxyType({})) -> None:
        """Reads the record and removes leftovers.

        A record of another metric becomes one of this metric, if the value is known. Without a
        record, or its checkpoint, the best of the checkpoints here whose value is known counts.

        Args:
            values: the recorded values of the metric by step.
        """
        record = read_best_record(self.directory)
        if record is not None and record.metric != self._metric:
            logger.warning(
                "%s was selected by %s; from now on %s decides",
                self.directory,
                record.metric,
                self._metric,
            )
            known = record.step in values
            record = BestRecord(self._metric, values[record.step], record.step) if known else None
        remove_leftovers(self.directory, RECORD_NAME)
        kept = checkpoints.list_checkpoints(self.directory)
        if record is not None and record.step not in [found.step for found in kept]:
            path = os.path.join(self.directory, RECORD_NAME)
            logger.warning(
                "%s names step %d, whose checkpoint is gone or cannot be read; the ledger decides "
                "which of the others is best",
                path,
                record.step,
            )
            storage.remove_if_there(path)
            record = None
        self.record = record or self._best_known(kept, values)
        if self.record is not None:
            self._publish_record(self.record)

    def _best_known(
        self, kept: Sequence[checkpoints.Checkpoint], values: Mapping[int, float]
    ) -> BestRecord | None:
        """Returns the record of the best whole checkpoint among those kept here, if any."""
        known = [found for found in kept if found.step in values]
        for found in sorted(known, key=lambda one: (-values[one.step], one.step)):
            try:
                verify_checkpoint(found.prefix)
            except checkpoints.UnreadableCheckpointError as error:
                logger.warning("Unreadable checkpoint, not the best one: %s", error)
                continue
            return BestRecord(self._metric, values[found.step], found.step)
        return None

    def is_better(self, value: float) -> bool:
        """Returns whether `value` is above the record; NaN never is."""
        return not math.isnan(value) and (self.record is None or value > self.record.value)

    def keep(self, checkpoint: checkpoints.Checkpoint, value: float) -> None:
        """Copies a checkpoint here as the new best.

        Raises:
            UnreadableCheckpointError: it is torn or gone; the former best stays.
        """
        storage.make_folder(self.directory)
        prefix = os.path.join(self.directory, os.path.basename(checkpoint.prefix))
        temporary = temporary_prefix(prefix)
        for suffix in (DATA_SUFFIX, INDEX_SUFFIX):
            try:
                storage.copy(checkpoint.prefix + suffix, temporary + suffix)
            except FileNotFoundError as error:
                raise checkpoints.UnreadableCheckpointError(
                    f"{checkpoint.prefix}{suffix} is gone"
                ) from error
        verify_checkpoint(temporary)
        self._verify()
        publish_checkpoint(temporary, prefix)
        self._publish_record(BestRecord(self._metric, value, checkpoint.step))

    def keep_arrays(
        self, checkpoint: checkpoints.Checkpoint, arrays: Mapping[str, np.ndarray], value: float
    ) -> None:
        """Writes a checkpoint here that was removed while it was evaluated.

        Raises:
            UnreadableCheckpointError: it reads back differently; the former best stays.
        """
        storage.make_folder(self.directory)
        prefix = os.path.join(self.directory, os.path.basename(checkpoint.prefix))
        write_checkpoint(prefix, arrays, verify=self._verify)
        self._publish_record(BestRecord(self._metric, value, checkpoint.step))

    def _publish_record(self, record: BestRecord) -> None:
        self.record = record
        path = os.path.join(self.directory, RECORD_NAME)
        text = json.dumps(record._asdict()) + "\n"
        if storage.read_text(path) != text:
            storage.write_text(path, text)
        kept = [found for found in checkpoints.list_checkpoints(self.directory)]
        current = [os.path.basename(found.prefix) for found in kept if found.step == record.step]
        if current:
            write_pointer(self.directory, current)
            for found in kept:
                if found.step != record.step:
                    remove_checkpoint(found.prefix)


def forget_best(model_dir: str, *, beyond: int | None) -> None:
    """Removes the record of `best/` if its step is beyond that of a run that was restored.

    The run will come to that step again, perhaps with other weights. The checkpoint stays until
    the next evaluation replaces it.

    Args:
        model_dir: of the run.
        beyond: the restored step; None if nothing was restored.
    """
    directory = os.path.join(model_dir, BEST_FOLDER)
    record = read_best_record(directory)
    if record is None or (beyond is not None and record.step <= beyond):
        return
    logger.warning(
        "%s holds step %d of a training that was discarded; the next evaluation replaces it",
        directory,
        record.step,
    )
    storage.remove_if_there(os.path.join(directory, RECORD_NAME))


def read_best_record(directory: str) -> BestRecord | None:
    """Returns the record of a `best/` folder; None if there is none, or it cannot be read."""
    path = os.path.join(directory, RECORD_NAME)
    text = storage.read_text(path)
    if text is None:
        return None
    try:
        content = parse_json(text)
        record = BestRecord(str(content["metric"]), float(content["value"]), int(content["step"]))
        if not math.isfinite(record.value):
            raise ValueError(f"the value is {record.value}")
        return record
    except (ValueError, KeyError, TypeError, OverflowError) as error:
        logger.warning("%s cannot be read (%s); the ledger decides which was best", path, error)
        return None
