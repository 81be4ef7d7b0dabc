"""The schema of a detection record, stated once: the keys of the TF Object Detection API.

| key | type | meaning |
|---|---|---|
| image/encoded, image/format | bytes | the JPEG or PNG file as it is; `jpeg` or `png` |
| image/height, image/width | int64 | pixels |
| image/source_id, image/filename | bytes | name of the picture in its data set; of its file |
| image/key/sha256 | bytes | optional, hexadecimal digest of image/encoded |
| image/object/bbox/{ymin,xmin,ymax,xmax} | floats | 0..1 of height and width |
| image/object/class/label, .../text | int64s, bytes | class id, from 1; class name |
| image/object/is_crowd | int64s | 1: a region to ignore |
| image/object/area | floats | pixels² of the picture |
| image/object/mask | bytes | optional, one PNG an object |
"""

import hashlib
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from tpudet.trainkit.types import Tensor

_SIDES = ("ymin", "xmin", "ymax", "xmax")
_ENCODED_KEY = b"image/encoded"


class Example(NamedTuple):
    """One parsed record. `n` is its number of objects."""

    encoded: Tensor  # [] string
    height: Tensor  # [] int32, pixels, as the record says
    width: Tensor  # [] int32
    source_id: Tensor  # [] string
    boxes_normalized: Tensor  # [n, 4] float32, y1 x1 y2 x2 in 0..1
    labels: Tensor  # [n] int32, from 1
    is_crowd: Tensor  # [n] bool
    areas: Tensor  # [n] float32, pixels²


class ObjectColumns(NamedTuple):
    """Objects as a record holds them: those of one picture, or of many to be cut by rows."""

    ymin: list[float]  # 0..1 of the height
    xmin: list[float]
    ymax: list[float]
    xmax: list[float]
    labels: list[int]  # from 1
    texts: list[bytes]
    is_crowd: list[int]
    areas: list[float]  # pixels²

    def rows(self, rows: slice) -> "ObjectColumns":
        """Some of the objects."""
        return ObjectColumns._make([column[rows] for column in self])


def object_columns(
    *,
    boxes_normalized: np.ndarray,
    labels: Sequence[int],
    texts: Sequence[str],
    is_crowd: Sequence[bool],
    areas: Sequence[float],
) -> ObjectColumns:
    """Brings `n` objects to the types of a record; arguments as those of `encode_example`.

    Raises:
        ValueError: as `encode_example`; names everything wrong.
    """
    boxes = np.asarray(boxes_normalized, np.float32).reshape(-1, 4)
    columns = {"labels": labels, "texts": texts, "is_crowd": is_crowd, "areas": areas}
    mistakes = [
        f"{len(column)} {name} for {len(boxes)} boxes"
        for name, column in columns.items()
        if len(column) != len(boxes)
    ]
    mistakes += _value_mistakes(boxes, labels)
    if mistakes:
        raise ValueError("; ".join(mistakes))
    return ObjectColumns(
        *boxes.T.tolist(),
        labels=[int(label) for label in labels],
        texts=[text.encode() for text in texts],
        is_crowd=[int(flag) for flag in is_crowd],
        areas=[float(area) for area in areas],
    )


