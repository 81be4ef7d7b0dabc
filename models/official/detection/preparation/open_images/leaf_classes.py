"""Command: the classes that no other class of the list is a kind of."""

import argparse
import os
from collections.abc import Sequence

from tpudet.detection.preparation.open_images.default_paths import (
    CLASSES,
    HIERARCHY,
    data_path,
    storage_path,
)
from tpudet.detection.preparation.sources.annotations import PreparationError
from tpudet.detection.preparation.sources.input_files import read_classes, read_text
from tpudet.detection.submission.hierarchy import Hierarchy, read_hierarchy
from tpudet.trainkit.class_list import ClassEntry, write_class_list
from tpudet.trainkit.command_line import run_command
from tpudet.trainkit.files.storage import write_text
from tpudet.trainkit.jobs.steps import Step, run_step

_NAMES_SHOWN = 10

_EPILOG = """example:
  scripts/build_leaf_classes_list.py $DATA/challenge-2019-classes-description-500.csv \\
      $DATA/challenge-2019-label500-hierarchy.json $STORAGE/prepared/classes_leaf.csv
exit status: 0 done or up to date, 2 wrong arguments or inputs (nothing half-written),
130 interrupted
"""


def leaf_classes(classes: Sequence[ClassEntry], hierarchy: Hierarchy) -> tuple[ClassEntry, ...]:
    """The classes none of whose descendants is a class too, in their order.

    Raises:
        PreparationError: the hierarchy lacks classes; the first ten are named.
    """
    missing = [entry for entry in classes if entry.identifier not in hierarchy.children]
    if missing:
        names = ", ".join(f"{entry.identifier} ({entry.name})" for entry in missing[:_NAMES_SHOWN])
        raise PreparationError(
            f"The hierarchy lacks {len(missing)} of {len(classes)} classes: {names}"
            f"{', ...' if len(missing) > _NAMES_SHOWN else ''}. Pass the one of these classes."
        )
    identifiers = {entry.identifier for entry in classes}
    return tuple(
        entry
        for entry in classes
        if identifiers.isdisjoint(hierarchy.descendants(entry.identifier))
    )


def read_hierarchy_file(path: str, what: str) -> Hierarchy:
    """Reads a hierarchy that the user named as `what`.

    Raises:
        PreparationError: it is missing or no hierarchy.
    """
    try:
        return read_hierarchy(read_text(path, what))
    except ValueError as error:
        raise PreparationError(f"{what} {path}: {error}") from error


def leaf_classes_step(output: str, classes: str, hierarchy: str) -> Step:
    """The step that writes the leaf classes of two files, a class list and a hierarchy."""

    def run() -> str:
        entries = read_classes(classes, "CLASSES")
        leaves = leaf_classes(entries, read_hierarchy_file(hierarchy, "HIERARCHY"))
        write_text(output, write_class_list(leaves))
        return f"{len(leaves)} of {len(entries)} classes are leaves."

    return Step(
        name=f"List leaf classes in {os.path.basename(output)}",
        inputs=(classes, hierarchy),
        options={},
        outputs=(output,),
        run=run,
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command; returns its exit status."""
    parser = argparse.ArgumentParser(
        prog="build_leaf_classes_list.py",
        description=(__doc__ or "").split(": ", 1)[1],
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    for name, default, what in (
        ("classes", data_path(CLASSES), "class list, `MID,name` a line"),
        ("hierarchy", data_path(HIERARCHY), "JSON of LabelName and Subcategory"),
        ("output", storage_path("prepared", "classes_leaf.csv"), "class list to write"),
    ):
        parser.add_argument(
            name,
            nargs="?",
            default=default,
            metavar=name.upper(),
            help=f"{what} (default: %(default)s)",
        )
    parser.add_argument("--overwrite", action="store_true", help="replace a file that is there")
    return run_command(parser, argv, _run)


def _run(arguments: argparse.Namespace) -> int:
    step = leaf_classes_step(arguments.output, arguments.classes, arguments.hierarchy)
    run_step(step, overwrite=arguments.overwrite)
    return 0
