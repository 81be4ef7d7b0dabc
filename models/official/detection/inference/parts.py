"""The parts of a predictions file: which are finished, and joining them."""

import hashlib
import json
import os
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from tpudet.detection.inference.predictions import digest_image_list
from tpudet.detection.inference.predictions_file import (
    ImagePredictions,
    PredictionsError,
    open_predictions,
    read_predictions,
    write_predictions,
)
from tpudet.detection.inference.stream import Part
from tpudet.detection.inference.view_settings import ViewSettings
from tpudet.trainkit.errors import UserError
from tpudet.trainkit.files import storage
from tpudet.trainkit.files.claims import ClaimTicket
from tpudet.trainkit.files.storage import is_file, whole_file
from tpudet.trainkit.files.web import is_url
from tpudet.trainkit.image_folder import ImageFile, Shard
from tpudet.trainkit.images.video import is_frame
from tpudet.trainkit.saved_model import SavedModel

IMAGES_PER_PART = 500  # the most that a kill costs; a few minutes of a slow CPU


class InferenceError(UserError):
    """The output of an earlier run cannot be resumed."""


class PredictionTask(NamedTuple):
    """A predictions file to write."""

    saved: SavedModel
    images: Sequence[ImageFile]
    predictions_path: str
    views: ViewSettings | None = None
    shard: Shard | None = None  # of a longer list, whose part `images` are
    image_list: dict[str, Any] | None = None  # `digest_image_list` of the longer list
    image_files: str = ""  # `digest_image_files` of it; empty: files are not compared
    file_facts: Mapping[str, str] | None = None  # of `images`; None: those of parts neither
    images_per_part: int = IMAGES_PER_PART
    in_bfloat16: bool = False  # convolutions on the CPU, see `trainkit.cpu`
    any_precision: bool = False  # whether a finished file of another precision will do

    @property
    def parts_directory(self) -> str:
        """The folder of finished parts until all are finished."""
        return f"{self.predictions_path}.parts"

    def parts(self) -> list[Part]:
        """The file of each part and the images in it."""
        parts = []
        for start in range(0, len(self.images), self.images_per_part):
            path = os.path.join(self.parts_directory, f"part-{len(parts):05d}.parquet")
            images = self.images[start : start + self.images_per_part]
            facts = self.file_facts
            parts.append(Part(path, images, digest_image_files(images, facts) if facts else ""))
        return parts

    def identity(self) -> dict[str, Any]:
        """The metadata by which predictions are told apart.

        A single view and all images are not named.
        """
        whole = self.image_list or digest_image_list([image.image_id for image in self.images])
        facts: dict[str, Any] = {"fingerprint": self.saved.fingerprint, "image_list": whole}
        if self.views is not None:
            facts["augmentation"] = self.views._asdict()
        if self.shard is not None:
            facts["shard"] = self.shard._asdict()
        if self.image_files:
            facts["image_files"] = self.image_files
        facts["precision"] = "bfloat16" if self.in_bfloat16 else "float32"
        return json.loads(json.dumps(facts))

    def key(self) -> str:
        """A digest that ties a part to its model, images, views, part size and precision."""
        names = [image.path for image in self.images]
        views = self.views and self.views._asdict()
        facts = [self.saved.fingerprint, self.images_per_part, names, views]
        facts += ["bfloat16"] if self.in_bfloat16 else []
        return hashlib.sha256(json.dumps(facts).encode()).hexdigest()


def describe_image_files(images: Iterable[ImageFile]) -> dict[str, str]:
    """Returns a fingerprint of each image, by its id.

    It differs between images of one id, and stays the same when they are moved.

    Local files count with their names and sizes, frames with those of their video. URLs and files
    in buckets count with their paths, because each size would cost a request.
    """
    facts: dict[str, str] = {}
    known, fact = "", ""
    for image in images:
        path = os.path.dirname(image.path) if is_frame(image.path) else image.path
        if path != known:  # a video is asked once for all its frames
            is_far = is_url(path) or storage.is_remote(path)
            fact = path if is_far else f"{os.path.basename(path)} {storage.stat(path).size}"
            known = path
        facts[image.image_id] = fact
    return facts


def digest_image_files(images: Iterable[ImageFile], facts: Mapping[str, str]) -> str:
    """Returns a digest of the ids of images and of their facts (`describe_image_files`)."""
    digest = hashlib.sha256()
    for image in images:
        digest.update(f"{image.image_id}\n{facts[image.image_id]}\n".encode())
    return digest.hexdigest()


