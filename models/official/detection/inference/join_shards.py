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


class ShardsError(UserError):
    """The shards do not fit together; lists all mistakes."""


class _ShardFile(NamedTuple):
    name: str
    stored: StoredPredictions
    ids: list[str]  # of predicted images

    @property
    def unreadable(self) -> dict[str, str]:
        """The reason for each image left out, by file name."""
        return self.stored.metadata.get("unreadable", {})

    @property
    def position(self) -> dict[str, int] | None:
        """Its `number` and `of` how many; None of a file that was not written with --shard."""
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
        sources: the files of the shards, in any order.
        ids: path of a list of all image ids; None if the files were written with --shard.
        force: whether an existing target is replaced.

    Returns:
        The summary.

    Raises:
        UserError: the arguments or files are not usable; nothing is written then.
        OSError: a file cannot be read or written.
    """
    missing = [name for name in sources if not is_file(name)]
    if missing:
        raise ShardsError(f"no file {listing(missing)}")
    if any(is_same_file(source, target) for source in sources):
        raise ShardsError(f"{target} is one of the shards: name RESULT first, another file")
    if is_file(target) and not force:
        raise ShardsError(f"{target} exists; -f replaces it")
    count = join_shards(target, sources, ids=read_ids(ids) if ids else None, force=force)
    return f"{target}: {count} images of {len(sources)} shards"


def join_shards(
    target: str, sources: Sequence[str], *, ids: Sequence[str] | None = None, force: bool = False
) -> int:
    """Checks that shards fit together and are complete, and joins them in their order.

    Args:
        target: predictions file to write.
        sources: the files of the shards, in any order.
        ids: of all images; None if the files say which shards they are.
        force: whether an existing target is replaced.

    Returns:
        The number of images.

    Raises:
        ShardsError: they do not fit, or something is missing.
        PredictionsError: one is not a usable predictions file.
        ClaimError: another process writes the target.
        OSError: a file cannot be read or written.
    """
    with ExitStack() as files:
        shards = []
        for name in sources:
            stored = open_predictions(files.enter_context(open_file(name, "rb")), name)
            shards.append(_ShardFile(name, stored, stored.image_ids()))
        mistakes = [*_differences(shards), *_repeated_images(shards), *_missing_shards(shards, ids)]
        if ids is not None:
            mistakes += _missing_images(shards, ids)
        if mistakes:
            raise ShardsError("\n  ".join(["the shards do not fit together:", *mistakes]))
        shards.sort(key=lambda shard: shard.position["number"] if shard.position else 0)
        facts = {k: v for k, v in shards[0].stored.metadata.items() if k != "shard"}
        facts["unreadable"] = {k: v for shard in shards for k, v in shard.unreadable.items()}
        if not all(shard.position and "image_files" in shard.stored.metadata for shard in shards):
            facts.pop("image_files", None)  # of some of the images only
        if ids is not None:
            facts["image_list"] = digest_image_list(sorted(set(ids)))
        return _write(target, shards, facts, force=force)


def _write(
    target: str, shards: Sequence[_ShardFile], metadata: dict[str, Any], *, force: bool
) -> int:
    total = sum(len(shard.ids) for shard in shards)

    def blocks() -> Iterator[Sequence[ImagePredictions]]:
        with tqdm(total=total, unit=" images", delay=1) as bar:
            for shard in shards:
                for block in shard.stored.blocks():
                    yield block
                    bar.update(len(block))

    with claimed_file(target, "wb", force=force) as file:
        return write_predictions(
            file,
            target,
            blocks(),
            class_list_text=shards[0].stored.class_list_text,
            metadata=metadata,
        )


def _differences(shards: Sequence[_ShardFile]) -> Iterator[str]:
    """Differences in what must be the same in all shards.

    Written without --shard, a file names its own images only, which `_missing_images` compares
    with --ids.
    """
    first = shards[0]
    numbered = [shard for shard in shards if shard.position]
    # Earlier versions did not write these.
    precise = [shard for shard in shards if "precision" in shard.stored.metadata]
    with_files = [shard for shard in numbered if "image_files" in shard.stored.metadata]
    for name, what, group in (
        ("fingerprint", "model", shards),
        ("image_list", "list of images", numbered),
        ("augmentation", "views (--tta)", shards),
        ("precision", "--precision", precise),
        ("image_files", "set of image files", with_files),
    ):
        for shard in group[1:]:
            if shard.stored.metadata.get(name) != group[0].stored.metadata.get(name):
                yield f"{shard.name} is of another {what} than {group[0].name}"
    for shard in shards[1:]:
        if shard.stored.class_list_text != first.stored.class_list_text:
            yield f"{shard.name} has other classes than {first.name}"


def _repeated_images(shards: Sequence[_ShardFile]) -> Iterator[str]:
    owner: dict[str, str] = {}
    repeated = []
    for shard in shards:
        for image_id in (*shard.ids, *_unreadable_ids(shard)):
            if image_id in owner:
                repeated.append(f"{image_id} ({owner[image_id]} and {shard.name})")
            owner.setdefault(image_id, shard.name)
    if repeated:
        yield f"{len(repeated)} images are in two shards: {listing(repeated)}"


def _missing_shards(shards: Sequence[_ShardFile], ids: Sequence[str] | None) -> Iterator[str]:
    """Shards that are missing or repeated, if the files say which they are."""
    unnamed = [shard.name for shard in shards if not shard.position]
    if unnamed:
        if ids is None:
            yield (
                f"{listing(unnamed)}: not written with --shard, so give --ids FILE with the ids of "
                "all images, to check that the shards are complete"
            )
        return
    numbers = sorted({_position(shard)["of"] for shard in shards})
    if len(numbers) > 1:
        yield f"they are shards of {' and '.join(map(str, numbers))}, of different cuts"
        return
    names: dict[int, list[str]] = {}
    for shard in shards:
        names.setdefault(_position(shard)["number"], []).append(shard.name)
    missing = [f"{i}/{numbers[0]}" for i in range(1, numbers[0] + 1) if i not in names]
    if missing:
        yield f"{len(missing)} shards are missing: {listing(missing)}"
    for number, files in sorted(names.items()):
        if len(files) > 1:
            yield f"shard {number}/{numbers[0]} is given {len(files)} times: {listing(files)}"
    count = sum(len(shard.ids) + len(shard.unreadable) for shard in shards)
    wanted = shards[0].stored.metadata.get("image_list", {}).get("count", count)
    if not missing and count != wanted:
        yield f"the shards have {count} images; their whole list has {wanted}"


def _missing_images(shards: Sequence[_ShardFile], ids: Sequence[str]) -> Iterator[str]:
    there = {image_id for shard in shards for image_id in (*shard.ids, *_unreadable_ids(shard))}
    wanted = set(ids)
    for odd, what in ((wanted - there, "missing"), (there - wanted, "not among --ids")):
        if odd:
            yield f"{len(odd)} images are {what}: {listing(sorted(odd))}"


def _position(shard: _ShardFile) -> dict[str, int]:
    assert shard.position is not None
    return shard.position


def _unreadable_ids(shard: _ShardFile) -> list[str]:
    return [os.path.splitext(name)[0] for name in shard.unreadable]
