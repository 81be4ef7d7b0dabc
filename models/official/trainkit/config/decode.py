"""Strict YAML to frozen dataclasses: every mistake at once, each with its file and line.

A file may name another under `base:`, whose values it overrides. Alternatives are unions of
dataclasses told apart by their `kind:` field. `KEY=VALUE` overrides go through the same decoder.
A missing key, `kind` included, has its value in the default of the enclosing dataclass; a mapping
with a `kind` starts from the defaults of that kind. A class variable `SHORT` of a dataclass lists
first the key that a plain string stands for, then the keys that exclude it.
"""

import dataclasses
import difflib
import logging
import re
import sys
import types
import typing
from collections.abc import Sequence
from typing import Any, Literal, TypeVar

from tpudet.trainkit.config.find import load_config_tree, load_tree
from tpudet.trainkit.config.layers import merge, override_tree
from tpudet.trainkit.config.ranges import BrokenRules
from tpudet.trainkit.config.yaml_tree import (
    WRITTEN_SHORT,
    Branch,
    ConfigError,
    Leaf,
    parse_items,
    parse_tree,
    show,
    write_yaml,
)
from tpudet.trainkit.files import storage

logger = logging.getLogger(__name__)

T = TypeVar("T")


def load_config(
    cls: type[T], name: str, *, overrides: Sequence[str] = (), params_override: str = ""
) -> T:
    """Reads the experiment `name`, lays the overrides over it and decodes the result.

    The log names the values that an override drops: of another `kind`, or in another unit.

    Args:
        cls: the dataclass to build.
        name: a YAML file, or a VERSION as `find_config` reads it.
        overrides: `KEY=VALUE` strings, which win over everything else.
        params_override: a YAML mapping, or the path of a YAML file.

    Raises:
        ConfigError: lists every mistake.
    """
    tree = load_config_tree(name)
    dropped: list[tuple[int, str]] = []
    if params_override:
        is_text = params_override.lstrip().startswith("{") or ": " in params_override
        is_file = "\n" not in params_override and not is_text and storage.exists(params_override)
        if not is_text and not is_file and params_override.endswith((".yaml", ".yml")):
            raise ConfigError(f"--params_override: {params_override} does not exist")
        over = (
            load_tree(params_override)
            if is_file
            else parse_tree(params_override, "--params_override")
        )
        tree = merge(tree, over, dropped)
    tree = merge(tree, override_tree(overrides), dropped)
    for level, note in dropped:
        logger.log(level, "%s", note)
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
        cls: the dataclass of an item.
        path: a YAML file.

    Returns:
        The valid items with their places, and the mistakes of the others.

    Raises:
        ConfigError: the file cannot be read, or is not a list.
    """
    errors: list[str] = []
    items = []
    for tree in parse_items(path):
        if isinstance(tree, ConfigError):
            errors.append(str(tree))
            continue
        before = len(errors)
        value = _decode_dataclass(cls, tree, "", errors)
        if len(errors) == before:
            items.append((value, tree.place))
    return items, errors


def _decode(
    want: Any, got: Branch | Leaf, path: str, errors: list[str], default: Any = None
) -> Any:
    """Args: as `decode`, and the value that missing keys take theirs from."""
    if isinstance(got, Leaf) and got.trees:
        return _decode_list(want, got, path, errors)
    if dataclasses.is_dataclass(want):
        return _decode_dataclass(typing.cast(type, want), got, path, errors, default)
    members = [arg for arg in typing.get_args(want) if dataclasses.is_dataclass(arg)]
    mapping = next((arg for arg in typing.get_args(want) if typing.get_origin(arg) is dict), None)
    if mapping is not None and isinstance(got, Branch):
        of = typing.get_args(mapping)[1]
        children = [pair for pair in got.children.items() if pair[0] != WRITTEN_SHORT]
        return {key: _decode(of, value, f"{path}.{key}", errors) for key, value in children}
    if members and isinstance(got, Leaf) and isinstance(got.value, str):
        got = _written_short(members, got)
    if len(members) == 1 and isinstance(got, Branch):
        return _decode_dataclass(typing.cast(type, members[0]), got, path, errors, default)
    if members and isinstance(got, Branch):
        return _decode_tagged(members, got, path, errors, default)
    if isinstance(got, Branch) or not _fits(want, got.value):
        errors.append(f"{got.place}: {path} must be {_name(want)}, got {show(got)}")
        return None
    return _freeze(want, got.value)


def _written_short(members: list[Any], got: Leaf) -> Branch | Leaf:
    """Expands a plain string into the key that the dataclass names as its `SHORT`."""
    keys = [member.SHORT for member in members if hasattr(member, "SHORT")]
    return Branch({keys[0][0]: got}, got.place) if keys else got


def _decode_list(want: Any, got: Leaf, path: str, errors: list[str]) -> Any:
    """Decodes a list of mappings where `want` is a tuple of dataclasses."""
    args = typing.get_args(want)
    if typing.get_origin(want) is not tuple or args[-1] is not ...:
        errors.append(f"{got.place}: {path} must be {_name(want)}, got {show(got)}")
        return None
    places = enumerate(got.trees)
    return tuple(_decode(args[0], item, f"{path}[{i}]", errors) for i, item in places)


def _decode_tagged(
    members: list[Any], got: Branch, path: str, errors: list[str], default: Any
) -> Any:
    """Selects the dataclass by the `kind` in the file, else that of the default."""
    by_kind = {
        kind: member
        for member in members
        for kind in typing.get_args(typing.get_type_hints(member)["kind"])
    }
    written = got.children.get("kind")
    if written is None and default is not None:
        return _decode_dataclass(type(default), got, path, errors, default)
    kind = written.value if isinstance(written, Leaf) else None
    if not isinstance(kind, str) or kind not in by_kind:
        place, but = (written.place, show(written)) if written else (got.place, "none")
        errors.append(f"{place}: {path}.kind must be one of {', '.join(by_kind)}; got {but}")
        return None
    return _decode_dataclass(by_kind[kind], got, path, errors)


def _decode_dataclass(
    cls: type, got: Branch | Leaf, path: str, errors: list[str], default: Any = None
) -> Any:
    if isinstance(got, Leaf):
        errors.append(f"{got.place}: {path} must be a mapping of keys, got {show(got)}")
        return None
    got = _with_short(cls, got)
    hints = typing.get_type_hints(cls)
    fields = {field.name: field for field in dataclasses.fields(cls)}
    before, arguments = len(errors), {}
    for key, value in got.children.items():
        here = f"{path}.{key}".lstrip(".")
        if key in fields:
            below = _default(fields[key]) if default is None else getattr(default, key)
            arguments[key] = _decode(hints[key], value, here, errors, below)
            continue
        close = difflib.get_close_matches(key, list(fields), n=1)
        hint = f"did you mean `{close[0]}`?" if close else f"known keys: {', '.join(fields)}"
        errors.append(f"{value.place}: unknown key {here}; {hint}")
    for name, field in fields.items():
        missing = field.default is field.default_factory is dataclasses.MISSING
        if default is None and name not in got.children and missing:
            errors.append(f"{got.place}: missing key {f'{path}.{name}'.lstrip('.')}")
    if len(errors) > before:
        return None
    try:
        return cls(**arguments) if default is None else dataclasses.replace(default, **arguments)
    except ValueError as error:  # rules in __post_init__
        for rule in error.args if isinstance(error, BrokenRules) else [str(error)]:
            errors.append(f"{_find_place(rule, got)}: {path or cls.__name__}: {rule}")
        return None


def _with_short(cls: type, got: Branch) -> Branch:
    """Returns the mapping with the string beneath it, if any, under the key it stands for."""
    children = dict(got.children)
    short = children.pop(WRITTEN_SHORT, None)
    keys = getattr(cls, "SHORT", ())
    if short is not None and keys and not children.keys() & set(keys):
        children[keys[0]] = short
    return Branch(children, got.place)


def _default(field: dataclasses.Field) -> Any:
    if field.default_factory is not dataclasses.MISSING:
        return field.default_factory()
    return None if field.default is dataclasses.MISSING else field.default


def _find_place(rule: str, got: Branch) -> str:
    """Returns the place of the first field that a rule names, else that of the mapping."""
    for name in re.findall(r"\w+(?:\.\w+)*", rule):
        found: Branch | Leaf | None = got
        for key in name.split("."):
            found = found.children.get(key) if isinstance(found, Branch) else None
        if found is not None:
            return found.place
    return got.place


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
        return is_number and abs(value) <= sys.float_info.max
    if dataclasses.is_dataclass(want) or origin is dict:
        return False
    return isinstance(value, want) and (want is bool or not isinstance(value, bool))


def _freeze(want: Any, value: Any) -> Any:
    """Turns lists into tuples and integers into floats where the type requires it."""
    origin, args = typing.get_origin(want), typing.get_args(want)
    if origin in (typing.Union, types.UnionType):
        return _freeze(next(arg for arg in args if _fits(arg, value)), value)
    if origin is tuple:
        kinds = [args[0]] * len(value) if args[-1] is ... else args
        return tuple(map(_freeze, kinds, value))
    return float(value) if want is float else value


def _name(want: Any) -> str:
    """Describes a type to the user."""
    origin, args = typing.get_origin(want), typing.get_args(want)
    if origin is Literal:
        return f"one of {', '.join(map(str, args))}"
    if origin in (typing.Union, types.UnionType):
        return " or ".join(dict.fromkeys(_name(arg) for arg in args))
    if origin is tuple:
        if args[-1] is ...:
            return f"a list, each item {_name(args[0])}"
        return f"a list of {len(args)}: {', '.join(map(_name, args))}"
    if dataclasses.is_dataclass(want) or origin is dict:
        return "a mapping of keys"
    words = {
        int: "an integer",
        float: "a number",
        str: "a string",
        bool: "true or false",
        types.NoneType: "null",
    }
    return words.get(want, str(want))


def to_yaml(config: Any) -> str:
    """Writes a dataclass as YAML that decodes to an equal dataclass."""
    return write_yaml(dataclasses.asdict(config))
