"""Writes one fold of every part as TFRecords, with the fold's own training images as val."""

import os
from collections.abc import Sequence

from tpudet.detection.preparation.open_images.folds import folds_step
from tpudet.detection.preparation.open_images.part_sets import (
    Workspace,
    WriteOptions,
    check_part_options,
    prepare_sets,
    require_prepared,
    train_set,
)
from tpudet.detection.preparation.open_images.plan_part import PartSet
from tpudet.detection.preparation.open_images.presets import PartPreset, Preset, read_preset
from tpudet.detection.preparation.records.fold_divisions import check_folds_beside
from tpudet.trainkit.errors import UserError
from tpudet.trainkit.files.digests import division_digest, file_digest
from tpudet.trainkit.jobs.steps import Step

_SPLITS = ("train", "val")


def prepare_folds(
    fold: int,
    *,
    num_folds: int,
    fold_seed: int,
    preset_name: str,
    presets: str | None,
    parts: Sequence[str] | None,
    workspace: Workspace,
    options: WriteOptions,
    dry_run: bool,
) -> None:
    """Splits the training images of every part into folds and writes converted/<part>_fold_<fold>.

    Args:
        fold: number of the fold to write, from 0.
        num_folds: at least 2.
        fold_seed: of the division.
        preset_name: the preset for the training sets.
        presets: YAML file; None means the project's own.
        parts: only these; None means all of the preset.
        workspace: inputs and outputs.
        options: how the sets are written.
        dry_run: list what would be done, and write nothing.

    Raises:
        UserError: wrong names or options, missing inputs, folds of another division beside these,
            or as `prepare_sets`.
    """
    if not 0 <= fold < num_folds:
        raise UserError(f"FOLD {fold} must be in 0..{num_folds - 1}, with --num_folds {num_folds}.")
    preset = read_preset(presets, preset_name)
    _refuse_pseudo_labels(preset, preset_name)
    chosen = preset.choose(parts)
    check_part_options(chosen, options, {"--train_images": workspace.train_images})
    class_steps = workspace.class_steps(chosen)
    made = {path for step in class_steps for path in step.outputs}
    fold_steps = {
        part: _split_step(workspace, part, settings, num_folds=num_folds, seed=fold_seed)
        for part, settings in chosen.items()
    }
    given = {part: set(step.inputs) - made for part, step in fold_steps.items()}
    require_prepared(path for paths in given.values() for path in sorted(paths))
    sets: list[PartSet] = []
    for part, settings in chosen.items():
        # What is divided, as the folds themselves may not be there yet.
        digest = division_digest({"inputs": sorted(map(file_digest, given[part]))})
        check_folds_beside(
            os.path.join(workspace.converted_dir, part),
            num_folds=num_folds,
            seed=fold_seed,
            digest=digest,
            overwrite=options.overwrite,
        )
        division = {"folds": num_folds, "fold": fold, "fold_seed": fold_seed, "division": digest}
        pair = _fold_sets(
            workspace, part, settings, fold, preset.settings.max_copies, options=options
        )
        sets += [part_set._replace(division=division) for part_set in pair]
    prepare_sets(sets, options, steps=[*class_steps, *fold_steps.values()], dry_run=dry_run)


def _refuse_pseudo_labels(preset: Preset, name: str) -> None:
    if preset.settings.pseudo_label_confidence is not None:
        raise UserError(
            f"--preset {name} adds pseudo-labels, which folds do not have: choose another."
        )


def _fold_sets(
    workspace: Workspace,
    part: str,
    settings: PartPreset,
    fold: int,
    max_copies: int | None,
    *,
    options: WriteOptions,
) -> tuple[PartSet, PartSet]:
    """Returns the training and the validation set of a fold of a part."""
    train_boxes, val_boxes = (mask.format(fold) for mask in _masks(workspace, part))
    output = os.path.join(workspace.converted_dir, f"{part}_fold_{fold}")
    classes = workspace.classes_path(part)
    images, masks = (workspace.train_images,), workspace.masks(part, "train")
    training = train_set(
        output,
        settings,
        boxes=train_boxes,
        classes=classes,
        image_directories=images,
        max_copies=max_copies,
        masks=masks,
        options=options,
    )
    return training, PartSet(output, "val", val_boxes, classes, images, num_shards=1, masks=masks)


def _masks(workspace: Workspace, part: str) -> tuple[str, str]:
    """Returns the paths of the folds' train and val CSVs, with {} for the number."""
    folder = os.path.join(workspace.prepared_dir, "folds")
    train, val = (os.path.join(folder, f"{split}_{part}_fold_{{}}.csv") for split in _SPLITS)
    return train, val


def _split_step(
    workspace: Workspace, part: str, settings: PartPreset, *, num_folds: int, seed: int
) -> Step:
    step = folds_step(
        *_masks(workspace, part),
        workspace.boxes_path(part, settings),
        classes=workspace.classes_path(part),
        num_folds=num_folds,
        seed=seed,
    )
    return step._replace(name=f"{step.name}, for {part}")
