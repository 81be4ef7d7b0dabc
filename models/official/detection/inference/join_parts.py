"""Joins the predictions of shards into one predictions file.

Memory holds the ids of all images and one block of predictions, however many there are.
"""

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from typing import Any, NamedTuple

from tqdm import tqdm

from tpudet.detection.inference.predictions import digest_image_list
from tpudet.detection.inference.predictions_file import (
    ImagePredictions,
    StoredPredictions,
    open_predictions,
    write_predictions,
)
from tpudet.detection.submission.writer import is_same_file
from tpudet.trainkit.errors import UserError, listing
from tpudet.trainkit.files.claimed_file import claimed_file
from tpudet.trainkit.files.storage import is_file, open_file
from tpudet.trainkit.image_folder import read_ids


class PartsError(UserError):
    """The parts do not fit together; lists all mistakes."""


class _Part(NamedTuple):
    name: str
    stored: StoredPredictions
    ids: list[str]  # of predicted images

    @property
    def unreadable(self) -> dict[str, str]:
        """The reason for each image left out, by file name."""
        return self.stored.metadata.get("unreadable", {})

    @property
    def shard(self) -> dict[str, int] | None:
        return self.stored.metadata.get("shard")


def describe_shard(metadata: Mapping[str, Any]) -> str:
    """Names the shard that a predictions file holds, as "shard 1 of 2"; empty for all images."""
    shard = metadata.get("shard")
    return f"shard {shard['number']} of {shard['of']}" if shard and shard["of"] > 1 else ""


def join_predicted_parts(
    target: str, sources: Sequence[str], *, ids: str | None, force: bool
) -> str:
    """Joins predictions files into one.

    Args:
        target: predictions file to write.
        sources: the parts, in any order.
        ids: path of a list of all image ids; None if the parts were written with --shard.
        force: whether an existing target is replaced.

    Returns:
        The summary.

    Raises:
        UserError: the arguments or files are not usable; nothing is written then.
        OSError: a file cannot be read or written.
    """
    missing = [name for name in sources if not is_file(name)]
    if missing:
        raise PartsError(f"no file {listing(missing)}")
    if any(is_same_file(source, target) for source in sources):
        raise PartsError(f"{target} is one of the parts: name RESULT first, another file")
    if is_file(target) and not force:
        raise PartsError(f"{target} exists; -f replaces it")
    count = join_parts(target, sources, ids=read_ids(ids) if ids else None, force=force)
    return f"{target}: {count} images of {len(sources)} parts"


def join_parts(
    target: str, sources: Sequence[str], *, ids: Sequence[str] | None = None, force: bool = False
) -> int:
    """Checks that parts fit together and are complete, and joins them in the order of the shards.

    Args:
        target: predictions file to write.
        sources: the parts, in any order.
        ids: of all images; None if the parts say which shards they are.
        force: whether an existing target is replaced.

    Returns:
        The number of images.

    Raises:
        PartsError: they do not fit, or something is missing.
        PredictionsError: one is not a usable predictions file.
        ClaimError: another process writes the target.
        OSError: a file cannot be read or written.
    """
    with ExitStack() as files:
        parts = []
        for name in sources:
            stored = open_predictions(files.enter_context(open_file(name, "rb")), name)
            parts.append(_Part(name, stored, stored.image_ids()))
        mistakes = [*_differences(parts), *_repeated_images(parts), *_missing_shards(parts, ids)]
        if ids is not None:
            mistakes += _missing_images(parts, ids)
        if mistakes:
            raise PartsError("\n  ".join(["the parts do not fit together:", *mistakes]))
        parts.sort(key=lambda part: part.shard["number"] if part.shard else 0)
        facts = {k: v for k, v in parts[0].stored.metadata.items() if k != "shard"}
        facts["unreadable"] = {k: v for part in parts for k, v in part.unreadable.items()}
        if not all(part.shard and "image_files" in part.stored.metadata for part in parts):
            facts.pop("image_files", None)  # of some of the images only
        if ids is not None:
            facts["image_list"] = digest_image_list(sorted(set(ids)))
        return _write(target, parts, facts, force=force)


