"""Finds the TFRecord files of a split and checks that they belong to the class list."""

import json
from collections.abc import Sequence
from typing import NamedTuple

from tpudet.detection.data.config import DataConfig
from tpudet.trainkit.config.yaml_tree import ConfigError
from tpudet.trainkit.errors import listing
from tpudet.trainkit.files.storage import read_text
from tpudet.trainkit.records import count_records, find_shards


class Split(NamedTuple):
    """The TFRecord files of one split."""

    shards: list[str]
    records_per_shard: list[int]


def find_split(data: DataConfig, split: str) -> Split:
    """Finds the shards of a split in `data.directory`.

    Raises:
        ConfigError: shards are missing or truncated.
    """
    if not data.directory.rstrip("/"):
        raise ConfigError("data.directory is empty: name the folder that make_tfrecords wrote")
    try:
        shards = find_shards(_split_path(data, split))
        return Split(shards, count_records(shards))
    except (FileNotFoundError, ValueError) as error:
        directory = data.directory.rstrip("/")
        raise ConfigError(f"split `{split}` of {directory}: {error}") from error


def check_classes(data: DataConfig, split: str, class_names: Sequence[str]) -> None:
    """Compares the class list with the manifest of a split, if there is one.

    Raises:
        ConfigError: the records were written with other classes, or the manifest is damaged.
    """
    path = f"{_split_path(data, split)}.manifest.json"
    text = read_text(path)
    if text is None:
        return
    try:
        written = list(json.loads(text)["boxes_per_class"])
    except (ValueError, KeyError, TypeError) as error:
        raise ConfigError(
            f"{path} is not a manifest of make_tfrecords, or is truncated ({error!r}): copy the "
            "whole folder again, or convert again"
        ) from error
    if set(written) != set(class_names):
        different = listing(sorted(set(written) ^ set(class_names)))
        raise ConfigError(
            f"{data.directory.rstrip('/')}/classes.csv has {len(class_names)} classes, but {path} "
            f"was written with {len(written)}; they differ in {different}. Restore the classes.csv "
            "of the conversion, or convert again"
        )


def _split_path(data: DataConfig, split: str) -> str:
    """`<directory>/<split>_<part>`, the part being the name of the directory."""
    directory = data.directory.rstrip("/")
    return f"{directory}/{split}_{directory.rpartition('/')[2]}"
