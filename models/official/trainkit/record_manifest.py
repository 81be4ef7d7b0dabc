"""Manifests of TFRecord sets, and whether the files on the disk are those that they describe.

`<split>_<part>.manifest.json` is written last, when every shard of a split is finished.
`<split>_<part>.progress` is a folder that is there while the split is being written.
"""

import os
from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple

from tpudet.trainkit.errors import UserError, listing
from tpudet.trainkit.files import storage
from tpudet.trainkit.files.inputs import read_input_text
from tpudet.trainkit.files.json_text import parse_json
from tpudet.trainkit.files.listed_files import is_plain_name
from tpudet.trainkit.records import count_records, find_shards

MANIFEST_SUFFIX = ".manifest.json"
PROGRESS_SUFFIX = ".progress"

# Of a manifest: what it counts for each class, in the order of the class ids.
PerClass = Literal["boxes_per_class", "images_per_class"]

_TYPES = {"split": str, "part": str, "images": int, "shards": list} | {
    key: dict for key in ("repaired_counts", "left_out_counts", "options")
}
_TYPES_OF_KIND: dict[PerClass, dict[str, type]] = {
    "boxes_per_class": {"boxes": int, "boxes_per_class": dict},
    "images_per_class": {"images_per_class": dict},
}
_COUNTS = (
    *("boxes_per_class", "images_per_class", "crowds_per_class", "images_per_boxes"),
    *("repaired_counts", "left_out_counts"),
)
_OPTIONAL_TYPES = dict.fromkeys(_COUNTS, dict) | {"repaired": list, "left_out": list}
_MAX_DIGITS = 18  # of a count that is a key, below 2^63


class CheckedSplit(NamedTuple):
    """The shards of a split, which are those that its manifest describes."""

    shards: list[str]  # paths
    records_per_shard: list[int]
    class_names: list[str]  # in the order of the class ids
    manifest: Mapping[str, Any]


def check_manifest(
    directory: str, split: str, *, per_class: PerClass = "boxes_per_class"
) -> CheckedSplit | None:
    """Compares the shards of a split with its manifest: names, sizes and numbers of records.

    Args:
        directory: of the part, `converted/<part>`.
        split: such as train.
        per_class: what the manifest counts.

    Returns:
        The split; None if it has no manifest, as records of other programs have not.

    Raises:
        UserError: the split is being written or was interrupted, its manifest is damaged, or its
            files are others; names them and says what to run.
        FileNotFoundError: shards are missing.
    """
    directory = directory.rstrip("/")
    prefix = f"{directory}/{split}_{os.path.basename(directory)}"
    if storage.is_folder(prefix + PROGRESS_SUFFIX):
        raise UserError(
            f"{prefix + PROGRESS_SUFFIX} exists: this split is still being written, or its writing "
            "was interrupted. Wait until it ends, or run the same command again; it resumes where "
            "it stopped."
        )
    if not storage.is_file(prefix + MANIFEST_SUFFIX):
        return None
    manifest = read_manifest(prefix + MANIFEST_SUFFIX, per_class=per_class)
    shards = find_shards(prefix)
    counts = count_records(shards)
    found = {
        os.path.basename(path): (storage.stat(path).size, count)
        for path, count in zip(shards, counts, strict=True)
    }
    described = {entry["file"]: (entry["bytes"], entry["records"]) for entry in manifest["shards"]}
    mistakes = [*_differences(found, described)]
    if mistakes:
        raise UserError(
            f"The shards of {prefix} are not those of their manifest: {listing(mistakes)}. Copy "
            "the whole folder again, or write the set again with --overwrite."
        )
    return CheckedSplit(shards, counts, list(manifest[per_class]), manifest)


