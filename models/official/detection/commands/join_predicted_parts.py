"""The command `join_predicted_parts.py`: the predictions of shards -> one predictions file.

Memory holds the ids of all images and one block of predictions, however many there are.
"""

import argparse
import os
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from typing import Any, NamedTuple

from tpudet.detection.submission.image_ids import ImageIdsError, read_ids
from tqdm import tqdm

from tpudet.detection.inference.predictions_file import (
    ImagePredictions,
    PredictionsError,
    StoredPredictions,
    open_predictions,
    write_predictions,
)
from tpudet.trainkit.errors import UserError
from tpudet.trainkit.files.storage import is_file, open_file, remove_if_there, rename

_NAMES_SHOWN = 10
_EPILOG = """\
examples:
  join_predicted_parts.py p.parquet p_part_*_of_8.parquet
  join_predicted_parts.py p.parquet first.parquet second.parquet --ids sample_submission.csv

The files must be of one model, one list of images and the same views, and no image may be in two of
them. They are complete when all shards are there, or all images of --ids.

exit codes: 0 done, 2 wrong arguments or files that do not fit (nothing is written)
"""


class PartsError(UserError):
    """The parts do not fit together; says in what, all mistakes at once."""


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


def join_parts(target: str, sources: Sequence[str], *, ids: Sequence[str] | None = None) -> int:
    """Checks that parts fit together and are complete, and joins them in the order of the shards.

    Args:
        target: predictions file to write; what is there is replaced.
        sources: the parts, in any order.
        ids: of all images; None where the parts say which shards they are.

    Returns:
        The number of images.

    Raises:
        PartsError: they do not fit, or something is missing.
        PredictionsError: one is no usable predictions file.
        OSError: a file cannot be read or written.
    """
    with ExitStack() as files:
        parts = []
        for name in sources:
            stored = open_predictions(files.enter_context(open_file(name, "rb")), name)
            parts.append(_Part(name, stored, stored.image_ids()))
        mistakes = [*_differences(parts), *_twice(parts), *_missing_shards(parts, ids)]
        if ids is not None:
            mistakes += _missing_images(parts, ids)
        if mistakes:
            raise PartsError("\n  ".join(["the parts do not fit together:", *mistakes]))
        parts.sort(key=lambda part: part.shard["number"] if part.shard else 0)
        return _write(target, parts)


def _write(target: str, parts: Sequence[_Part]) -> int:
    metadata = {k: v for k, v in parts[0].stored.metadata.items() if k != "shard"}
    metadata["unreadable"] = {k: v for part in parts for k, v in part.unreadable.items()}
    total = sum(len(part.ids) for part in parts)

    def blocks() -> Iterator[Sequence[ImagePredictions]]:
        with tqdm(total=total, unit=" images", delay=1) as bar:
            for part in parts:
                for block in part.stored.blocks():
                    yield block
                    bar.update(len(block))

    temporary = f"{target}.tmp"
    try:
        with open_file(temporary, "wb") as file:
            count = write_predictions(
                file,
                target,
                blocks(),
                class_list_text=parts[0].stored.class_list_text,
                metadata=metadata,
            )
        rename(temporary, target)
    except BaseException:
        remove_if_there(temporary)
        raise
    return count


def _differences(parts: Sequence[_Part]) -> Iterator[str]:
    """What must be the same in all parts and is not."""
    first = parts[0]
    for name, what in {
        "fingerprint": "model",
        "image_list": "list of images",
        "augmentation": "views (--tta)",
    }.items():
        wanted = first.stored.metadata.get(name)
        for part in parts[1:]:
            if part.stored.metadata.get(name) != wanted:
                yield f"{part.name} is of another {what} than {first.name}"
    for part in parts[1:]:
        if part.stored.class_list_text != first.stored.class_list_text:
            yield f"{part.name} has other classes than {first.name}"


