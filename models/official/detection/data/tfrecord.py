"""The schema of a detection record, stated once: the keys of the TF Object Detection API.

| key | type | meaning |
|---|---|---|
| image/encoded, image/format | bytes | the JPEG or PNG file as it is; `jpeg` or `png` |
| image/height, image/width | int64 | pixels |
| image/source_id, image/filename | bytes | name of the picture in its data set; of its file |
| image/key/sha256 | bytes | hexadecimal digest of image/encoded |
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

from detection.types import Tensor

_SIDES = ("ymin", "xmin", "ymax", "xmax")


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
    boxes = np.asarray(boxes_normalized, np.float32).reshape(-1, 4)
    columns = {"labels": labels, "texts": texts, "is_crowd": is_crowd, "areas": areas}
    if masks is not None:
        columns["masks"] = masks
    mistakes = [
        f"{len(column)} {name} for {len(boxes)} boxes"
        for name, column in columns.items()
        if len(column) != len(boxes)
    ]
    mistakes += _value_mistakes(boxes, labels, image_format, height, width)
    if mistakes:
        raise ValueError(f"Picture {source_id!r} cannot be written: {'; '.join(mistakes)}.")
    feature = {
        "image/encoded": _bytes([encoded]),
        "image/format": _bytes([image_format.encode()]),
        "image/height": _integers([height]),
        "image/width": _integers([width]),
        "image/source_id": _bytes([source_id.encode()]),
        "image/filename": _bytes([filename.encode()]),
        "image/key/sha256": _bytes([hashlib.sha256(encoded).hexdigest().encode()]),
        "image/object/class/label": _integers(labels),
        "image/object/class/text": _bytes([text.encode() for text in texts]),
        "image/object/is_crowd": _integers(is_crowd),
        "image/object/area": _floats(areas),
    }
    for side, column in zip(_SIDES, boxes.T, strict=True):
        feature[f"image/object/bbox/{side}"] = _floats(column)
    if masks is not None:
        feature["image/object/mask"] = _bytes(masks)
    example = tf.train.Example(features=tf.train.Features(feature=feature))
    return example.SerializeToString(deterministic=True)


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


def _value_mistakes(
    boxes: np.ndarray, labels: Sequence[int], image_format: str, height: int, width: int
) -> list[str]:
    """Says what is wrong with the values of a record; NaN counts as outside."""
    mistakes = []
    outside = ~((boxes >= 0) & (boxes <= 1)).all(axis=1)
    empty = ~outside & ~(boxes[:, 2:] > boxes[:, :2]).all(axis=1)
    for rows, fault in ((outside, "is not within 0..1"), (empty, "has no area")):
        mistakes += [f"box {row} {boxes[row].tolist()} {fault}" for row in np.flatnonzero(rows)]
    mistakes += [f"label {label} is below 1" for label in labels if label < 1]
    if image_format not in ("jpeg", "png"):
        mistakes.append(f"format {image_format!r} is neither 'jpeg' nor 'png'")
    if height < 1 or width < 1:
        mistakes.append(f"size {height} x {width} is not positive")
    return mistakes


def _bytes(values: Sequence[bytes]) -> tf.train.Feature:
    return tf.train.Feature(bytes_list=tf.train.BytesList(value=values))


def _floats(values: Sequence[float] | np.ndarray) -> tf.train.Feature:
    return tf.train.Feature(float_list=tf.train.FloatList(value=values))


def _integers(values: Sequence[int]) -> tf.train.Feature:
    return tf.train.Feature(int64_list=tf.train.Int64List(value=[int(value) for value in values]))
