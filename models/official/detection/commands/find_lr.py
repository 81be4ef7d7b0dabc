"""Finds a learning rate for a detector or classifier: it grows each step until the loss diverges.

Nothing is saved but the curve. The suggestion, where the loss falls fastest, is for the batch size
of the test, train.batch_size; the settings to paste are for train.reference_batch_size.
"""

from collections.abc import Sequence
from types import ModuleType

from tpudet.detection.config import ExperimentConfig
from tpudet.trainkit.experiment_commands import run_find_lr


def main(argv: Sequence[str] | None = None) -> int:
    return run_find_lr(argv, __doc__, ExperimentConfig, _experiment)


def _experiment() -> ModuleType:
    from tpudet.detection import experiment

    return experiment
