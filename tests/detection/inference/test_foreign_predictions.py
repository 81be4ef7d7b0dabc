"""Predictions files of others: small ones stay small, and each part of them has its form."""

import io
import json
import pickle
import tracemalloc
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tpudet.detection.inference import predictions_limits
from tpudet.detection.inference.join_shards import join_shards
from tpudet.detection.inference.predictions import FORMAT, ImagePredictions
from tpudet.detection.inference.predictions_file import (
    PredictionsError,
    open_predictions,
    read_predictions,
    write_predictions,
)

CLASSES = "/m/01,cat\n"
_MANY_TIMES = "the same numbers, masks or names many times"


def image_of(**changes: Any) -> dict:
    boxes = np.array([[0, 0, 1, 1]], np.float32)
    image = {"image_id": "a", "labels": [1], "scores": [0.5], "boxes_normalized": boxes}
    return image | changes


def pickled(*images: dict, **changes: object) -> io.BytesIO:
    contents = {"format": FORMAT, "classes": CLASSES, "metadata": {}, "images": images} | changes
    return io.BytesIO(pickle.dumps(contents, 5))


def peak_of_refusal(file: io.BytesIO, message: str) -> int:
    """The most bytes that Python held until it refused a pickle."""
    tracemalloc.start()
    try:
        with pytest.raises(PredictionsError, match=message):
            read_predictions(file, "p.pkl")
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.fixture
def _counted_from_4_mb(monkeypatch: pytest.MonkeyPatch) -> None:
    """Instead of 64 MB, which take the tracing of memory a minute."""
    monkeypatch.setattr(predictions_limits, "_SMALL_BYTES", 1 << 22)


_BYTES = np.ones(50_000, np.uint8)
_NUMBERS = [1] * 50_000
_RLE = {"size": [1, 1], "counts": "1" * 50_000}
_BYTES_RLE = {"size": [1, 1], "counts": b"0", **{f"k{i}": 0 for i in range(1000)}}


@pytest.mark.parametrize(
    "shared",
    [
        {"labels": _BYTES},  # four times as much where it is converted
        {"labels": _NUMBERS},
        {"boxes_normalized": [(0, 0, 1, 1)] * 20_000},
        {"masks": [_RLE] * 10},
        {"masks": [_BYTES_RLE] * 1000},
        {"masks": [None] * 5000},
        {"image_id": "a" * 100_000},
    ],
    ids=lambda shared: next(iter(shared)),
)
@pytest.mark.usefixtures("_counted_from_4_mb")
def test_what_images_of_a_pickle_share_is_counted_before_it_is_converted(shared: dict) -> None:
    """1,000 images of 100 KB and more, of which 16 times the file may be converted."""
    file = pickled(*(image_of(image_id=str(i)) | shared for i in range(1000)))
    assert len(file.getbuffer()) < 300_000
    assert peak_of_refusal(file, _MANY_TIMES) < 12_000_000


@pytest.mark.usefixtures("_counted_from_4_mb")
def test_an_image_that_a_pickle_names_many_times_is_counted() -> None:
    file = pickled(*[image_of()] * 50_000)
    assert len(file.getbuffer()) < 150_000
    assert peak_of_refusal(file, _MANY_TIMES) < 20_000_000


def table(counts: list[int], **columns: pa.Array) -> pa.Table:
    """Images of so many equal detections each."""
    ends = pa.array(np.cumsum([0, *counts]), pa.int32())
    total = sum(counts)
    boxes = pa.FixedSizeListArray.from_arrays(pa.array(np.zeros(4 * total, np.float32)), 4)
    parts = {
        "image_id": pa.array([f"i{k}" for k in range(len(counts))]),
        "labels": pa.ListArray.from_arrays(ends, pa.array(np.ones(total, np.int32))),
        "scores": pa.ListArray.from_arrays(ends, pa.array(np.full(total, 0.5, np.float32))),
        "boxes_normalized": pa.ListArray.from_arrays(ends, boxes),
    } | columns
    fields = [pa.field(k, v.type, nullable=k == "masks") for k, v in parts.items()]
    return pa.Table.from_arrays([*parts.values()], schema=pa.schema(fields))


