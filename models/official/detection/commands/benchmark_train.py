"""Times the training steps of an experiment: a table's row for each kind of input, and JSON.

Synthetic input is one batch of noise, again and again: what the devices can do. Real input is
`data.directory`, decoded and augmented: what a run does. Nothing is saved.
    tpudet benchmark_train quickstart --steps 10
    tpudet benchmark_train r50_fpn_640 --input both --set data.directory=DIR --json times.json
"""

from collections.abc import Sequence
from types import ModuleType

from tpudet.detection.config import ExperimentConfig
from tpudet.trainkit.profiling_commands import run_benchmark_train


def main(argv: Sequence[str] | None = None) -> int:
    return run_benchmark_train(argv, __doc__, ExperimentConfig, _step_times)


def _step_times() -> ModuleType:
    from tpudet.detection.profiling import step_times

    return step_times
