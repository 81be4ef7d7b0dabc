"""Loads a COCO instances JSON, checks its values and finds what its ids mean."""

import reprlib
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from tpudet.detection.preparation.sources.annotation_values import read_flag, read_id, read_size
from tpudet.trainkit.errors import UserError, listing, require_utf8
from tpudet.trainkit.files.inputs import read_input_text
from tpudet.trainkit.files.json_text import parse_json

_MAX_LETTERS = 255  # of a category id, an identifier in class lists and submissions
_NAMES = (  # that results hold
    ("images", "file_name"),
    ("images", "id"),
    ("annotations", "id"),
    ("annotations", "image_id"),
    ("annotations", "category_id"),
    ("categories", "id"),
    ("categories", "name"),
)


def load_coco(path: str, what: str = "--annotations") -> dict[str, Any]:
    """Reads the file and checks the keys and values that readers need.

    Args:
        path: the file.
        what: the argument that named it, for messages.

    Raises:
        UserError: not JSON, or not in COCO's layout; every fault is named with its count.
    """
    text = read_input_text(path, what)
    try:
        content = parse_json(text, any_text=True)  # names are checked below
    except (ValueError, RecursionError) as error:  # also lists in lists in lists
        raise UserError(f"{what} {path} is not JSON: {error}.") from error
    if not isinstance(content, dict):
        raise UserError(f"{what} {path} is not COCO JSON: it is not a mapping.")
    faults = [fault for section in _SECTIONS for fault in _faults(content, section)]
    if faults:
        raise UserError(f"{what} {path} is not COCO JSON: {'; '.join(faults)}.")
    for section, key in _NAMES:
        values = (entry.get(key) for entry in content[section])
        texts = (value for value in values if isinstance(value, str))
        require_utf8(texts, f"'{key}' in '{section}' of {path}")
    return content


def rows_by_id(ids: Sequence[str]) -> dict[str, int]:
    """Returns the first row of each id; where it is unambiguous, also that of a padded number."""
    rows = {key: row for row, key in reversed(list(enumerate(ids)))}
    numbers: dict[str, set[int]] = {}
    for key, row in rows.items():
        if key.isdecimal():
            numbers.setdefault(_unpadded(key), set()).add(row)
    return {number: min(same) for number, same in numbers.items() if len(same) == 1} | rows


def find_row(rows: dict[str, int], key: str) -> int | None:
    """Returns the row of an id in `rows_by_id`; zeros in front of a number make no difference."""
    row = rows.get(key)
    return rows.get(_unpadded(key)) if row is None and key.isdecimal() else row


def _unpadded(digits: str) -> str:
    return digits.lstrip("0") or "0"  # int() refuses more than 4,300 digits


def require_own_files(ids: Sequence[str], files: Sequence[str], path: str) -> None:
    """Raises if one image id stands for several files, as merged exports have it.

    Raises:
        UserError: which image the annotations belong to is not known; names the first ids.
    """
    first: dict[str, str] = {}
    several: dict[str, list[str]] = {}
    for key, file in zip(ids, files, strict=True):
        if first.setdefault(key, file) != file:
            several.setdefault(key, [first[key]]).append(file)
    if several:
        shown = listing((f"{key}: {' and '.join(names)}" for key, names in several.items()), 5)
        raise UserError(
            f"--annotations {path}: {len(several)} image ids stand for several files, so it is not "
            f"known to which their boxes belong: {shown}. Give every image an id of its own."
        )


def _is_file_name(value: object) -> bool:
    return isinstance(value, str) and "\0" not in value


def _is_name(value: object) -> bool:
    return read_id(value) is not None


def _is_identifier(value: object) -> bool:
    found = read_id(value)
    return found is not None and len(found) <= _MAX_LETTERS


def _is_size(value: object) -> bool:
    return read_size(value) is not None


def _is_flag(value: object) -> bool:
    return read_flag(value) is not None


# Of each section: key, whether entries need it, what its value must be.
_SECTIONS: dict[str, Iterable[tuple[str, bool, Callable[[object], bool], str]]] = {
    "images": (
        ("id", True, _is_name, "number or string"),
        ("file_name", True, _is_file_name, "file name"),
        ("height", False, _is_size, "number"),
        ("width", False, _is_size, "number"),
    ),
    "annotations": (
        ("image_id", True, _is_name, "number or string"),
        ("category_id", True, _is_name, "number or string"),
        ("iscrowd", False, _is_flag, "flag (0 or 1)"),
    ),
    "categories": (
        ("id", True, _is_identifier, f"number or string of at most {_MAX_LETTERS} letters"),
        ("name", True, _is_name, "number or string"),
    ),
}


def _faults(content: dict[str, Any], section: str) -> Iterable[str]:
    entries = content.get(section)
    if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
        yield f"no list '{section}'"
        return
    for key, is_needed, is_right, kind in _SECTIONS[section]:
        values = [entry[key] for entry in entries if key in entry]
        lacking = len(entries) - len(values)
        if is_needed and lacking:
            yield f"{lacking} of {len(entries)} entries in '{section}' lack '{key}'"
        wrong = [value for value in values if not is_right(value)]
        if wrong:
            yield (
                f"'{key}' of {len(wrong)} of {len(entries)} entries in '{section}' is not a "
                f"{kind}, such as {reprlib.repr(wrong[0])}"
            )