def encode_example(
    *,
    source_id: str,
    filename: str,
    encoded: bytes,
    image_format: str,
    height: int,
    width: int,
    boxes_normalized: np.ndarray,
    labels: Sequence[int],
    texts: Sequence[str],
    is_crowd: Sequence[bool],
    areas: Sequence[float],
    masks: Sequence[bytes] | None = None,
) -> bytes:
    """Serializes one picture and its `n` objects; `parse_example` reads it back.

    Equal arguments give equal bytes, so shards can be compared.

    Args:
        source_id: name of the picture in its data set.
        filename: name of its file.
        encoded: the file's bytes, as TensorFlow decodes them.
        image_format: "jpeg" or "png".
        height: pixels.
        width: pixels.
        boxes_normalized: [n, 4], y1 x1 y2 x2 in 0..1.
        labels: n class ids, from 1.
        texts: n class names.
        is_crowd: n flags.
        areas: n areas in pixels².
        masks: n PNG files, or None for a record without masks.

    Raises:
        ValueError: lengths that differ, a box outside 0..1 or without area, a label below 1, an
            unknown format or a size below 1; names the picture and everything wrong with it.
    """
    mistakes = []
    if masks is not None and len(masks) != len(boxes_normalized):
        mistakes.append(f"{len(masks)} masks for {len(boxes_normalized)} boxes")
    if image_format not in ("jpeg", "png"):
        mistakes.append(f"format {image_format!r} is neither 'jpeg' nor 'png'")
    if height < 1 or width < 1:
        mistakes.append(f"size {height} x {width} is not positive")
    objects = None
    try:
        objects = object_columns(
            boxes_normalized=boxes_normalized,
            labels=labels,
            texts=texts,
            is_crowd=is_crowd,
            areas=areas,
        )
    except ValueError as error:
        mistakes.append(str(error))
    if mistakes or objects is None:
        raise ValueError(f"Picture {source_id!r} cannot be written: {'; '.join(mistakes)}.")
    pieces = example_pieces(
        source_id=source_id,
        filename=filename,
        encoded=encoded,
        image_format=image_format,
        height=height,
        width=width,
        objects=objects,
        masks=masks,
    )
    return b"".join(pieces)


def example_pieces(
    *,
    source_id: str,
    filename: str,
    encoded: bytes,
    image_format: str,
    height: int,
    width: int,
    objects: ObjectColumns,
    masks: Sequence[bytes] | None = None,
    with_digest: bool = True,
) -> tuple[bytes, bytes, bytes]:
    """The record of `encode_example` in three pieces, of which the second is `encoded` itself.

    Nothing is checked, and the picture, which is nearly all of a record, is not copied: 15 us where
    building the whole message takes 100 us more for 300 KB.

    Args:
        source_id: name of the picture in its data set.
        filename: name of its file.
        encoded: the file's bytes.
        image_format: "jpeg" or "png".
        height: pixels.
        width: pixels.
        objects: those of this picture.
        masks: a PNG file an object, or None.
        with_digest: write image/key/sha256. It takes 150 us for 300 KB, more than a copy.
    """
    features = tf.train.Features()
    feature = features.feature
    _fill(feature["image/format"].bytes_list, [image_format.encode()])
    _fill(feature["image/height"].int64_list, [height])
    _fill(feature["image/width"].int64_list, [width])
    _fill(feature["image/source_id"].bytes_list, [source_id.encode()])
    _fill(feature["image/filename"].bytes_list, [filename.encode()])
    if with_digest:
        digest = hashlib.sha256(encoded).hexdigest()
        _fill(feature["image/key/sha256"].bytes_list, [digest.encode()])
    for side, column in zip(_SIDES, objects, strict=False):
        _fill(feature[f"image/object/bbox/{side}"].float_list, column)
    _fill(feature["image/object/class/label"].int64_list, objects.labels)
    _fill(feature["image/object/class/text"].bytes_list, objects.texts)
    _fill(feature["image/object/is_crowd"].int64_list, objects.is_crowd)
    _fill(feature["image/object/area"].float_list, objects.areas)
    if masks is not None:
        _fill(feature["image/object/mask"].bytes_list, masks)
    others = features.SerializeToString(deterministic=True)
    return _opening(len(encoded), len(others)), encoded, others


def _fill(values: Any, content: Sequence[Any]) -> None:
    if content:
        values.value.extend(content)
    else:
        values.SetInParent()  # else the key would be there without a list


