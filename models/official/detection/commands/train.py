"""Trains and evaluates a detector or classifier: `tpudet train CONFIG --model_dir DIR`."""

from collections.abc import Sequence
from types import ModuleType

from tpudet.detection.config import ExperimentConfig
from tpudet.trainkit.experiment_commands import run_train


def main(argv: Sequence[str] | None = None) -> int:
    return run_train(argv, __doc__, ExperimentConfig, _experiment)


def _experiment() -> ModuleType:
    from tpudet.detection import experiment

    return experiment
