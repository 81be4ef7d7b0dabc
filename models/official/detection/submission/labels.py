"""Predictions whose label a hierarchy or class list lacks, counted while blocks go by."""

import argparse
import os
from collections.abc import Callable
from typing import TypeVar

import numpy as np

from tpudet.detection.submission.files import Block, SubmissionError
from tpudet.detection.submission.fusion.scanned_rows import ScannedRows
from tpudet.detection.submission.hierarchy import Hierarchy, read_hierarchy
from tpudet.trainkit.class_list import ClassEntry, read_class_list
from tpudet.trainkit.files.storage import open_file

HIERARCHY = "challenge-2019-label500-hierarchy.json"  # as Open Images publishes it
_Content = TypeVar("_Content")


def default_hierarchy() -> str:
    """The path of the hierarchy in $DATA, by default `data`."""
    return os.path.join(os.environ.get("DATA") or "data", HIERARCHY)


def add_hierarchy_argument(parser: argparse._ActionsContainer) -> None:
    """Adds --hierarchy, which is the file in $DATA unless another is named."""
    parser.add_argument(
        "--hierarchy",
        metavar="JSON",
        help=f"the class hierarchy (default: $DATA/{HIERARCHY}, $DATA being `data`)",
    )


def read_hierarchy_file(path: str) -> Hierarchy:
    """Reads a class hierarchy.

    Raises:
        SubmissionError: it cannot be used.
        OSError: it cannot be opened.
    """
    return _read(path, read_hierarchy)


def read_class_file(path: str) -> tuple[ClassEntry, ...]:
    """Reads a class list; raises what `read_hierarchy_file` raises."""
    return _read(path, read_class_list)


def _read(path: str, read: Callable[[str], _Content]) -> _Content:
    try:
        with open_file(path, "rb") as file:
            return read(file.read().decode())
    except ValueError as error:  # UnicodeDecodeError is one
        raise SubmissionError(f"{path}: {error}") from error


_NUM_SHOWN = 5


class UnknownLabels:
    """Counts predictions without a known label, and remembers some of their labels.

    Blocks may come from several threads and in any order.
    """

    def __init__(self) -> None:
        """Starts with none."""
        self._found: list[tuple[int, int, list[str]]] = []

    def add(self, block: Block, rows: ScannedRows) -> None:
        """Takes note of the predictions with the number -1."""
        unknown = np.flatnonzero(rows.label_numbers < 0)
        labels: list[str] = []
        for i in unknown[:_NUM_SHOWN].tolist():
            start, length = int(rows.label_starts[i]), int(rows.label_lengths[i])
            text = block.sources[rows.label_files[i]].data[start : start + length]
            labels.append(text.tobytes().decode("utf-8", "replace"))
        if labels:
            self._found.append((int(block.piece_lines[0]), len(unknown), labels))

    def describe(self, what: str) -> str:
        """Says how many predictions there were, `what` about them, and some labels."""
        if not self._found:
            return ""
        count = sum(number for _, number, _ in self._found)
        labels = dict.fromkeys(label for _, _, labels in sorted(self._found) for label in labels)
        return f"{count} {what}: {', '.join(list(labels)[:_NUM_SHOWN])} …"
