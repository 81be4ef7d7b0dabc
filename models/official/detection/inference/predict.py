"""Predicts folders of images with one SavedModel or a list of them."""

import sys
import time
from collections.abc import Sequence
from typing import Literal

from tpudet.detection.inference.model_list import ListedModel, read_model_list
from tpudet.detection.inference.parts import (
    InferenceError,
    PredictionTask,
    describe_image_files,
    digest_image_files,
    find_parts_left,
    is_finished,
)
from tpudet.detection.inference.predictions import digest_image_list
from tpudet.detection.inference.run import run_tasks
from tpudet.detection.inference.saved_detector import read_saved_detector
from tpudet.detection.inference.view_settings import ViewSettings
from tpudet.trainkit.cpu import gains_from_bfloat16
from tpudet.trainkit.errors import listing
from tpudet.trainkit.files.locations import storage_path
from tpudet.trainkit.files.storage import is_file, is_folder
from tpudet.trainkit.image_folder import (
    ImageFile,
    Shard,
    list_inputs,
    read_ids,
    shard_output_path,
    take_shard,
)
from tpudet.trainkit.saved_model import SavedModel, find_saved_model

InferencePrecision = Literal["auto", "float32", "bfloat16"]

_OTHER_RESULTS = (".csv", ".json", ".txt", ".zip")  # which no predictions file is


def plan_folder(
    predictions: str,
    saved_model: str,
    *,
    images: Sequence[str],
    every: int,
    ids: str | None,
    shard: Shard | None,
    views: ViewSettings | None,
    in_bfloat16: bool,
    overwrite: bool,
) -> list[PredictionTask]:
    """Plans the predictions of one model; says what there is to do.

    Args:
        predictions: the predictions file to write; that of a shard gets the shard's suffix.
        saved_model: a SavedModel, or a folder that has some; the newest is taken.
        images: folders, image files, URLs and videos.
        every: take every Nth frame of videos.
        ids: path of a list of image ids to predict; None for all images.
        shard: the part of the images to predict.
        views: of test-time augmentation.
        in_bfloat16: of `choose_bfloat16`.
        overwrite: replace an existing predictions file.

    Raises:
        UserError: an argument is not usable.
    """
    target = shard_output_path(predictions, shard)
    _check_target(predictions, target)
    if is_file(target) and not overwrite:
        raise InferenceError(f"{target} exists: --overwrite replaces it")
    saved = read_saved_detector(find_saved_model(saved_model))
    listed = _list(images, every, ids)
    size = "x".join(map(str, saved.metadata["canvas_size"]))
    print(f"model {saved.directory}, canvas {size}; {_count_images(listed, images, shard)}")
    facts = describe_image_files(listed)
    task = _task(saved, target, listed, shard, views)
    task = task._replace(image_files=digest_image_files(listed, facts), file_facts=facts)
    return [task._replace(in_bfloat16=in_bfloat16)]


def plan_models(
    models: str,
    *,
    images: Sequence[str],
    every: int,
    ids: str | None,
    shard: Shard | None,
    views: ViewSettings | None,
    in_bfloat16: bool,
    any_precision: bool,
    overwrite: bool,
) -> list[PredictionTask]:
    """Plans the predictions of a list of models; finished ones are left out.

    Args:
        models: path of the list, see `inference.model_list`.
        images: see `plan_folder`, as all others.
        every: nth frame.
        ids: path.
        shard: of the images.
        views: of test-time augmentation.
        in_bfloat16: precision.
        any_precision: whether finished predictions of another precision will do.
        overwrite: replace existing predictions files.

    Raises:
        UserError: an argument or the list is not usable; all mistakes of the list at once.
    """
    listed = _list(images, every, ids)
    facts = describe_image_files(listed)
    files = digest_image_files(listed, facts)
    tasks: list[PredictionTask] = []

    def add(model: ListedModel) -> None:
        target = shard_output_path(model.predictions_path, shard)
        _check_target(model.predictions_path, target)
        task = _task(model.saved, target, listed, shard, views)
        task = task._replace(in_bfloat16=in_bfloat16, any_precision=any_precision)
        task = task._replace(image_files=files, file_facts=facts)
        if not overwrite and is_finished(task):
            print(f"{task.predictions_path}: finished, skipped")
        else:
            tasks.append(task)

    count = len(read_model_list(models, storage_path(), add))
    print(f"{count} models of {models}, {len(tasks)} to do; {_count_images(listed, images, shard)}")
    return tasks


