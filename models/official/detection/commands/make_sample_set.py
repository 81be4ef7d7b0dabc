"""Draws a small synthetic data set in the Open Images format, to try everything with."""

import argparse
from collections.abc import Sequence

from tpudet.trainkit.command_line import new_parser, positive_integer, run_command, seed

_MIN_IMAGES = 10


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command; returns its exit code."""
    parser = new_parser("tpudet make_sample_set", __doc__)
    parser.add_argument(
        "--output",
        required=True,
        metavar="DIR",
        help="folder to write; made if it does not exist; an earlier sample set is replaced",
    )
    parser.add_argument(
        "--num_images",
        type=_image_count,
        default=500,
        metavar="N",
        help=f"in all splits together, at least {_MIN_IMAGES} (default 500)",
    )
    parser.add_argument(
        "--seed", type=seed, default=0, help="the same seed draws the same set (default 0)"
    )
    parser.add_argument(
        "--masks", action="store_true", help="also write a mask per object, as Open Images has them"
    )
    return run_command(parser, argv, _run)


def _image_count(text: str) -> int:
    count = positive_integer(text)
    if count < _MIN_IMAGES:
        raise argparse.ArgumentTypeError(f"must be {_MIN_IMAGES} or more, got {count}")
    return count


def _run(arguments: argparse.Namespace) -> str:
    from tpudet.detection.preparation.sources.sample_set import SHAPES, write_sample_set

    counts = write_sample_set(
        arguments.output,
        num_images=arguments.num_images,
        seed=arguments.seed,
        with_masks=arguments.masks,
    )
    splits = ", ".join(f"{count} {split}" for split, count in counts.items())
    return f"{arguments.output}: {splits} images of {len(SHAPES)} classes"
