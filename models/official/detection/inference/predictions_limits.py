"""Limits of predictions files from elsewhere: metadata of known form, no more than is stored.

A pickle can name one array or text any number of times, a dictionary of Parquet too, and runs of
equal numbers take no room: small files stand for gigabytes. In legitimate files the values vary.
"""

from typing import Any

from tpudet.detection.inference.predictions import PredictionsError
from tpudet.trainkit.errors import is_utf8

_MAX_EXPANSION = 16  # bytes in memory for each byte of a file
_SMALL_BYTES = 1 << 26  # below which they are not counted
_MAX_VALUES = 1_000_000  # of metadata
_MAX_DEPTH = 50
_MAX_CHARACTERS = 100_000_000  # of metadata, as many as Arrow reads from Parquet
_MAX_INTEGER = 1 << 63
_MAX_SHARDS = 1_000_000


def require_plausible_size(total: int, num_bytes: int) -> None:
    """Refuses a file of `num_bytes` whose content takes `total` bytes of memory or more."""
    if total > max(_MAX_EXPANSION * num_bytes, _SMALL_BYTES):
        raise PredictionsError(
            f"its {num_bytes:,} bytes stand for {total:,} or more: the same numbers, masks or "
            "names many times"
        )


def check_metadata(metadata: Any) -> None:
    """Refuses metadata that is not a dict of JSON values in the form that `tpudet predict` writes.

    Raises:
        PredictionsError: it says what is wrong.
    """
    if not isinstance(metadata, dict):
        raise PredictionsError(f"its metadata is a {_kind(metadata)}; it must be a dict")
    _require_json(metadata)
    unreadable = metadata.get("unreadable", {})
    if not isinstance(unreadable, dict) or not all(isinstance(v, str) for v in unreadable.values()):
        raise PredictionsError(
            "`unreadable` of its metadata must be a dict of file names and reasons, got a "
            f"{_kind(unreadable)}"
        )
    image_list = metadata.get("image_list", {})
    if not isinstance(image_list, dict):
        raise PredictionsError(
            f"`image_list` of its metadata must be a dict, got a {_kind(image_list)}"
        )
    _check_shard(metadata.get("shard"))


def _check_shard(shard: Any) -> None:
    if shard is None:
        return
    number, of = (shard.get("number"), shard.get("of")) if isinstance(shard, dict) else (None, None)
    is_shard = isinstance(number, int) and isinstance(of, int) and 1 <= number <= of <= _MAX_SHARDS
    if not is_shard:
        raise PredictionsError(
            "`shard` of its metadata must be a dict with `number` and `of`, such as 1 and 4, at "
            f"most {_MAX_SHARDS:,}"
        )


def _require_json(metadata: dict) -> None:
    """Refuses values that JSON does not have, and lists or strings referenced many times."""
    waiting: list[tuple[Any, int]] = [(metadata, 0)]
    values = characters = 0
    while waiting:
        value, depth = waiting.pop()
        below: list[Any] = []
        if isinstance(value, str):
            characters += len(value)
            if not is_utf8(value):
                shown = ascii(value[:100])
                raise PredictionsError(f"its metadata has {shown}, which is not written as UTF-8")
        elif isinstance(value, list | tuple):
            below = [*value]
        elif isinstance(value, dict):
            if not all(isinstance(key, str) for key in value):
                raise PredictionsError("its metadata has a key that is not a string")
            below = [*value, *value.values()]
        elif isinstance(value, int) and not -_MAX_INTEGER <= value < _MAX_INTEGER:
            raise PredictionsError("its metadata has an integer of more than 64 bits")
        elif not isinstance(value, int | float | None):
            raise PredictionsError(f"its metadata has a {_kind(value)}, which JSON does not have")
        values += len(below)
        if values > _MAX_VALUES or characters > _MAX_CHARACTERS or depth > _MAX_DEPTH:
            raise PredictionsError(
                f"its metadata has more than {_MAX_VALUES:,} values, {_MAX_CHARACTERS:,} "
                f"characters or {_MAX_DEPTH} levels"
            )
        waiting += [(child, depth + 1) for child in below]


def _kind(value: Any) -> str:
    return type(value).__name__.strip("_")
