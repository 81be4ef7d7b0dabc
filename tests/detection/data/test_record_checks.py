"""Numbers that do not fit, columns of unlike lengths, and names by the million."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from tpudet.detection.data.record_checks import checked_example, checked_objects
from tpudet.detection.data.tfrecord import parse_example
from tpudet.trainkit.errors import UserError
from tpudet.trainkit.input_errors import input_errors_in_words

RECORD = tf.constant(0, tf.int64)
SIDES = dict(zip(("ymin", "xmin", "ymax", "xmax"), ([0.1], [0.1], [0.5], [0.5]), strict=True))
COLUMNS = {f"bbox/{side}": corner for side, corner in SIDES.items()} | {"class/label": [1]}

NO_CHANGE: dict[str, list[Any]] = {}


def serialized(
    objects: Mapping[str, list[Any]] = NO_CHANGE, *, height: int = 256, width: int = 256
) -> bytes:
    example = tf.train.Example()
    feature = example.features.feature
    feature["image/encoded"].bytes_list.value.append(b"\xff\xd8")
    feature["image/height"].int64_list.value.append(height)
    feature["image/width"].int64_list.value.append(width)
    feature["image/source_id"].bytes_list.value.append(b"photo 7")
    for name, column in {**COLUMNS, **objects}.items():
        kind = {bytes: "bytes_list", float: "float_list", int: "int64_list"}
        values = getattr(feature[f"image/object/{name}"], kind[type((column or [0])[0])])
        values.value.extend(column)
    return example.SerializeToString()


def test_labels_and_sizes_beyond_32_bits_are_not_other_ones() -> None:
    for label in (2**32 + 1, -(2**32) + 1, 2**63 - 1):
        example = parse_example(serialized({"class/label": [label]}))
        for num_classes in (1, None):
            with pytest.raises(tf.errors.InvalidArgumentError, match=str(label)):
                checked_example(example, RECORD, num_classes)
    for size in (2**32 + 256, 0, -1):
        with pytest.raises(tf.errors.InvalidArgumentError, match=f"height or width(.|\n)*{size}"):
            checked_objects(parse_example(serialized(height=size)), RECORD, with_size=True)


def test_areas_of_large_images_are_their_pixels() -> None:
    areas = parse_example(serialized(height=60_000, width=60_000)).areas
    np.testing.assert_allclose(areas, [0.4 * 0.4 * 3.6e9], rtol=1e-6)


@pytest.mark.parametrize(
    ("column", "values"),
    [
        ("class/label", [1, 1]),
        ("class/label", []),
        ("is_crowd", [0, 1]),
        ("group_of", [1, 0]),
        ("lacks_mask", [1, 0, 1]),
        ("area", [1.0, 2.0]),
    ],
)
@pytest.mark.parametrize("with_masks", [False, True])
def test_a_column_of_another_length_names_the_record(
    column: str, values: list[Any], with_masks: bool
) -> None:
    text = serialized({column: values})

    @tf.function
    def read(text: Any) -> Any:
        example = checked_objects(parse_example(text, with_masks=with_masks), RECORD)
        return example.labels, example.is_crowd, example.areas

    with pytest.raises(tf.errors.InvalidArgumentError, match="differ(.|\n)*photo 7"):
        read(tf.constant(text))


@pytest.mark.parametrize("changes", [{"bbox/xmin": [float("nan")]}, {"area": [float("inf")]}])
def test_a_box_that_is_no_number_names_the_record(changes: dict[str, list[Any]]) -> None:
    with pytest.raises(tf.errors.InvalidArgumentError, match="NaN or infinite(.|\n)*photo 7"):
        checked_example(parse_example(serialized(changes)), RECORD)


def test_class_ids_by_name_are_the_first_row_of_that_name() -> None:
    texts = [b"dog", b"cat", b"owl", b"", b"dog"]
    text = serialized({"class/label": [], "class/text": texts})
    labels = parse_example(text, class_names=["cat", "dog", "cat", "ox"]).labels
    assert labels.numpy().tolist() == [2, 1, 0, 0, 2]


def test_names_by_the_million_take_no_table_of_all_by_all_classes() -> None:
    text = serialized({"class/label": [], "class/text": [b"c7"] * 200_000})
    names = [f"c{number}" for number in range(20_000)]  # 4 GB, had each name a row of classes
    labels = parse_example(text, class_names=names).labels.numpy()
    assert (labels == 8).all()


@pytest.mark.parametrize(
    ("key", "kind", "values"),
    [
        *((key, "int64_list", [5] * n) for key in ("height", "width") for n in (0, 2)),
        *(("encoded", "bytes_list", [b"a"] * n) for n in (0, 2)),
        ("source_id", "bytes_list", [b"a"] * 2),
        *((key, "float_list", [0.5]) for key in ("height", "width", "encoded", "source_id")),
    ],
)
def test_another_number_of_values_or_another_type_names_the_key(
    key: str, kind: str, values: list[Any]
) -> None:
    example = tf.train.Example.FromString(serialized())
    example.features.feature[f"image/{key}"].Clear()
    column = getattr(example.features.feature[f"image/{key}"], kind)
    column.SetInParent()
    column.value.extend(values)
    texts = tf.data.Dataset.from_tensors(example.SerializeToString())
    parsed = texts.map(lambda text: parse_example(text).labels)
    with pytest.raises(UserError, match=f" image/{key}[ ,.]"), input_errors_in_words(list):
        list(parsed)
