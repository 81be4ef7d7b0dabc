"""What lies in `converted/<part>/`: class list, manifests, and the shards that they name."""

import json
import os
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from tpudet.detection.preparation.sources.annotations import PreparationError
from tpudet.detection.preparation.sources.input_files import list_directory, read_text
from tpudet.trainkit.class_list import ClassEntry, read_class_list
from tpudet.trainkit.files import storage

MANIFEST_SUFFIX = ".manifest.json"
_SPLIT_ORDER = ("train", "val", "test")
_MANIFEST_TYPES = {"split": str, "part": str, "images": int, "boxes": int, "shards": list} | {
    key: dict for key in ("boxes_per_class", "repaired_counts", "left_out_counts", "options")
}


class PreparedSplit(NamedTuple):
    """One split, whole: its manifest is there, and every shard has the size it names."""

    name: str  # train, val or test
    manifest_path: str
    manifest: Mapping[str, Any]
    shards: tuple[str, ...]  # paths, in the order of their numbers


class PreparedSet(NamedTuple):
    """One part."""

    directory: str
    part: str
    classes: tuple[ClassEntry, ...]
    splits: tuple[PreparedSplit, ...]  # train, val, test
    unfinished: tuple[str, ...]  # names of the folders of splits that are still being written


def read_prepared_set(directory: str) -> PreparedSet:
    """Reads the class list and the manifests, and looks whether their shards are there.

    Raises:
        PreparationError: the folder, the class list, the manifests or a shard is missing, or a
            shard differs in size from its manifest. All that is wrong with the files is listed.
    """
    directory = directory.rstrip("/") or "/"
    names = list_directory(directory, "PART_DIR")
    manifests = [name for name in names if name.endswith(MANIFEST_SUFFIX)]
    unfinished = tuple(name for name in names if name.endswith(".progress"))
    if not manifests:
        begun = f" Still being written, or interrupted: {', '.join(unfinished)}."
        raise PreparationError(
            f"PART_DIR {directory} holds no *{MANIFEST_SUFFIX}, so it is no finished set; "
            f"make_tfrecords.py or gen_tfrecords.py makes one.{begun if unfinished else ''}"
        )
    splits = [_read_split(directory, name) for name in manifests]
    splits.sort(key=lambda split: (_order(split.name), split.manifest_path))
    _check_shards(splits)
    _check_names(splits)
    return PreparedSet(
        directory=directory,
        part=splits[0].manifest["part"],
        classes=_read_classes(directory),
        splits=tuple(splits),
        unfinished=unfinished,
    )


def _order(split: str) -> int:
    return _SPLIT_ORDER.index(split) if split in _SPLIT_ORDER else len(_SPLIT_ORDER)


def _read_classes(directory: str) -> tuple[ClassEntry, ...]:
    path = os.path.join(directory, "classes.csv")
    try:
        return read_class_list(read_text(path, "The class list"))
    except PreparationError:
        raise
    except ValueError as error:
        raise PreparationError(f"{path}: {error}") from error


def _read_split(directory: str, name: str) -> PreparedSplit:
    path = os.path.join(directory, name)
    try:
        manifest = json.loads(read_text(path, "The manifest"))
    except json.JSONDecodeError as error:
        raise PreparationError(f"The manifest {path} is not JSON: {error}.") from error
    fields = manifest if isinstance(manifest, dict) else {}
    wrong = [k for k, kind in _MANIFEST_TYPES.items() if not isinstance(fields.get(k), kind)]
    if not wrong and not all(
        isinstance(entry, dict) and {"file", "records", "bytes"} <= set(entry)
        for entry in fields["shards"]
    ):
        wrong = ["shards"]
    if wrong:
        raise PreparationError(
            f"{path} is no manifest of a prepared set: {', '.join(wrong)} missing or of another "
            "kind. Write the set again with make_tfrecords.py --overwrite."
        )
    shards = sorted(os.path.join(directory, entry["file"]) for entry in fields["shards"])
    return PreparedSplit(fields["split"], path, fields, tuple(shards))


def _check_shards(splits: Sequence[PreparedSplit]) -> None:
    mistakes = []
    for split in splits:
        sizes = {entry["file"]: entry["bytes"] for entry in split.manifest["shards"]}
        for path in split.shards:
            wanted = sizes[os.path.basename(path)]
            if not storage.exists(path):
                mistakes.append(f"{path} is missing")
            elif (size := storage.stat(path).size) != wanted:
                mistakes.append(f"{path} has {size} bytes, its manifest says {wanted}")
    if mistakes:
        more = f"\n  and {len(mistakes) - 10} more" if len(mistakes) > 10 else ""
        raise PreparationError(
            "The set is damaged; write it again with --overwrite:\n"
            + "\n".join(f"  {mistake}" for mistake in mistakes[:10])
            + more
        )


def _check_names(splits: Sequence[PreparedSplit]) -> None:
    """One folder holds one part, and every split of it once."""
    seen: dict[str, PreparedSplit] = {}
    for split in splits:
        other = seen.setdefault(split.name, split)
        if other is not split:
            raise PreparationError(
                f"{other.manifest_path} and {split.manifest_path} both describe the split "
                f"{split.name}: a folder holds one part. Move one of them, with its shards, away."
            )
