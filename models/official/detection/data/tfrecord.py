"""The schema of a detection record, stated once: the keys of the TF Object Detection API.

| key | type | meaning |
|---|---|---|
| image/encoded, image/format | bytes | the unchanged JPEG or PNG file; `jpeg` or `png` |
| image/height, image/width | int64 | pixels |
| image/source_id, image/filename | bytes | id of the image in its data set; file name |
| image/key/sha256 | bytes | optional, hexadecimal digest of image/encoded |
| image/object/bbox/{ymin,xmin,ymax,xmax} | floats | 0..1 of height and width |
| image/object/class/label, .../text | int64s, bytes | class id, from 1; class name |
| image/object/is_crowd | int64s | 1: a region to ignore; in Open Images a group-of box |
| image/object/area | floats | pixels² of the image |
| image/object/mask | bytes | optional, one PNG per object |
| image/object/lacks_mask | int64s | 1: its mask is its box; ignored where masks are read |

Records of that API itself may have class names without labels, and group_of for is_crowd.
"""

import hashlib
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from tpudet.trainkit.types import Tensor

_SIDES = ("ymin", "xmin", "ymax", "xmax")
_FLAGS = ("is_crowd", "group_of", "lacks_mask")
_ENCODED_KEY = b"image/encoded"


class Example(NamedTuple):
    """One parsed record. `n` is its number of objects."""

    encoded: Tensor  # [] string
    height: Tensor  # [] int64, pixels, as the record says: any number
    width: Tensor  # [] int64
    source_id: Tensor  # [] string
    boxes_normalized: Tensor  # [n, 4] float32, y1 x1 y2 x2 in 0..1
    labels: Tensor  # [n] from 1; int64, as the record says, and int32 once they are checked
    is_crowd: Tensor  # [n] bool, a region to ignore
    lacks_mask: Tensor  # [n] bool, its mask is its box; another such region where masks matter
    areas: Tensor  # [n] float32, pixels²
    masks: Tensor | None = None  # [n] string, PNG; [0] if the record has none; None if not parsed


class EncodedImage(NamedTuple):
    """An image file and what a record says of it."""

    source_id: str  # id of the image in its data set
    filename: str
    encoded: bytes  # the file, which TensorFlow can decode
    format: str  # "jpeg" or "png"
    height: int  # pixels
    width: int


class ObjectColumns(NamedTuple):
    """Objects in the types of a record: those of one image, or of many to be split by rows."""

    ymin: list[float]  # 0..1 of the height
    xmin: list[float]
    ymax: list[float]
    xmax: list[float]
    labels: list[int]  # from 1
    texts: list[bytes]
    is_crowd: list[int]
    areas: list[float]  # pixels²
    lacks_mask: list[int]

    def rows(self, rows: slice) -> "ObjectColumns":
        """Returns some of the objects."""
        return ObjectColumns._make([column[rows] for column in self])


def object_columns(
    *,
    boxes_normalized: np.ndarray,
    labels: Sequence[int],
    texts: Sequence[str],
    is_crowd: Sequence[bool],
    areas: Sequence[float],
    lacks_mask: Sequence[bool] | None = None,
) -> ObjectColumns:
    """Converts `n` objects to the types of a record; arguments as for `encode_example`.

    Raises:
        ValueError: as `encode_example`; names everything wrong.
    """
    boxes = np.asarray(boxes_normalized, np.float32).reshape(-1, 4)
    lacks_mask = [False] * len(boxes) if lacks_mask is None else lacks_mask
    columns = {"labels": labels, "texts": texts, "is_crowd": is_crowd, "areas": areas}
    columns["lacks_mask"] = lacks_mask
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
        lacks_mask=[int(flag) for flag in lacks_mask],
    )


