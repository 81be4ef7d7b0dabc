"""The class hierarchy of Open Images: the ancestors and descendants of each label.

The file is a tree, but the relation is not: a label that is a kind of several others appears in the
file under each of them. Here every label appears once, with all its parents.
"""

import graphlib
import reprlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from tpudet.detection.submission.errors import SubmissionError
from tpudet.trainkit.errors import shorten
from tpudet.trainkit.files.json_text import parse_json
from tpudet.trainkit.files.locations import data_path
from tpudet.trainkit.files.storage import open_file

HIERARCHY = "challenge-2019-label500-hierarchy.json"  # as Open Images publishes it
# To expand every label, up and down; Open Images takes 5,000. A small file could take hours.
_MAX_STEPS = 1 << 21
_SHOWN = 200  # characters of a place, for a message


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
            the root, a label that is a kind of itself, or too many ancestors to expand.
    """
    try:
        content = parse_json(text.removeprefix("\ufeff"))
    except ValueError as error:
        raise ValueError(f"It is not JSON: {error}.") from error
    root = content.get("LabelName") if isinstance(content, dict) else None
    children: dict[str, dict[str, None]] = {}
    parents: dict[str, dict[str, None]] = {}
    for parent, label in _edges(content):
        children.setdefault(parent, {}).setdefault(label)
        parents.setdefault(label, {}).setdefault(parent)
    if not parents:
        raise ValueError(f"There is no label below the root, {reprlib.repr(root)}.")
    try:
        graphlib.TopologicalSorter(parents).prepare()
    except graphlib.CycleError as error:
        label = shorten(error.args[1][0], _SHOWN)
        raise ValueError(f"The label {label} is a kind of itself.") from error
    labels = tuple(parents)
    hierarchy = Hierarchy(
        labels=labels,
        parents={label: tuple(p for p in parents[label] if p != root) for label in labels},
        children={label: tuple(children.get(label, ())) for label in labels},
    )
    _require_few_steps(hierarchy)
    return hierarchy


def _edges(root: Any) -> Iterator[tuple[str, str]]:
    """Every (parent, child) below the root, parents first, in the order of the file."""
    path = [_label(root, ())]
    waiting = [iter(_subcategories(root, path))]
    while waiting:
        for child in waiting[-1]:
            label = _label(child, path)
            yield path[-1], label
            path.append(label)
            waiting.append(iter(_subcategories(child, path)))
            break
        else:
            waiting.pop()
            path.pop()


def _subcategories(node: dict[str, Any], path: Sequence[str]) -> list[Any]:
    found = node.get("Subcategory", [])
    if not isinstance(found, list):
        place = shorten("/".join(path), _SHOWN)
        raise ValueError(f"The Subcategory of {place} is not a list: {reprlib.repr(found)}.")
    return found


def _label(node: Any, path: Sequence[str]) -> str:
    label = node.get("LabelName") if isinstance(node, dict) else None
    if not isinstance(label, str) or not label:
        where = f"below {shorten('/'.join(path), _SHOWN)}" if path else "outermost"
        raise ValueError(f"The entry {where} has no LabelName: {reprlib.repr(node)}.")
    return label


def _require_few_steps(hierarchy: Hierarchy) -> None:
    for steps in (hierarchy.parents, hierarchy.children):
        total = 0
        for label in hierarchy.labels:
            total += sum(1 + len(steps[other]) for other in _farthest_first(label, steps))
            if total > _MAX_STEPS:
                raise ValueError(
                    f"It is too deep: to expand its {len(hierarchy.labels):,} labels takes more "
                    f"than {_MAX_STEPS:,} steps."
                )


def _farthest_first(label: str, steps: Mapping[str, tuple[str, ...]]) -> tuple[str, ...]:
    """The labels that `steps` reach from `label`, each once, after all that it reaches itself."""
    order: dict[str, None] = {}
    path = [label]
    waiting = [iter(steps[label])]
    while waiting:
        for other in waiting[-1]:
            if other not in order:
                path.append(other)
                waiting.append(iter(steps[other]))
                break
        else:
            waiting.pop()
            order[path.pop()] = None
    return tuple(order)[:-1]  # without the label itself
