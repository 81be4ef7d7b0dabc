"""The class list, `classes.csv`: one row per class, `identifier,name`, without a header.

The row number, counted from 1, is the class id everywhere in the toolkit. Apart from
`read_classes`, the functions take and return text, because class lists are also stored in
SavedModels and in the metadata of predictions files.
"""

import csv
import io
import itertools
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from tpudet.trainkit.errors import UserError, shorten
from tpudet.trainkit.files.inputs import read_input_text

_MAX_CLASSES = 500_000  # of a list; Google Landmarks has 203,094
_ID_DIGITS = 7  # of ids in label maps, which become rows of the list
# Of label maps. A run of blanks or letters is looked at from its start only, not from each of them:
# the time is in proportion to the text, whatever it is.
_ITEM = re.compile(r"\bitem\s*+(?::\s*+)?{([^{}]*)")
_FIELD = re.compile(r"\b(\w++)\s*+:\s*+(?:\"([^\"]*)\"|'([^']*)'|(\w+))")

# Headers that class lists of other programs have, lower case.
_HEADERS = {
    (identifier, name)
    for identifier in ("id", "identifier", "class_id", "label", "labelname", "mid", "index")
    for name in ("name", "class", "class_name", "classname", "displayname", "display_name", "label")
}


class ClassEntry(NamedTuple):
    """One class: its identifier in submissions (an Open Images MID, say) and its name."""

    identifier: str
    name: str


class ClassMatch(NamedTuple):
    """Where the classes of one list are in another."""

    rows: list[int | None]  # row in the other list, from 0; None: it has no such class
    contradictions: dict[int, str]  # own rows, from 0, whose identifier is another class there


def read_classes(path: str, name: str = "--classes") -> tuple[ClassEntry, ...]:
    """Reads a class list from a file.

    Args:
        path: the file, local or in a bucket.
        name: the argument that named it, for messages.

    Raises:
        UserError: the file cannot be read, or `read_class_list` refuses its text.
    """
    text = read_input_text(path, name)
    try:
        return read_class_list(text)
    except UserError as error:
        raise UserError(f"{name} {path}: {error}") from error


def read_class_list(text: str) -> tuple[ClassEntry, ...]:
    """Reads the text of a class list; entry `k` has class id `k + 1`.

    Inverse of `write_class_list`. A byte order mark, blanks around the columns and empty lines at
    the end are ignored.

    Args:
        text: contents of `classes.csv`, one `identifier,name` per row. A name that contains a
            comma stands in double quotes.

    Raises:
        UserError: there is no class or more than 500,000, a row does not have exactly two columns,
            an identifier or name is empty or has a line break, or one occurs twice. All mistakes
            are listed with their row numbers.
    """
    try:
        # Line ends of every system: csv itself does not take those of the old Mac, a bare CR.
        stream = io.StringIO(text.removeprefix("\ufeff"), newline=None)
        rows = list(itertools.islice(csv.reader(stream, strict=True), _MAX_CLASSES + 1))
    except csv.Error as error:
        raise UserError(f"The class list is not a CSV: {error}.") from error
    if len(rows) > _MAX_CLASSES:
        raise UserError(
            f"The class list has more than {_MAX_CLASSES:,} rows. Is it a table of boxes or images?"
        )
    while rows and not any(column.strip() for column in rows[-1]):
        rows.pop()
    entries = [ClassEntry(*(column.strip() for column in (*row, "", "")[:2])) for row in rows]
    mistakes = [
        *(_column_mistake(number, row) for number, row in enumerate(rows, 1) if len(row) != 2),
        *_value_mistakes([(n, e) for n, e in enumerate(entries, 1) if len(rows[n - 1]) == 2]),
    ]
    if not rows:
        mistakes.append("it is empty")
    elif tuple(column.lower() for column in entries[0]) in _HEADERS:
        mistakes.append(f"row 1: '{','.join(entries[0])}' is a header, which would be a class")
    if mistakes:
        raise UserError(
            "The class list cannot be used; each row must be `identifier,name`, both unique:\n"
            + "\n".join(f"  {mistake}" for mistake in mistakes)
        )
    return tuple(entries)


def write_class_list(entries: Iterable[ClassEntry]) -> str:
    """Returns the text of a class list, one line per entry. Inverse of `read_class_list`.

    Raises:
        UserError: `read_class_list` would refuse to read the result.
    """
    stream = io.StringIO()
    csv.writer(stream, lineterminator="\n").writerows(entries)
    text = stream.getvalue()
    read_class_list(text)
    return text