def read_manifest(path: str, *, per_class: PerClass = "boxes_per_class") -> dict[str, Any]:
    """Reads a manifest and checks its fields.

    Raises:
        UserError: it cannot be read, or is not a manifest.
    """
    try:
        fields = parse_json(read_input_text(path, "The manifest"))
    except (ValueError, RecursionError) as error:
        if isinstance(error, UserError):
            raise
        raise UserError(
            f"The manifest {path} is not JSON, or was cut short: {error}. {_REMEDY}"
        ) from None
    types = _TYPES | _TYPES_OF_KIND[per_class]
    if not isinstance(fields, dict):
        wrong = list(types)
    else:
        present = {key: kind for key, kind in _OPTIONAL_TYPES.items() if key in fields}
        wrong = _wrong_fields(fields, types | present) or _wrong_values(fields)
    if wrong:
        raise UserError(
            f"{path} is not a manifest of a prepared set: {', '.join(wrong)} missing or of another "
            "type. Counts are whole numbers from 0; shards, at least one, are in its folder, each "
            f"named once. {_REMEDY}"
        )
    return fields


def is_count(value: object) -> bool:
    """Whether a JSON value counts something: an integer of 63 bits, no boolean."""
    return type(value) is int and 0 <= value < 1 << 63


def are_shards(entries: Sequence[Any]) -> bool:
    """Whether JSON values are what a manifest says of its shards.

    They are `file`, `records` and `bytes`, each file being in the manifest's own folder and named
    once, and there is at least one.
    """
    names = [entry["file"] for entry in entries if is_shard(entry)]
    return 0 < len(set(names)) == len(entries)


def is_shard(entry: Any) -> bool:
    """Whether a JSON value is a shard as in `are_shards`."""
    return (
        isinstance(entry, dict)
        and is_plain_name(entry.get("file"))
        and all(is_count(entry.get(key)) for key in ("records", "bytes"))
    )


def first_renamed_class(written: Sequence[str], present: Sequence[str]) -> str:
    """Describes the first class id that means another class; empty if the lists are equal."""
    for number, (then, now) in enumerate(zip(written, present, strict=False), start=1):
        if then != now:
            return f"class {number} was {then}, in classes.csv it is {now}"
    if len(written) == len(present):
        return ""
    return f"there were {len(written)}, classes.csv has {len(present)}"


_REMEDY = "Copy the whole folder again, or write the set again with --overwrite."


def _wrong_fields(fields: Mapping[str, Any], types: Mapping[str, type]) -> Sequence[str]:
    return [name for name, kind in types.items() if not isinstance(fields.get(name), kind)]


def _wrong_values(fields: Mapping[str, Any]) -> Sequence[str]:
    """The fields, of the right types themselves, that hold values which are not possible."""
    wrong = [
        key for key in _COUNTS if key in fields and not all(map(is_count, fields[key].values()))
    ]
    wrong += [key for key in ("images", "boxes") if not is_count(fields.get(key, 0))]
    numbers = fields.get("images_per_boxes", ())
    if not all(number.isdecimal() and len(number) <= _MAX_DIGITS for number in numbers):
        wrong.append("images_per_boxes")
    if not are_shards(fields["shards"]):
        wrong.append("shards")
    for key in ("repaired", "left_out"):
        if not all(isinstance(one, dict) for one in fields.get(key, ())):
            wrong.append(key)
    return wrong


def _differences(
    found: Mapping[str, tuple[int, int]], described: Mapping[str, tuple[int, int]]
) -> list[str]:
    missing, extra = described.keys() - found.keys(), found.keys() - described.keys()
    mistakes = [f"{name} is missing" for name in sorted(missing)]
    mistakes += [f"{name} is not in the manifest" for name in sorted(extra)]
    for name in sorted(found.keys() & described.keys()):
        (size, records), (bytes_then, records_then) = found[name], described[name]
        if size != bytes_then:
            mistakes.append(f"{name} has {size} bytes, its manifest says {bytes_then}")
        elif records != records_then:
            mistakes.append(f"{name} has {records} records, its manifest says {records_then}")
    return mistakes