def choose_bfloat16(precision: InferencePrecision, *, is_shared: bool) -> bool:
    """Returns whether convolutions on CPUs are to be in bfloat16.

    Args:
        precision: auto is bfloat16 where this machine has no GPU and its CPU gains from it, and
            float32 for shared work, because the machines may differ.
        is_shared: whether other machines predict as well, by --cluster or --shard.
    """
    if precision != "auto":
        return precision == "bfloat16"
    import tensorflow as tf

    has_gpu = bool(tf.config.list_physical_devices("GPU"))
    is_faster = not is_shared and not has_gpu and gains_from_bfloat16()
    if is_faster:
        print("bfloat16, in which this CPU is faster; --precision float32 rounds less")
    return is_faster


def describe_tasks(tasks: Sequence[PredictionTask], *, overwrite: bool) -> str:
    """Describes the work to do, one line per predictions file.

    Raises:
        InferenceError: parts of another run are in the way, and they are not to be removed.
    """
    lines = []
    for task in tasks:
        count = len(task.parts())
        try:
            finished = count - len(find_parts_left(task, discard_foreign=False))
        except InferenceError:
            if not overwrite:
                raise
            finished = 0
        lines.append(
            f"would write {task.predictions_path} in {count} parts; {finished} are finished"
        )
    return "\n".join(lines)


def run_and_report(
    tasks: Sequence[PredictionTask],
    *,
    batch_size: int,
    workers: int,
    cluster: str | None,
    overwrite: bool,
) -> int:
    """Writes predictions files; prints what was predicted, and how fast.

    The arguments and errors are those of `run_tasks`.

    Returns:
        The exit code: 1 if a file has no image that could be predicted, else 0.
    """
    predicted: list[int] = []

    def report(task: PredictionTask, count: int, unreadable: dict[str, str]) -> None:
        predicted.append(count)
        print(f"{task.predictions_path}: {count} images predicted")
        if unreadable:
            print(f"WARNING: {len(unreadable)} images could not be read:", file=sys.stderr)
            for name, reason in unreadable.items():
                print(f"  {name}: {reason}", file=sys.stderr)

    start = time.monotonic()
    timing = run_tasks(
        tasks,
        batch_size=batch_size,
        workers=workers,
        cluster=cluster,
        overwrite=overwrite,
        on_finished=report,
    )
    if timing.images:
        print(timing.describe(time.monotonic() - start))
    return 0 if all(predicted) else 1


def _task(
    saved: SavedModel,
    target: str,
    listed: Sequence[ImageFile],
    shard: Shard | None,
    views: ViewSettings | None,
) -> PredictionTask:
    if views is not None and "mask_side" in saved.metadata:
        raise InferenceError(
            f"{saved.directory} predicts masks, which --tta cannot merge; leave --tta out"
        )
    images = take_shard(listed, shard) if shard else listed
    whole = digest_image_list([image.image_id for image in listed])
    return PredictionTask(saved, images, target, views, shard, whole)


def _check_target(predictions: str, target: str) -> None:
    if is_folder(target):
        raise InferenceError(f"{target} is a folder: name a file in it, such as {target}/1.parquet")
    if predictions.lower().endswith(_OTHER_RESULTS):
        raise InferenceError(
            f"{predictions}: predictions are written as Parquet, or to a name that ends in .pkl as "
            "a pickle; of them tpudet gen_sub makes a submission, and tpudet convert_predictions "
            "COCO's JSON and CSV"
        )


def _list(images: Sequence[str], every: int, ids: str | None) -> list[ImageFile]:
    """Lists the images; says what of folders is not taken."""
    listed, others = list_inputs(images, read_ids(ids) if ids else None, every=every)
    if others:
        print(
            f"skipped, because their extensions are not those of images: {listing(others)}. A file "
            "that --images itself names is taken whatever its name, a video by its frames, and a "
            "folder's own images"
        )
    return listed


def _count_images(listed: Sequence[ImageFile], images: Sequence[str], shard: Shard | None) -> str:
    count = len(take_shard(listed, shard) if shard else listed)
    of = f" ({shard.number}/{shard.of} of {len(listed)})" if shard else ""
    return f"{count} images{of} of {listing(images, 3)}"
