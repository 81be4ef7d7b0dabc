"""The TFRecord sets of all parts of a preset: their paths and tables, listing and writing them."""

import os
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from tpudet.detection.preparation.open_images.challenge import (
    SEGMENTATION_BOXES,
    SEGMENTATION_CLASSES,
    SEGMENTATION_HIERARCHY,
    SEGMENTATION_MASKS,
)
from tpudet.detection.preparation.open_images.leaf_classes import leaf_classes_step
from tpudet.detection.preparation.open_images.plan_part import PartSet, plan_part
from tpudet.detection.preparation.open_images.presets import (
    HUMAN_PARTS,
    SEGMENTATION,
    PartPreset,
)
from tpudet.detection.preparation.records.balance import format_imbalance
from tpudet.detection.preparation.records.output_check import (
    finished_manifest,
    has_other_classes,
    is_current,
)
from tpudet.detection.preparation.records.plan import Plan
from tpudet.detection.preparation.records.write_set import write_sets
from tpudet.detection.preparation.sources.input_files import list_directory
from tpudet.detection.preparation.sources.mask_files import MaskFiles
from tpudet.trainkit.errors import UserError, listing
from tpudet.trainkit.files import storage
from tpudet.trainkit.jobs.steps import Step, list_steps, reason_to_run, run_steps


@dataclass(frozen=True, kw_only=True)
class Workspace:
    """Paths of the challenge's inputs and of the prepared outputs."""

    train_boxes: str  # box CSV of all training boxes
    train_images: str  # folder
    prepared_dir: str  # tables made by prepare_datasets
    converted_dir: str  # TFRecords, one folder per part
    segmentation_dir: str  # tables of the segmentation track, under their published names
    train_masks: str  # folder, as in `MaskFiles`
    validation_masks: str

    def boxes_path(self, part: str, preset: PartPreset) -> str:
        """The box CSV of a part's training set; human parts and segmentation have their own."""
        if part == SEGMENTATION:
            return self._segmentation_path(SEGMENTATION_BOXES.format("train"))
        if part != HUMAN_PARTS and preset.boxes == "all":
            return self.train_boxes
        human = f"_{HUMAN_PARTS}" if part == HUMAN_PARTS else ""
        name = f"train{human}{'' if preset.boxes == 'all' else f'_{preset.boxes}'}.csv"
        return os.path.join(self.prepared_dir, name)

    def classes_path(self, part: str) -> str:
        """The class list of a part."""
        return os.path.join(self.prepared_dir, f"classes_{part}.csv")

    def validation_boxes_path(self, part: str) -> str:
        """The box CSV of a part's validation set."""
        if part == SEGMENTATION:
            return self._segmentation_path(SEGMENTATION_BOXES.format("validation"))
        return os.path.join(self.prepared_dir, f"val_{part}.csv")

    def masks(self, part: str, images: Literal["train", "validation"]) -> MaskFiles | None:
        """The masks of the training or the validation images, if the part has masks."""
        if part != SEGMENTATION:
            return None
        directory = self.train_masks if images == "train" else self.validation_masks
        return MaskFiles(self._segmentation_path(SEGMENTATION_MASKS.format(images)), directory)

    def class_steps(self, parts: Collection[str]) -> list[Step]:
        """The steps that make the class lists which prepare_datasets does not: of segmentation.

        They are the leaves, 275 of 300 classes, since a submission is scored with all ancestors,
        which `gen_sub --hierarchy` adds.
        """
        if SEGMENTATION not in parts:
            return []
        names = (SEGMENTATION_CLASSES, SEGMENTATION_HIERARCHY)
        classes, hierarchy = (self._segmentation_path(name) for name in names)
        require_prepared([classes, hierarchy])
        return [leaf_classes_step(self.classes_path(SEGMENTATION), classes, hierarchy)]

    def _segmentation_path(self, name: str) -> str:
        return os.path.join(self.segmentation_dir, name)


