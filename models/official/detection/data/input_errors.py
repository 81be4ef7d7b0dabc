"""Says which record stopped the input of a run: TensorFlow names neither record nor file."""

import os
from collections.abc import Iterator, Sequence

import tensorflow as tf

from tpudet.trainkit.errors import UserError, listing
from tpudet.trainkit.records import RECORDS_PER_SHARD_LIMIT, read_records
from tpudet.trainkit.types import Tensor

_SHOWN = 5
_ASSERTION = "assertion failed: "


def explain_input_error(
    error: tf.errors.InvalidArgumentError, shards: Sequence[str]
) -> UserError | None:
    """Returns the error in words; None if it is none of the records.

    If an image cannot be decoded, all records are read and decoded until the first few of these are
    found, which takes as long as an epoch of reading.

    Args:
        error: raised while batches were read.
        shards: of the split.
    """
    if _ASSERTION in error.message:  # of the pipeline's own checks, which name the record
        return UserError(error.message.partition(_ASSERTION)[2].splitlines()[0])
    if not any(word in error.message.lower() for word in ("jpeg", "png", "decode")):
        return None
    found = []
    for number, image in _damaged_images(shards):
        shard, place = divmod(number, RECORDS_PER_SHARD_LIMIT)
        found.append(f"{image} (record {place} of {os.path.basename(shards[shard])})")
        if len(found) == _SHOWN:
            break
    if not found:
        return None
    return UserError(
        f"The images of these records cannot be decoded: {listing(found)}. Look for all damaged "
        "images with check_data, and write the set again with --image_check full, which leaves "
        "them out."
    )


def _damaged_images(shards: Sequence[str]) -> Iterator[tuple[int, str]]:
    """Yields number and file name of the records whose image TensorFlow cannot decode."""
    keys = {
        "image/encoded": tf.io.FixedLenFeature([], tf.string),
        "image/filename": tf.io.FixedLenFeature([], tf.string, ""),
        "image/source_id": tf.io.FixedLenFeature([], tf.string, ""),
    }
    for record, serialized in read_records(shards):
        parsed: dict[str, Tensor] = tf.io.parse_single_example(serialized, keys)
        try:
            tf.io.decode_image(parsed["image/encoded"], channels=3, expand_animations=False)
        except tf.errors.InvalidArgumentError:
            name = parsed["image/filename"].numpy() or parsed["image/source_id"].numpy()
            yield int(record), name.decode(errors="replace")
