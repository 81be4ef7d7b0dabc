"""YAML 1.2 scalars, read and written; files that cannot be read; where a base lies."""

from pathlib import Path
from typing import Any

import pytest
import tensorflow as tf
import yaml

from tpudet.trainkit.config.find import load_tree
from tpudet.trainkit.config.layers import override_tree
from tpudet.trainkit.config.yaml_tree import (
    Branch,
    ConfigError,
    Leaf,
    parse_items,
    parse_tree,
    plain_values,
    write_yaml,
)
from tpudet.trainkit.files.storage import write_text

# Each is something else to YAML 1.2, to YAML 1.1, or to a careless writer.
TEXTS = (
    *("1e5", "010", "0x1F", "0o17", "1:30", "1_000", "+1", ".5", "5.", ".inf", "-.INF", ".NaN"),
    *("null", "Null", "~", "", "true", "FALSE", "yes", "No", "on", "y", "2019-10-01", "=", "<<"),
    *("2019-10-01 10:00:00", "0b1", "- a", "a: b", "a #b", "#", "*a", "&a", "!a", "{{part}}"),
    *("'", '"', " ", " a", "a ", "a\nb", "a\n", "\t", "\x85", "\u00e9", "\U0001f600", "%a"),
    *("@a", "`", "?", "-", ":", "[", "{", "|", ">", "---", "..."),
)


def read(text: str) -> Any:
    return plain_values(parse_tree(f"value: {text}", "a.yaml"))["value"]


@pytest.mark.parametrize(
    ("text", "value"),
    [
        *(("1e-4", 1e-4), ("1E3", 1000.0), (".5", 0.5), ("5.", 5.0), ("+1.5e+2", 150.0)),
        *((".inf", float("inf")), ("-.Inf", float("-inf")), ("010.5", 10.5), ("1.5E-1", 0.15)),
        *(("-2", -2), ("+3", 3), ("010", 10), ("0640", 640), ("0x1F", 31), ("0o17", 15), ("0", 0)),
        *(("true", True), ("False", False), ("TRUE", True), ("~", None), ("Null", None)),
        *(("", None), ("# nothing", None), ("!!float 3", 3.0), ("!!str 3", "3"), ("'3'", "3")),
        *(("[[1], []]", [[1], []]), ("[[{a: 1}], 2]", [[{"a": 1}], 2])),
    ],
)
def test_scalars_are_what_the_core_schema_of_yaml_1_2_says(text: str, value: object) -> None:
    assert read(text) == value
    assert type(read(text)) is type(value)


@pytest.mark.parametrize(
    "text",
    [
        *("yes", "No", "on", "off", "true-ish", "1:30", "2019-10-01", "1_000", "0b1", "=", "tRUE"),
        *("-0x1F", "0x", "1e", "e5", ".", "+", "1\u0663", "2019-10-01T10:00:00Z", "inf", "nan"),
    ],
)
def test_what_the_core_schema_has_no_pattern_for_is_a_text(text: str) -> None:
    assert read(text) == text


@pytest.mark.parametrize("text", TEXTS)
def test_every_text_is_written_so_that_it_is_read_back(text: str) -> None:
    values = {"value": text, "values": (text, 1.5, 10, None, True), "nested": [{"value": text}]}
    wanted = values | {"values": list(values["values"])}
    written = write_yaml(values)
    assert plain_values(parse_tree(written, "a.yaml")) == wanted
    assert yaml.safe_load(written) == wanted  # a reader of YAML 1.1


def test_every_number_is_written_so_that_it_is_read_back() -> None:
    numbers = [1e-7, 1e22, 1e5, 123456.75, -0.1, 5e-324, 3.0, 7, -7, 2**63 - 1, -(2**63)]
    assert plain_values(parse_tree(write_yaml({"value": numbers}), "a.yaml"))["value"] == numbers


