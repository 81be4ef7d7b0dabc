import hashlib
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from tpudet.detection.data.tfrecord import (
    EncodedImage,
    encode_example,
    example_pieces,
    object_columns,
    parse_example,
)

IMAGE = EncodedImage("000042", "42.jpg", b"image", "jpeg", height=200, width=100)


def arguments(**changes):
    values = {
        "image": IMAGE,
        "boxes_normalized": np.array([[0.1, 0.2, 0.5, 0.6], [0, 0, 1, 1]]),
        "labels": [3, 1],
        "texts": ["cup", "person"],
        "is_crowd": [False, True],
        "areas": [1600.0, 150.5],
    }
    return {**values, **changes}


def test_parsing_is_the_inverse_of_encoding():
    example = parse_example(encode_example(**arguments()))
    assert example.encoded == b"image"
    assert example.source_id == b"000042"
    assert (int(example.height), int(example.width)) == (200, 100)
    np.testing.assert_allclose(example.boxes_normalized, [[0.1, 0.2, 0.5, 0.6], [0, 0, 1, 1]])
    assert example.labels.numpy().tolist() == [3, 1]
    assert example.is_crowd.numpy().tolist() == [False, True]
    assert example.areas.numpy().tolist() == [1600.0, 150.5]


def test_an_image_without_objects():
    empty = {"boxes_normalized": np.zeros((0, 4)), "labels": [], "texts": []}
    example = parse_example(encode_example(**arguments(**empty, is_crowd=[], areas=[])))
    assert example.boxes_normalized.shape == (0, 4)
    assert example.is_crowd.shape == example.areas.shape == example.labels.shape == (0,)


def test_keys_of_the_object_detection_api():
    serialized = encode_example(**arguments(masks=[b"png1", b"png2"]))
    feature = tf.train.Example.FromString(serialized).features.feature
    assert feature["image/key/sha256"].bytes_list.value == [
        hashlib.sha256(b"image").hexdigest().encode()
    ]
    assert feature["image/object/class/text"].bytes_list.value == [b"cup", b"person"]
    assert feature["image/object/mask"].bytes_list.value == [b"png1", b"png2"]
    assert feature["image/object/bbox/xmax"].float_list.value == pytest.approx([0.6, 1.0])
    assert feature["image/object/is_crowd"].int64_list.value == [0, 1]
    assert serialized == encode_example(**arguments(masks=[b"png1", b"png2"]))
    assert parse_example(serialized).masks is None
    masks: Any = parse_example(serialized, with_masks=True).masks
    assert masks.numpy().tolist() == [b"png1", b"png2"]


def test_a_record_without_masks_has_none_to_parse():
    masks: Any = parse_example(encode_example(**arguments()), with_masks=True).masks
    assert masks.shape == (0,)


# Lengths in protocol buffers take a byte for every seven bits.
@pytest.mark.parametrize("size", [0, 1, 90, 127, 128, 16_200, 16_384, 2_097_152])
@pytest.mark.parametrize("count", [0, 1, 300])
def test_the_pieces_are_what_protocol_buffers_write(size, count):
    objects = {
        "boxes_normalized": np.tile([0.1, 0.2, 0.5, 0.6], (count, 1)),
        "labels": list(range(1, count + 1)),
        "texts": ["Gefäß"] * count,
        "is_crowd": [True] * count,
        "areas": [2.5] * count,
    }
    image = IMAGE._replace(encoded=bytes(size))
    serialized = encode_example(**arguments(image=image, **objects))
    example = tf.train.Example.FromString(serialized)
    assert example.SerializeToString(deterministic=True) == serialized
    assert example.features.feature["image/encoded"].bytes_list.value == [bytes(size)]

    del example.features.feature["image/key/sha256"]
    pieces = example_pieces(image, object_columns(**objects), with_digest=False)
    assert example.SerializeToString(deterministic=True) == b"".join(pieces)


def test_columns_are_cut_by_rows():
    objects = object_columns(
        boxes_normalized=np.array([[0, 0, 0.5, 0.5], [0.25, 0.5, 1, 1], [0, 0, 1, 1]]),
        labels=[1, 2, 3],
        texts=["a", "b", "c"],
        is_crowd=[False, True, False],
        areas=[1, 2, 3],
    )
    second = ([0.25], [0.5], [1.0], [1.0], [2], [b"b"], [1], [2.0], [0])
    assert objects.rows(slice(1, 2)) == second


def test_objects_that_lack_their_mask_are_no_crowds():
    objects = {key: value for key, value in arguments().items() if key != "image"}
    plain = b"".join(example_pieces(IMAGE, object_columns(**objects)))
    assert b"lacks_mask" not in plain  # where all have one, records are as they were
    columns = object_columns(**objects, lacks_mask=[True, False])
    masked = b"".join(example_pieces(IMAGE, columns))
    for with_masks in (True, False):
        example = parse_example(masked, with_masks=with_masks)
        assert example.is_crowd.numpy().tolist() == [False, True]
        assert example.lacks_mask.numpy().tolist() == [True, False]
    assert not parse_example(plain).lacks_mask.numpy().any()


def test_records_of_other_writers_may_lack_crowds_and_areas():
    example = tf.train.Example.FromString(encode_example(**arguments()))
    del example.features.feature["image/object/is_crowd"]
    del example.features.feature["image/object/area"]
    parsed = parse_example(example.SerializeToString())
    assert parsed.is_crowd.numpy().tolist() == [False, False]
    np.testing.assert_allclose(parsed.areas, [0.4 * 0.4 * 20000, 20000], rtol=1e-5)


def test_all_mistakes_are_named():
    boxes = np.array([[0.1, 0.2, 0.5, 1.5], [0.4, 0.4, 0.4, 0.9], [np.nan, 0, 1, 1]])
    image = IMAGE._replace(format="webp", width=0)
    wrong = arguments(image=image, boxes_normalized=boxes, labels=[0, 1])
    with pytest.raises(ValueError, match="000042") as caught:
        encode_example(**wrong)
    message = str(caught.value)
    for part in (
        "2 labels for 3 boxes",
        "2 texts for 3 boxes",
        "box 0",
        "box 1 [0.4000000059604645, 0.4000000059604645, 0.4000000059604645, 0.8999999761581421] "
        "has no area",
        "box 2 [nan, 0.0, 1.0, 1.0] is not within 0..1",
        "label 0 is below 1",
        "format 'webp'",
        "size 200 x 0",
    ):
        assert part in message
