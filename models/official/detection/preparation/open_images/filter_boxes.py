"""Command: a box CSV without the boxes of groups, depictions, or of what is seen from inside."""

import argparse
import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from tpudet.detection.preparation.open_images.default_paths import (
    TRAIN_BOXES,
    data_path,
    storage_path,
)
from tpudet.detection.preparation.sources.annotations import PreparationError
from tpudet.detection.preparation.sources.box_csv import (
    UNKNOWN,
    parse_flags,
    stream_boxes,
    write_boxes,
)
from tpudet.trainkit.command_line import run_command
from tpudet.trainkit.jobs.steps import Step, run_step

_EPILOG = """A box whose flag is -1 or blank (unknown) stays. Columns and texts stay as they are.

example:
  scripts/filter_dataset.py $STORAGE/prepared/train_no_groups_no_inside.csv \\
      $DATA/challenge-2019-train-detection-bbox.csv --remove_inside
exit status: 0 done or up to date, 2 wrong arguments or inputs (nothing half-written),
130 interrupted
"""


class FilterCounts(NamedTuple):
    """What a filter did, in rows of the CSV."""

    rows: int
    kept: int
    removed: Mapping[str, int]  # by flag; a row with several counts under the first
    unknown: Mapping[str, int]  # by flag: kept rows that do not say


def filter_boxes(
    output: str,
    source: str,
    *,
    remove_groups: bool = True,
    remove_depicted: bool = False,
    remove_inside: bool = False,
) -> FilterCounts:
    """Copies a box CSV without certain boxes.

    A box goes where its flag is 1. Kept rows have the columns, the order and the text of the
    source, byte for byte apart from needless quotes and the kind of line end.

    Args:
        output: the CSV to write, whole or not at all.
        source: the CSV to read.
        remove_groups: remove boxes around several objects (IsGroupOf).
        remove_depicted: remove drawings and the like (IsDepiction).
        remove_inside: remove pictures of the inside of an object (IsInside).

    Raises:
        PreparationError: `source` is no box CSV, lacks a flag that is asked for or has one that is
            not 1, 0, -1 or blank; no box would be left; `output` is `source`.
        OSError: `output` cannot be written.
    """
    if os.path.abspath(output) == os.path.abspath(source):
        raise PreparationError(f"OUTPUT and INPUT are the same file, {source}: name another.")
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
        raise PreparationError(
            f"INPUT {source}: no box would be left of {counts['rows']}; nothing was written."
        )


def filter_step(
    output: str,
    source: str,
    *,
    remove_groups: bool = True,
    remove_depicted: bool = False,
    remove_inside: bool = False,
) -> Step:
    """The step of `filter_boxes`."""
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
        run=lambda: _summary(filter_boxes(output, source, **options)),
    )


def _summary(counts: FilterCounts) -> str:
    removed = [f"{count} {flag}" for flag, count in counts.removed.items()]
    unknown = [f"{count} of unknown {flag}" for flag, count in counts.unknown.items() if count]
    return (
        f"{counts.kept} of {counts.rows} boxes kept"
        + (f", among them {', '.join(unknown)}" if unknown else "")
        + (f"; removed {', '.join(removed)}." if removed else ".")
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command; returns its exit status."""
    parser = argparse.ArgumentParser(
        prog="filter_dataset.py",
        description=(__doc__ or "").split(": ", 1)[1],
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "output",
        nargs="?",
        default=storage_path("prepared", "train_no_groups.csv"),
        metavar="OUTPUT",
        help="CSV to write (default: %(default)s)",
    )
    parser.add_argument(
        "input",
        nargs="?",
        default=data_path(TRAIN_BOXES),
        metavar="INPUT",
        help="box CSV (default: %(default)s)",
    )
    for name, default, what in (
        ("groups", True, "boxes around several objects, IsGroupOf"),
        ("depicted", False, "drawings, toys and the like, IsDepiction"),
        ("inside", False, "pictures of an object's inside, IsInside"),
    ):
        parser.add_argument(
            f"--remove_{name}",
            action=argparse.BooleanOptionalAction,
            default=default,
            help=f"{what} (default: {'yes' if default else 'no'})",
        )
    parser.add_argument("--overwrite", action="store_true", help="replace a file that is there")
    return run_command(parser, argv, _run)


def _run(arguments: argparse.Namespace) -> int:
    step = filter_step(
        arguments.output,
        arguments.input,
        remove_groups=arguments.remove_groups,
        remove_depicted=arguments.remove_depicted,
        remove_inside=arguments.remove_inside,
    )
    run_step(step, overwrite=arguments.overwrite)
    return 0
