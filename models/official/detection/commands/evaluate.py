"""Evaluates a checkpoint of a detector or classifier: `tpudet evaluate --model_dir DIR`.

The experiment is that of the model_dir. The metrics are printed and written to
`<model_dir>/evaluation_<split>_<step>.json`, with drawn detections beside it as .png, and
`_report.html`, `_class_table.csv`, `_confusions.csv` and charts. Those of another data set, with
`--set data.directory=DIR`, have its name before the split.
"""

from collections.abc import Sequence
from types import ModuleType

from tpudet.trainkit.experiment_commands import run_evaluate


def main(argv: Sequence[str] | None = None) -> int:
    return run_evaluate(argv, __doc__, _experiment)


def _experiment() -> ModuleType:
    from tpudet.detection import experiment

    return experiment
