"""The class hierarchy of Open Images: the ancestors and descendants of each label.

The file is a tree, but the relation is not: a label that is a kind of several others appears in the
file under each of them. Here every label appears once, with all its parents.
"""

import graphlib
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from tpudet.detection.submission.errors import SubmissionError
from tpudet.trainkit.files.json_text import parse_json
from tpudet.trainkit.files.locations import data_path
from tpudet.trainkit.files.storage import open_file

HIERARCHY = "challenge-2019-label500-hierarchy.json"  # as Open Images publishes it


def default_hierarchy() -> str:
    """The path of the challenge's hierarchy in $DATA, by default `data`."""
    return data_path(HIERARCHY)


class Hierarchy(NamedTuple):
    """The labels below the root; the root itself, which means "anything", is left out."""

    labels: tuple[str, ...]  # in order of first appearance in the file
    parents: Mapping[str, tuple[str, ...]]  # of every label; empty directly below the root
    children: Mapping[str, tuple[str, ...]]  # of every label; both in order of first appearance

    def leaves(self) -> tuple[str, ...]:
        """The labels without children, in the order of `labels`."""
        return tuple(label for label in self.labels if not self.children[label])

    def ancestors(self, label: str) -> tuple[str, ...]:
        """All labels that `label` is a kind of, each once, from the bottom up.

        That is, parents stand before their own parents.

        Raises:
            KeyError: there is no such label.
        """
        return _farthest_first(label, self.parents)[::-1]

    def descendants(self, label: str) -> tuple[str, ...]:
        """All kinds of `label`, each once, from the bottom up.

        Raises:
            KeyError: there is no such label.
        """
        return _farthest_first(label, self.children)


def read_hierarchy_file(path: str) -> Hierarchy:
    """Reads a class hierarchy from a file.

    Raises:
        SubmissionError: it is not usable, see `read_hierarchy`.
        OSError: it cannot be opened.
    """
    try:
        with open_file(path, "rb") as file:
            return read_hierarchy(file.read().decode())
    except ValueError as error:  # UnicodeDecodeError is one
        raise SubmissionError(f"{path}: {error}") from error


def read_hierarchy(text: str) -> Hierarchy:
    """Reads a hierarchy: nested `{"LabelName": ..., "Subcategory": [...]}`, the root outermost.

    A label's children are those of all its occurrences. `Part` (a wheel of a car) is ignored: a
    part is not a kind of.

    Raises:
        ValueError: not JSON, an entry that is not of this form (with its place), no label below
            the root, or a label that is a kind of itself.
    """
    try:
        content = parse_json(text.removeprefix("\ufeff"))
    except ValueError as error:
        raise ValueError(f"It is not JSON: {error}.") from error
    root = content.get("LabelName") if isinstance(content, dict) else None
    children: dict[str, dict[str, None]] = {}
    parents: dict[str, dict[str, None]] = {}
    for parent, label in _edges(content, ""):
        children.setdefault(parent, {}).setdefault(label)
        parents.setdefault(label, {}).setdefault(parent)
    if not parents:
        raise ValueError(f"There is no label below the root, '{root}'.")
    try:
        graphlib.TopologicalSorter(parents).prepare()
    except graphlib.CycleError as error:
        raise ValueError(f"The label {error.args[1][0]} is a kind of itself.") from error
    labels = tuple(parents)
    return Hierarchy(
        labels=labels,
        parents={label: tuple(p for p in parents[label] if p != root) for label in labels},
        children={label: tuple(children.get(label, ())) for label in labels},
    )


def _edges(node: Any, place: str) -> Iterator[tuple[str, str]]:
    """Every (parent, child) below `node`, parents first, in the order of the file."""
    label = _label(node, place)
    place = f"{place}/{label}" if place else label
    subcategories = node.get("Subcategory", [])
    if not isinstance(subcategories, list):
        raise ValueError(f"The Subcategory of {place} is not a list: {str(subcategories)[:80]!r}.")
    for child in subcategories:
        yield label, _label(child, place)
        yield from _edges(child, place)


def _label(node: Any, place: str) -> str:
    label = node.get("LabelName") if isinstance(node, dict) else None
    if not isinstance(label, str) or not label:
        where = f"below {place}" if place else "outermost"
        raise ValueError(f"The entry {where} has no LabelName: {str(node)[:80]!r}.")
    return label


def _farthest_first(label: str, steps: Mapping[str, tuple[str, ...]]) -> tuple[str, ...]:
    """The labels that `steps` reach from `label`, each once, after all that it reaches itself."""
    order: dict[str, None] = {}

    def visit(current: str) -> None:
        for other in steps[current]:
            if other not in order:
                visit(other)
                order[other] = None

    visit(label)
    return tuple(order)