def _twice(parts: Sequence[_Part]) -> Iterator[str]:
    owner: dict[str, str] = {}
    repeated = []
    for part in parts:
        for image_id in (*part.ids, *_unreadable_ids(part)):
            if image_id in owner:
                repeated.append(f"{image_id} ({owner[image_id]} and {part.name})")
            owner.setdefault(image_id, part.name)
    if repeated:
        yield f"{len(repeated)} images are there twice: {_listed(repeated)}"


def _missing_shards(parts: Sequence[_Part], ids: Sequence[str] | None) -> Iterator[str]:
    """Which shards are missing or there twice, where the parts say which they are."""
    unnamed = [part.name for part in parts if not part.shard]
    if unnamed:
        if ids is None:
            yield (
                f"{_listed(unnamed)}: not written with --shard, so give --ids FILE with the ids of "
                "all images to say when the parts are complete"
            )
        return
    numbers = sorted({_of(part)["of"] for part in parts})
    if len(numbers) > 1:
        yield f"they are shards of {' and '.join(map(str, numbers))}, cut in different ways"
        return
    names: dict[int, list[str]] = {}
    for part in parts:
        names.setdefault(_of(part)["number"], []).append(part.name)
    missing = [f"{i}/{numbers[0]}" for i in range(1, numbers[0] + 1) if i not in names]
    if missing:
        yield f"{len(missing)} shards are missing: {_listed(missing)}"
    for number, files in sorted(names.items()):
        if len(files) > 1:
            yield f"shard {number}/{numbers[0]} is there {len(files)} times: {_listed(files)}"
    count = sum(len(part.ids) + len(part.unreadable) for part in parts)
    wanted = parts[0].stored.metadata.get("image_list", {}).get("count", count)
    if not missing and count != wanted:
        yield f"the shards have {count} images; the list that they were cut from has {wanted}"


def _missing_images(parts: Sequence[_Part], ids: Sequence[str]) -> Iterator[str]:
    there = {image_id for part in parts for image_id in (*part.ids, *_unreadable_ids(part))}
    wanted = set(ids)
    for odd, what in ((wanted - there, "missing"), (there - wanted, "not among --ids")):
        if odd:
            yield f"{len(odd)} images are {what}: {_listed(sorted(odd))}"


def _of(part: _Part) -> dict[str, int]:
    assert part.shard is not None
    return part.shard


def _unreadable_ids(part: _Part) -> list[str]:
    return [os.path.splitext(name)[0] for name in part.unreadable]


def _listed(names: Sequence[Any]) -> str:
    more = f" and {len(names) - _NAMES_SHOWN} more" if len(names) > _NAMES_SHOWN else ""
    return ", ".join(map(str, names[:_NAMES_SHOWN])) + more


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command; returns 0 done; exits with 2 on bad use."""
    parser = argparse.ArgumentParser(
        prog="join_predicted_parts.py",
        description="Join the predictions of shards (inference.py --shard I/N) to one file.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("result", metavar="RESULT", help="file to write: .pkl a pickle, or Parquet")
    parser.add_argument("parts", metavar="FILES", nargs="+", help="predictions of the shards")
    parser.add_argument("--ids", metavar="FILE", help="all image ids, one a line, or a submission")
    parser.add_argument("-f", "--force", action="store_true", help="replace RESULT if it exists")
    arguments = parser.parse_args(argv)
    target: str = arguments.result
    missing = [name for name in arguments.parts if not is_file(name)]
    if missing:
        parser.error(f"no file {_listed(missing)}")
    if target in arguments.parts:
        parser.error(f"{target} is one of the parts: name RESULT first, another file")
    if is_file(target) and not arguments.force:
        parser.error(f"{target} exists; -f replaces it")
    try:
        ids = read_ids(arguments.ids) if arguments.ids else None
        count = join_parts(target, arguments.parts, ids=ids)
    except (PartsError, PredictionsError, ImageIdsError, OSError) as error:
        parser.error(str(error))
    print(f"{target}: {count} images of {len(arguments.parts)} parts")
    return 0