def encode_example(
    image: EncodedImage,
    *,
    boxes_normalized: np.ndarray,
    labels: Sequence[int],
    texts: Sequence[str],
    is_crowd: Sequence[bool],
    areas: Sequence[float],
    masks: Sequence[bytes] | None = None,
) -> bytes:
    """Serializes one image and its `n` objects. Inverse of `parse_example`.

    Equal arguments give equal bytes, so shards can be compared.

    Args:
        image: the file and its size.
        boxes_normalized: [n, 4], y1 x1 y2 x2 in 0..1.
        labels: n class ids, from 1.
        texts: n class names.
        is_crowd: n flags.
        areas: n areas in pixels².
        masks: n PNG files, or None for a record without masks.

    Raises:
        ValueError: lengths that differ, a box outside 0..1 or without area, a label below 1, an
            unknown format or a size below 1; names the image and everything wrong with it.
    """
    mistakes = []
    if masks is not None and len(masks) != len(boxes_normalized):
        mistakes.append(f"{len(masks)} masks for {len(boxes_normalized)} boxes")
    if image.format not in ("jpeg", "png"):
        mistakes.append(f"format {image.format!r} is neither 'jpeg' nor 'png'")
    if image.height < 1 or image.width < 1:
        mistakes.append(f"size {image.height} x {image.width} is not positive")
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
        raise ValueError(f"Image {image.source_id!r} cannot be written: {'; '.join(mistakes)}.")
    return b"".join(example_pieces(image, objects, masks=masks))


def example_pieces(
    image: EncodedImage,
    objects: ObjectColumns,
    *,
    masks: Sequence[bytes] | None = None,
    with_digest: bool = True,
) -> tuple[bytes, bytes, bytes]:
    """Returns the record of `encode_example` in three pieces, the second being `image.encoded`.

    Nothing is checked, and the image, which is nearly all of a record, is not copied: 15 us, where
    building the whole message takes 100 us more for 300 KB.

    Args:
        image: the file and its size.
        objects: those of this image.
        masks: one PNG file per object, or None.
        with_digest: write image/key/sha256. It takes 150 us for 300 KB, more than a copy.
    """
    features = tf.train.Features()
    feature = features.feature
    _fill(feature["image/format"].bytes_list, [image.format.encode()])
    _fill(feature["image/height"].int64_list, [image.height])
    _fill(feature["image/width"].int64_list, [image.width])
    _fill(feature["image/source_id"].bytes_list, [image.source_id.encode()])
    _fill(feature["image/filename"].bytes_list, [image.filename.encode()])
    if with_digest:
        digest = hashlib.sha256(image.encoded).hexdigest()
        _fill(feature["image/key/sha256"].bytes_list, [digest.encode()])
    for side, column in zip(_SIDES, objects, strict=False):
        _fill(feature[f"image/object/bbox/{side}"].float_list, column)
    _fill(feature["image/object/class/label"].int64_list, objects.labels)
    _fill(feature["image/object/class/text"].bytes_list, objects.texts)
    _fill(feature["image/object/is_crowd"].int64_list, objects.is_crowd)
    _fill(feature["image/object/area"].float_list, objects.areas)
    if any(objects.lacks_mask):
        _fill(feature["image/object/lacks_mask"].int64_list, objects.lacks_mask)
    if masks is not None:
        _fill(feature["image/object/mask"].bytes_list, masks)
    others = features.SerializeToString(deterministic=True)
    return _opening(len(image.encoded), len(others)), image.encoded, others


def _fill(values: Any, content: Sequence[Any]) -> None:
    if content:
        values.value.extend(content)
    else:
        values.SetInParent()  # otherwise the key would have no list


def _opening(encoded_length: int, others_length: int) -> bytes:
    """Returns the bytes before the image in an Example whose first feature is image/encoded.

    A deterministic encoder writes features in the order of their keys, and this is the first. The
    image is nested in a BytesList in a Feature in an entry of Features in an Example.
    """
    opening = _field(1, encoded_length)
    opening = _field(1, len(opening) + encoded_length) + opening
    opening = _field(2, len(opening) + encoded_length) + opening
    opening = _field(1, len(_ENCODED_KEY)) + _ENCODED_KEY + opening
    opening = _field(1, len(opening) + encoded_length) + opening
    return _field(1, len(opening) + encoded_length + others_length) + opening


def _field(number: int, length: int) -> bytes:
    """Returns the protocol buffer tag of a bytes field and its length in groups of seven bits."""
    start = [number << 3 | 2]
    while length > 127:
        start.append(length & 127 | 128)
        length >>= 7
    return bytes((*start, length))


