"""Writes a PNG grid of training images as the network gets them, with their classes."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from tpudet.classification.config import ExperimentConfig
from tpudet.trainkit.experiment_commands import run_show_augmented

if TYPE_CHECKING:
    import numpy as np

_EPILOG = """
example:
  tpudet show_augmented effnetlite0_112 --set data.directory=output/converted/flowers

The images are the first of the run; --set train.seed=1 shows others.

exit codes: 0 the file is written, 2 wrong usage, a config or data that cannot be read
"""


def main(argv: Sequence[str] | None = None) -> int:
    return run_show_augmented(argv, __doc__, ExperimentConfig, _draw, epilog=_EPILOG)


def _draw(config: ExperimentConfig, num_images: int) -> "np.ndarray":
    from tpudet.classification.build_classifier import build_train_dataset
    from tpudet.classification.data.splits import find_joined_split
    from tpudet.classification.evaluation.draw import draw_training_images
    from tpudet.trainkit.input_errors import input_errors_in_words
    from tpudet.trainkit.training.model_dir import load_classes

    _, classes = load_classes(config.data.directory, config.data.classes)
    split = find_joined_split(config.data.directory, config.data.train_split, classes)
    with input_errors_in_words(lambda: split.shards):
        return draw_training_images(
            build_train_dataset(config, split, start_record=0),
            classes=classes,
            num_images=num_images,
        )
