"""The TFRecord sets of all parts of a preset: their paths, and listing and writing them."""

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from tpudet.detection.preparation.open_images.plan_part import plan_part
from tpudet.detection.preparation.open_images.presets import HUMAN_PARTS, PartPreset
from tpudet.detection.preparation.records.balance import format_imbalance
from tpudet.detection.preparation.records.output_check import finished_manifest, is_current
from tpudet.detection.preparation.records.plan import Plan
from tpudet.detection.preparation.records.write_set import write_sets
from tpudet.trainkit.errors import UserError
from tpudet.trainkit.files import storage


@dataclass(frozen=True, kw_only=True)
class Workspace:
    """Paths of the challenge's inputs and of the prepared outputs."""

    train_boxes: str  # box CSV of all training boxes
    train_images: str  # folder
    prepared_dir: str  # tables made by prepare_datasets
    converted_dir: str  # TFRecords, one folder per part

    def boxes_path(self, part: str, preset: PartPreset) -> str:
        """The box CSV of a part's training set; human parts have their own."""
        if part != HUMAN_PARTS and preset.boxes == "all":
            return self.train_boxes
        human = f"_{HUMAN_PARTS}" if part == HUMAN_PARTS else ""
        name = f"train{human}{'' if preset.boxes == 'all' else f'_{preset.boxes}'}.csv"
        return os.path.join(self.prepared_dir, name)

    def classes_path(self, part: str) -> str:
        """The class list of a part."""
        return os.path.join(self.prepared_dir, f"classes_{part}.csv")


@dataclass(frozen=True, kw_only=True)
class WriteOptions:
    """How sets are written, whatever their part."""

    num_shards: int | None  # files of a training set; None: as the preset says
    max_copies: int | None  # of an image in balancing; None: as the preset says
    seed: int  # of order and copies
    check_pixels: bool  # decode every image instead of checking the structure of JPEGs
    skip_missing: bool  # leave out images whose files are missing
    workers: int
    cluster: str | None
    overwrite: bool
    allow_empty: bool  # also write a set that lost all its boxes, or all of a class


class PartSet(NamedTuple):
    """One set to write, train or val, of one part."""

    output: str  # converted/<name>
    split: str
    boxes: str
    classes: str
    image_directories: tuple[str, ...]
    num_shards: int
    min_images_per_class: int = 0
    max_copies: int | None = None


def train_set(
    output: str,
    preset: PartPreset,
    *,
    boxes: str,
    classes: str,
    image_directories: tuple[str, ...],
    max_copies: int | None,
    options: WriteOptions,
) -> PartSet:
    """Returns the training set of a part; the options override the preset's numbers."""
    is_balanced = preset.min_images_per_class > 0
    return PartSet(
        output,
        "train",
        boxes,
        classes,
        image_directories,
        options.num_shards or preset.num_shards,
        preset.min_images_per_class,
        (options.max_copies or max_copies) if is_balanced else None,
    )


def require_prepared(paths: Iterable[str]) -> None:
    """Raises if files that other commands make are missing.

    Raises:
        UserError: names all missing files.
    """
    missing = [path for path in dict.fromkeys(paths) if not storage.exists(path)]
    if missing:
        raise UserError(
            f"Missing: {', '.join(missing)}. tpudet prepare_datasets makes the files in "
            "--prepared_dir; the challenge's own files belong in $DATA."
        )


def write_part_sets(sets: Sequence[PartSet], options: WriteOptions) -> None:
    """Writes sets one after another; those that are up to date are kept.

    Plans are made one at a time, because each may hold millions of boxes.

    Raises:
        UserError: as `write_sets`; finished sets are kept.
    """
    for number, part_set in enumerate(sets, 1):
        print(f"[{number}/{len(sets)}] {part_set.output}, {part_set.split}", flush=True)
        write_sets(
            [_plan(part_set, options)],
            workers=options.workers,
            cluster=options.cluster,
            overwrite=options.overwrite,
            allow_empty=options.allow_empty,
        )


def list_part_sets(
    sets: Sequence[PartSet], options: WriteOptions, *, pending: Sequence[str]
) -> None:
    """Prints which sets would be written, and their class counts before and after balancing.

    Args:
        sets: as for `write_part_sets`.
        options: as for `write_part_sets`.
        pending: box CSVs that an earlier step would make; their sets cannot be counted.
    """
    for number, part_set in enumerate(sets, 1):
        head = f"[{number}/{len(sets)}] {part_set.output}, {part_set.split}"
        if part_set.boxes in pending:
            print(f"{head}: to do (its boxes {part_set.boxes} are not made yet)")
            continue
        plan = _plan(part_set, options)
        manifest = finished_manifest(plan, overwrite=True)  # a damaged one is to do
        is_done = manifest is not None and is_current(plan, manifest)
        print(
            f"{head}: {'up to date' if is_done else 'to do'}, {len(plan.order)} records in "
            f"{plan.num_shards} file(s)"
        )
        if plan.balance is not None:
            print(format_imbalance(plan.balance, plan.annotations.classes, with_table=True))


def _plan(part_set: PartSet, options: WriteOptions) -> Plan:
    return plan_part(
        boxes_csv=part_set.boxes,
        classes_csv=part_set.classes,
        image_directories=part_set.image_directories,
        output=part_set.output,
        split=part_set.split,
        num_shards=part_set.num_shards,
        min_images_per_class=part_set.min_images_per_class,
        max_copies=part_set.max_copies,
        seed=options.seed,
        check_pixels=options.check_pixels,
        skip_missing=options.skip_missing,
    )
