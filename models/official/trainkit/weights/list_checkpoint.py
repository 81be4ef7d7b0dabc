"""Lists the tensors of any file of weights: names, shapes, types, norms and totals.

Reads TensorFlow checkpoints (TF1, TF2 and this project's), .h5, .weights.h5 and .keras of Keras,
.safetensors, and .pth, .pt and .bin of PyTorch, local or in a bucket.
"""

import argparse
import re
import sys
from collections.abc import Mapping, Sequence

import numpy as np
from tqdm import tqdm

from tpudet.trainkit.weights.read import read_weights
from tpudet.trainkit.weights.stored_weights import WeightsError

_EPILOG = """\
examples:
  list_checkpoint.py output/saved/r50-part_1
  list_checkpoint.py efficientnet-lite0.pth --filter 'stem|\\.bn1\\.'
  list_checkpoint.py gs://bucket/resnet50/model.ckpt-112603 --without_averages

exit codes: 0 listed; 2 the file cannot be read, or no name fits --filter
"""


def format_listing(tensors: Mapping[str, np.ndarray], names: Sequence[str]) -> str:
    """The table of the named tensors, and a line with their totals.

    The norm is the Euclidean one, summed in float64; `-` stands for an empty tensor.
    """
    rows, numbers, size = [("name", "shape", "type", "norm")], 0, 0
    for name in tqdm(names, unit="tensor", disable=None, leave=False):
        array = tensors[name]
        numbers += array.size
        size += array.nbytes
        rows.append((name, str(list(array.shape)), array.dtype.name, _norm(array)))
    widths = [max(len(row[column]) for row in rows) for column in range(3)]
    lines = [
        "  ".join([*(cell.ljust(width) for cell, width in zip(row, widths, strict=False)), row[3]])
        for row in rows
    ]
    return "\n".join([*lines, f"{len(names)} tensors, {numbers:,} numbers, {size / 1e6:,.1f} MB"])


def _norm(array: np.ndarray) -> str:
    if not array.size:
        return "-"
    wide = array.astype(np.complex128 if array.dtype.kind == "c" else np.float64)
    return f"{np.linalg.norm(wide.ravel()):.6g}"


def _list(flags: argparse.Namespace) -> int:
    stored = read_weights(flags.file, prefer_averages=not flags.without_averages)
    names = [name for name in stored.tensors if flags.filter.search(name)]
    if not names:
        raise WeightsError(
            f"no name fits --filter {flags.filter.pattern!r}; the {len(stored.tensors)} names are "
            f"like {next(iter(stored.tensors))}"
        )
    print(f"{flags.file}: {stored.format}")
    for note in stored.notes:
        print(f"  {note}")
    print(format_listing(stored.tensors, names))
    return 0


def _pattern(text: str) -> re.Pattern[str]:
    try:
        return re.compile(text)
    except re.error as error:
        raise argparse.ArgumentTypeError(f"{text!r} is no regular expression: {error}") from error


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point of scripts/list_checkpoint.py; returns the exit code."""
    parser = argparse.ArgumentParser(
        prog="list_checkpoint.py",
        description=__doc__,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("file", metavar="FILE", help="file, checkpoint prefix or folder")
    parser.add_argument(
        "--filter",
        type=_pattern,
        default=re.compile(""),
        metavar="REGEX",
        help="list the names in which it is found",
    )
    parser.add_argument(
        "--without_averages",
        action="store_true",
        help="list the weights themselves where moving averages are stored beside them",
    )
    try:
        return _list(parser.parse_args(argv))
    except WeightsError as error:
        print(f"list_checkpoint.py: {error}", file=sys.stderr)
        return 2
    except BrokenPipeError:  # of a pager that was left
        return 0