def is_finished(task: PredictionTask) -> bool:
    """Whether the predictions file exists, written by this very task.

    Raises:
        InferenceError: it exists, but of another model, image list, shard or precision, or of
            other images or views.
    """
    path = task.predictions_path
    if not is_file(path):
        return False
    try:
        with storage.open_file(path, "rb") as file:
            found = open_predictions(file, path).metadata
    except PredictionsError as error:
        raise InferenceError(f"{error}; --overwrite replaces it") from error
    wanted = task.identity()
    what = {"fingerprint": "another model", "image_list": "another list of images"}
    what |= {"augmentation": "other views (--tta)", "shard": "another shard"}
    # Earlier versions did not write these.
    if "precision" in found and not task.any_precision:
        what["precision"] = "another --precision"
    if "image_files" in found and found.get("image_list") == wanted["image_list"]:
        what["image_files"] = "other images of the same names"
    other = [meaning for name, meaning in what.items() if found.get(name) != wanted.get(name)]
    if other:
        named = " and ".join(other)
        raise InferenceError(f"{path} exists, of {named}; --overwrite replaces it")
    return True


def find_parts_left(task: PredictionTask, *, discard_foreign: bool) -> list[Part]:
    """Returns the parts that are not finished yet, or are of images that have changed since.

    Args:
        task: a predictions file to write.
        discard_foreign: remove finished parts of another task.

    Raises:
        InferenceError: there are finished parts of another task, and they are not to be removed.
    """
    key = task.key()
    if discard_foreign:
        _remove_foreign_parts(task, key)
    return [
        part
        for part in task.parts()
        if not is_file(part.path) or _check_part(part.path, key) != part.image_files
    ]


def remove_outdated(task: PredictionTask, left: Iterable[Part]) -> None:
    """Removes those of the parts left that are there; says how many."""
    outdated = [part.path for part in left if is_file(part.path)]
    for path in outdated:
        storage.remove_if_there(path)
    if outdated:
        print(
            f"{task.predictions_path}: {len(outdated)} finished parts are predicted again, because "
            "their image files have changed since, or are not recorded",
            file=sys.stderr,
        )


def _check_part(path: str, key: str) -> str:
    """Returns the digest of the image files of a part; refuses one of another task."""
    try:
        with storage.open_file(path, "rb") as file:
            found = read_predictions(file, path).metadata
    except PredictionsError as error:
        raise InferenceError(f"{error}; --overwrite starts over") from error
    if found.get("key") != key:
        raise InferenceError(
            f"{path} was left by a run with another model, another list of images or another "
            "--precision; --overwrite removes it, another name for PREDICTIONS keeps it"
        )
    return found.get("image_files", "")


def _remove_foreign_parts(task: PredictionTask, key: str) -> None:
    """Removes all parts of an earlier run if one is of another model, list or precision."""
    try:
        for path in storage.glob(os.path.join(task.parts_directory, "part-*.parquet")):
            _check_part(path, key)
    except InferenceError:
        storage.remove_folder(task.parts_directory)


def finish_task(task: PredictionTask, claim: ClaimTicket) -> tuple[int, dict[str, str]]:
    """Joins the finished parts into the predictions file, and removes them.

    Returns:
        The number of images predicted, and the reason for each image left out, by file name.

    Raises:
        InferenceError: a part is of another task, or lacks images.
        ClaimError: another process has taken the predictions file over.
    """
    key, parts = task.key(), task.parts()
    unreadable: dict[str, str] = {}
    for part in parts:
        with storage.open_file(part.path, "rb") as file:
            stored = open_predictions(file, part.path)
            unreadable |= _require_own(part, stored.metadata, stored.image_ids(), key)

    def blocks() -> Iterator[Sequence[ImagePredictions]]:
        for part in parts:
            with storage.open_file(part.path, "rb") as file:
                found = read_predictions(file, part.path)
            # Once more: a process on another machine may have replaced it since.
            _require_own(part, found.metadata, [image.image_id for image in found.images], key)
            yield found.images

    metadata = {"model": task.saved.metadata, **task.identity(), "unreadable": unreadable}
    count = write_whole(task.predictions_path, blocks(), task.saved, metadata, claim)
    storage.remove_folder(task.parts_directory)
    return count, unreadable


def _require_own(part: Part, metadata: dict[str, Any], ids: list[str], key: str) -> dict[str, str]:
    """Compares a part with the task that it must be of; returns the images left out."""
    unreadable = metadata.get("unreadable", {})
    if metadata.get("key") != key or metadata.get("image_files", "") != part.image_files:
        raise InferenceError(
            f"{part.path} was replaced by a run with another model, another list of images or "
            "other image files while this one ran; nothing was joined. Run it again with "
            "--overwrite"
        )
    names = {os.path.splitext(name)[0] for name in unreadable}
    if {*ids, *names} != {image.image_id for image in part.images}:
        raise InferenceError(
            f"{part.path} has other images than its run gave it; run it again with --overwrite"
        )
    return unreadable


def write_whole(
    path: str,
    blocks: Iterable[Sequence[ImagePredictions]],
    saved: SavedModel,
    metadata: dict[str, Any],
    claim: ClaimTicket,
) -> int:
    """Writes a predictions file, which gets its name when it is whole and the claim holds."""
    with whole_file(path, "wb") as file:
        count = write_predictions(
            file, path, blocks, class_list_text=saved.class_list_text, metadata=metadata
        )
        claim.verify()
        return count
