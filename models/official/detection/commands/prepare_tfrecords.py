"""Command: the TFRecords of a preset, a training and a validation set of each of its parts."""

import argparse
import os
import sys
from collections.abc import Mapping, Sequence

from tpudet.detection.preparation.open_images.default_paths import data_path
from tpudet.detection.preparation.open_images.part_sets import (
    PartSet,
    add_set_arguments,
    list_part_sets,
    require_prepared,
    train_set,
    write_part_sets,
)
from tpudet.detection.preparation.open_images.presets import (
    PartPreset,
    Preset,
    boxes_path,
    classes_path,
    read_preset,
)
from tpudet.detection.preparation.open_images.pseudo_labels import pseudo_labels_step
from tpudet.detection.preparation.sources.annotations import PreparationError
from tpudet.trainkit.command_line import run_command
from tpudet.trainkit.jobs.steps import Step, list_steps, run_steps, to_do

_EPILOG = """Writes $STORAGE/converted/PRESET_PART with the splits train, balanced as the preset
says, and val. What is up to date is skipped, so a run that was killed goes on.

example:
  scripts/prepare_tfrecords.sh v3 --parts human_parts part_0 --max_copies 20
exit status: 0 done, 2 wrong arguments or inputs (nothing half-written), 130 interrupted
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command; returns its exit status."""
    parser = argparse.ArgumentParser(
        prog="prepare_tfrecords.sh",
        description=(__doc__ or "").split(": ", 1)[1],
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("preset", metavar="PRESET", help="v1 to v5, or another of --presets")
    parser.add_argument(
        "--predictions", metavar="FILE", help="submission CSV, for presets with pseudo-labels"
    )
    for split in ("validation", "test"):
        parser.add_argument(
            f"--{split}_images",
            default=data_path(split),
            metavar="DIR",
            help=f"folder of the {split} pictures (default: %(default)s)",
        )
    add_set_arguments(parser)
    return run_command(parser, argv, _run)


def _run(arguments: argparse.Namespace) -> int:
    preset = read_preset(arguments.presets, arguments.preset)
    parts = preset.choose(arguments.parts)
    print(f"{arguments.preset}: {preset.settings.description}; {', '.join(parts)}")
    sources = {part: boxes_path(arguments, part, settings) for part, settings in parts.items()}
    steps = _pseudo_label_steps(arguments, preset, sources)
    boxes = dict(zip(parts, (step.outputs[0] for step in steps), strict=True)) if steps else sources
    sets = [
        part_set
        for part, settings in parts.items()
        for part_set in _sets(arguments, preset, part, settings, boxes[part])
    ]
    own = {step.outputs[0] for step in steps}
    needed = [path for part_set in sets for path in (part_set.boxes, part_set.classes)]
    require_prepared([*sources.values(), *(path for path in needed if path not in own)])
    if arguments.dry_run:
        list_steps(steps)
        unmade = [step.outputs[0] for step in steps if to_do(step) is not None]
        list_part_sets(sets, arguments, missing=unmade)
        return 0
    run_steps(steps, overwrite=arguments.overwrite)
    write_part_sets(sets, arguments)
    return 0


def _pseudo_label_steps(
    arguments: argparse.Namespace, preset: Preset, sources: Mapping[str, str]
) -> list[Step]:
    """One step a part, or none where the preset asks for no pseudo-labels.

    Raises:
        PreparationError: --predictions is missing, or is not wanted.
    """
    confidence = preset.settings.pseudo_label_confidence
    if confidence is None:
        if arguments.predictions is not None:
            raise PreparationError(
                f"--predictions {arguments.predictions}: preset {arguments.preset} has no "
                "pseudo-labels; leave it out, or take a preset with pseudo_label_confidence."
            )
        return []
    if arguments.predictions is None:
        raise PreparationError(
            f"Preset {arguments.preset} adds pseudo-labels: pass --predictions FILE, a submission "
            "CSV (ImageId,PredictionString) on the pictures of --test_images."
        )
    return [
        pseudo_labels_step(
            os.path.join(arguments.prepared_dir, f"{arguments.preset}_train_{part}.csv"),
            source,
            arguments.predictions,
            min_conf=confidence,
            classes=classes_path(arguments, part),
        )
        for part, source in sources.items()
    ]


def _sets(
    arguments: argparse.Namespace, preset: Preset, part: str, settings: PartPreset, boxes: str
) -> list[PartSet]:
    output = os.path.join(arguments.converted_dir, f"{arguments.preset}_{part}")
    classes = classes_path(arguments, part)
    has_pseudo_labels = preset.settings.pseudo_label_confidence is not None
    more_images = (arguments.test_images,) if has_pseudo_labels else ()
    val_boxes = os.path.join(arguments.prepared_dir, f"val_{part}.csv")
    return [
        train_set(
            arguments,
            output,
            settings,
            boxes=boxes,
            classes=classes,
            image_directories=(arguments.train_images, *more_images),
            max_copies=preset.settings.max_copies,
        ),
        PartSet(output, "val", val_boxes, classes, (arguments.validation_images,), num_shards=1),
    ]


if __name__ == "__main__":
    sys.exit(main())
