"""Reads JSON that may come from anywhere."""

import json
from typing import Any


def parse_json(text: str | bytes) -> Any:
    """Returns what `json.loads` does.

    Raises:
        ValueError: it is not JSON, not UTF-8, or nested so deeply that Python does not read it.
    """
    try:
        return json.loads(text)
    except RecursionError:
        raise json.JSONDecodeError("nested too deeply", "", 0) from None
