"""Predicts a folder of images: `python -m tpudet.detection.commands.predict PREDICTIONS MODEL_DIR --images DIR`.

An image that cannot be read is named on the screen; the exit code stays 0 as long as one image was
predicted.
"""

import argparse
import os
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

from tpudet.trainkit.files.locations import data_path, storage_path
from tpudet.detection.submission.image_ids import ImageIdsError, read_ids

from tpudet.detection.inference.model_list import ListedModel, ModelListError, read_model_list
from tpudet.detection.inference.parts import (
    InferenceError,
    Work,
    count_finished_parts,
    digest_of_list,
    is_finished,
)
from tpudet.detection.inference.predictions_file import PredictionsError
from tpudet.detection.inference.run import run_works
from tpudet.detection.inference.saved_detector import (
    SavedDetector,
    SavedDetectorError,
    find_saved_model,
    read_saved_detector,
)
from tpudet.detection.inference.views import DEFAULT_SCALES, Augmentation, parse_augmentation
from tpudet.detection.submission.fusion.plain_fusion import METHODS
from tpudet.trainkit.errors import UserError
from tpudet.trainkit.files import storage
from tpudet.trainkit.files.storage import is_file
from tpudet.trainkit.image_folder import (
    ImageFolderError,
    Shard,
    list_images,
    parse_shard,
    shard_path,
    take_shard,
)

