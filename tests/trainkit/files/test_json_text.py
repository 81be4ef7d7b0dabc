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


@pytest.mark.parametrize(
    "text", [r'"a\ud800"', r'{"a": [{"\uDFFF": 1}]}', r'["\ud83d\ude00", "\ude00\ud83d"]']
)
def test_halves_of_characters_are_refused_unless_any_text_is_wanted(text: str) -> None:
    for content in (text, text.encode()):
        with pytest.raises(ValueError, match=r"the text '.*\\u.* cannot be written as UTF-8"):
            parse_json(content)
    assert parse_json(text, any_text=True) == json.loads(text)


def test_whole_characters_and_backslashes_are_read() -> None:
    assert parse_json(r'["\ud83d\ude00", "\\ud800"]') == ["😀", r"\ud800"]
    with pytest.raises(UnicodeDecodeError):
        parse_json(b'"\xed\xa0\x80"')  # json.loads reads it
    assert parse_json("\ufeff[1]".encode()) == parse_json("[1]".encode("utf-16")) == [1]


def test_python_itself_says_something_else_of_deep_nesting() -> None:
    with pytest.raises(RecursionError):
        json.loads("[" * 100_000)