# Ten values in each of ten levels: 400 bytes that stand for 10^10 values.
ALIAS_BOMB = b"l0: &l0 [1, 2, 3, 4, 5, 6, 7, 8, 9]\n" + b"".join(
    b"l%d: &l%d [%s]\n" % (level, level, b", ".join([b"*l%d" % (level - 1)] * 10))
    for level in range(1, 10)
)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"a: 1\nb: caf\xe9\n", ":2: not UTF-8"),
        ("a: 1\n".encode("utf-16"), ":1: not UTF-8"),
        (b"a: 1\nb: \x00\n", "not valid YAML"),
        (b"a: 1\nb: {{part}}\n", ":2: a key must be a string, got a list or a mapping"),
        (b"a: 1\nb: [{{part}}]\n", ":2: a key must be a string"),
        (b"a: 1\n? [b]\n: 2\n", ":2: a key must be a string"),
        (b"a: 1\nb: &b {c: *b}\n", ":2: this list or mapping contains itself"),
        (b"a: 1\nb: &b\n- [*b]\n", ":2: this list or mapping contains itself"),
        (b"a: " + b"[" * 2000 + b"]" * 2000, "are nested too deeply"),
        (b"a: &a {b: 1}\nc:\n  <<: *a\n", ":3: `<<` is not part of YAML 1.2"),
        (b"a: 1\nb: *b\n", ":2: not valid YAML: found undefined alias"),
        (b"a: " + b"9" * 5000, ":1: not valid YAML: 9999999999999999999… is an integer of more"),
        (b"a: 1\nb: 0x" + b"F" * 6000, ":2: not valid YAML: 0xFFFFFFFFFFFFFFFFF… is an integer"),
        (b"a: 1\nb: -9223372036854775809", ":2: not valid YAML: -9223372036854775809 is an int"),
        (ALIAS_BOMB, "11,234,567,910 values where its aliases (`*`) are"),
        (
            b"a: 1\nb: [" + 100_000 * b"c," + b"]",
            ":2: not valid YAML: it has more than 100,000 val",
        ),
        (b"a: 1\n" + 1_999_999 * b"#", "a.yaml: it has more than 2 MB"),
        (b"a: 1\nb: !!int x\n", ":2: not valid YAML: 'x' cannot be read as `!!int`"),
        (b"a: 1\nb: !!timestamp x\n", ":2: not valid YAML: 'x' cannot be read as `!!timestamp`"),
        (b"a: 1\nb: !!python/name:os.system x\n", ":2: not valid YAML: 'x' cannot be read as"),
    ],
)
def test_what_cannot_be_read_is_said_in_words_with_its_place(
    content: bytes, words: str, tmp_path: Path
) -> None:
    path = tmp_path / "a.yaml"
    path.write_bytes(content)
    with pytest.raises(ConfigError) as caught:
        load_tree(str(path))
    assert "a.yaml" in str(caught.value)
    assert words in str(caught.value)


def test_a_device_that_a_file_names_as_its_base_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "a.yaml"
    path.write_text("base: /dev/zero\n")
    with pytest.raises(ConfigError, match=r"^/dev/zero \(.*it is a device or FIFO, not a file"):
        load_tree(str(path))


@pytest.mark.parametrize("text", ["{{part}}", "[{{part}}]", "&a [*a]", "[", "*a", "!!int x"])
def test_an_override_that_cannot_be_read_names_itself(text: str) -> None:
    with pytest.raises(ConfigError, match="^--set data.directory="):
        override_tree([f"data.directory={text}"])


def test_items_of_a_list_are_read_apart_and_a_broken_file_is_named(tmp_path: Path) -> None:
    path = tmp_path / "a.yaml"
    path.write_text("- {a: 010}\n- {{part}}\n- &c [*c]\n- 3\n")
    first, second, third, last = parse_items(str(path))
    assert isinstance(first, Branch)
    assert plain_values(first) == {"a": 10}
    assert str(second).startswith("a.yaml:2: a key must be a string")
    assert str(third).startswith("a.yaml:3: this list or mapping contains itself")
    assert last == Leaf(3, "a.yaml:4")
    for content, words in ((b"- \xe9", "a.yaml:1: not UTF-8"), (b"- [", "a.yaml:1: not valid")):
        path.write_bytes(content)
        with pytest.raises(ConfigError, match=words):
            parse_items(str(path))


@pytest.mark.parametrize(
    "base", ["a.yaml", "./a.yaml", "../f/a.yaml", ".//a.yaml", "{folder}/a.yaml"]
)
def test_a_file_that_is_its_own_base_is_refused_however_it_is_spelt(
    base: str, tmp_path: Path
) -> None:
    folder = tmp_path / "f"
    folder.mkdir()
    (folder / "a.yaml").write_text(f"base: {base.format(folder=folder)}\n")
    with pytest.raises(ConfigError, match="`base:` files form a loop"):
        load_tree(str(folder / "a.yaml"))


@pytest.mark.parametrize("of", ["disk", "bucket"])
@pytest.mark.parametrize("base", ["below.yaml", "../f/below.yaml", "{folder}/below.yaml"])
def test_a_base_is_found_from_the_folder_or_by_its_whole_path(
    base: str, of: str, tmp_path: Path
) -> None:
    folder = f"{tmp_path}/f" if of == "disk" else "ram://bases/f"
    tf.io.gfile.makedirs(folder)
    for path, text in (
        (f"{folder}/below.yaml", "a: 1\nb: 2\n"),
        (f"{folder}/top.yaml", f"base: {base.format(folder=folder)}\nb: 3\n"),
        (f"{tmp_path}/top.yaml", f"base: {folder}/below.yaml\nb: 3\n"),
    ):
        write_text(path, text)
    assert plain_values(load_tree(f"{folder}/top.yaml")) == {"a": 1, "b": 3}
    assert plain_values(load_tree(f"{tmp_path}/top.yaml")) == {"a": 1, "b": 3}


@pytest.mark.parametrize("base", ['""', "[a.yaml]", "3", "~", "{a: b}"])
def test_a_base_must_be_one_name(base: str, tmp_path: Path) -> None:
    name = str(tmp_path / "a.yaml")
    write_text(name, f"a: 1\nbase: {base}\n")
    with pytest.raises(ConfigError, match=":2: `base` must be one file name, got "):
        load_tree(name)
