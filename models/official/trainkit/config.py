"""Strict YAML to frozen dataclasses: every mistake at once, each with its file and line.

A file may name one other file under `base:`, whose values it overrides. Alternatives are unions
of dataclasses told apart by their `kind:` field. `KEY=VALUE` overrides go through the same decoder.
"""

import dataclasses
import difflib
import json
import math
import re
import types
import typing
from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypeVar

import tensorflow as tf
import yaml

T = TypeVar("T")


class ConfigError(ValueError):
    """Every problem found in one experiment file, one per line."""


@dataclasses.dataclass(frozen=True)
class Leaf:
    """A scalar or list value and the place where it was written, e.g. `base.yaml:12`."""

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
        raise ConfigError(f"{base.place}: `base` must be one file name, got {_show(base)}")
    own = {key: value for key, value in tree.children.items() if key != "base"}
    folder = path.rpartition("/")[0]
    below = load_tree(f"{folder}/{base.value}" if folder else base.value, (*seen, path))
    return merge(below, Branch(own, tree.place))


def parse_tree(text: str, filename: str) -> Branch:
    """Parses YAML text whose top level is a mapping; `filename` is what messages call it."""
    try:
        node = yaml.compose(text, Loader=_Loader)
        tree = _to_tree(node, filename) if node else Branch({}, f"{filename}:1")
    except yaml.MarkedYAMLError as error:
        mark = error.context_mark or error.problem_mark  # where the broken construct begins
        line = mark.line + 1 if mark else "?"
        raise ConfigError(f"{filename}:{line}: not valid YAML: {error.problem}") from error
    except yaml.YAMLError as error:
        raise ConfigError(f"{filename}: not valid YAML: {error}") from error
    if isinstance(tree, Leaf):
        raise ConfigError(f"{filename}: expected a mapping at the top level, got {tree.value!r}")
    return tree


def _to_tree(node: yaml.Node, filename: str) -> Branch | Leaf:
    place = f"{filename}:{node.start_mark.line + 1}"
    if not isinstance(node, yaml.MappingNode):
        return Leaf(_Loader("").construct_object(node, deep=True), place)
    children: dict[str, Branch | Leaf] = {}
    for key, value in node.value:
        if key.value in children:
            line = key.start_mark.line + 1
            raise ConfigError(f"{filename}:{line}: `{key.value}` appears twice; keep one of them")
        children[key.value] = _to_tree(value, filename)
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


def load_config(
    cls: type[T], path: str, *, overrides: Sequence[str] = (), params_override: str = ""
) -> T:
    """Reads `path`, lays the overrides over it and decodes the result.

    Args:
        cls: the dataclass to build.
        path: a YAML file.
        overrides: `KEY=VALUE` texts; they win over everything else.
        params_override: a YAML mapping as text, or the path of a YAML file.

    Raises:
        ConfigError: lists every mistake.
    """
    tree = load_tree(path)
    if params_override:
        is_file = "\n" not in params_override and tf.io.gfile.exists(params_override)
        tree = merge(
            tree,
            load_tree(params_override)
            if is_file
            else parse_tree(params_override, "--params_override"),
        )
    for override in overrides:
        tree = merge(tree, override_tree(override))
    return decode(cls, tree)


def decode(cls: type[T], tree: Branch) -> T:
    """Builds `cls` from `tree`, or raises one `ConfigError` that lists every mistake."""
    errors: list[str] = []
    value = _decode(cls, tree, "", errors)
    if errors:
        count = "1 mistake" if len(errors) == 1 else f"{len(errors)} mistakes"
        raise ConfigError(f"{count} in the configuration:\n  " + "\n  ".join(errors))
    return typing.cast(T, value)


