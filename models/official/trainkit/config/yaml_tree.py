"""YAML 1.2 core-schema trees whose values remember the file and line that they come from."""

import dataclasses
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple

import yaml

from tpudet.trainkit.errors import UserError, is_utf8
from tpudet.trainkit.files import storage


class _Scalar(NamedTuple):
    pattern: str
    first_characters: list[str]
    read: Callable[[str], Any]


_MAX_NODES = 100_000  # of a file whose aliases are written out; an experiment has some 300
_MAX_BYTES = 2_000_000  # of a file, which PyYAML scans in Python
_TOO_LARGE = (
    f"it has more than {_MAX_BYTES // 10**6} MB, the most that is read; is it the right file?"
)
_MAX_INTEGER = 1 << 63

_TAG = "tag:yaml.org,2002:"
# The core schema of YAML 1.2.2, section 10.3.2; scalars that match no pattern are strings.
_SCALARS = {
    f"{_TAG}null": _Scalar("null|Null|NULL|~|", ["n", "N", "~", ""], lambda text: None),
    f"{_TAG}bool": _Scalar(
        "true|True|TRUE|false|False|FALSE", [*"tTfF"], lambda text: text.lower() == "true"
    ),
    f"{_TAG}int": _Scalar(
        "[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+",
        [*"-+0123456789"],
        lambda text: int(text, 0) if text[:2] in ("0o", "0x") else int(text),
    ),
    f"{_TAG}float": _Scalar(
        r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?"
        r"|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)",
        [*"-+.0123456789"],
        lambda text: float(re.sub(r"\.(?=[in])", "", text.lower())),
    ),
}


class _TextLoader(yaml.BaseLoader):
    """Leaves scalars as text that can be written; stops at `_MAX_NODES`, each of a kilobyte."""

    num_nodes = 0

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        self.num_nodes += 1
        if self.num_nodes > _MAX_NODES:
            raise yaml.MarkedYAMLError(
                problem=f"it has more than {_MAX_NODES:,} values",
                problem_mark=self.get_mark(),
            )
        node = super().compose_node(parent, index)
        if isinstance(node, yaml.ScalarNode) and not is_utf8(node.value):
            raise yaml.MarkedYAMLError(
                problem=f"the text {ascii(node.value[:100])} cannot be written as UTF-8",
                problem_mark=node.start_mark,
            )
        return node


class Loader(_TextLoader):
    """Resolves the scalars above and no others."""

    yaml_implicit_resolvers = {}