def _opening(encoded_length: int, others_length: int) -> bytes:
    """What stands before the picture in an Example whose first feature is image/encoded.

    A deterministic encoder writes features in the order of their keys, and this is the first. The
    picture lies in a BytesList in a Feature in an entry of Features in an Example.
    """
    opening = _field(1, encoded_length)
    opening = _field(1, len(opening) + encoded_length) + opening
    opening = _field(2, len(opening) + encoded_length) + opening
    opening = _field(1, len(_ENCODED_KEY)) + _ENCODED_KEY + opening
    opening = _field(1, len(opening) + encoded_length) + opening
    return _field(1, len(opening) + encoded_length + others_length) + opening


def _field(number: int, length: int) -> bytes:
    """Protocol buffers' tag of a field of bytes, and its length in groups of seven bits."""
    start = [number << 3 | 2]
    while length > 127:
        start.append(length & 127 | 128)
        length >>= 7
    return bytes((*start, length))


def parse_example(serialized: Tensor) -> Example:
    """Parses one serialized record, [] string, without decoding its picture.

    A record that lacks is_crowd has no crowds; one that lacks areas gets those of its boxes.

    Raises:
        tf.errors.InvalidArgumentError: a key is missing or its columns differ in length.
    """
    ragged = tf.io.VarLenFeature
    keys: dict[str, Any] = {
        "image/encoded": tf.io.FixedLenFeature([], tf.string),
        "image/height": tf.io.FixedLenFeature([], tf.int64),
        "image/width": tf.io.FixedLenFeature([], tf.int64),
        "image/source_id": tf.io.FixedLenFeature([], tf.string),
        "image/object/class/label": ragged(tf.int64),
        "image/object/is_crowd": ragged(tf.int64),
        "image/object/area": ragged(tf.float32),
        **{f"image/object/bbox/{side}": ragged(tf.float32) for side in _SIDES},
    }
    parsed = tf.io.parse_single_example(serialized, keys)
    boxes = tf.stack([parsed[f"image/object/bbox/{side}"].values for side in _SIDES], axis=-1)
    height, width = (tf.cast(parsed[f"image/{side}"], tf.int32) for side in ("height", "width"))
    labels = tf.cast(parsed["image/object/class/label"].values, tf.int32)
    is_crowd = parsed["image/object/is_crowd"].values
    areas = parsed["image/object/area"].values
    count = tf.shape(boxes)[0]
    sides = boxes[:, 2:] - boxes[:, :2]
    box_areas = sides[:, 0] * sides[:, 1] * tf.cast(height * width, tf.float32)
    return Example(
        encoded=parsed["image/encoded"],
        height=height,
        width=width,
        source_id=parsed["image/source_id"],
        boxes_normalized=boxes,
        labels=tf.ensure_shape(labels, [None]),
        is_crowd=tf.cond(
            tf.size(is_crowd) > 0, lambda: is_crowd > 0, lambda: tf.zeros([count], tf.bool)
        ),
        areas=tf.cond(tf.size(areas) > 0, lambda: areas, lambda: box_areas),
    )


def parse_masks(serialized: Tensor) -> Tensor:
    """Returns the PNG masks, [n] string, of one serialized record; [0] where it has none."""
    keys: dict[str, Any] = {"image/object/mask": tf.io.VarLenFeature(tf.string)}
    return tf.io.parse_single_example(serialized, keys)["image/object/mask"].values


def _value_mistakes(boxes: np.ndarray, labels: Sequence[int]) -> list[str]:
    """Says what is wrong with the values of objects; NaN counts as outside."""
    mistakes = []
    outside = ~((boxes >= 0) & (boxes <= 1)).all(axis=1)
    empty = ~outside & ~(boxes[:, 2:] > boxes[:, :2]).all(axis=1)
    for rows, fault in ((outside, "is not within 0..1"), (empty, "has no area")):
        mistakes += [f"box {row} {boxes[row].tolist()} {fault}" for row in np.flatnonzero(rows)]
    return mistakes + [f"label {label} is below 1" for label in labels if label < 1]
