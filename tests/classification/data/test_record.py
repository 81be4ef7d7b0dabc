"""Numbers of records that do not fit, and columns with too many or too few values."""

from typing import Any

import pytest
import tensorflow as tf

from tpudet.classification.data.record import Schema, parse_example
from tpudet.classification.data.sample_cache import encode_sample, parse_sample
from tpudet.classification.data.samples import build_targets
from tpudet.trainkit.errors import UserError
from tpudet.trainkit.input_errors import input_errors_in_words

RECORD = tf.constant(0, tf.int64)
CT = {"image/encoded": [b"a"], "image/class/label": [1], "image/ct/rescale": [1.0, 0.0]}
FLOWERS = {"image": [b"a"], "class": [1], "id": [b"rose"]}


def serialized(values: dict[str, list[Any]]) -> bytes:
    example = tf.train.Example()
    for key, column in values.items():
        kind = {bytes: "bytes_list", float: "float_list", int: "int64_list"}
        getattr(example.features.feature[key], kind[type((column or [0])[0])]).value.extend(column)
    return example.SerializeToString()


@pytest.mark.parametrize(
    ("schema", "values", "key"),
    [("imagenet", CT, "image/class/label"), ("flowers", FLOWERS, "class")],
)
@pytest.mark.parametrize("label", [2**32 + 1, -(2**32) + 1, 2**63 - 1])
def test_a_label_beyond_32_bits_is_no_other_class(
    schema: Schema, values: dict[str, list[Any]], key: str, label: int
) -> None:
    example = parse_example(serialized(values | {key: [label]}), schema)
    with pytest.raises(tf.errors.InvalidArgumentError, match="not among the 3 rows"):
        build_targets(example, RECORD, 3, may_lack=False)


@pytest.mark.parametrize(
    ("schema", "values", "key"),
    [
        ("ct", CT, "image/encoded"),
        ("ct", CT, "image/ct/rescale"),
        ("imagenet", CT, "image/encoded"),
        ("flowers", FLOWERS, "image"),
        ("flowers", FLOWERS, "id"),
    ],
)
@pytest.mark.parametrize("column", [[], [b"a"] * 3, [0.5] * 3, [1] * 3])
def test_another_number_of_values_or_another_type_names_the_key(
    schema: Schema, values: dict[str, list[Any]], key: str, column: list[Any]
) -> None:
    if key == "id" and not column:
        return  # it may be missing
    texts = tf.data.Dataset.from_tensors(serialized(values | {key: column}))
    parsed = texts.map(lambda text: parse_example(text, schema).encoded)
    with pytest.raises(UserError, match=f" {key}[ ,.]"), input_errors_in_words(list):
        list(parsed)


def test_pixels_of_another_size_name_the_image() -> None:
    texts = tf.data.Dataset.from_tensors(encode_sample(b"abc", [1], b"rose.jpg"))
    samples = texts.map(lambda text: parse_sample(text, (8, 8))[0])
    expected = r"8 x 8 x 3 bytes.*\[3\].*rose.jpg"
    with pytest.raises(UserError, match=expected), input_errors_in_words(list):
        list(samples)
