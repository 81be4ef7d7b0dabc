"""Writes the TFRecords of a preset: a training and a validation set per part."""

import os
from collections.abc import Mapping, Sequence

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
from tpudet.detection.preparation.open_images.pseudo_labels import pseudo_labels_step
from tpudet.trainkit.errors import UserError
from tpudet.trainkit.jobs.steps import Step


def prepare_tfrecords(
    preset_name: str,
    *,
    presets: str | None,
    parts: Sequence[str] | None,
    workspace: Workspace,
    validation_images: str,
    test_images: str,
    predictions: str | None,
    options: WriteOptions,
    dry_run: bool,
) -> None:
    """Writes converted/<preset>_<part> for every part of a preset; resumable.

    Args:
        preset_name: a preset of the file.
        presets: YAML file; None means the project's own.
        parts: only these; None means all of the preset.
        workspace: inputs and outputs.
        validation_images: folder.
        test_images: folder, for presets with pseudo-labels.
        predictions: submission CSV, for presets with pseudo-labels.
        options: how the sets are written.
        dry_run: list what would be done, and write nothing.

    Raises:
        UserError: wrong names or options, missing inputs, or as `prepare_sets`.
    """
    preset = read_preset(presets, preset_name)
    chosen = preset.choose(parts)
    print(f"{preset_name}: {preset.settings.description}; {', '.join(chosen)}")
    boxes = {part: workspace.boxes_path(part, settings) for part, settings in chosen.items()}
    labels = _pseudo_label_steps(preset_name, preset, workspace, boxes, predictions)
    folders = {"--train_images": workspace.train_images, "--validation_images": validation_images}
    check_part_options(
        chosen, options, folders | ({"--test_images": test_images} if labels else {})
    )
    sources = list(boxes.values())
    if labels:
        boxes = dict(zip(boxes, (step.outputs[0] for step in labels), strict=True))
    steps = workspace.class_steps(chosen) + labels
    sets = [
        part_set
        for part, settings in chosen.items()
        for part_set in _part_sets(
            f"{preset_name}_{part}",
            part,
            settings,
            boxes=boxes[part],
            image_directories=(workspace.train_images, *((test_images,) if labels else ())),
            validation_images=validation_images,
            max_copies=preset.settings.max_copies,
            workspace=workspace,
            options=options,
        )
    ]
    own = {step.outputs[0] for step in steps}
    needed = [path for part_set in sets for path in part_set.tables]
    require_prepared([*sources, *(path for path in needed if path not in own)])
    prepare_sets(sets, options, steps=steps, dry_run=dry_run)


def _part_sets(
    name: str,
    part: str,
    settings: PartPreset,
    *,
    boxes: str,
    image_directories: tuple[str, ...],
    validation_images: str,
    max_copies: int | None,
    workspace: Workspace,
    options: WriteOptions,
) -> tuple[PartSet, PartSet]:
    """Returns the training and the validation set of a part, to be written to converted/<name>."""
    output = os.path.join(workspace.converted_dir, name)
    classes = workspace.classes_path(part)
    training = train_set(
        output,
        settings,
        boxes=boxes,
        classes=classes,
        image_directories=image_directories,
        max_copies=max_copies,
        masks=workspace.masks(part, "train"),
        options=options,
    )
    validation = PartSet(
        output,
        "val",
        workspace.validation_boxes_path(part),
        classes,
        (validation_images,),
        num_shards=1,
        masks=workspace.masks(part, "validation"),
    )
    return training, validation


def _pseudo_label_steps(
    preset_name: str,
    preset: Preset,
    workspace: Workspace,
    boxes: Mapping[str, str],
    predictions: str | None,
) -> list[Step]:
    """Returns one step per part, or none if the preset has no pseudo-labels.

    Raises:
        UserError: --predictions is missing, or not used.
    """
    confidence = preset.settings.pseudo_label_confidence
    if confidence is None:
        if predictions is not None:
            raise UserError(
                f"--predictions {predictions}: preset {preset_name} has no pseudo-labels; leave it "
                "out, or choose a preset with pseudo_label_confidence."
            )
        return []
    if predictions is None:
        raise UserError(
            f"Preset {preset_name} adds pseudo-labels: pass --predictions FILE, a submission CSV "
            "(ImageId,PredictionString) on the images of --test_images."
        )
    return [
        pseudo_labels_step(
            os.path.join(workspace.prepared_dir, f"{preset_name}_train_{part}.csv"),
            source,
            predictions,
            min_conf=confidence,
            classes=workspace.classes_path(part),
        )
        for part, source in boxes.items()
    ]
