"""Says which record stopped the input of a run: TensorFlow names neither record nor file."""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager

import tensorflow as tf
from google.protobuf.message import DecodeError

from tpudet.trainkit.errors import UserError, listing
from tpudet.trainkit.images.decoding import decode_whole
from tpudet.trainkit.records import INDEX_ENDING, RECORDS_PER_SHARD_LIMIT, read_records
from tpudet.trainkit.types import Tensor

_SHOWN = 5
_ASSERTION = "assertion failed: "
_NO_EXAMPLE = "Could not parse example input"
_NO_KEY = "is required but could not be found"
_OTHER_TYPE = "Data types don't match"
_OTHER_COUNT = "Can't parse serialized Example: "
_OTHER_LENGTH = "Shapes of all inputs must match: values"
# Keys of the image and of its name in the schemas of both tasks.
_IMAGE_KEYS = ("image/encoded", "image")
_NAME_KEYS = ("image/filename", "image/source_id", "id")


# TensorFlow quotes a record that is not an example, and Python cannot read the quotation.
InputError = tf.errors.InvalidArgumentError | tf.errors.DataLossError | UnicodeDecodeError


@contextmanager
def input_errors_in_words(find_shards: Callable[[], Sequence[str]]) -> Iterator[None]:
    """Explains the errors of a block that reads records, as `explain_input_error` does.

    Args:
        find_shards: returns the files that the block may read; called after an error.

    Raises:
        UserError: a record or a file is damaged; names it.
    """
    try:
        yield
    except (tf.errors.InvalidArgumentError, tf.errors.DataLossError, UnicodeDecodeError) as error:
        explained = explain_input_error(error, find_shards())
        if explained is None:
            raise
        raise explained from error


def explain_input_error(error: InputError, shards: Sequence[str]) -> UserError | None:
    """Returns the error in words; None if the records are not the cause.

    If an image cannot be decoded, all records are read and decoded until the first few of these are
    found, which takes as long as an epoch of reading.

    Args:
        error: raised while batches were read.
        shards: of the split.
    """
    if isinstance(error, tf.errors.DataLossError):
        return _explain_data_loss(shards)
    if isinstance(error, UnicodeDecodeError) or _NO_EXAMPLE in error.message:
        found = [_place(number, shards) for number in _records_that_are_none(shards)]
        return UserError(
            f"{listing(found, _SHOWN) or 'A record'} is not a tf.train.Example. Write the set "
            "again with --overwrite."
        )
    if said := check_of_pipeline(error):
        return UserError(said)
    if _NO_KEY in error.message:
        lacking = error.message.partition("Feature: ")[2].partition(" ")[0]
        return UserError(f"A record has no key {lacking}, unlike the first record of the set.")
    if _OTHER_TYPE in error.message:
        key, types = error.message.partition("Key: ")[2].split(f".  {_OTHER_TYPE}. ", 1)
        return UserError(f"A record has {key} of another type. {types.splitlines()[0]}")
    if _OTHER_COUNT in error.message:
        key = error.message.partition("Key: ")[2].partition(f".  {_OTHER_COUNT}")[0]
        return UserError(
            f"A record has too many or too few values of {key}, of which each record has a fixed "
            "number. Write the set again."
        )
    if _OTHER_LENGTH in error.message:
        return UserError(
            "A record has lists of different lengths for the corners of its boxes; each needs one "
            "value per object. Write the set again."
        )
    if not any(word in error.message.lower() for word in ("jpeg", "png", "decode")):
        return None
    found = []
    for number, image in _damaged_images(shards):
        found.append(f"{image} ({_place(number, shards)})")
        if len(found) == _SHOWN:
            break
    if not found:
        return None
    return UserError(
        f"The images of these records cannot be decoded: {listing(found)}. Look for all damaged "
        "images with check_data, and write the set again with make_tfrecords --image_check full, "
        "or with images_to_tfrecords: both leave them out."
    )


def _explain_data_loss(shards: Sequence[str]) -> UserError:
    if damaged := list(damaged_files(shards)):
        return UserError(
            f"These files of records are damaged: {listing(damaged)}. Write the set again with "
            "--overwrite, or copy them from where they are whole."
        )
    indices = [path + INDEX_ENDING for path in shards]
    return UserError(
        "The files of records are whole, but an index does not belong to its file: "
        f"{listing(indices, _SHOWN)}. Remove these; the files are read without them."
    )


def check_of_pipeline(error: Exception) -> str:
    """Returns what a check of the pipeline itself says, which names the record; else nothing."""
    if not isinstance(error, tf.errors.OpError):
        return ""
    return error.message.partition(_ASSERTION)[2].partition("\n")[0]


def damaged_files(shards: Sequence[str]) -> Iterator[str]:
    """Yields the files of records that have a wrong check sum or no end."""
    for path in shards:
        try:
            for _ in tf.data.TFRecordDataset(path):
                pass
        except tf.errors.DataLossError:
            yield path


def _records_that_are_none(shards: Sequence[str]) -> Iterator[int]:
    for record, serialized in read_records(shards):
        try:
            tf.train.Example.FromString(serialized.numpy())
        except DecodeError:
            yield int(record)


def _place(record: int, shards: Sequence[str]) -> str:
    shard, place = divmod(record, RECORDS_PER_SHARD_LIMIT)
    return f"record {place} of {os.path.basename(shards[shard])}"


def _damaged_images(shards: Sequence[str]) -> Iterator[tuple[int, str]]:
    """Yields number and file name of the records whose image TensorFlow cannot decode."""
    text = tf.io.FixedLenFeature([], tf.string, "")
    keys = dict.fromkeys((*_IMAGE_KEYS, *_NAME_KEYS), text)
    for record, serialized in read_records(shards):
        parsed: dict[str, Tensor] = tf.io.parse_single_example(serialized, keys)
        try:
            encoded = _first_text(parsed, _IMAGE_KEYS)
            decode_whole(tf.constant(encoded))
        except tf.errors.InvalidArgumentError:
            yield int(record), _first_text(parsed, _NAME_KEYS).decode(errors="replace")


def _first_text(parsed: Mapping[str, Tensor], keys: Sequence[str]) -> bytes:
    """Returns the first that is not empty."""
    return next(filter(None, (parsed[key].numpy() for key in keys)), b"")
