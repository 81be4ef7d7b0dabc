"""The schemas of classification records: tensorflow/tpu's for ImageNet, and Kaggle's for flowers.

| key | type | meaning |
|---|---|---|
| image/encoded, image/format | bytes | the JPEG or PNG file; `JPEG` or `PNG` |
| image/class/label | int64s | class ids, from 1; none or -1 without a label |
| image/class/text, image/class/synset | bytes | names and identifiers of the classes |
| image/filename | bytes | name of the file, with its folder if images are in folders by class |
| image/height, image/width, image/channels, image/colorspace | | 3 channels, `RGB` |
| fold, num_folds | int64 | optional: the image's fold, from 0, of so many |

Kaggle's flowers have `image` (the JPEG file), `class` (one int64, from 0; absent without a label)
and `id` (bytes) instead.
"""

from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

import tensorflow as tf

from tpudet.trainkit.class_list import ClassEntry
from tpudet.trainkit.errors import UserError
from tpudet.trainkit.images.standardize import StandardImage
from tpudet.trainkit.types import Tensor

Schema = Literal["imagenet", "flowers"]


class Example(NamedTuple):
    """One parsed record."""

    encoded: Tensor  # [] string
    labels: Tensor  # [n] int32, from 1; [0] without a label
    image_id: Tensor  # [] string; of ImageNet's records the name of the file


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
    entries = [classes[label - 1] for label in labels]
    texts = {
        "image/encoded": [image.encoded],
        "image/format": [image.format.upper().encode()],
        "image/colorspace": [b"RGB"],
        "image/filename": [filename.encode()],
        "image/class/text": [entry.name.encode() for entry in entries],
        "image/class/synset": [entry.identifier.encode() for entry in entries],
    }
    numbers = {
        "image/height": [image.height],
        "image/width": [image.width],
        "image/channels": [3],
        "image/class/label": list(labels),
    }
    features = {
        **{
            key: tf.train.Feature(bytes_list=tf.train.BytesList(value=v))
            for key, v in texts.items()
        },
        **{
            key: tf.train.Feature(int64_list=tf.train.Int64List(value=v))
            for key, v in numbers.items()
        },
    }
    example = tf.train.Example(features=tf.train.Features(feature=features))
    return example.SerializeToString(deterministic=True)


def find_schema(serialized: bytes, path: str) -> Schema:
    """Tells the schema of a record by its keys.

    Args:
        serialized: a record.
        path: of its file, for the message.

    Raises:
        UserError: it is of neither; lists its keys.
    """
    keys = sorted(tf.train.Example.FromString(serialized).features.feature)
    if "image/encoded" in keys:
        return "imagenet"
    if "image" in keys:
        return "flowers"
    raise UserError(
        f"{path} holds no images to classify: its records have the keys {', '.join(keys) or 'none'}"
        "; there must be image/encoded with image/class/label, or image with class"
    )


def parse_example(serialized: Tensor, schema: Schema) -> Example:
    """Parses one serialized record, [] string, without decoding its image."""
    ragged = tf.io.VarLenFeature(tf.int64)
    text: Any = tf.io.FixedLenFeature([], tf.string)
    optional: Any = tf.io.FixedLenFeature([], tf.string, default_value="")
    if schema == "imagenet":
        parsed = tf.io.parse_single_example(
            serialized,
            {
                "image/encoded": text,
                "image/class/label": ragged,
                "image/filename": optional,
            },
        )
        labels = parsed["image/class/label"].values
        labels = tf.boolean_mask(labels, labels != -1)
        image, image_id = parsed["image/encoded"], parsed["image/filename"]
    else:
        parsed = tf.io.parse_single_example(
            serialized, {"image": text, "class": ragged, "id": optional}
        )
        labels = parsed["class"].values + 1
        image, image_id = parsed["image"], parsed["id"]
    return Example(image, tf.ensure_shape(tf.cast(labels, tf.int32), [None]), image_id)
