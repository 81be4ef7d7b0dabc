"""Runs all steps from the challenge's files to class groups, box CSVs and validation sets."""

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tpudet.detection.preparation.open_images.challenge import BLACKLIST, HUMAN_IMAGES
from tpudet.detection.preparation.open_images.class_splits import split_step
from tpudet.detection.preparation.open_images.coco_json import coco_json_step
from tpudet.detection.preparation.open_images.filter_boxes import filter_step
from tpudet.detection.preparation.open_images.leaf_classes import leaf_classes_step
from tpudet.detection.preparation.open_images.validation import validation_step
from tpudet.trainkit.errors import UserError
from tpudet.trainkit.files import storage
from tpudet.trainkit.files.locations import data_path
from tpudet.trainkit.jobs.steps import Step, list_steps, run_steps

# What a filter removes, by the ending of its CSV's name.
_FILTERS: dict[str, dict[str, bool]] = {
    "no_groups": {},
    "no_groups_no_inside": {"remove_inside": True},
    "no_groups_no_depictions_no_inside": {"remove_depicted": True, "remove_inside": True},
}


@dataclass(frozen=True, kw_only=True)
class ChallengeFiles:
    """Paths of the challenge's files."""

    train_boxes: str
    validation_boxes: str
    classes: str
    hierarchy: str
    human_parts: str
    image_dir: str  # folder of the validation images
    human_images: str | None  # None: the file in $DATA, if there
    blacklist: str | None  # None: the file in $DATA, if there


def prepare_datasets(
    files: ChallengeFiles,
    output_dir: str,
    *,
    boundaries: Sequence[int],
    num_samples: int,
    viz_directory: str | None,
    dry_run: bool,
    overwrite: bool,
) -> None:
    """Makes class lists, filtered box CSVs and validation sets; resumable.

    Args:
        files: the inputs.
        output_dir: folder for the outputs.
        boundaries: as for `split_classes`.
        num_samples: validation images per class.
        viz_directory: folder for drawings of the validation images; None draws none.
        dry_run: only list the steps.
        overwrite: replace files that were not made by a step.

    Raises:
        UserError: inputs are missing (all are named), or as `run_steps`.
    """
    human_images = _find_optional(
        files.human_images, HUMAN_IMAGES, "human_parts uses all images with a box of its classes"
    )
    blacklist = _find_optional(files.blacklist, BLACKLIST, "no validation image is excluded")
    _require_inputs(files)
    steps = _table_steps(files, output_dir, boundaries, human_images)
    for part in ["human_parts", *(f"part_{number}" for number in range(len(boundaries) - 1))]:
        viz = None if viz_directory is None else os.path.join(viz_directory, part)
        steps += _validation_steps(
            files, output_dir, part, num_samples=num_samples, blacklist=blacklist, viz=viz
        )
    if dry_run:
        print(f"Dry run: {list_steps(steps)} of {len(steps)} steps would be run.")
        return
    num_run = run_steps(steps, overwrite=overwrite)
    print(f"{num_run} of {len(steps)} steps run, the others were up to date: {output_dir}")


def _require_inputs(files: ChallengeFiles) -> None:
    missing = [
        f"--{name} {path}"
        for name, path in vars(files).items()
        if path is not None and not storage.exists(path)
    ]
    if missing:
        raise UserError(
            f"Missing: {', '.join(missing)}. Set DATA to the folder of the challenge's files, or "
            "pass their paths."
        )


def _find_optional(path: str | None, name: str, without: str) -> str | None:
    """Returns the given path, or that of the default name if the file exists."""
    if path is not None:
        return path
    path = data_path(name)
    if storage.exists(path):
        return path
    print(f"There is no {path}: {without}.")
    return None


def _table_steps(
    files: ChallengeFiles, output_dir: str, boundaries: Sequence[int], human_images: str | None
) -> list[Step]:
    """Returns all steps but those of the parts' validation sets."""
    prepared = _paths_in(output_dir)
    leaves = prepared("classes_leaf.csv")
    return [
        filter_step(prepared("val_no_groups.csv"), files.validation_boxes),
        *_filter_steps(prepared, "train", files.train_boxes),
        leaf_classes_step(leaves, files.classes, files.hierarchy),
        split_step(
            output_dir,
            files.train_boxes,
            leaves,
            boundaries=boundaries,
            human_parts=files.human_parts,
            human_images=human_images,
            hierarchy=files.hierarchy,
        ),
        *_filter_steps(prepared, "train_human_parts", prepared("train_human_parts.csv")),
    ]


def _filter_steps(prepared: Callable[[str], str], name: str, source: str) -> list[Step]:
    return [
        filter_step(prepared(f"{name}_{suffix}.csv"), source, **options)
        for suffix, options in _FILTERS.items()
    ]


def _validation_steps(
    files: ChallengeFiles,
    output_dir: str,
    part: str,
    *,
    num_samples: int,
    blacklist: str | None,
    viz: str | None,
) -> list[Step]:
    prepared = _paths_in(output_dir)
    boxes, classes = prepared(f"val_{part}.csv"), prepared(f"classes_{part}.csv")
    return [
        validation_step(
            boxes,
            prepared("val_no_groups.csv"),
            classes,
            num_samples=num_samples,
            blacklist=blacklist,
            image_directory=files.image_dir,
            viz_directory=viz,
            only_picked_class=False,
        ),
        coco_json_step(
            prepared(f"val_{part}.json"), boxes, classes, image_directory=files.image_dir
        ),
    ]


def _paths_in(folder: str) -> Callable[[str], str]:
    return lambda name: os.path.join(folder, name)
