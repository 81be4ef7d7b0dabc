"""Compiles an experiment's steps for a TPU, without one, and says what they need and can reach.

The real compiler compiles the real training and evaluation step; nothing runs. Expect 1 to 10
minutes for each on two cores. It needs JAX and libtpu; only libtpu's compiler is used:
    pip install --target libtpu_only libtpu==0.0.52
    PYTHONPATH=libtpu_only tpudet plan quickstart --tpu v5e-8
"""

from collections.abc import Sequence

from tpudet.detection.config import ExperimentConfig
from tpudet.trainkit.profiling_commands import run_plan

_COCO_CLASSES = 80


def main(argv: Sequence[str] | None = None) -> int:
    return run_plan(
        argv,
        __doc__,
        ExperimentConfig,
        count_classes=_count_classes,
        process="tpudet.detection.profiling.planning",
    )


def _count_classes(config: ExperimentConfig) -> int:
    from tpudet.trainkit.class_list import read_class_list
    from tpudet.trainkit.files.storage import read_text

    directory = config.data.directory.rstrip("/")
    text = read_text(f"{directory}/classes.csv") if directory else None
    return len(read_class_list(text)) if text else _COCO_CLASSES
