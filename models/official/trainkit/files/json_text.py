"""Reads JSON that may come from anywhere, and writes it."""

import json
from typing import Any

from tpudet.trainkit.errors import is_utf8
from tpudet.trainkit.files.storage import write_text


def parse_json(text: str | bytes, *, any_text: bool = False) -> Any:
    """Returns what `json.loads` does.

    Args:
        text: the JSON.
        any_text: whether its texts may have halves of characters, which cannot be written.

    Raises:
        ValueError: it is not JSON, not UTF-8, or nested so deeply that Python does not read it.
    """
    if isinstance(text, bytes):  # json.loads would take halves of characters
        text = text.decode(json.detect_encoding(text))
    try:
        content = json.loads(text)
    except RecursionError:
        raise json.JSONDecodeError("nested too deeply", "", 0) from None
    if not any_text and ("\\ud" in text or "\\uD" in text):
        _require_characters(content)
    return content


def _require_characters(content: Any) -> None:
    waiting = [content]
    while waiting:
        value = waiting.pop()
        if isinstance(value, dict):
            waiting += [*value, *value.values()]
        elif isinstance(value, list):
            waiting += value
        elif isinstance(value, str) and not is_utf8(value):
            shown = ascii(value[:100])
            raise json.JSONDecodeError(f"the text {shown} cannot be written as UTF-8", "", 0)


def write_json_text(path: str, content: Any) -> None:
    """Writes `json_text` as `storage.whole_file` does, and raises what it raises."""
    write_text(path, json_text(content))


def json_text(content: Any) -> str:
    """Returns indented JSON."""
    return json.dumps(content, indent=2, ensure_ascii=False) + "\n"