def parse_example(
    serialized: Tensor, *, with_masks: bool = False, class_names: Sequence[str] = ()
) -> Example:
    """Parses one serialized record without decoding its image or masks, and checks nothing.

    A record without is_crowd has no groups; one without areas gets those of its boxes. Boxes are
    clipped to the image, which those of other programs may overhang.

    Args:
        serialized: [] string.
        with_masks: parse the masks too.
        class_names: C names, by which objects without class/label get their class ids from
            class/text; 0 for another name.

    Raises:
        tf.errors.InvalidArgumentError: a key is missing or the corners of boxes differ in length.
    """
    ragged = tf.io.VarLenFeature
    keys: dict[str, Any] = {
        "image/encoded": tf.io.FixedLenFeature([], tf.string),
        "image/height": tf.io.FixedLenFeature([], tf.int64),
        "image/width": tf.io.FixedLenFeature([], tf.int64),
        "image/source_id": tf.io.FixedLenFeature([], tf.string, ""),
        "image/object/class/label": ragged(tf.int64),
        "image/object/class/text": ragged(tf.string),
        "image/object/area": ragged(tf.float32),
        **{f"image/object/{name}": ragged(tf.int64) for name in _FLAGS},
        **{f"image/object/bbox/{side}": ragged(tf.float32) for side in _SIDES},
    }
    if with_masks:
        keys["image/object/mask"] = ragged(tf.string)
    parsed = tf.io.parse_single_example(serialized, keys)
    boxes = tf.stack([parsed[f"image/object/bbox/{side}"].values for side in _SIDES], axis=-1)
    boxes = tf.clip_by_value(boxes, 0.0, 1.0)
    height, width = parsed["image/height"], parsed["image/width"]
    labels = parsed["image/object/class/label"].values
    if class_names:
        texts = parsed["image/object/class/text"].values
        is_named = (tf.size(labels) == 0) & (tf.size(texts) > 0)
        labels = tf.cond(is_named, lambda: _class_ids(texts, class_names), lambda: labels)
    is_crowd, group_of, lacks_mask = (parsed[f"image/object/{name}"].values for name in _FLAGS)
    no_flags = tf.zeros_like(boxes[:, 0], tf.int64)
    sides = boxes[:, 2:] - boxes[:, :2]
    image_area = tf.cast(height, tf.float32) * tf.cast(width, tf.float32)
    box_areas = sides[:, 0] * sides[:, 1] * image_area
    return Example(
        encoded=parsed["image/encoded"],
        height=height,
        width=width,
        source_id=parsed["image/source_id"],
        boxes_normalized=boxes,
        labels=tf.ensure_shape(labels, [None]),
        is_crowd=_or_else(is_crowd, _or_else(group_of, no_flags)) > 0,
        lacks_mask=_or_else(lacks_mask, no_flags) > 0,
        areas=_or_else(parsed["image/object/area"].values, box_areas),
        masks=parsed["image/object/mask"].values if with_masks else None,
    )


def _or_else(values: Tensor, default: Tensor) -> Tensor:
    """[n]: a column of a record; `default` if the record lacks it."""
    return tf.cond(tf.size(values) > 0, lambda: values, lambda: default)


def _class_ids(texts: Tensor, class_names: Sequence[str]) -> Tensor:
    """[n] int64: the class id of each name, [n] string; 0 for a name that is none.

    In a time that grows with n + C, since a record of others may have a million texts.
    """
    ids: dict[bytes, int] = {}
    for class_id, name in enumerate(class_names, start=1):
        ids.setdefault(name.encode(), class_id)
    # Values are numbered in the order of their first appearance: the class names come first.
    numbers = tf.unique(tf.concat([list(ids), texts], axis=0)).idx[len(ids) :]
    class_of = tf.constant([*ids.values(), 0], tf.int64)
    return tf.gather(class_of, tf.minimum(numbers, len(ids)))


def _value_mistakes(boxes: np.ndarray, labels: Sequence[int]) -> list[str]:
    """Returns what is wrong with the values of objects; NaN counts as outside."""
    mistakes = []
    outside = ~((boxes >= 0) & (boxes <= 1)).all(axis=1)
    empty = ~outside & ~(boxes[:, 2:] > boxes[:, :2]).all(axis=1)
    for rows, fault in ((outside, "is not within 0..1"), (empty, "has no area")):
        mistakes += [f"box {row} {boxes[row].tolist()} {fault}" for row in np.flatnonzero(rows)]
    return mistakes + [f"label {label} is below 1" for label in labels if label < 1]