def read_label_map(text: str) -> tuple[ClassEntry, ...]:
    """Reads a label map of the TF Object Detection API; entry `k` has class id `k + 1`.

    Ids that the map leaves out become classes of which no record has objects.

    Args:
        text: items such as `item { id: 1 name: "n0" display_name: "cat" }`. The identifier is
            `name`, the name is `display_name` or else `name`.

    Raises:
        UserError: there is no item, one lacks an id from 1 or a name, or an id occurs twice.
    """
    entries: dict[int, ClassEntry] = {}
    mistakes = []
    text = re.sub(r"#.*", "", text)
    for number, item in enumerate(_ITEM.findall(text), start=1):
        fields = {
            key: double or single or plain for key, double, single, plain in _FIELD.findall(item)
        }
        row, name = fields.get("id", ""), fields.get("name") or fields.get("display_name")
        if not (row.isdecimal() and len(row) < _ID_DIGITS and int(row) > 0 and name):
            mistakes.append(f"item {number} needs an id from 1 and a name")
        elif int(row) in entries:
            mistakes.append(f"id {row} occurs twice")
        else:
            entries[int(row)] = ClassEntry(name, fields.get("display_name") or name)
    if mistakes or not entries:
        raise UserError(f"the label map: {'; '.join(mistakes) or 'has no item'}")
    missing = ClassEntry("unused_{0}", "unused {0}")
    return tuple(
        entries.get(k) or ClassEntry._make(text.format(k) for text in missing)
        for k in range(1, max(entries) + 1)
    )


def first_difference(before: Sequence[ClassEntry], after: Sequence[ClassEntry]) -> str | None:
    """Describes the first class that changed; None if the lists are equal."""
    for row, (old, new) in enumerate(zip(before, after, strict=False), 1):
        if old != new:
            old_row, new_row = ",".join(old), ",".join(new)
            return f"class {row} was {old_row}, now {new_row}"
    if len(before) == len(after):
        return None
    return f"there were {len(before)} classes, now there are {len(after)}"


def class_ids(entries: Sequence[ClassEntry]) -> dict[str, int]:
    """Maps every label, the identifier or the name of a class, to the class id, from 1.

    If the name of one class is the identifier of another, the label means the identifier.
    """
    names = {entry.name: row for row, entry in enumerate(entries, start=1)}
    return names | {entry.identifier: row for row, entry in enumerate(entries, start=1)}


def match_entries(own: Sequence[ClassEntry], others: Sequence[ClassEntry]) -> ClassMatch:
    """Finds the classes of one list in another, which may number them differently.

    Names decide. Identifiers do for a class whose name tells nothing: it is the identifier itself,
    or several classes have it. An identifier whose class has another name, which is not in the
    other list, contradicts it.
    """
    by_name = {entry.name: row for row, entry in enumerate(others)}
    by_identifier = {entry.identifier: row for row, entry in enumerate(others)}
    counts = Counter(entry.name for entry in own)
    rows: list[int | None] = []
    contradictions: dict[int, str] = {}
    for entry in own:
        same = by_identifier.get(entry.identifier)
        is_distinct = counts[entry.name] == 1
        row = by_name.get(entry.name) if is_distinct else same
        if row is None and same is None:
            row = by_identifier.get(entry.name) if is_distinct else None
        elif row is None and same is not None:
            row, other = same, others[same]
            names = {entry.name.casefold(), other.name.casefold()}
            if len(names) > 1 and not names & {entry.identifier.casefold()}:
                text = f"{entry.identifier} is {entry.name}, there {other.name}"
                contradictions[len(rows)] = text
        rows.append(row)
    return ClassMatch(rows, contradictions)


def _column_mistake(number: int, row: Sequence[str]) -> str:
    line = ",".join(row)
    if len(row) < 2:
        return f"row {number}: {line!r} has no second column (expected `identifier,name`)"
    return f"row {number}: {line!r} has {len(row)} columns; quote a name that contains a comma"


def _value_mistakes(numbered: Sequence[tuple[int, ClassEntry]]) -> list[str]:
    mistakes = []
    for field in ClassEntry._fields:
        first_row: dict[str, int] = {}
        for number, entry in numbered:
            value = getattr(entry, field)
            if not value:
                mistakes.append(f"row {number}: the {field} is empty")
            elif len(value.splitlines()) > 1:  # mostly of a quote that is never closed
                mistakes.append(
                    f"row {number}: the {field} {shorten(value, 60)!r} has a line break"
                )
            elif value in first_row:
                mistakes.append(
                    f"row {number}: {field} {value!r} is also in row {first_row[value]}"
                )
            else:
                first_row[value] = number
    return mistakes
