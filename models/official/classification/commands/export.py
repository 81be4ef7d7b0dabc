"""Exports a classifier as a SavedModel: `tpudet export --model_dir DIR --export_root DIR`.

The SavedModel takes encoded images, any number at once, returns probabilities, and does not need
this toolkit. It is written to `<export_root>/<name of model_dir>-<resolution>`.
"""

from collections.abc import Sequence
from types import ModuleType

from tpudet.trainkit.command_line import new_parser
from tpudet.trainkit.experiment_commands import add_export_arguments, run_export


def main(argv: Sequence[str] | None = None) -> int:
    parser = new_parser("tpudet export", __doc__)
    add_export_arguments(parser)
    return run_export(parser, argv, _experiment)


def _experiment() -> ModuleType:
    from tpudet.classification import experiment

    return experiment
