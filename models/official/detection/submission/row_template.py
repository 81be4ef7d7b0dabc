"""Rows of a CSV of detections from a template such as `{image},{score:.4f} {x} {y} {w} {h}`.

Columns are separated by commas, and fields are written as in Python's format strings. If all fields
of a detection stand in one column, as here, an image has one row in which its detections follow one
another; otherwise every detection has a row.
"""

import string
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from tpudet.detection.submission.errors import SubmissionError

IMAGE_FIELDS = ("image", "width", "height")
DETECTION_FIELDS = (
    *("label", "name", "class_id", "score"),
    *("x", "y", "w", "h", "cx", "cy", "x1", "y1", "x2", "y2"),
)


class RowTemplate(NamedTuple):
    """A template, cut into columns."""

    columns: tuple[str, ...]
    joined: int | None  # the column in which the detections of an image follow one another

    def header(self) -> list[str]:
        """Returns names for the columns: their text without braces and formats."""
        return [
            "".join(text + (field or "") for text, field, _, _ in string.Formatter().parse(column))
            for column in self.columns
        ]

    def rows(
        self, image: Mapping[str, Any], detections: Sequence[Mapping[str, Any]]
    ) -> Iterator[list[str]]:
        """Yields the rows of an image; one without detections has one only if they are joined.

        Args:
            image: values of IMAGE_FIELDS.
            detections: values of DETECTION_FIELDS for each.
        """
        if self.joined is None:
            for detection in detections:
                yield [column.format(**image, **detection) for column in self.columns]
            return
        place = self.joined
        row = [c if n == place else c.format(**image) for n, c in enumerate(self.columns)]
        texts = (self.columns[place].format(**image, **detection) for detection in detections)
        row[place] = " ".join(texts)
        yield row


def parse_template(text: str) -> RowTemplate:
    """Reads a template.

    Raises:
        SubmissionError: unbalanced braces, an unknown field, a format that does not fit, or no
            field of a detection.
    """
    columns, mistakes = tuple(text.split(",")), []
    fields: list[set[str]] = []
    for column in columns:
        try:
            parsed = [
                (name, spec or "")
                for _, name, spec, _ in string.Formatter().parse(column)
                if name is not None
            ]
        except ValueError as error:
            raise SubmissionError(f"--format {text!r}: {error}") from error
        fields.append({name for name, _ in parsed})
        mistakes += [f"{{{n}}}" for n, _ in parsed if n not in (*IMAGE_FIELDS, *DETECTION_FIELDS)]
        mistakes += [f"{{{n}:{spec}}}, a field in a format" for n, spec in parsed if "{" in spec]
    if mistakes:
        known = ", ".join((*IMAGE_FIELDS, *DETECTION_FIELDS))
        raise SubmissionError(f"--format {text!r} has {', '.join(mistakes)}; fields are {known}")
    own = [number for number, names in enumerate(fields) if names & set(DETECTION_FIELDS)]
    if not own:
        raise SubmissionError(f"--format {text!r} has no field of a detection, such as {{score}}")
    try:
        "".join(columns).format(**_EXAMPLE)
    except ValueError as error:
        raise SubmissionError(f"--format {text!r}: {error}") from error
    is_joined = len(own) == 1 and len(columns) > 1
    return RowTemplate(columns, own[0] if is_joined else None)


_EXAMPLE: dict[str, Any] = dict.fromkeys((*IMAGE_FIELDS, *DETECTION_FIELDS), 0.5) | {
    **dict.fromkeys(("image", "label", "name"), "a"),
    **dict.fromkeys(("width", "height", "class_id"), 1),
}
