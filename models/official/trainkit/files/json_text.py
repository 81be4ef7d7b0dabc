"""Reads JSON that may come from anywhere, and writes it."""

import json
from typing import Any

from tpudet.trainkit.files.storage import write_text


def parse_json(text: str | bytes) -> Any:
    """Returns what `json.loads` does.

    Raises:
        ValueError: it is not JSON, not UTF-8, or nested so deeply that Python does not read it.
    """
    try:
        return json.loads(text)
    except RecursionError:
        raise json.JSONDecodeError("nested too deeply", "", 0) from None


def write_json_text(path: str, content: Any) -> None:
    """Writes `json_text` as `storage.whole_file` does, and raises what it raises."""
    write_text(path, json_text(content))


def json_text(content: Any) -> str:
    """Returns indented JSON."""
    return json.dumps(content, indent=2, ensure_ascii=False) + "\n"