def _write(target: str, parts: Sequence[_Part], metadata: dict[str, Any], *, force: bool) -> int:
    total = sum(len(part.ids) for part in parts)

    def blocks() -> Iterator[Sequence[ImagePredictions]]:
        with tqdm(total=total, unit=" images", delay=1) as bar:
            for part in parts:
                for block in part.stored.blocks():
                    yield block
                    bar.update(len(block))

    with claimed_file(target, "wb", force=force) as file:
        return write_predictions(
            file,
            target,
            blocks(),
            class_list_text=parts[0].stored.class_list_text,
            metadata=metadata,
        )


def _differences(parts: Sequence[_Part]) -> Iterator[str]:
    """Differences in what must be the same in all parts.

    Without a shard a part names its own images only, which `_missing_images` compares with --ids.
    """
    first = parts[0]
    shards = [part for part in parts if part.shard]
    # Earlier versions did not write these.
    precise = [part for part in parts if "precision" in part.stored.metadata]
    with_files = [part for part in shards if "image_files" in part.stored.metadata]
    for name, what, group in (
        ("fingerprint", "model", parts),
        ("image_list", "list of images", shards),
        ("augmentation", "views (--tta)", parts),
        ("precision", "--precision", precise),
        ("image_files", "set of image files", with_files),
    ):
        for part in group[1:]:
            if part.stored.metadata.get(name) != group[0].stored.metadata.get(name):
                yield f"{part.name} is of another {what} than {group[0].name}"
    for part in parts[1:]:
        if part.stored.class_list_text != first.stored.class_list_text:
            yield f"{part.name} has other classes than {first.name}"


def _repeated_images(parts: Sequence[_Part]) -> Iterator[str]:
    owner: dict[str, str] = {}
    repeated = []
    for part in parts:
        for image_id in (*part.ids, *_unreadable_ids(part)):
            if image_id in owner:
                repeated.append(f"{image_id} ({owner[image_id]} and {part.name})")
            owner.setdefault(image_id, part.name)
    if repeated:
        yield f"{len(repeated)} images are in two parts: {listing(repeated)}"


def _missing_shards(parts: Sequence[_Part], ids: Sequence[str] | None) -> Iterator[str]:
    """Shards that are missing or repeated, if the parts say which they are."""
    unnamed = [part.name for part in parts if not part.shard]
    if unnamed:
        if ids is None:
            yield (
                f"{listing(unnamed)}: not written with --shard, so give --ids FILE with the ids of "
                "all images, to check that the parts are complete"
            )
        return
    numbers = sorted({_shard(part)["of"] for part in parts})
    if len(numbers) > 1:
        yield f"they are shards of {' and '.join(map(str, numbers))}, of different cuts"
        return
    names: dict[int, list[str]] = {}
    for part in parts:
        names.setdefault(_shard(part)["number"], []).append(part.name)
    missing = [f"{i}/{numbers[0]}" for i in range(1, numbers[0] + 1) if i not in names]
    if missing:
        yield f"{len(missing)} shards are missing: {listing(missing)}"
    for number, files in sorted(names.items()):
        if len(files) > 1:
            yield f"shard {number}/{numbers[0]} is given {len(files)} times: {listing(files)}"
    count = sum(len(part.ids) + len(part.unreadable) for part in parts)
    wanted = parts[0].stored.metadata.get("image_list", {}).get("count", count)
    if not missing and count != wanted:
        yield f"the shards have {count} images; their whole list has {wanted}"


def _missing_images(parts: Sequence[_Part], ids: Sequence[str]) -> Iterator[str]:
    there = {image_id for part in parts for image_id in (*part.ids, *_unreadable_ids(part))}
    wanted = set(ids)
    for odd, what in ((wanted - there, "missing"), (there - wanted, "not among --ids")):
        if odd:
            yield f"{len(odd)} images are {what}: {listing(sorted(odd))}"


def _shard(part: _Part) -> dict[str, int]:
    assert part.shard is not None
    return part.shard


def _unreadable_ids(part: _Part) -> list[str]:
    return [os.path.splitext(name)[0] for name in part.unreadable]