class _Dumper(yaml.SafeDumper):
    """Quotes strings that YAML 1.2, or YAML 1.1 in another program, would read as another type."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


_Dumper.add_representer(tuple, _Dumper.represent_list)
for _tag, _scalar in _SCALARS.items():
    for _class in (Loader, _Dumper):
        _pattern = re.compile(f"^({_scalar.pattern})$")
        _class.add_implicit_resolver(_tag, _pattern, _scalar.first_characters)


def read_scalar(node: yaml.ScalarNode) -> Any:
    """Returns the value of a scalar that `Loader` composed.

    Raises:
        yaml.MarkedYAMLError: a tag is not in the core schema, or the value does not match it.
    """
    if node.tag == f"{_TAG}str":
        return node.value
    scalar = _SCALARS.get(node.tag)
    if scalar is None or not re.fullmatch(scalar.pattern, node.value):
        tag = node.tag.replace(_TAG, "!!")
        problem = f"{node.value!r} cannot be read as `{tag}`; leave that tag out"
        raise yaml.MarkedYAMLError(problem=problem, problem_mark=node.start_mark)
    try:
        value = scalar.read(node.value)
    except ValueError:  # an integer of thousands of digits
        value = _MAX_INTEGER
    # A longer one fits no option, and Python does not write thousands of digits.
    if isinstance(value, int) and not -_MAX_INTEGER <= value < _MAX_INTEGER:
        shown = node.value if len(node.value) <= 20 else f"{node.value[:19]}…"
        problem = f"{shown} is an integer of more than 64 bits"
        raise yaml.MarkedYAMLError(problem=problem, problem_mark=node.start_mark)
    return value


def write_yaml(values: Mapping[str, Any]) -> str:
    """Returns the YAML of mappings, lists, tuples and scalars; `yaml_tree` reads back the same."""
    return yaml.dump(values, Dumper=_Dumper, sort_keys=False, default_flow_style=None, width=100)


class ConfigError(UserError):
    """Every mistake found in an experiment file, one per line."""


WRITTEN_SHORT = "<short>"  # the key of a string that a mapping is laid over


@dataclasses.dataclass(frozen=True)
class Leaf:
    """A scalar or a list, and its place, e.g. `base.yaml:12`.

    A list that contains mappings is a list of trees; any other contains plain values.
    """

    value: Any
    place: str

    @property
    def trees(self) -> "list[Branch | Leaf]":
        """The items of a list that contains mappings; empty otherwise."""
        items = self.value if isinstance(self.value, list) else []
        return [item for item in items if isinstance(item, Branch | Leaf)]


@dataclasses.dataclass(frozen=True)
class Branch:
    """A mapping and the place of its first key."""

    children: Mapping[str, "Branch | Leaf"]
    place: str


def read_file(path: str, named_by: str = "") -> str:
    """Returns the text of a file.

    Args:
        path: local or in a bucket.
        named_by: appended to the path in messages.

    Raises:
        ConfigError: it cannot be read, is not UTF-8, or has more than 2 MB.
    """
    try:
        with storage.open_bytes(path) as file:  # another file can name a device as its base
            content = file.read(_MAX_BYTES + 1)
        if len(content) > _MAX_BYTES:
            raise ConfigError(f"{path}{named_by}: {_TOO_LARGE}")
        return content.decode()
    except OSError as error:
        raise ConfigError(f"{path}{named_by}: cannot be read: {storage.reason(error)}") from error
    except UnicodeDecodeError as error:
        line = error.object.count(b"\n", 0, error.start) + 1
        raise ConfigError(f"{path}:{line}: not UTF-8; save the file in that encoding") from error


def parse_tree(
    text: str, filename: str, *, repeated: list[str] | None = None, as_text: bool = False
) -> Branch:
    """Parses YAML text whose top level is a mapping.

    Args:
        text: the file's content.
        filename: its name in messages.
        repeated: receives the places of keys that appear twice, of which the last counts, as in
            other readers of YAML; None makes them an error.
        as_text: whether scalars without a tag stay the text that they are written as.

    Raises:
        ConfigError: invalid YAML, more than 2 MB or 100,000 values, not a mapping, or a key that
            appears twice.
    """
    if len(text) > _MAX_BYTES:
        raise ConfigError(f"{filename}: {_TOO_LARGE}")
    with _yaml_errors_in_words(filename):
        node = yaml.compose(text, Loader=_TextLoader if as_text else Loader)
        _check_size(node, filename)
        tree = _to_tree(node, filename, repeated) if node else Branch({}, f"{filename}:1")
    if isinstance(tree, Leaf):
        raise ConfigError(f"{filename}: expected a mapping at the top level, got {show(tree)}")
    return tree


@contextmanager
def _yaml_errors_in_words(filename: str) -> Iterator[None]:
    try:
        yield
    except yaml.MarkedYAMLError as error:
        mark = error.context_mark or error.problem_mark  # where the broken construct begins
        line = mark.line + 1 if mark else "?"
        raise ConfigError(f"{filename}:{line}: not valid YAML: {error.problem}") from error
    except yaml.YAMLError as error:
        raise ConfigError(f"{filename}: not valid YAML: {error}") from error
    except RecursionError as error:
        raise ConfigError(f"{filename}: lists and mappings are nested too deeply") from error


def _check_size(node: yaml.Node | None, filename: str) -> None:
    """Raises ConfigError where aliases of aliases stand for more than `_MAX_NODES` values."""
    sizes: dict[int, int] = {}

    def measure(node: yaml.Node) -> int:
        if id(node) not in sizes:
            sizes[id(node)] = 0  # of a node that contains itself, which is another mistake
            nodes = node.value if isinstance(node, yaml.CollectionNode) else []
            if isinstance(node, yaml.MappingNode):
                nodes = [one for pair in node.value for one in pair]
            sizes[id(node)] = 1 + sum(map(measure, nodes))
        return sizes[id(node)]

    if node is not None and measure(node) > _MAX_NODES:
        raise ConfigError(
            f"{filename}: {measure(node):,} values where its aliases (`*`) are written out; at "
            f"most {_MAX_NODES:,} are read. Write the values without aliases of aliases"
        )


def _to_tree(
    node: yaml.Node,
    filename: str,
    repeated: list[str] | None = None,
    around: tuple[yaml.Node, ...] = (),
) -> Branch | Leaf:
    """Args: as `parse_tree`, and the nodes that contain this one."""
    place = f"{filename}:{node.start_mark.line + 1}"
    if isinstance(node, yaml.ScalarNode):
        return Leaf(read_scalar(node), place)
    if node in around:
        raise ConfigError(f"{place}: this list or mapping contains itself, through an alias (`*`)")
    around = (*around, node)
    if isinstance(node, yaml.SequenceNode):
        items = [_to_tree(item, filename, repeated, around) for item in node.value]
        plain = [item.value for item in items if isinstance(item, Leaf) and not item.trees]
        return Leaf(plain if len(plain) == len(items) else items, place)
    children: dict[str, Branch | Leaf] = {}
    for key, value in node.value:
        name = _read_key(key, f"{filename}:{key.start_mark.line + 1}")
        if name in children:
            twice = f"{filename}:{key.start_mark.line + 1}: `{name}` appears twice"
            if repeated is None:
                raise ConfigError(f"{twice}; keep one of them")
            repeated.append(twice)
        children[name] = _to_tree(value, filename, repeated, around)
    return Branch(children, place)


def _read_key(node: yaml.Node, place: str) -> str:
    if not isinstance(node, yaml.ScalarNode):
        raise ConfigError(
            f"{place}: a key must be a string, got a list or a mapping; is there a "
            "{{placeholder}} to be filled in, or a string with braces that needs quotes?"
        )
    if node.value == "<<":
        raise ConfigError(
            f"{place}: `<<` is not part of YAML 1.2; write the keys out, or move what files share "
            "to one that they name under `base:`"
        )
    return node.value


def parse_items(path: str) -> "list[Branch | Leaf | ConfigError]":
    """Returns the trees of a YAML file whose top level is a list, or the error in place of an item.

    Raises:
        ConfigError: the file cannot be read, or is not a list.
    """
    filename = path.rsplit("/", 1)[-1]
    with _yaml_errors_in_words(filename):
        node = yaml.compose(read_file(path), Loader=Loader)
        _check_size(node, filename)
    if not isinstance(node, yaml.SequenceNode) or not node.value:
        raise ConfigError(f"{filename}: expected a list at the top level, each item after a `- `")
    return [_item(item, filename) for item in node.value]


def _item(node: yaml.Node, filename: str) -> "Branch | Leaf | ConfigError":
    try:
        with _yaml_errors_in_words(filename):
            return _to_tree(node, filename)
    except ConfigError as error:  # a repeated or unreadable key
        return error


def plain_values(tree: Branch | Leaf) -> Any:
    """Returns the dicts, lists and scalars of a tree."""
    if isinstance(tree, Branch):
        return {key: plain_values(value) for key, value in tree.children.items()}
    return [plain_values(item) for item in tree.trees] or tree.value


def show(got: Branch | Leaf) -> str:
    """Returns the value for a message."""
    if isinstance(got, Branch):
        return "a mapping"
    return "a list of mappings" if got.trees else repr(got.value)
