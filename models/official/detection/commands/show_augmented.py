"""Draws training pictures as the network gets them: `python -m tpudet.detection.commands.show_augmented CONFIG`."""

import argparse
import itertools
import math
import os
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from tqdm import tqdm

from tpudet.detection.commands.experiment_arguments import add_config_arguments, experiment_config
from tpudet.detection.config import ExperimentConfig
from tpudet.detection.types import Batch
from tpudet.trainkit.command_line import positive_integer, run_command, writing
from tpudet.trainkit.files.storage import whole_file
from tpudet.trainkit.pages.drawing import Panel, class_colour, draw_panels, encode_png, image_grid
from tpudet.trainkit.records import RECORDS_PER_SHARD_LIMIT

_EXAMPLES = """examples:
  scripts/show_augmented.py quickstart --set data.directory=output/converted/tiny
  scripts/show_augmented.py my.yaml --output mosaic.png --num_images 9 \\
    --set "data.augmentations=[{kind: mosaic, probability: 1.0}]"

The pictures are the first of the run; --set train.seed=1 shows others.

Exit codes: 0 the picture is written, 2 wrong usage, a config or data that cannot be read.
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Command line; see --help."""
    parser = argparse.ArgumentParser(
        prog="show_augmented",
        description="Writes a PNG grid of training pictures with their boxes and class names.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_config_arguments(parser)
    parser.add_argument(
        "--output", metavar="FILE.png", help="what is written (CONFIG's stem + _augmented.png)"
    )
    parser.add_argument(
        "--num_images", type=positive_integer, default=16, help="pictures in the grid (16)"
    )
    return run_command(parser, argv, _run)


def _run(arguments: argparse.Namespace) -> int:
    from tpudet.trainkit.training import model_dir  # imports Keras, which --help does without

    config = experiment_config(arguments)
    stem = os.path.basename(arguments.config).removesuffix(".yaml").removesuffix(".yml")
    output = arguments.output or f"{stem}_augmented.png"
    _, classes = model_dir.read_classes(config.data.directory)
    grid = draw_augmented(config, [entry.name for entry in classes], arguments.num_images)
    with writing(output), whole_file(output, "wb") as file:
        file.write(encode_png(grid))
    print(f"Wrote {output}")
    return 0


def draw_augmented(
    config: ExperimentConfig, class_names: Sequence[str], num_images: int
) -> np.ndarray:
    """Draws the first pictures of a training run, [h, w, 3] uint8, in a nearly square grid.

    Args:
        config: the experiment.
        class_names: C names.
        num_images: at least 1.

    Raises:
        ConfigError: the training split is not there, is cut off, or has other classes.
    """
    from tpudet.detection import experiment

    split = experiment.find_split(config.data, config.data.train_split)
    experiment.check_classes(config.data, config.data.train_split, class_names)
    # A picture is the same in any batch, and one by one no more are prepared than drawn.
    single = replace(config, train=replace(config.train, batch_size=1))
    dataset = experiment.build_train_dataset(single, split, start_record=0)
    rows = itertools.islice(_rows(dataset), num_images)
    shown = tqdm(rows, desc="drawing pictures", total=num_images, leave=False)
    return image_grid(
        [draw_row(row, class_names) for row in shown], columns=math.ceil(math.sqrt(num_images))
    )


def draw_row(row: Batch, class_names: Sequence[str]) -> np.ndarray:
    """Draws one image of a batch with its boxes; crowds are marked as such.

    Args:
        row: NumPy arrays without their B.
        class_names: C names.
    """
    is_there = row.classes > 0
    classes = row.classes[is_there].tolist()
    crowds = row.is_crowd[is_there].tolist()
    shard, record = divmod(int(row.records), RECORDS_PER_SHARD_LIMIT)
    panel = Panel(
        boxes=row.boxes[is_there],
        texts=[
            class_names[int(number) - 1] + (" (crowd)" if crowd else "")
            for number, crowd in zip(classes, crowds, strict=True)
        ],
        colours=[class_colour(number) for number in classes],
        caption=f"shard {shard}, record {record}: {len(classes)} boxes",
    )
    return draw_panels(row.images, [panel])


def _rows(dataset: Any) -> Iterator[Batch]:
    for batch in dataset.as_numpy_iterator():
        for fields in zip(*batch, strict=True):
            yield Batch(*fields)


if __name__ == "__main__":
    sys.exit(main())
