"""Compiles the steps of a classifier for a TPU: the process that `tpudet plan` starts."""

import sys

from tpudet.classification.build_classifier import make_task
from tpudet.classification.config import ExperimentConfig
from tpudet.classification.data.synthetic import empty_batch
from tpudet.classification.types import Batch
from tpudet.trainkit.training.tpu_process import answer_request


def _empty_batch(config: ExperimentConfig, num_classes: int, batch_size: int) -> Batch:
    return empty_batch(config.data.image_size, batch_size=batch_size, num_classes=num_classes)


if __name__ == "__main__":
    sys.exit(answer_request(ExperimentConfig, build_task=make_task, empty_batch=_empty_batch))
