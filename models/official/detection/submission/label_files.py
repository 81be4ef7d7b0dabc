"""Files that say what labels there are: the class hierarchy and class lists, for commands."""

import argparse
import os
from collections.abc import Callable
from typing import TypeVar

from detection.submission.class_list import ClassEntry, read_class_list
from detection.submission.hierarchy import Hierarchy, read_hierarchy
from detection.submission.storage import open_file
from detection.submission.submission_files import SubmissionError

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
