"""Compiles a classifier's steps for a TPU, without one, and says what they need and can reach.

The real compiler compiles the real training and evaluation step; nothing runs. Expect 1 to 10
minutes for each on two cores. It needs JAX and libtpu; only libtpu's compiler is used:
    pip install --target libtpu_only libtpu==0.0.52
    PYTHONPATH=libtpu_only tpudet plan resnet50_224 --tpu v5e-8
"""

from collections.abc import Sequence

from tpudet.classification.config import ExperimentConfig
from tpudet.trainkit.profiling_commands import run_plan


def main(argv: Sequence[str] | None = None) -> int:
    return run_plan(
        argv,
        __doc__,
        ExperimentConfig,
        count_classes=_count_classes,
        process="tpudet.classification.profiling.planning",
    )


def _count_classes(config: ExperimentConfig) -> int:
    from tpudet.classification.profiling.step_times import count_classes

    return count_classes(config)
