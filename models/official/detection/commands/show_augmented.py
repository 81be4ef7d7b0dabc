"""Writes a PNG grid of training images as the network gets them, with boxes and class names."""

import argparse
import os
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from tpudet.detection.config import ExperimentConfig
from tpudet.trainkit.command_line import (
    add_config_arguments,
    new_parser,
    positive_integer,
    run_command,
    writing,
)
from tpudet.trainkit.experiment_commands import experiment_config
from tpudet.trainkit.files.storage import whole_file

_EPILOG = """
examples:
  tpudet show_augmented quickstart --set data.directory=output/converted/tiny
  tpudet show_augmented my.yaml --output mosaic.png --num_images 9 \\
    --set "data.augmentations=[{kind: mosaic, probability: 1.0}]"

The images are the first of the run; --set train.seed=1 shows others.

exit codes: 0 the file is written, 2 wrong usage, a config or data that cannot be read
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command; returns its exit code."""
    parser = new_parser("tpudet show_augmented", __doc__, epilog=_EPILOG)
    add_config_arguments(parser)
    parser.add_argument(
        "--output", metavar="FILE.png", help="file to write (CONFIG's stem + _augmented.png)"
    )
    parser.add_argument(
        "--num_images", type=positive_integer, default=16, help="images in the grid (16)"
    )
    return run_command(parser, argv, _run)


def _run(arguments: argparse.Namespace) -> str:
    from tpudet.detection.build_training import build_train_dataset
    from tpudet.detection.inspection.augmented_images import draw_augmented
    from tpudet.trainkit.input_errors import input_errors_in_words
    from tpudet.trainkit.pages.drawing import encode_png
    from tpudet.trainkit.record_splits import find_split
    from tpudet.trainkit.training.model_dir import load_classes

    config = experiment_config(ExperimentConfig, arguments)
    stem = os.path.basename(arguments.config).removesuffix(".yaml").removesuffix(".yml")
    output = arguments.output or f"{stem}_augmented.png"
    _, classes = load_classes(config.data.directory)
    names = [entry.name for entry in classes]
    split = find_split(config.data.directory, config.data.train_split, names)
    # An image is the same in any batch, and with batches of one no more are read than drawn.
    single = replace(config, train=replace(config.train, batch_size=1))
    dataset = build_train_dataset(single, split, start_record=0)
    batches: Any = dataset.as_numpy_iterator()  # annotated as if it gave arrays only
    with input_errors_in_words(lambda: split.shards):
        grid = draw_augmented(
            batches, class_names=names, num_images=arguments.num_images, shards=split.shards
        )
    with writing(output), whole_file(output, "wb") as file:
        file.write(encode_png(grid))
    return f"Wrote {output}"
