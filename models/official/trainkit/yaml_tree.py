"""YAML 1.2 files as trees that remember where each value was written; `base:` files beneath."""

import dataclasses
import re
import typing
from collections.abc import Mapping
from typing import Any

import tensorflow as tf
import yaml


class ConfigError(ValueError):
    """Every problem found in one experiment file, one per line."""


@dataclasses.dataclass(frozen=True)
class Leaf:
    """A scalar or a list, and the place where it was written, e.g. `base.yaml:12`.

    A list that holds mappings is a list of trees; any other holds plain values.
    """

    value: Any
    place: str


@dataclasses.dataclass(frozen=True)
class Branch:
    """A mapping and the place where it begins."""

    children: Mapping[str, "Branch | Leaf"]
    place: str


class _Loader(yaml.SafeLoader):
    """YAML 1.2 scalars: `1e-4` is a number; only true and false are booleans."""


# A copy without YAML 1.1's float and bool rules, under which 1e-4 is a string and `no` is False.
_Loader.yaml_implicit_resolvers = {
    first: [
        rule
        for rule in rules
        if rule[0] not in ("tag:yaml.org,2002:float", "tag:yaml.org,2002:bool")
    ]
    for first, rules in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(
        r"^[-+]?(\d+\.\d*|\.\d+|\d+(?=[eE]))([eE][-+]?\d+)?$|^[-+]?\.(inf|Inf|INF)$|^\.(nan|NaN|NAN)$"
    ),
    list("-+0123456789."),
)
_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:bool", re.compile("^(true|True|TRUE|false|False|FALSE)$"), list("tTfF")
)


def load_tree(path: str, seen: tuple[str, ...] = ()) -> Branch:
    """Reads one YAML file and, beneath it, the file that its `base:` key names."""
    if path in seen:
        raise ConfigError(f"{path}: `base:` files form a loop: {' -> '.join((*seen, path))}")
    try:
        with tf.io.gfile.GFile(path) as file:
            text = file.read()
    except tf.errors.OpError as error:
        asked_by = f" (named by `base:` in {seen[-1]})" if seen else ""
        raise ConfigError(f"{path}{asked_by}: cannot be read: {error.message}") from error
    tree = parse_tree(text, path.rsplit("/", 1)[-1])
    base = tree.children.get("base")
    if base is None:
        return tree
    if not isinstance(base, Leaf) or not isinstance(base.value, str):
        raise ConfigError(f"{base.place}: `base` must be one file name, got {show(base)}")
    own = {key: value for key, value in tree.children.items() if key != "base"}
    folder = path.rpartition("/")[0]
    below = load_tree(f"{folder}/{base.value}" if folder else base.value, (*seen, path))
    return merge(below, Branch(own, tree.place))


def parse_tree(text: str, filename: str, *, repeated: list[str] | None = None) -> Branch:
    """Parses YAML text whose top level is a mapping.

    Args:
        text: the file's content.
        filename: what messages call it.
        repeated: takes the places of keys that appear twice, the last of which then counts, as in
            other readers of YAML; None makes them an error.

    Raises:
        ConfigError: no YAML, no mapping, or a key that appears twice.
    """
    try:
        node = yaml.compose(text, Loader=_Loader)
        tree = _to_tree(node, filename, repeated) if node else Branch({}, f"{filename}:1")
    except yaml.MarkedYAMLError as error:
        mark = error.context_mark or error.problem_mark  # where the broken construct begins
        line = mark.line + 1 if mark else "?"
        raise ConfigError(f"{filename}:{line}: not valid YAML: {error.problem}") from error
    except yaml.YAMLError as error:
        raise ConfigError(f"{filename}: not valid YAML: {error}") from error
    if isinstance(tree, Leaf):
        raise ConfigError(f"{filename}: expected a mapping at the top level, got {tree.value!r}")
    return tree


def _to_tree(node: yaml.Node, filename: str, repeated: list[str] | None = None) -> Branch | Leaf:
    place = f"{filename}:{node.start_mark.line + 1}"
    if isinstance(node, yaml.SequenceNode) and any(
        isinstance(item, yaml.MappingNode) for item in node.value
    ):
        return Leaf([_to_tree(item, filename, repeated) for item in node.value], place)
    if not isinstance(node, yaml.MappingNode):
        return Leaf(_Loader("").construct_object(node, deep=True), place)
    children: dict[str, Branch | Leaf] = {}
    for key, value in node.value:
        if key.value in children:
            twice = f"{filename}:{key.start_mark.line + 1}: `{key.value}` appears twice"
            if repeated is None:
                raise ConfigError(f"{twice}; keep one of them")
            repeated.append(twice)
        children[key.value] = _to_tree(value, filename, repeated)
    return Branch(children, place)


def merge(base: Branch, top: Branch) -> Branch:
    """Returns `base` with every leaf that `top` sets replaced.

    Where `top` picks another `kind`, the values that `base` gave to its own kind are dropped.
    """
    kind = top.children.get("kind")
    other = base.children.get("kind")
    if isinstance(kind, Leaf) and isinstance(other, Leaf) and kind.value != other.value:
        return top
    children = dict(base.children)
    for key, value in top.children.items():
        below = children.get(key)
        if isinstance(below, Branch) and isinstance(value, Branch):
            value = merge(below, value)
        children[key] = value
    return Branch(children, top.place)


def override_tree(override: str) -> Branch:
    """Turns `train.total_steps=500` into a tree of one leaf."""
    path, separator, text = override.partition("=")
    place = f"--set {override}"
    if not separator or not path.strip():
        raise ConfigError(f"{place}: expected KEY=VALUE, e.g. train.total_steps=500")
    tree = parse_tree(f"value: {text}", place).children["value"]
    value = dataclasses.replace(tree, place=place)
    for key in reversed(path.strip().split(".")):
        value = Branch({key: value}, place)
    return typing.cast(Branch, value)


def parse_items(path: str) -> "list[Branch | Leaf | ConfigError]":
    """Returns the trees of a YAML file whose top level is a list; an item's error in its place.

    Raises:
        ConfigError: the file cannot be read, or is no list.
    """
    filename = path.rsplit("/", 1)[-1]
    try:
        with tf.io.gfile.GFile(path) as file:
            node = yaml.compose(file.read(), Loader=_Loader)
    except tf.errors.OpError as error:
        raise ConfigError(f"{path}: cannot be read: {error.message}") from error
    except yaml.YAMLError as error:
        raise ConfigError(f"{filename}: not valid YAML: {error}") from error
    if not isinstance(node, yaml.SequenceNode) or not node.value:
        raise ConfigError(f"{filename}: expected a list at the top level, each item after a `- `")
    return [_item(item, filename) for item in node.value]


def _item(node: yaml.Node, filename: str) -> "Branch | Leaf | ConfigError":
    try:
        return _to_tree(node, filename)
    except ConfigError as error:  # a key that appears twice
        return error


def show(got: Branch | Leaf) -> str:
    """Returns what was written, for a message."""
    return "a mapping" if isinstance(got, Branch) else repr(got.value)