def load_list(cls: type[T], path: str) -> tuple[list[tuple[T, str]], list[str]]:
    """Reads a YAML file whose top level is a list of mappings.

    Args:
        cls: the dataclass to build of each.
        path: a YAML file.

    Returns:
        Each good item and the place where it was written; and every mistake of the others.

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
    errors: list[str] = []
    items = []
    for item in node.value:
        before = len(errors)
        try:
            tree = _to_tree(item, filename)
            value = _decode_dataclass(cls, tree, "", errors)
        except ConfigError as error:  # a key that appears twice
            errors.append(str(error))
            continue
        if len(errors) == before:
            items.append((value, tree.place))
    return items, errors


def _decode(want: Any, got: Branch | Leaf, path: str, errors: list[str]) -> Any:
    if dataclasses.is_dataclass(want):
        return _decode_dataclass(typing.cast(type, want), got, path, errors)
    members = [arg for arg in typing.get_args(want) if dataclasses.is_dataclass(arg)]
    if len(members) == 1 and isinstance(got, Branch):
        return _decode_dataclass(typing.cast(type, members[0]), got, path, errors)
    if members and isinstance(got, Branch):
        return _decode_tagged(members, got, path, errors)
    if isinstance(got, Branch) or not _fits(want, got.value):
        errors.append(f"{got.place}: {path} must be {_name(want)}, got {_show(got)}")
        return None
    return _freeze(want, got.value)


def _decode_tagged(members: list[Any], got: Branch, path: str, errors: list[str]) -> Any:
    """Picks the one dataclass whose `kind` is the `kind` written in the file."""
    by_kind = {typing.get_args(typing.get_type_hints(m)["kind"])[0]: m for m in members}
    kind = got.children.get("kind")
    value = kind.value if isinstance(kind, Leaf) else None
    if not isinstance(value, str) or value not in by_kind:
        place = kind.place if kind else got.place
        errors.append(f"{place}: {path}.kind must be one of {', '.join(by_kind)}; got {value!r}")
        return None
    return _decode_dataclass(by_kind[value], got, path, errors)


def _decode_dataclass(cls: type, got: Branch | Leaf, path: str, errors: list[str]) -> Any:
    if isinstance(got, Leaf):
        errors.append(f"{got.place}: {path} must be a mapping of keys, got {got.value!r}")
        return None
    hints = typing.get_type_hints(cls)
    fields = {field.name: field for field in dataclasses.fields(cls)}
    before, arguments = len(errors), {}
    for key, value in got.children.items():
        here = f"{path}.{key}".lstrip(".")
        if key in fields:
            arguments[key] = _decode(hints[key], value, here, errors)
            continue
        close = difflib.get_close_matches(str(key), list(fields), n=1)
        hint = f"did you mean `{close[0]}`?" if close else f"known keys: {', '.join(fields)}"
        errors.append(f"{value.place}: unknown key {here}; {hint}")
    for name, field in fields.items():
        missing = field.default is field.default_factory is dataclasses.MISSING
        if name not in got.children and missing:
            errors.append(f"{got.place}: missing key {f'{path}.{name}'.lstrip('.')}")
    if len(errors) > before:
        return None
    try:
        return cls(**arguments)
    except ValueError as error:  # a rule in __post_init__
        errors.append(f"{got.place}: {path or cls.__name__}: {error}")
        return None


def _fits(want: Any, value: Any) -> bool:
    origin, args = typing.get_origin(want), typing.get_args(want)
    if origin in (typing.Union, types.UnionType):
        return any(_fits(arg, value) for arg in args)
    if origin is Literal:
        return any(value == arg and type(value) is type(arg) for arg in args)
    if origin is tuple:
        if not isinstance(value, list):
            return False
        kinds = [args[0]] * len(value) if args[-1] is ... else args
        return len(value) == len(kinds) and all(map(_fits, kinds, value))
    if want is float:
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        return is_number and math.isfinite(value)
    if dataclasses.is_dataclass(want):
        return False
    return isinstance(value, want) and (want is bool or not isinstance(value, bool))


def _freeze(want: Any, value: Any) -> Any:
    """Lists become tuples and whole numbers floats where the type asks for it."""
    origin, args = typing.get_origin(want), typing.get_args(want)
    if origin in (typing.Union, types.UnionType):
        return _freeze(next(arg for arg in args if _fits(arg, value)), value)
    if origin is tuple:
        kinds = [args[0]] * len(value) if args[-1] is ... else args
        return tuple(map(_freeze, kinds, value))
    return float(value) if want is float else value


def _name(want: Any) -> str:
    """What a user should write, in words."""
    origin, args = typing.get_origin(want), typing.get_args(want)
    if origin is Literal:
        return f"one of {', '.join(map(str, args))}"
    if origin in (typing.Union, types.UnionType):
        return " or ".join(_name(arg) for arg in args)
    if origin is tuple:
        if args[-1] is ...:
            return f"a list, each item {_name(args[0])}"
        return f"a list of {len(args)}: {', '.join(map(_name, args))}"
    if dataclasses.is_dataclass(want):
        return "a mapping of keys"
    words = {
        int: "a whole number",
        float: "a number",
        str: "a text",
        bool: "true or false",
        types.NoneType: "null",
    }
    return words.get(want, str(want))


def _show(got: Branch | Leaf) -> str:
    return "a mapping" if isinstance(got, Branch) else repr(got.value)


def to_yaml(config: Any) -> str:
    """Writes a dataclass as YAML; `decode` of that text gives an equal dataclass."""
    # Through JSON, so that tuples become plain lists.
    plain = json.loads(json.dumps(dataclasses.asdict(config)))
    return yaml.safe_dump(plain, sort_keys=False, default_flow_style=None, width=100)
