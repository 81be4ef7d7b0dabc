"""Evaluates one checkpoint of a classifier: `tpudet evaluate --model_dir DIR [--split test]`.

The experiment is that of the model_dir. The metrics are printed and written to
`<model_dir>/evaluation_<split>_<step>.json`; beside it are `_report.html` and what it shows:
`_class_table.csv` and, where each image is of one class, `_confusions.csv` and a chart of it. Those
of another data set, with `--set data.directory=DIR`, have its name before the split.
"""

from collections.abc import Sequence
from types import ModuleType

from tpudet.trainkit.experiment_commands import run_evaluate


def main(argv: Sequence[str] | None = None) -> int:
    return run_evaluate(argv, __doc__, _experiment)


def _experiment() -> ModuleType:
    from tpudet.classification import experiment

    return experiment
