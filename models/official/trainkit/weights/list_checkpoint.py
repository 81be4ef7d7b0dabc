"""Lists the tensors of a file of weights: names, shapes, types, norms and totals."""

import re
from collections.abc import Mapping, Sequence

import numpy as np
from tqdm import tqdm

from tpudet.trainkit.weights.read import read_weights
from tpudet.trainkit.weights.stored_weights import WeightsError


def describe_weights(path: str, *, pattern: re.Pattern[str], prefer_averages: bool) -> str:
    """Returns the format of a file of weights, notes about it, and the table of its tensors.

    Args:
        path: a file, a checkpoint's prefix or a folder.
        pattern: tensors are listed in whose names it is found.
        prefer_averages: lists moving averages in place of the weights they average.

    Raises:
        WeightsError: the file cannot be read, or no name matches.
    """
    stored = read_weights(path, prefer_averages=prefer_averages)
    names = [name for name in stored.tensors if pattern.search(name)]
    if not names:
        raise WeightsError(
            f"no name matches --filter {pattern.pattern!r}; the {len(stored.tensors)} names are "
            f"like {next(iter(stored.tensors))}"
        )
    head = [f"{path}: {stored.format}", *(f"  {note}" for note in stored.notes)]
    return "\n".join([*head, format_listing(stored.tensors, names)])


def format_listing(tensors: Mapping[str, np.ndarray], names: Sequence[str]) -> str:
    """Returns a table of the named tensors, and a line with their totals.

    The norm is Euclidean, summed in float64; `-` stands for an empty tensor.
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
