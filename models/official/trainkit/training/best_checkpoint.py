"""The best checkpoint of a run, kept in `best/` with its value and step."""

import json
import logging
import math
import os
from typing import NamedTuple

from tpudet.trainkit.files import storage
from tpudet.trainkit.training import checkpoints
from tpudet.trainkit.weights.tensor_bundle import BEST_FOLDER

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
    """

    def __init__(self, model_dir: str, *, metric: str) -> None:
        self.directory = os.path.join(model_dir, BEST_FOLDER)
        self._metric = metric
        self.record: BestRecord | None = None

    def prepare(self) -> None:
        """Reads the record, unless it is of another metric, and removes leftovers."""
        record = read_best_record(self.directory)
        if record is not None and record.metric != self._metric:
            logger.warning(
                "%s was selected by %s; from now on %s decides",
                self.directory,
                record.metric,
                self._metric,
            )
            record = None
        self.record = record
        checkpoints.remove_leftovers(self.directory)
        if record is not None:
            self._publish_record(record)

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
        temporary = prefix + storage.TEMPORARY_SUFFIX
        checkpoints.remove_checkpoint(temporary)
        for suffix in (checkpoints.DATA_SUFFIX, checkpoints.INDEX_SUFFIX):
            try:
                storage.copy(checkpoint.prefix + suffix, temporary + suffix)
            except FileNotFoundError as error:
                raise checkpoints.UnreadableCheckpointError(
                    f"{checkpoint.prefix}{suffix} is gone"
                ) from error
        checkpoints.verify_checkpoint(temporary)
        checkpoints.publish_checkpoint(temporary, prefix)
        self.record = BestRecord(self._metric, value, checkpoint.step)
        self._publish_record(self.record)

    def _publish_record(self, record: BestRecord) -> None:
        path = os.path.join(self.directory, RECORD_NAME)
        text = json.dumps(record._asdict()) + "\n"
        if storage.read_text(path) != text:
            storage.write_text(path, text)
        kept = [found for found in checkpoints.list_checkpoints(self.directory)]
        current = [os.path.basename(found.prefix) for found in kept if found.step == record.step]
        if current:
            checkpoints.write_pointer(self.directory, current)
            for found in kept:
                if found.step != record.step:
                    checkpoints.remove_checkpoint(found.prefix)


def read_best_record(directory: str) -> BestRecord | None:
    """Returns the record of a `best/` folder; None if there is none, or it cannot be read."""
    path = os.path.join(directory, RECORD_NAME)
    text = storage.read_text(path)
    if text is None:
        return None
    try:
        content = json.loads(text)
        return BestRecord(str(content["metric"]), float(content["value"]), int(content["step"]))
    except (ValueError, KeyError, TypeError) as error:
        logger.warning("%s cannot be read (%s); the ledger decides which was best", path, error)
        return None
