"""JSON from anywhere."""

import json

import pytest

from tpudet.trainkit.files.json_text import parse_json


def test_json_is_read_as_ever() -> None:
    assert parse_json('{"a": [1, 2.5, null, "x"]}') == {"a": [1, 2.5, None, "x"]}
    assert parse_json(b"[]") == []


@pytest.mark.parametrize("text", ["[" * 100_000, '{"a":' * 100_000, "{", b"\xff", "9" * 5000])
def test_what_cannot_be_read_is_a_value_error(text: str | bytes) -> None:
    with pytest.raises(ValueError, match=r"nested too deeply|Expecting|decode|Exceeds the limit"):
        parse_json(text)


def test_python_itself_says_something_else_of_deep_nesting() -> None:
    with pytest.raises(RecursionError):
        json.loads("[" * 100_000)
