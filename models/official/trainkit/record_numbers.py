"""The numbers of records: shard and place in the shard as one int64, or mixed into 32 bits."""

from typing import Any

RECORDS_PER_SHARD_LIMIT = 2**32

_ODD = 0x9E3779B1  # 2**32 over the golden ratio: keeps the shards of a set far apart


def mix_shard(numbers: Any) -> Any:
    """Returns record numbers whose lower 32 bits depend on the shard as well as on the place.

    Of two records with the same shard, or with the same place, these bits differ. Those of the
    first shard stay as they are.

    Args:
        numbers: array or tensor of int64.
    """
    return numbers ^ (numbers // RECORDS_PER_SHARD_LIMIT * _ODD)
