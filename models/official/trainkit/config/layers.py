"""Layers of trees: an experiment over its base files, and `KEY=VALUE` overrides over both."""

import dataclasses
import json
import typing
from collections.abc import Sequence
from logging import INFO, WARNING

from tpudet.trainkit.config.yaml_tree import (
    WRITTEN_SHORT,
    Branch,
    ConfigError,
    Leaf,
    parse_tree,
)

# Keys that differ in their unit alone are one value: total_steps and total_epochs.
_UNITS = ("steps", "epochs", "seconds")


def merge(base: Branch, top: Branch, dropped: list[tuple[int, str]] | None = None) -> Branch:
    """Returns `base` with every leaf that `top` sets replaced.

    Where `top` selects another `kind`, the values of `base` for its own kind are dropped. Values
    without a `kind` apply to any. A key of `top` also replaces those of `base` that differ from it
    in their unit alone: total_steps takes the place of total_epochs.

    Args:
        base: the lower layer.
        top: the upper layer, which wins.
        dropped: receives a logging level and a sentence for each kind whose values are dropped, for
            each mapping that a plain value replaces, and for each value in another unit.
    """
    return _union(_without_replaced(base, top, [] if dropped is None else dropped), top)


def _without_replaced(base: Branch, top: Branch, dropped: list[tuple[int, str]]) -> Branch:
    kind, other = top.children.get("kind"), base.children.get("kind")
    if isinstance(kind, Leaf) and isinstance(other, Leaf) and kind.value != other.value:
        lost = [key for key in base.children if key != "kind" and key not in top.children]
        if lost:
            what = f"{', '.join(lost)} of kind {other.value} ({base.place})"
            dropped.append((WARNING, f"{kind.place}: dropped with the change of kind: {what}"))
        return Branch({}, top.place)
    children = dict(base.children)
    for key, value in top.children.items():
        below = children.get(key)
        if isinstance(below, Branch) and isinstance(value, Branch):
            children[key] = _without_replaced(below, value, dropped)
        elif isinstance(below, Branch) and isinstance(value, Leaf) and value.value is not None:
            lost = ", ".join(name for name in below.children if name != WRITTEN_SHORT)
            text = f"{value.place}: replaces all of {key}: {lost} ({below.place})"
            dropped.append((WARNING, text))
        for same, leaf in _in_other_units(base, key) if _is_given(value) else ():
            del children[same]
            text = f"{value.place}: {key} takes the place of {same} {leaf.value} ({leaf.place})"
            dropped.append((INFO, text))
    return Branch(children, base.place)


def _in_other_units(tree: Branch, key: str) -> list[tuple[str, Leaf]]:
    """Returns what a mapping gives for a key in other units, such as total_epochs."""
    name, _, unit = key.rpartition("_")
    others = [f"{name}_{other}" for other in _UNITS if other != unit] if unit in _UNITS else []
    found = [(other, tree.children.get(other)) for other in others]
    return [(other, leaf) for other, leaf in found if isinstance(leaf, Leaf) and _is_given(leaf)]


def _is_given(value: Branch | Leaf) -> bool:
    return isinstance(value, Leaf) and value.value is not None


def _union(base: Branch, top: Branch) -> Branch:
    children = dict(base.children)
    for key, value in top.children.items():
        below = children.get(key)
        if isinstance(below, Branch) and isinstance(value, Branch):
            value = _union(below, value)
        elif isinstance(below, Leaf) and isinstance(below.value, str) and isinstance(value, Branch):
            value = Branch({WRITTEN_SHORT: below, **value.children}, value.place)
        children[key] = value
    return Branch(children, base.place)


def override_tree(overrides: Sequence[str]) -> Branch:
    """Turns `train.total_steps=500` and the like into one tree; the last value of a key counts.

    Raises:
        ConfigError: one is not KEY=VALUE, its value is not YAML, or two set one value in two units.
    """
    tree = Branch({}, "--set")
    for override in overrides:
        path, separator, text = override.partition("=")
        place = f"--set {override}"
        if not separator or not path.strip():
            raise ConfigError(f"{place}: expected KEY=VALUE, e.g. train.total_steps=500")
        # Without a quote or bracket in front, `data/a #2` is a path and has no comment.
        plain = text.strip()
        is_text = not plain.startswith(tuple("\"'[{|>&*!")) and (
            " #" in f" {plain}" or ": " in plain
        )
        value_text = json.dumps(plain) if is_text else text
        parsed = parse_tree(f"value: {value_text}", place).children["value"]
        value = dataclasses.replace(parsed, place=place)
        for key in reversed(path.strip().split(".")):
            value = Branch({key: value}, place)
        tree = _union(tree, typing.cast(Branch, value))
    _check_units(tree)
    return tree


def _check_units(tree: Branch) -> None:
    for key, value in tree.children.items():
        if isinstance(value, Branch):
            _check_units(value)
        elif _is_given(value):
            for same, leaf in _in_other_units(tree, key):
                raise ConfigError(f"{leaf.place}: {same} and {key} are one value; set one of them")
