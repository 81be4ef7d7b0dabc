"""The TFRecord sets of the parts: what the commands that write them share."""

import argparse
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from tpudet.detection.commands.gen_tfrecords import tfrecords_plan
from tpudet.detection.preparation.open_images.default_paths import (
    TRAIN_BOXES,
    data_path,
    storage_path,
)
from tpudet.detection.preparation.open_images.presets import PartPreset, default_presets_path
from tpudet.detection.preparation.records.balance import format_imbalance
from tpudet.detection.preparation.records.existing_files import finished_manifest, is_current
from tpudet.detection.preparation.records.plan import Plan
from tpudet.detection.preparation.records.write_sets import add_writing_arguments, write_sets
from tpudet.detection.preparation.sources.annotations import PreparationError
from tpudet.detection.preparation.sources.read import add_workers_argument
from tpudet.trainkit.command_line import positive_integer
from tpudet.trainkit.files import storage


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


def add_set_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds what prepare_tfrecords and prepare_folds share."""
    for name, default, what in (
        ("train_boxes", data_path(TRAIN_BOXES), "box CSV, for `boxes: all`"),
        ("train_images", data_path("train"), "folder of the training pictures"),
        ("prepared_dir", storage_path("prepared"), "what prepare_datasets.sh made"),
        ("converted_dir", storage_path("converted"), "where the sets go, a folder each"),
        ("presets", default_presets_path(), "YAML of the presets"),
    ):
        parser.add_argument(
            f"--{name}", default=default, metavar="PATH", help=f"{what} (default: %(default)s)"
        )
    parser.add_argument(
        "--parts", nargs="+", metavar="PART", help="these only (default: all of the preset)"
    )
    parser.add_argument(
        "--num_shards",
        type=positive_integer,
        metavar="N",
        help="files of a training set, in place of the preset's number",
    )
    parser.add_argument(
        "--skip_missing",
        action="store_true",
        help="leave out images whose files are missing, and name them in the manifest",
    )
    parser.add_argument(
        "--dry_run",
        action="store_true",
        help="list what would be done, with the class counts before and after; write nothing",
    )
    add_workers_argument(parser)
    add_writing_arguments(parser, image_check="headers")


def train_set(
    arguments: argparse.Namespace,
    output: str,
    preset: PartPreset,
    *,
    boxes: str,
    classes: str,
    image_directories: tuple[str, ...],
    max_copies: int | None,
) -> PartSet:
    """The training set of a part; --num_shards and --max_copies go before the preset's numbers."""
    balanced = preset.min_images_per_class > 0
    return PartSet(
        output,
        "train",
        boxes,
        classes,
        image_directories,
        arguments.num_shards or preset.num_shards,
        preset.min_images_per_class,
        (arguments.max_copies or max_copies) if balanced else None,
    )


def require_prepared(paths: Iterable[str]) -> None:
    """Refuses to go on without what other commands make.

    Raises:
        PreparationError: names all files that are missing.
    """
    missing = [path for path in dict.fromkeys(paths) if not storage.exists(path)]
    if missing:
        raise PreparationError(
            f"{', '.join(missing)}: not there. scripts/prepare_datasets.sh makes what lies in "
            "--prepared_dir; the challenge's own files go into $DATA."
        )


def write_part_sets(sets: Sequence[PartSet], arguments: argparse.Namespace) -> None:
    """Writes the sets one after another; those that are up to date are left as they are.

    One plan at a time is held, because its boxes may be millions.

    Raises:
        PreparationError: as `write_tfrecords`; finished sets stay.
    """
    for number, part_set in enumerate(sets, 1):
        print(f"[{number}/{len(sets)}] {part_set.output}, {part_set.split}", flush=True)
        write_sets(
            [_plan(part_set, arguments)],
            workers=arguments.workers,
            cluster=arguments.cluster,
            overwrite=arguments.overwrite,
        )


def list_part_sets(
    sets: Sequence[PartSet], arguments: argparse.Namespace, *, missing: Sequence[str]
) -> None:
    """Prints which sets would be written, and how balanced the classes would be.

    Args:
        sets: as for `write_part_sets`.
        arguments: those of the command.
        missing: box CSVs that a step before would make or renew; their sets cannot be counted.
    """
    for number, part_set in enumerate(sets, 1):
        head = f"[{number}/{len(sets)}] {part_set.output}, {part_set.split}"
        if part_set.boxes in missing:
            print(f"{head}: to do (its boxes {part_set.boxes} are still to be made)")
            continue
        plan = _plan(part_set, arguments)
        manifest = finished_manifest(plan)
        is_done = manifest is not None and is_current(plan, manifest)
        print(
            f"{head}: {'up to date' if is_done else 'to do'}, {len(plan.order)} records in "
            f"{plan.num_shards} file(s)"
        )
        if plan.balance is not None:
            print(format_imbalance(plan.balance, plan.annotations.classes, with_table=True))


def _plan(part_set: PartSet, arguments: argparse.Namespace) -> Plan:
    return tfrecords_plan(
        boxes_csv=part_set.boxes,
        classes_csv=part_set.classes,
        image_directories=part_set.image_directories,
        output=part_set.output,
        split=part_set.split,
        num_shards=part_set.num_shards,
        min_images_per_class=part_set.min_images_per_class,
        max_copies=part_set.max_copies,
        seed=arguments.seed,
        image_check=arguments.image_check,
        skip_missing=arguments.skip_missing,
    )
