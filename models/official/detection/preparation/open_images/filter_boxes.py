"""Removes boxes of groups, depictions and interiors from a box CSV."""

import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from tpudet.detection.preparation.open_images.challenge import STEP_CODE
from tpudet.detection.preparation.sources.box_csv import (
    UNKNOWN,
    parse_flags,
    stream_boxes,
    write_boxes,
)
from tpudet.trainkit.errors import UserError
from tpudet.trainkit.jobs.steps import Step


class FilterCounts(NamedTuple):
    """Counts of rows."""

    rows: int
    kept: int
    removed: Mapping[str, int]  # by flag; a row with several flags counts for the first
    unknown: Mapping[str, int]  # by flag; kept rows whose flag is unknown


def filter_boxes(
    output: str,
    source: str,
    *,
    remove_groups: bool = True,
    remove_depicted: bool = False,
    remove_inside: bool = False,
) -> FilterCounts:
    """Copies a box CSV without the boxes whose flag is 1.

    Kept rows have the columns, the order and the text of the source, byte for byte except for
    unnecessary quotes and the style of line ends. A box whose flag is -1 or blank (unknown) is
    kept.

    Args:
        output: the CSV to write, atomically.
        source: the CSV to read.
        remove_groups: remove boxes around several objects (IsGroupOf).
        remove_depicted: remove drawings and other depictions (IsDepiction).
        remove_inside: remove views of the inside of an object (IsInside).

    Raises:
        UserError: `source` is not a box CSV, lacks a requested flag or has a flag other than 1, 0,
            -1 and blank; no box would be left; `output` is `source`.
        OSError: `output` cannot be written.
    """
    if os.path.abspath(output) == os.path.abspath(source):
        raise UserError(f"OUTPUT and INPUT are the same file, {source}. Name another OUTPUT.")
    flags = _flags(remove_groups, remove_depicted, remove_inside)
    counts: Counter[str] = Counter()
    write_boxes(output, _kept_rows(source, flags, counts))
    return FilterCounts(
        rows=counts["rows"],
        kept=counts["kept"],
        removed={flag: counts[flag] for flag in flags},
        unknown={flag: counts[f"unknown {flag}"] for flag in flags},
    )


def _flags(groups: bool, depicted: bool, inside: bool) -> tuple[str, ...]:
    wanted = {"IsGroupOf": groups, "IsDepiction": depicted, "IsInside": inside}
    return tuple(flag for flag, is_wanted in wanted.items() if is_wanted)


def _kept_rows(source: str, flags: Sequence[str], counts: Counter[str]) -> Iterator[pa.RecordBatch]:
    line = 2
    for batch in stream_boxes(source, "INPUT", required=("ImageID", *flags)):
        values = {
            flag: parse_flags(source, "INPUT", line, flag, batch.column(flag)) for flag in flags
        }
        stays = np.ones(batch.num_rows, bool)
        for flag in flags:
            counts[flag] += int((stays & (values[flag] == 1)).sum())
            stays &= values[flag] != 1
        for flag in flags:
            counts[f"unknown {flag}"] += int((stays & (values[flag] == UNKNOWN)).sum())
        counts["rows"] += batch.num_rows
        counts["kept"] += int(stays.sum())
        line += batch.num_rows
        yield batch.filter(pa.array(stays))
    if not counts["kept"]:
        raise UserError(
            f"INPUT {source}: none of the {counts['rows']} boxes would be left; nothing was "
            "written."
        )


def filter_step(
    output: str,
    source: str,
    *,
    remove_groups: bool = True,
    remove_depicted: bool = False,
    remove_inside: bool = False,
) -> Step:
    """Returns the step that runs `filter_boxes`."""
    options = {
        "remove_groups": remove_groups,
        "remove_depicted": remove_depicted,
        "remove_inside": remove_inside,
    }
    return Step(
        name=f"Filter boxes into {os.path.basename(output)}",
        inputs=(source,),
        options=options,
        outputs=(output,),
        run=lambda: _summarize(filter_boxes(output, source, **options)),
        code=STEP_CODE,
    )


def _summarize(counts: FilterCounts) -> str:
    removed = [f"{count} {flag}" for flag, count in counts.removed.items()]
    unknown = [f"{count} of unknown {flag}" for flag, count in counts.unknown.items() if count]
    return (
        f"{counts.kept} of {counts.rows} boxes kept"
        + (f", including {', '.join(unknown)}" if unknown else "")
        + (f"; removed {', '.join(removed)}." if removed else ".")
    )