_KEYS = {"tpudet.format": FORMAT, "tpudet.classes": CLASSES, "tpudet.metadata": "{}"}


def parquet(content: pa.Table, **keys: str | None) -> io.BytesIO:
    stored = _KEYS | {f"tpudet.{k}": v for k, v in keys.items()}
    file = io.BytesIO()
    schema = {k: v for k, v in stored.items() if v is not None}
    pq.write_table(content.replace_schema_metadata(schema), file, compression="zstd")
    file.seek(0)
    return file


def test_runs_of_equal_numbers_are_refused_before_they_are_read() -> None:
    """96 MB of numbers in one image of a file of some kilobytes."""
    file = parquet(table([4_000_000]))
    assert len(file.getbuffer()) < 20_000
    before = pa.total_allocated_bytes()
    with pytest.raises(PredictionsError, match=f"stand for 9[0-9],.*{_MANY_TIMES}"):
        open_predictions(file, "p.parquet")
    assert pa.total_allocated_bytes() - before < 1_000_000


def test_a_text_that_parquet_has_once_is_counted_for_each_image_and_mask() -> None:
    text = "1" * 100_000
    names = parquet(table([1] * 1000, image_id=pa.array([text] * 1000)))
    rles = pa.array([[{"size": [1, 1], "counts": text}]] * 1000)
    kind = pa.list_(pa.struct([("size", pa.list_(pa.int32(), 2)), ("counts", pa.string())]))
    masks = parquet(table([1] * 1000, masks=rles.cast(kind)))
    assert max(len(names.getbuffer()), len(masks.getbuffer())) < 50_000
    with pytest.raises(PredictionsError, match=f"stand for 100,000,000 .*{_MANY_TIMES}"):
        open_predictions(names, "p.parquet").image_ids()
    for file in (names, masks):
        with pytest.raises(PredictionsError, match=f"stand for 100,.*{_MANY_TIMES}"):
            read_predictions(file, "p.parquet")


def test_compressible_files_of_usual_size_are_read() -> None:
    """100,000 equal detections, 2.4 MB, of a file that is hundreds of times smaller."""
    file = parquet(table([1000] * 100))
    assert len(file.getbuffer()) < 10_000
    assert sum(len(image.labels) for image in read_predictions(file, "p.parquet").images) == 100_000


_WRONG_METADATA = [
    ([], "its metadata is a list; it must be a dict"),
    ({"m": 1 << 64}, "an integer of more than 64 bits"),
    ({"unreadable": [1]}, "`unreadable` of its metadata must be a dict of file names and reasons"),
    ({"unreadable": {"a.jpg": 1}}, "`unreadable` of its metadata"),
    ({"image_list": [1]}, "`image_list` of its metadata must be a dict, got a list"),
    ({"shard": "x"}, "`shard` of its metadata must be a dict with `number` and `of`"),
    ({"shard": {"number": 1}}, "`shard` of its metadata"),
    ({"shard": {"number": 5, "of": 4}}, "`shard` of its metadata"),
    ({"shard": {"number": 1, "of": 10**12}}, "`shard` of its metadata .* at most 1,000,000"),
]


@pytest.mark.parametrize(("metadata", "message"), _WRONG_METADATA)
def test_metadata_of_another_form_is_refused_by_name(
    metadata: object, message: str, tmp_path: Any
) -> None:
    files = {
        "p.pkl": pickled(image_of(), metadata=metadata),
        "p.parquet": parquet(table([1]), metadata=json.dumps(metadata)),
    }
    for name, file in files.items():
        path = tmp_path / name
        path.write_bytes(file.getvalue())
        with pytest.raises(PredictionsError, match=rf"{name} is not a usable .*{message}"):
            join_shards(str(tmp_path / "joined.parquet"), [str(path)])


