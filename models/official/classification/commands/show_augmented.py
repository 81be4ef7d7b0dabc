"""Writes a PNG grid of training images as the network gets them, with their classes."""

import argparse
import os
from collections.abc import Sequence
from dataclasses import replace

from tpudet.trainkit.command_line import (
    add_config_arguments,
    new_parser,
    positive_integer,
    run_command,
    writing,
)
from tpudet.trainkit.experiment_commands import experiment_config

_EPILOG = """
example:
  tpudet show_augmented effnetlite0_112 --set data.directory=output/converted/flowers

The images are the first of the run; --set train.seed=1 shows others.

exit codes: 0 the file is written, 2 wrong usage, a config or data that cannot be read
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Command line; see --help."""
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
    from tpudet.classification.build_training import build_train_dataset
    from tpudet.classification.config import ExperimentConfig
    from tpudet.classification.data.splits import find_joined_split
    from tpudet.classification.evaluation.draw import draw_training_images
    from tpudet.trainkit.files.storage import whole_file
    from tpudet.trainkit.pages.drawing import encode_png
    from tpudet.trainkit.training.model_dir import load_classes

    config = experiment_config(ExperimentConfig, arguments)
    stem = os.path.basename(arguments.config).removesuffix(".yaml").removesuffix(".yml")
    output = arguments.output or f"{stem}_augmented.png"
    _, classes = load_classes(config.data.directory, config.data.classes)
    split = find_joined_split(config.data.directory, config.data.train_split, classes)
    # An image is the same in any batch, and with batches of one no more are read than drawn.
    single = replace(config, train=replace(config.train, batch_size=1))
    grid = draw_training_images(
        build_train_dataset(single, split, start_record=0),
        classes=classes,
        num_images=arguments.num_images,
    )
    with writing(output), whole_file(output, "wb") as file:
        file.write(encode_png(grid))
    return f"Wrote {output}"