_EPILOG = """\
examples:
  inference.py predictions.parquet output/final/quickstart-bccd-640 --images data/test
  inference.py predictions.parquet MODEL_DIR --shard 2/8     # this machine's part of eight
  inference.py predictions.parquet MODEL_DIR --tta flip,scales
  inference.py --models models.yml --cluster auto            # all of a list, on a Ray cluster

models.yml is a list of {dataset, version, step, resolution}. A model is read from
$STORAGE/final/<version>-<dataset>-<resolution> and its predictions go to
$STORAGE/predictions/<version>-<dataset>-<resolution>.parquet; what is finished is skipped.

A shard of p.parquet is written to p_part_2_of_8.parquet; join_predicted_parts.py joins them.
A run that was killed goes on where it was when the same command is given again. Two calls of the
model are under way at a time: where memory does not do, lower --batch_size.

exit codes: 0 done, 1 no image could be predicted, 2 wrong arguments or input, 130 interrupted
"""
_MISTAKES = (
    InferenceError,
    SavedDetectorError,
    ImageFolderError,
    ImageIdsError,
    ModelListError,
    PredictionsError,
    UserError,
)


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command; returns 0 done, 1 nothing could be predicted; exits with 2 on bad use."""
    parser = _parser()
    arguments = parser.parse_args(argv)
    if arguments.models and arguments.predictions:
        parser.error("--models names the models and their predictions: give no PREDICTIONS")
    if not arguments.models and not arguments.model_dir:
        parser.error("give PREDICTIONS and MODEL_DIR, or --models FILE")
    try:
        augmentation = _augmentation(arguments)
    except ValueError as error:
        parser.error(str(error))
    try:
        return _run(arguments, augmentation)
    except _MISTAKES as error:
        parser.error(str(error))
    except OSError as error:  # the predictions may not be written to their folder, say
        parser.error(storage.reason(error))
    except KeyboardInterrupt:
        print("\nInterrupted; finished parts are kept. The same command goes on.", file=sys.stderr)
        return 130


def _run(arguments: argparse.Namespace, augmentation: Augmentation | None) -> int:
    works = _works(arguments, augmentation)
    if arguments.dry_run:
        for work in works:
            finished, count = count_finished_parts(work)
            print(
                f"would write {work.predictions_path} in {count} parts; "
                f"{finished} lie there already"
            )
        return 0
    predicted: list[int] = []

    def report(work: Work, count: int, unreadable: dict[str, str]) -> None:
        predicted.append(count)
        print(f"{work.predictions_path}: {count} images predicted")
        if unreadable:
            print(f"WARNING: {len(unreadable)} images could not be read:", file=sys.stderr)
            for name, reason in unreadable.items():
                print(f"  {name}: {reason}", file=sys.stderr)

    start = time.monotonic()
    timing = run_works(
        works,
        batch_size=arguments.batch_size,
        workers=arguments.workers,
        cluster=arguments.cluster,
        discard_foreign_parts=arguments.overwrite,
        on_finished=report,
    )
    if timing.images:
        print(timing.describe(time.monotonic() - start))
    return 0 if all(predicted) else 1


def _works(arguments: argparse.Namespace, augmentation: Augmentation | None) -> list[Work]:
    """What is left to do; says what there is."""
    shard: Shard | None = arguments.shard
    target = shard_path(arguments.predictions or "", shard)
    if not arguments.models and is_file(target) and not arguments.overwrite:
        raise InferenceError(f"{target} exists: --overwrite replaces it")
    saved = None
    if not arguments.models:
        saved = read_saved_detector(find_saved_model(arguments.model_dir))
    listed = list_images(arguments.images, read_ids(arguments.ids) if arguments.ids else None)
    images = take_shard(listed, shard) if shard else listed
    of = f" ({shard.number}/{shard.of} of {len(listed)})" if shard else ""
    what = f"{len(images)} images{of} of {arguments.images}"

    def work_of(saved: SavedDetector, path: str) -> Work:
        return Work(saved, images, path, augmentation, shard, digest_of_list(listed))

    if saved is not None:
        size = "x".join(map(str, saved.metadata["canvas_size"]))
        print(f"model {saved.directory}, canvas {size}; {what}")
        return [work_of(saved, target)]
    works: list[Work] = []

    def take(model: ListedModel) -> None:
        work = work_of(model.saved, shard_path(model.predictions_path, shard))
        if not arguments.overwrite and is_finished(work):
            print(f"{work.predictions_path}: finished already, skipped")
        else:
            works.append(work)

    count = len(read_model_list(arguments.models, storage_path(), take))
    print(f"{count} models of {arguments.models}, {len(works)} to do; {what}")
    return works


def _augmentation(arguments: argparse.Namespace) -> Augmentation | None:
    if not arguments.tta:
        return None
    scales = [float(text) for text in arguments.tta_scales.split(",")]
    return parse_augmentation(
        arguments.tta, scales, method=arguments.tta_method, iou=arguments.tta_iou
    )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="inference.py",
        description="Run the newest SavedModel of a directory, or a list of models, on a folder of "
        "images.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "predictions",
        metavar="PREDICTIONS",
        nargs="?",
        help="file to write: .pkl a pickle, else Parquet",
    )
    parser.add_argument(
        "model_dir", metavar="MODEL_DIR", nargs="?", help="holds a SavedModel, or folders do"
    )
    parser.add_argument("--models", metavar="FILE", help="a list of models instead; see below")
    parser.add_argument(
        "--images",
        metavar="DIR",
        default=data_path("test"),
        help="folder of images [$DATA/test, here %(default)s]",
    )
    parser.add_argument("--ids", metavar="FILE", help="take these image ids only, one a line")
    parser.add_argument(
        "--shard", metavar="I/N", type=_argument(parse_shard), help="take part I of N of the images"
    )
    parser.add_argument(
        "--cluster", metavar="ADDRESS", help="run on a Ray cluster: auto, or HOST:PORT"
    )
    parser.add_argument("--batch_size", type=_positive, default=8, help="images a call [8]")
    parser.add_argument(
        "--workers", type=_positive, default=2 * (os.cpu_count() or 1), help="reading threads"
    )
    _add_augmentation(parser)
    parser.add_argument(
        "-f",
        "--force",
        "--overwrite",
        dest="overwrite",
        action="store_true",
        help="replace PREDICTIONS, and parts left by a run with another model or other images",
    )
    parser.add_argument("--dry_run", action="store_true", help="say what would be done")
    return parser


def _add_augmentation(parser: argparse.ArgumentParser) -> None:
    scales = ",".join(map(str, DEFAULT_SCALES))
    group = parser.add_argument_group("test-time augmentation")
    group.add_argument(
        "--tta", metavar="KINDS", help="also detect in mirrored and scaled views: flip,scales"
    )
    group.add_argument(
        "--tta_scales",
        metavar="SCALES",
        default=scales,
        help="beside 1; above 1 in overlapping crops [%(default)s]",
    )
    group.add_argument(
        "--tta_method", choices=METHODS, default="nmw", help="how views are merged [%(default)s]"
    )
    group.add_argument(
        "--tta_iou", type=float, default=0.55, help="overlap of boxes that are merged [%(default)s]"
    )


def _positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{value} is below 1")
    return value


def _argument(read: Callable[[str], Any]) -> Callable[[str], Any]:
    """An argument type whose ValueError is the message."""

    def convert(text: str) -> Any:
        try:
            return read(text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from error

    return convert


if __name__ == "__main__":
    sys.exit(main())
