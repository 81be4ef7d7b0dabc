"""Scalars as the core schema of YAML 1.2 has them, which PyYAML, a reader of YAML 1.1, has not."""

import re
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import yaml


class _Scalar(NamedTuple):
    pattern: str
    first_characters: list[str]
    read: Callable[[str], Any]


_TAG = "tag:yaml.org,2002:"
# The core schema of YAML 1.2.2, section 10.3.2; whatever it has no pattern for is a text.
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


class Loader(yaml.SafeLoader):
    """Knows the scalars above and no others."""

    yaml_implicit_resolvers = {}


class _Dumper(yaml.SafeDumper):
    """Quotes a text that YAML 1.2, or YAML 1.1 in another program, reads as something else."""

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
        yaml.MarkedYAMLError: a tag was written that is not of the core schema, or does not fit.
    """
    if node.tag == f"{_TAG}str":
        return node.value
    scalar = _SCALARS.get(node.tag)
    if scalar is None or not re.fullmatch(scalar.pattern, node.value):
        tag = node.tag.replace(_TAG, "!!")
        problem = f"{node.value!r} cannot be read as `{tag}`; leave that tag out"
        raise yaml.MarkedYAMLError(problem=problem, problem_mark=node.start_mark)
    return scalar.read(node.value)


def write_yaml(values: Mapping[str, Any]) -> str:
    """Returns the YAML of mappings, lists, tuples and scalars; `yaml_tree` reads back the same."""
    return yaml.dump(values, Dumper=_Dumper, sort_keys=False, default_flow_style=None, width=100)
