"""Writes a PNG grid of training images as the network gets them, with boxes and class names."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from tpudet.detection.config import ExperimentConfig
from tpudet.trainkit.experiment_commands import run_show_augmented

if TYPE_CHECKING:
    import numpy as np

_EPILOG = """
examples:
  tpudet show_augmented quickstart --set data.directory=output/converted/tiny
  tpudet show_augmented my.yaml --output mosaic.png --num_images 9 \\
    --set "data.augmentations=[{kind: mosaic, probability: 1.0}]"

The images are the first of the run; --set train.seed=1 shows others.

exit codes: 0 the file is written, 2 wrong usage, a config or data that cannot be read
"""


def main(argv: Sequence[str] | None = None) -> int:
    return run_show_augmented(argv, __doc__, ExperimentConfig, _draw, epilog=_EPILOG)


def _draw(config: ExperimentConfig, num_images: int) -> "np.ndarray":
    from tpudet.detection.build_detector import build_train_dataset
    from tpudet.detection.inspection.augmented_images import draw_augmented
    from tpudet.trainkit.input_errors import input_errors_in_words
    from tpudet.trainkit.record_splits import find_split
    from tpudet.trainkit.training.model_dir import load_classes

    _, classes = load_classes(config.data.directory)
    names = [entry.name for entry in classes]
    split = find_split(config.data.directory, config.data.train_split, names)
    dataset = build_train_dataset(config, split, start_record=0)
    batches: Any = dataset.as_numpy_iterator()  # annotated as if it gave arrays only
    with input_errors_in_words(lambda: split.shards):
        return draw_augmented(
            batches, class_names=names, num_images=num_images, shards=split.shards
        )
