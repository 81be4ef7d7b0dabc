"""A predictions file to make: what it is of, its parts, and what earlier runs left of it."""

import hashlib
import json
import os
import socket
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from tpudet.detection.inference.predictions_file import (
    ImagePredictions,
    PredictionsError,
    open_predictions,
    read_predictions,
    write_predictions,
)
from tpudet.detection.inference.saved_detector import SavedDetector
from tpudet.detection.inference.stream import Part
from tpudet.detection.inference.views import Augmentation
from tpudet.trainkit.errors import UserError
from tpudet.trainkit.files import storage
from tpudet.trainkit.files.storage import is_file, whole_file
from tpudet.trainkit.image_folder import ImageFile, Shard

IMAGES_A_PART = 500  # what a kill costs at most; a few minutes of a slow CPU


class InferenceError(UserError):
    """What an earlier run left cannot be gone on with; says what to do."""


class Work(NamedTuple):
    """A predictions file to make."""

    saved: SavedDetector
    images: Sequence[ImageFile]
    predictions_path: str
    augmentation: Augmentation | None = None
    shard: Shard | None = None  # that `images` are, of a longer list
    image_list: dict[str, Any] | None = None  # `digest_of_list` of the longer list
    images_a_part: int = IMAGES_A_PART

    @property
    def parts_directory(self) -> str:
        """Where finished parts lie until all are there."""
        return f"{self.predictions_path}.parts"

    def parts(self) -> list[Part]:
        """The file of each part and the images in it."""
        return [
            Part(
                os.path.join(self.parts_directory, f"part-{i:05d}.parquet"),
                self.images[start : start + self.images_a_part],
            )
            for i, start in enumerate(range(0, len(self.images), self.images_a_part))
        ]

    def identity(self) -> dict[str, Any]:
        """What the predictions are of: in the metadata, so that others know them again."""
        whole = self.image_list or digest_of_list(self.images)
        facts: dict[str, Any] = {"fingerprint": self.saved.fingerprint, "image_list": whole}
        if self.augmentation is not None:
            facts["augmentation"] = self.augmentation._asdict()
        if self.shard is not None:
            facts["shard"] = self.shard._asdict()
        return json.loads(json.dumps(facts))

    def key(self) -> str:
        """A digest that ties a part to its model, images, views and part size."""
        names = [image.path for image in self.images]
        views = self.augmentation and self.augmentation._asdict()
        facts = json.dumps([self.saved.fingerprint, self.images_a_part, names, views])
        return hashlib.sha256(facts.encode()).hexdigest()


def digest_of_list(images: Sequence[ImageFile]) -> dict[str, Any]:
    """Returns the number of images and a digest of their ids, which machines can compare."""
    ids = "\n".join(image.image_id for image in images)
    return {"count": len(images), "sha256": hashlib.sha256(ids.encode()).hexdigest()}


def is_finished(work: Work) -> bool:
    """Whether the predictions file is there, whole, of this very work.

    Raises:
        InferenceError: there is one, of another model, image list, shard or other views.
    """
    path = work.predictions_path
    if not is_file(path):
        return False
    try:
        with storage.open_file(path, "rb") as file:
            found = open_predictions(file, path).metadata
    except PredictionsError as error:
        raise InferenceError(f"{error}; --overwrite replaces it") from error
    wanted = work.identity()
    names = ("fingerprint", "image_list", "augmentation", "shard")
    other = [name for name in names if found.get(name) != wanted.get(name)]
    if other:
        what = {"fingerprint": "another model", "image_list": "another list of images"}
        what |= {"augmentation": "other views (--tta)", "shard": "another shard"}
        named = " and ".join(what[name] for name in other)
        raise InferenceError(f"{path} is there, of {named}; --overwrite replaces it")
    return True


def count_finished_parts(work: Work) -> tuple[int, int]:
    """How many parts an earlier run left, and how many there will be."""
    parts = work.parts()
    return sum(is_file(part.path) for part in parts), len(parts)


def find_parts_left(work: Work, *, discard_foreign: bool) -> list[Part]:
    """Returns the parts that no earlier run finished.

    Args:
        work: whose parts.
        discard_foreign: throw finished parts of another work away.

    Raises:
        InferenceError: there are finished parts of another work.
    """
    key = work.key()
    if discard_foreign:
        _remove_foreign_parts(work, key)
    parts = work.parts()
    finished = {part.path for part in parts if is_file(part.path)}
    for path in sorted(finished):
        _check_part(path, key)
    return [part for part in parts if part.path not in finished]


def _check_part(path: str, key: str) -> None:
    try:
        with storage.open_file(path, "rb") as file:
            found = read_predictions(file, path).metadata.get("key")
    except PredictionsError as error:
        raise InferenceError(f"{error}; --overwrite starts anew") from error
    if found != key:
        raise InferenceError(
            f"{path} was left by a run with another model or another list of images; "
            "--overwrite throws it away, another name for PREDICTIONS keeps it"
        )


def _remove_foreign_parts(work: Work, key: str) -> None:
    """Removes all parts of an earlier run where one is of another model or image list."""
    try:
        for path in storage.glob(os.path.join(work.parts_directory, "part-*.parquet")):
            _check_part(path, key)
    except InferenceError:
        storage.remove_folder(work.parts_directory)


def join_work(work: Work) -> tuple[int, dict[str, str]]:
    """Joins the finished parts to the predictions file, and removes them.

    Returns:
        The number of images predicted, and the reason for each image left out, by file name.
    """
    paths = [part.path for part in work.parts()]
    unreadable: dict[str, str] = {}
    for path in paths:
        with storage.open_file(path, "rb") as file:
            unreadable |= open_predictions(file, path).metadata["unreadable"]

    def blocks() -> Iterator[Sequence[ImagePredictions]]:
        for path in paths:
            with storage.open_file(path, "rb") as file:
                yield read_predictions(file, path).images

    metadata = {"model": work.saved.metadata, **work.identity(), "unreadable": unreadable}
    count = write_whole(work.predictions_path, blocks(), work.saved, metadata)
    storage.remove_folder(work.parts_directory)
    return count, unreadable


def write_whole(
    path: str,
    blocks: Iterable[Sequence[ImagePredictions]],
    saved: SavedDetector,
    metadata: dict[str, Any],
) -> int:
    """Writes a predictions file that has its name only once it is whole."""
    # A node that a cluster has given up may still be at work on the same part.
    with whole_file(path, "wb", owner=f"{socket.gethostname()}-{os.getpid()}") as file:
        return write_predictions(
            file, path, blocks, class_list_text=saved.class_list_text, metadata=metadata
        )
