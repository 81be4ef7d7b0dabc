"""Divides class folders into train, val and test, each class in the same proportions."""

import argparse
import math
from collections.abc import Sequence

from tpudet.trainkit.command_line import natural_number, new_parser, run_command

_EPILOG = """example:
  tpudet split_folders flower_photos --output flowers --fractions train=0.8,val=0.1,test=0.1
      flower_photos/daisy/1.jpg becomes flowers/train/daisy/1.jpg, or val, or test

exit codes: 0 done, 2 wrong arguments or inputs (nothing is left half-written)
"""
_SPLITS = ("train", "val", "test")


def main(argv: Sequence[str] | None = None) -> int:
    parser = new_parser("tpudet split_folders", __doc__, epilog=_EPILOG)
    parser.add_argument("source", metavar="DIR", help="has one folder of images for each class")
    parser.add_argument("--output", required=True, metavar="DIR", help="folder to write")
    parser.add_argument(
        "--fractions",
        type=_fractions,
        default="train=0.8,val=0.1,test=0.1",
        metavar="SPLIT=SHARE,...",
        help="share of the images of each class (%(default)s)",
    )
    parser.add_argument(
        "--method", choices=("copy", "link"), default="copy", help="link costs no space (copy)"
    )
    parser.add_argument("--seed", type=natural_number, default=0, help="of the choice (0)")
    return run_command(parser, argv, _run)


def _fractions(text: str) -> dict[str, float]:
    """`train=0.8,val=0.2` as the share of each split."""
    pairs = [entry.partition("=") for entry in text.split(",")]
    try:
        found = {name.strip(): float(value) for name, _, value in pairs}
    except ValueError:
        found = {}
    known = "train" in found and set(found) <= set(_SPLITS) and len(found) == len(pairs)
    whole = math.isclose(sum(found.values()), 1.0, abs_tol=1e-6)
    if not (known and whole and min(found.values()) > 0):
        raise argparse.ArgumentTypeError(
            f"`{text}` must give train, and if wanted val and test, shares above 0 that add up to 1"
        )
    return found


def _run(arguments: argparse.Namespace) -> str:
    from tpudet.classification.preparation.split_folders import split_folders

    return split_folders(
        arguments.source.rstrip("/"),
        arguments.output.rstrip("/"),
        fractions=arguments.fractions,
        seed=arguments.seed,
        method=arguments.method,
    )