@pytest.mark.parametrize(
    ("metadata", "message"),
    [
        ({"m": {1: 3}}, "a key that is not a string"),
        ({"m": b"1"}, "its metadata has a bytes, which JSON does not have"),
        ({"m": ["x" * 1_000_000] * 20_000}, "more than .* 100,000,000 characters"),
    ],
)
def test_metadata_of_a_pickle_that_json_has_not_is_refused(metadata: dict, message: str) -> None:
    with pytest.raises(PredictionsError, match=message):
        open_predictions(pickled(image_of(), metadata=metadata), "p.pkl")


def test_metadata_that_parquet_lacks_is_named() -> None:
    with pytest.raises(PredictionsError, match=r"its metadata has no tpudet\.classes$"):
        open_predictions(parquet(table([1]), classes=None), "p.parquet")
    both = parquet(table([1]), classes=None, metadata=None)
    with pytest.raises(PredictionsError, match=r"no tpudet\.classes and no tpudet\.metadata$"):
        open_predictions(both, "p.parquet")


def test_a_single_number_is_no_array_of_labels() -> None:
    with pytest.raises(PredictionsError, match="a single number where an array"):
        read_predictions(pickled(image_of(labels=np.array(1))), "p.pkl")


def test_pages_are_counted_where_the_footer_lies() -> None:
    """16 MB by the footer, 160 MB by the pages that are decoded."""
    file = parquet(table([10_000_000]))
    content = bytearray(file.getvalue())
    true, false = (varint(2 * count) for count in (10_000_000, 1_100_000))
    true_boxes, false_boxes = (varint(2 * count) for count in (40_000_000, 1_100_000))
    footer = len(content) - 8 - int.from_bytes(content[-8:-4], "little")
    for before, after in ((true, false), (true_boxes, false_boxes)):
        assert len(before) == len(after)
        content[footer:] = content[footer:].replace(before, after)
    forged = io.BytesIO(content)
    stored = open_predictions(forged, "p.parquet")
    before = pa.total_allocated_bytes()
    with pytest.raises(PredictionsError, match=f"stand for 240,.*{_MANY_TIMES}"):
        next(iter(stored.blocks()))
    assert pa.total_allocated_bytes() - before < 1_000_000


def varint(number: int) -> bytes:
    """The number as Thrift writes it, seven bits a byte."""
    parts = []
    while number >= 0x80:
        parts.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*parts, number])


def test_row_groups_of_the_same_bytes_are_refused(with_shared_groups) -> None:
    """Each would be read as often as the footer names it."""
    file, n = io.BytesIO(), np.ones(1, np.float32)
    images = [
        ImagePredictions(f"image {k}", np.ones(1, np.int32), n, np.ones((1, 4), np.float32))
        for k in range(100)
    ]
    write_predictions(file, "p.parquet", [images], class_list_text=CLASSES, metadata={})
    shared = io.BytesIO(with_shared_groups(file.getvalue()))
    with pytest.raises(PredictionsError, match=r"its columns have [0-9,]+ bytes, the file"):
        read_predictions(shared, "p.parquet")


@pytest.mark.parametrize(
    "changes",
    [
        {"images": [image_of(image_id="\ud800")]},
        {"classes": "/m/01,cat\udfff\n"},
        {"metadata": {"unreadable": {"\ud800.jpg": "damaged"}}},
        {"metadata": {"unreadable": {"a.jpg": "\ud800"}}},
    ],
)
def test_halves_of_characters_are_refused(changes: dict) -> None:
    contents = {"format": FORMAT, "classes": CLASSES, "metadata": {}, "images": []} | changes
    with pytest.raises(PredictionsError, match=r"p\.pkl .* written as UTF-8"):
        read_predictions(io.BytesIO(pickle.dumps(contents, 5)), "p.pkl")
