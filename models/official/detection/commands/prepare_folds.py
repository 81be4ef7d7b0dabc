"""Command: one fold of every part as TFRecords, evaluated on the fold's own training images."""

import argparse
import os
import sys
from collections.abc import Sequence

from tpudet.detection.preparation.open_images.folds import folds_step
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
    boxes_path,
    classes_path,
    read_preset,
)
from tpudet.detection.preparation.sources.annotations import PreparationError
from tpudet.trainkit.command_line import positive_integer, run_command
from tpudet.trainkit.jobs.steps import Step, list_steps, run_steps, to_do

_SPLITS = ("train", "val")

_EPILOG = """The training images of every part are split into folds of equal size, stratified by
class. FOLD itself becomes the split val of $STORAGE/converted/PART_fold_FOLD, all other folds,
balanced as the preset says, its split train. What is up to date is skipped, so a run that was
killed goes on.

example:
  scripts/prepare_folds.sh 0 --parts part_0
exit status: 0 done, 2 wrong arguments or inputs (nothing half-written), 130 interrupted
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command; returns its exit status."""
    parser = argparse.ArgumentParser(
        prog="prepare_folds.sh",
        description=(__doc__ or "").split(": ", 1)[1],
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("fold", type=int, metavar="FOLD", help="from 0")
    parser.add_argument("--num_folds", type=positive_integer, default=5, metavar="N")
    parser.add_argument(
        "--preset", default="folds", help="of --presets; says what goes into train (%(default)s)"
    )
    add_set_arguments(parser)
    return run_command(parser, argv, _run)


def _run(arguments: argparse.Namespace) -> int:
    if not 0 <= arguments.fold < arguments.num_folds:
        raise PreparationError(
            f"FOLD {arguments.fold} must be in 0..{arguments.num_folds - 1}, with --num_folds "
            f"{arguments.num_folds}."
        )
    preset = read_preset(arguments.presets, arguments.preset)
    parts = preset.choose(arguments.parts)
    steps = [_step(arguments, part, settings) for part, settings in parts.items()]
    sets = [
        part_set
        for part, settings in parts.items()
        for part_set in _sets(arguments, part, settings, preset.settings.max_copies)
    ]
    require_prepared(path for step in steps for path in step.inputs)
    if arguments.dry_run:
        list_steps(steps)
        unmade = [path for step in steps if to_do(step) is not None for path in step.outputs]
        list_part_sets(sets, arguments, missing=unmade)
        return 0
    run_steps(steps, overwrite=arguments.overwrite)
    write_part_sets(sets, arguments)
    return 0


def _masks(arguments: argparse.Namespace, part: str) -> tuple[str, str]:
    """Paths of the folds' train and val CSVs, with {} for the number."""
    folder = os.path.join(arguments.prepared_dir, "folds")
    train, val = (os.path.join(folder, f"{split}_{part}_fold_{{}}.csv") for split in _SPLITS)
    return train, val


def _step(arguments: argparse.Namespace, part: str, settings: PartPreset) -> Step:
    step = folds_step(
        *_masks(arguments, part),
        boxes_path(arguments, part, settings),
        classes=classes_path(arguments, part),
        num_folds=arguments.num_folds,
    )
    return step._replace(name=f"{step.name}, for {part}")


def _sets(
    arguments: argparse.Namespace, part: str, settings: PartPreset, max_copies: int | None
) -> list[PartSet]:
    train_boxes, val_boxes = (mask.format(arguments.fold) for mask in _masks(arguments, part))
    output = os.path.join(arguments.converted_dir, f"{part}_fold_{arguments.fold}")
    classes = classes_path(arguments, part)
    images = (arguments.train_images,)
    return [
        train_set(
            arguments,
            output,
            settings,
            boxes=train_boxes,
            classes=classes,
            image_directories=images,
            max_copies=max_copies,
        ),
        PartSet(output, "val", val_boxes, classes, images, num_shards=1),
    ]


if __name__ == "__main__":
    sys.exit(main())
