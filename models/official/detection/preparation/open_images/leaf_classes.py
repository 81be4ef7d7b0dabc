"""Leaf classes: those without a descendant in the class list."""

import os
from collections.abc import Sequence

from tpudet.detection.preparation.open_images.challenge import STEP_CODE
from tpudet.detection.submission.hierarchy import Hierarchy, read_hierarchy_file
from tpudet.trainkit.class_list import ClassEntry, read_classes, write_class_list
from tpudet.trainkit.errors import UserError, listing
from tpudet.trainkit.files.storage import write_text
from tpudet.trainkit.jobs.steps import Step


def leaf_classes(classes: Sequence[ClassEntry], hierarchy: Hierarchy) -> tuple[ClassEntry, ...]:
    """Returns the classes that have no descendant among the classes, in their order.

    Raises:
        UserError: the hierarchy lacks classes; the first ten are named.
    """
    missing = [entry for entry in classes if entry.identifier not in hierarchy.children]
    if missing:
        names = listing(f"{entry.identifier} ({entry.name})" for entry in missing)
        raise UserError(
            f"The hierarchy lacks {len(missing)} of {len(classes)} classes: {names}. Pass the "
            "hierarchy that belongs to these classes."
        )
    identifiers = {entry.identifier for entry in classes}
    return tuple(
        entry
        for entry in classes
        if identifiers.isdisjoint(hierarchy.descendants(entry.identifier))
    )


def leaf_classes_step(output: str, classes: str, hierarchy: str) -> Step:
    """Returns the step that writes the leaf classes of a class list and a hierarchy file."""

    def run() -> str:
        entries = read_classes(classes, "CLASSES")
        leaves = leaf_classes(entries, read_hierarchy_file(hierarchy))
        write_text(output, write_class_list(leaves))
        return f"{len(leaves)} of {len(entries)} classes are leaves."

    return Step(
        name=f"List leaf classes in {os.path.basename(output)}",
        inputs=(classes, hierarchy),
        options={},
        outputs=(output,),
        run=run,
        code=STEP_CODE,
    )
