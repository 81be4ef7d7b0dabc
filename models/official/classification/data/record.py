"""The schemas of classification records: tensorflow/tpu's for ImageNet, and Kaggle's for flowers.

| key | type | meaning |
|---|---|---|
| image/encoded, image/format | bytes | the JPEG or PNG file; `JPEG` or `PNG` |
| image/class/label | int64s | class ids, from 1; none or -1 without a label |
| image/class/text, image/class/synset | bytes | names and identifiers of the classes |
| image/filename | bytes | name of the file, with its folder if images are in folders by class |
| image/height, image/width, image/channels, image/colorspace | | 3 channels, `RGB` |

A slice of a CT has in addition `image/ct/rescale`, slope and intercept (floats); `patient`; and
`fold`, `num_folds`, the fold of the patient, from 0. Its PNG holds stored values plus `CT_BIAS` in
16 bits, so that windows, and the only rounding to 8 bits, come after the resizing.

Kaggle's flowers have `image` (the JPEG file), `class` (one int64, from 0; absent without a label)
and `id` (bytes) instead.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple

import tensorflow as tf
from google.protobuf.message import DecodeError

from tpudet.trainkit.class_list import ClassEntry
from tpudet.trainkit.errors import UserError
from tpudet.trainkit.images.standardize import StandardImage
from tpudet.trainkit.input_errors import input_errors_in_words
from tpudet.trainkit.types import Tensor

Schema = Literal["imagenet", "flowers", "ct"]

_RESCALE_KEY = "image/ct/rescale"
CT_BIAS = 32768  # added to the stored values of a CT, so that signed ones fit into a 16-bit PNG
MAX_SLICE_PIXELS = 2**25  # 33 megapixels; training may take five float32 of each


class Example(NamedTuple):
    """One parsed record."""

    encoded: Tensor  # [] string
    labels: Tensor  # [n] int64, from 1, as the record says; [0] without a label
    image_id: Tensor  # [] string; of ImageNet's records the name of the file
    rescale: Tensor | None = None  # [2] float32, slope and intercept of a CT's stored values


def encode_example(
    image: StandardImage, *, filename: str, labels: Sequence[int], classes: Sequence[ClassEntry]
) -> bytes:
    """Serializes one image. Equal arguments give equal bytes.

    Args:
        image: the file and its size.
        filename: below the folder of the split.
        labels: class ids, from 1; none without a label.
        classes: rows of classes.csv.
    """
    return _serialize(
        {
            "image/encoded": image.encoded,
            "image/format": image.format.upper(),
            "image/colorspace": "RGB",
            "image/filename": filename,
            "image/height": image.height,
            "image/width": image.width,
            "image/channels": 3,
            **_label_features(labels, classes),
        }
    )


def encode_slice(
    png: bytes,
    *,
    height: int,
    width: int,
    rescale: tuple[float, float],
    filename: str,
    labels: Sequence[int],
    classes: Sequence[ClassEntry],
    patient: str,
    fold: tuple[int, int] | None,
) -> bytes:
    """Serializes one slice of a CT.

    Args:
        png: stored values plus `CT_BIAS`, 16-bit gray.
        height: pixels.
        width: pixels.
        rescale: slope and intercept to Hounsfield units.
        filename: with the number of the frame, if there are several.
        labels: class ids, from 1.
        classes: rows of classes.csv.
        patient: id.
        fold: of the patient, from 0, and the number of folds.
    """
    folds = dict(zip(("fold", "num_folds"), fold, strict=True)) if fold else {}
    return _serialize(
        {
            "image/encoded": png,
            "image/format": "PNG",
            "image/filename": filename,
            "image/height": height,
            "image/width": width,
            "image/channels": 1,
            _RESCALE_KEY: list(rescale),
            "patient": patient,
            **folds,
            **_label_features(labels, classes),
        }
    )


def _label_features(labels: Sequence[int], classes: Sequence[ClassEntry]) -> dict[str, list]:
    entries = [classes[label - 1] for label in labels]
    return {
        "image/class/label": [int(label) for label in labels],
        "image/class/text": [entry.name.encode() for entry in entries],
        "image/class/synset": [entry.identifier.encode() for entry in entries],
    }


def _serialize(values: Mapping[str, Any]) -> bytes:
    features = {key: _feature(key, value) for key, value in values.items()}
    example = tf.train.Example(features=tf.train.Features(feature=features))
    return example.SerializeToString(deterministic=True)


def _feature(key: str, value: Any) -> tf.train.Feature:
    column = value if isinstance(value, list) else [value]
    if key in ("image/class/label",) or any(isinstance(item, int) for item in column):
        return tf.train.Feature(int64_list=tf.train.Int64List(value=column))
    if any(isinstance(item, float) for item in column):
        return tf.train.Feature(float_list=tf.train.FloatList(value=column))
    texts = [item.encode() if isinstance(item, str) else item for item in column]
    return tf.train.Feature(bytes_list=tf.train.BytesList(value=texts))


def find_schema(serialized: bytes, path: str) -> Schema:
    """Tells the schema of a record by its keys.

    Args:
        serialized: a record.
        path: of its file, for the message.

    Raises:
        UserError: it is of neither, and its keys are listed, or no tf.train.Example.
    """
    try:
        keys = sorted(tf.train.Example.FromString(serialized).features.feature)
    except DecodeError:
        raise UserError(
            f"the first record of {path} is not a tf.train.Example. Write the set again with "
            "--overwrite."
        ) from None
    if "image/encoded" in keys:
        return "ct" if _RESCALE_KEY in keys else "imagenet"
    if "image" in keys:
        return "flowers"
    raise UserError(
        f"{path} holds no images to classify: its records have the keys {', '.join(keys) or 'none'}"
        "; there must be image/encoded with image/class/label, or image with class"
    )


def read_schema(shards: Sequence[str]) -> Schema:
    """Tells the schema of a set by its first record.

    Raises:
        UserError: as `find_schema`, or a file is damaged.
    """
    with input_errors_in_words(lambda: shards):
        for path in shards:
            for serialized in tf.data.TFRecordDataset(path).take(1).as_numpy_iterator():
                return find_schema(bytes(serialized), path)
    raise ValueError(f"{shards[0]} and its {len(shards)} shards hold no record")


def parse_example(serialized: Tensor, schema: Schema) -> Example:
    """Parses one serialized record, [] string, without decoding its image."""
    ragged = tf.io.VarLenFeature(tf.int64)
    text: Any = tf.io.FixedLenFeature([], tf.string)
    optional: Any = tf.io.FixedLenFeature([], tf.string, default_value="")
    rescale = None
    if schema != "flowers":
        keys: dict[str, Any] = {
            "image/encoded": text,
            "image/class/label": ragged,
            "image/filename": optional,
        }
        if schema == "ct":
            keys[_RESCALE_KEY] = tf.io.FixedLenFeature([2], tf.float32)
        parsed = tf.io.parse_single_example(serialized, keys)
        rescale = parsed.get(_RESCALE_KEY)
        labels = parsed["image/class/label"].values
        labels = tf.boolean_mask(labels, labels != -1)
        image, image_id = parsed["image/encoded"], parsed["image/filename"]
    else:
        parsed = tf.io.parse_single_example(
            serialized, {"image": text, "class": ragged, "id": optional}
        )
        labels = parsed["class"].values
        # The greatest number stays one that is no class.
        labels = tf.minimum(labels, labels.dtype.max - 1) + 1
        image, image_id = parsed["image"], parsed["id"]
    return Example(image, tf.ensure_shape(labels, [None]), image_id, rescale)