@dataclass(frozen=True, kw_only=True)
class WriteOptions:
    """Options for writing the sets of all parts."""

    num_shards: int | None  # files of a training set; None: as the preset says
    max_copies: int | None  # of an image in balancing; None: as the preset says
    seed: int  # of order and copies
    check_pixels: bool  # decode every image instead of checking the structure of JPEGs
    skip_missing: bool  # leave out images whose files are missing
    workers: int
    cluster: str | None
    overwrite: bool
    allow_empty: bool  # also write a set that lost all its boxes, or all of a class


def train_set(
    output: str,
    preset: PartPreset,
    *,
    boxes: str,
    classes: str,
    image_directories: tuple[str, ...],
    max_copies: int | None,
    masks: MaskFiles | None,
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
        masks,
    )


def check_part_options(
    chosen: Mapping[str, PartPreset], options: WriteOptions, folders: Mapping[str, str]
) -> None:
    """Refuses a limit of copies where nothing is copied, and folders of images that are missing.

    Args:
        chosen: the settings of the parts to write.
        options: how they are written.
        folders: folders of images by the argument that names them.

    Raises:
        UserError: as said.
    """
    if options.max_copies and not any(part.min_images_per_class for part in chosen.values()):
        raise UserError(
            f"--max_copies {options.max_copies} limits copies, but the preset copies no image of "
            f"{', '.join(chosen)}: leave it out, or choose a preset with min_images_per_class."
        )
    for argument, folder in folders.items():
        list_directory(folder, argument)


def require_prepared(paths: Iterable[str]) -> None:
    """Raises if files that other commands make are missing.

    Raises:
        UserError: names the first five.
    """
    missing = [path for path in dict.fromkeys(paths) if not storage.exists(path)]
    if missing:
        raise UserError(
            f"Missing: {listing(missing, 5)}. tpudet prepare_datasets makes the files in "
            "--prepared_dir; the challenge's own files belong in $DATA."
        )


def prepare_sets(
    sets: Sequence[PartSet], options: WriteOptions, *, steps: Sequence[Step], dry_run: bool
) -> None:
    """Runs the steps that make the tables of sets, and writes the sets.

    Args:
        sets: those that are up to date are kept.
        options: how they are written.
        steps: in their order.
        dry_run: list both, and write nothing.

    Raises:
        UserError: as `run_steps` and `write_sets`; finished steps and sets are kept.
    """
    if not dry_run:
        run_steps(steps, overwrite=options.overwrite)
        _write_part_sets(sets, options)
        return
    list_steps(steps)
    due = [step for step in steps if reason_to_run(step) is not None]
    _list_part_sets(sets, options, pending=[path for step in due for path in step.outputs])


def _write_part_sets(sets: Sequence[PartSet], options: WriteOptions) -> None:
    # Plans are made one at a time, because each may hold millions of boxes.
    heads = [f"[{number}/{len(sets)}] {s.output}, {s.split}" for number, s in enumerate(sets, 1)]
    waiting = dict(zip(heads, sets, strict=True))
    while waiting:
        head, part_set = next(iter(waiting.items()))
        print(head, flush=True)
        plans = {head: _plan(part_set, options)}
        if options.overwrite and has_other_classes(plans[head]):
            # Only all splits of a folder together can get another class list.
            for other, beside in waiting.items():
                if other != head and beside.output == part_set.output:
                    print(other, flush=True)
                    plans[other] = _plan(beside, options)
        waiting = {other: s for other, s in waiting.items() if other not in plans}
        write_sets(
            list(plans.values()),
            workers=options.workers,
            cluster=options.cluster,
            overwrite=options.overwrite,
            allow_empty=options.allow_empty,
        )


def _list_part_sets(
    sets: Sequence[PartSet], options: WriteOptions, *, pending: Collection[str]
) -> None:
    """Prints which sets would be written, and their class counts before and after balancing.

    Sets that read a pending table, which an earlier step would make, cannot be counted.
    """
    for number, part_set in enumerate(sets, 1):
        head = f"[{number}/{len(sets)}] {part_set.output}, {part_set.split}"
        missing = [path for path in part_set.tables if path in pending]
        if missing:
            print(f"{head}: to do ({' and '.join(missing)} not made yet)")
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
        part_set,
        seed=options.seed,
        check_pixels=options.check_pixels,
        skip_missing=options.skip_missing,
        allow_empty=options.allow_empty,
    )
