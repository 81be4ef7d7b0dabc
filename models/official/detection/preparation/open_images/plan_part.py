"""Plans the TFRecords of one part: the images with a box of its classes, balanced on request."""

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from tpudet.detection.preparation.records.balance import check_balance, format_imbalance
from tpudet.detection.preparation.records.plan import Plan, plan_shards
from tpudet.detection.preparation.records.subsets import (
    balance_images,
    leave_out_missing,
    select_classes,
)
from tpudet.detection.preparation.records.write_set import write_sets
from tpudet.detection.preparation.sources.annotations import Annotations
from tpudet.detection.preparation.sources.input_files import require_images
from tpudet.detection.preparation.sources.mask_files import MaskFiles, add_open_images_masks
from tpudet.detection.preparation.sources.open_images import read_open_images
from tpudet.trainkit.class_list import read_classes


class PartSet(NamedTuple):
    """One set to write, train, val or test, of one part."""

    output: str  # converted/<part>
    split: str
    boxes: str  # CSV; boxes of other classes than those of the part are ignored
    classes: str  # the class list of the part
    image_directories: tuple[str, ...]  # searched in this order; none for a plan only displayed
    num_shards: int
    min_images_per_class: int = 0  # images are copied to reach it, in train only; 0: none is
    max_copies: int | None = None  # of an image; None: no limit
    masks: MaskFiles | None = None  # to write; a box without one becomes a region to ignore
    division: Mapping[str, int | str] = MappingProxyType({})  # for the manifest of a fold

    @property
    def tables(self) -> tuple[str, ...]:
        """The files that must be there: boxes, classes and, if there are masks, theirs."""
        return (self.boxes, self.classes, *([self.masks.table] if self.masks else []))


def plan_part(
    part_set: PartSet,
    *,
    seed: int,
    check_pixels: bool,
    skip_missing: bool,
    allow_empty: bool,
    image_list: str | None = None,
) -> Plan:
    """Plans one set of a part.

    Args:
        part_set: which set, and of which files.
        seed: of copies and order.
        check_pixels: decode every image instead of checking the structure of JPEGs.
        skip_missing: leave out images whose files are missing, with a finding for each.
        allow_empty: with `skip_missing`, also leave out all images of a class.
        image_list: file of image ids; exactly those are taken, with boxes or without.

    Raises:
        UserError: a file cannot be used, no box belongs to the classes, no mask to a box, or image
            files are missing.
    """
    directories, masks = part_set.image_directories, part_set.masks
    min_images, max_copies = part_set.min_images_per_class, part_set.max_copies
    check_balance(min_images, max_copies, (part_set.split,))
    annotations, source = _read(part_set.boxes, part_set.classes, image_list)
    if masks is not None:
        annotations = add_open_images_masks(annotations, masks)
        source |= {"masks": masks.table, "mask_directory": masks.directory}
    annotations, rows = _select_readable(
        annotations, directories, skip_missing=skip_missing, allow_empty=allow_empty
    )
    balance = balance_images(
        annotations, rows, min_images_per_class=min_images, max_copies=max_copies, seed=seed
    )
    options = {
        **source,
        "images": list(directories),
        "skip_missing": skip_missing,
        "balance": min_images,
        "max_copies": max_copies,
        **part_set.division,
    }
    return plan_shards(
        annotations,
        image_directories=directories,
        output=part_set.output,
        split=part_set.split,
        num_shards=part_set.num_shards,
        seed=seed,
        include_masks=masks is not None,
        check_pixels=check_pixels,
        rows=rows,
        balance=balance,
        options=options,
    )


def write_part(
    plan: Plan,
    *,
    display_only: bool,
    workers: int,
    cluster: str | None,
    overwrite: bool,
    allow_empty: bool,
) -> None:
    """Prints the counts of a planned part and writes it, see `write_sets`.

    Args:
        plan: made by `plan_part`.
        display_only: print the class counts before and after balancing, and write nothing.
        workers: as for `write_sets`.
        cluster: as for `write_sets`.
        overwrite: as for `write_sets`.
        allow_empty: as for `write_sets`.
    """
    print(
        f"{plan.options['boxes_taken']} of {plan.options['boxes_read']} boxes are of the classes, "
        f"in {len(plan.annotations.images)} of {plan.options['images_read']} images"
    )
    if not display_only:
        write_sets(
            [plan],
            workers=workers,
            cluster=cluster,
            overwrite=overwrite,
            allow_empty=allow_empty,
        )
        return
    if plan.balance is not None:
        print(format_imbalance(plan.balance, plan.annotations.classes, with_table=True))
    print(f"Nothing was written; {plan.num_shards} file(s) {plan.prefix}-* would be.")


def _read(
    boxes_csv: str, classes_csv: str, image_list: str | None
) -> tuple[Annotations, dict[str, Any]]:
    """Reads the boxes of the classes with their images, and the counts for the manifest."""
    classes = read_classes(classes_csv, "The class list")
    everything = read_open_images(boxes_csv, images="", image_list=image_list, what="The box CSV")
    chosen = select_classes(everything, classes, keep_all_images=image_list is not None)
    return chosen, {
        "format": "open_images",
        "annotations": boxes_csv,
        "image_list": image_list,
        "classes": classes_csv,
        "images_read": len(everything.images),
        "boxes_read": len(everything.boxes),
        "boxes_taken": len(chosen.boxes),
    }


def _select_readable(
    annotations: Annotations,
    image_directories: Sequence[str],
    *,
    skip_missing: bool,
    allow_empty: bool,
) -> tuple[Annotations, np.ndarray]:
    """Returns the annotations and the rows of the images that have files."""
    if image_directories and skip_missing:
        return leave_out_missing(annotations, image_directories, allow_empty=allow_empty)
    if image_directories:
        advice = "Fetch them, or pass --skip_missing to leave these images out."
        require_images(image_directories, annotations.images["file"].tolist(), advice)
    return annotations, np.arange(len(annotations.images))
