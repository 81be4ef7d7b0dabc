"""Compiles the steps of a detector for a TPU: the process that `tpudet plan` starts."""

import sys

from tpudet.detection.build_detector import make_task
from tpudet.detection.config import ExperimentConfig
from tpudet.detection.data.synthetic import empty_batch
from tpudet.detection.types import Batch
from tpudet.trainkit.training.tpu_process import answer_request


def _empty_batch(config: ExperimentConfig, num_classes: int, batch_size: int) -> Batch:
    return empty_batch(config.data, batch_size=batch_size, with_masks=config.model.predicts_masks)


if __name__ == "__main__":
    sys.exit(answer_request(ExperimentConfig, build_task=make_task, empty_batch=_empty_batch))
