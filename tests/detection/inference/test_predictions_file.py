"""The predictions file: written and read back in both kinds, and what it refuses."""

import io
import os
import pickle
import re
import subprocess
import sys
import threading
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tpudet.detection.commands import convert_predictions, gen_sub
from tpudet.detection.inference.predictions_file import (
    ImagePredictions,
    PredictionsError,
    open_predictions,
    read_predictions,
    write_predictions,
)
from tpudet.detection.ops.numpy_masks import decode_rle, encode_rle

CLASSES = "/m/01,cat\n/m/02,dog\n"
METADATA = {"unreadable": {"broken.jpg": "empty file"}, "step": 7}


def image_of(image_id: str, labels: list[int]) -> ImagePredictions:
    n = len(labels)
    boxes = np.linspace(0, 1, 4 * n, dtype=np.float32).reshape(n, 4)
    scores = np.linspace(0.9, 0.1, n, dtype=np.float32)
    return ImagePredictions(image_id, np.array(labels, np.int32), scores, boxes)


BLOCKS = [
    [image_of("a", [1, 2, 2]), image_of("empty", [])],
    [],
    [image_of("ünïcode 猫", [2])],
]


def written(name: str, blocks: list | None = None, classes: str = CLASSES) -> io.BytesIO:
    file = io.BytesIO()
    write_predictions(file, name, blocks or BLOCKS, class_list_text=classes, metadata=METADATA)
    file.seek(0)
    return file


@pytest.mark.parametrize("name", ["p.parquet", "p.pkl"])
def test_what_was_written_is_read_back(name: str) -> None:
    found = read_predictions(written(name), name)
    assert found.class_list_text == CLASSES
    assert found.metadata == METADATA
    expected = [image for block in BLOCKS for image in block]
    assert [i.image_id for i in found.images] == [i.image_id for i in expected]
    for image, wanted in zip(found.images, expected, strict=True):
        for column, array in zip(image[1:4], wanted[1:4], strict=True):
            np.testing.assert_array_equal(column, array)
            assert column.dtype == array.dtype
            assert column.shape == array.shape


MASKED = [
    [
        image_of("a", [1, 2])._replace(
            masks=[encode_rle(np.eye(5, 7)), encode_rle(np.zeros((5, 7)))]
        )
    ],
    [image_of("empty", [])._replace(masks=[])],
]


@pytest.mark.parametrize("name", ["p.parquet", "p.pkl"])
def test_masks_are_read_back(name: str) -> None:
    a, empty = read_predictions(written(name, MASKED), name).images
    assert a.masks == MASKED[0][0].masks
    assert a.masks is not None
    np.testing.assert_array_equal(decode_rle(a.masks[0]), np.eye(5, 7))
    assert empty.masks == []
    assert [image.masks for image in read_predictions(written(name), name).images] == [None] * 3


@pytest.mark.parametrize(
    ("masks", "message"),
    [
        ([], "has 0 masks for 1 boxes"),
        (None, "differs from the others in having masks or not"),
        ([{"size": [5, 8], "counts": encode_rle(np.eye(5, 7))["counts"]}], "8 wide and 5 high"),
        ([{"size": [5, 8]}], "has a mask that 'counts'"),
    ],
)
def test_damaged_masks_are_refused(masks: list | None, message: str) -> None:
    for name in ("p.parquet", "p.pkl"):
        with pytest.raises(PredictionsError, match=message):
            written(name, [*MASKED, [image_of("x", [1])._replace(masks=masks)]])


def test_pandas_reads_the_columns_that_are_promised() -> None:
    frame = pd.read_parquet(written("p.parquet"))
    assert list(frame.columns) == ["image_id", "labels", "scores", "boxes_normalized"]
    assert frame.labels[0].tolist() == [1, 2, 2]
    assert frame.boxes_normalized[2][0].tolist() == pytest.approx([0, 1 / 3, 2 / 3, 1])


def test_pandas_reads_masks_as_coco_dicts() -> None:
    mask = pd.read_parquet(written("p.parquet", MASKED)).masks[0][0]
    expected = MASKED[0][0].masks or []
    assert {**mask, "size": mask["size"].tolist()} == expected[0]


def test_the_pickle_holds_plain_values_and_arrays_only() -> None:
    contents = pickle.loads(written("p.pkl").getvalue())
    assert type(contents) is dict
    assert {type(v) for image in contents["images"] for v in image.values()} == {str, np.ndarray}


class _Harm:
    def __init__(self, path: Path):
        self.path = path

    def __reduce__(self) -> tuple:
        return os.system, (f"touch {self.path}",)


@pytest.mark.parametrize("protocol", [0, 2, 4, 5])
def test_a_pickle_that_asks_for_a_function_is_refused(protocol: int, tmp_path: Path) -> None:
    harm = _Harm(tmp_path / "was_here")
    file = io.BytesIO(pickle.dumps({"format": "tpudet predictions 1", "x": harm}, protocol))
    with pytest.raises(PredictionsError, match=r"needs (posix|nt|os)\.system"):
        read_predictions(file, "p.pkl")
    assert not harm.path.exists()


@pytest.mark.parametrize("protocol", [4, 5])
def test_arrays_of_both_pickle_protocols_are_admitted(protocol: int) -> None:
    contents = pickle.loads(written("p.pkl").getvalue())
    found = read_predictions(io.BytesIO(pickle.dumps(contents, protocol)), "p.pkl")
    assert found.images[0].labels.tolist() == [1, 2, 2]


@pytest.mark.parametrize(
    ("image", "message"),
    [
        (image_of("x", [3]), r"'x' has class ids \[3\]; those of the class list are 1 to 2"),
        (image_of("x", [0]), r"'x' has class ids \[0\]"),
        (image_of("x", [1])._replace(scores=np.array([np.nan], np.float32)), "not finite"),
        (image_of("x", [1])._replace(scores=np.zeros(2, np.float32)), "of shapes"),
        (image_of("a", []), "'a' appears twice"),
    ],
)
def test_contradictions_are_refused(image: ImagePredictions, message: str) -> None:
    for name in ("p.parquet", "p.pkl"):
        with pytest.raises(PredictionsError, match=message):
            written(name, [*BLOCKS, [image]])


def test_lists_of_unlike_lengths_are_not_cut_at_the_places_of_others() -> None:
    """Image a has two labels and one score, b two and three: four of either in all."""
    table = pq.read_table(written("p.parquet", [[image_of("a", [1, 2]), image_of("b", [1, 2])]]))
    scores = pa.array([[0.9], [0.8, 0.7, 0.6]], table.schema.field("scores").type)
    file = io.BytesIO()
    pq.write_table(table.set_column(2, table.schema.field("scores"), scores), file)
    with pytest.raises(PredictionsError, match="image 'a' has 2 labels, 1 scores and 2 boxes"):
        read_predictions(file, "p.parquet")


def test_a_file_of_another_kind_is_refused_by_name() -> None:
    frame = io.BytesIO(pd.DataFrame({"x": [1]}).to_parquet())
    with pytest.raises(PredictionsError, match=r"x\.parquet .* does not say"):
        read_predictions(frame, "x.parquet")
    cut = written("p.parquet").getvalue()[:-9]
    with pytest.raises(PredictionsError, match=r"cut\.parquet is not a usable"):
        read_predictions(io.BytesIO(cut), "cut.parquet")
    with pytest.raises(PredictionsError, match=r"cut\.pkl is not a usable"):
        read_predictions(io.BytesIO(written("p.pkl").getvalue()[:-9]), "cut.pkl")
    with pytest.raises(PredictionsError, match="no dict"):
        read_predictions(io.BytesIO(pickle.dumps([1, 2])), "list.pkl")


class _ObjectsOfBytes:
    """A dtype of objects whose state hides that: NumPy takes the bytes of an array for pointers."""

    def __reduce__(self) -> tuple:
        return np.dtype, ("O8", False, True), (3, "|", None, None, None, -1, -1, 0)


class _ForgedArray:
    def __reduce__(self) -> tuple:
        from numpy._core.numeric import _frombuffer

        return _frombuffer, (b"A" * 16, _ObjectsOfBytes(), (2,), "C")


def _contents(**changes: object) -> dict:
    contents = pickle.loads(written("p.pkl").getvalue())
    contents["images"] = [{**contents["images"][0], **changes}]
    return contents


def test_a_pickle_cannot_forge_objects(tmp_path: Path) -> None:
    path = tmp_path / "p.pkl"
    path.write_bytes(pickle.dumps(_contents(labels=_ForgedArray())))
    command = [sys.executable, "-m", "tpudet", "gen_sub", str(path)]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 2, result.stderr
    assert "it has an array of 'O8'; only booleans, integers and floats" in result.stderr


class _Reduced:
    def __init__(self, *parts: object) -> None:
        self.parts = parts

    def __reduce__(self) -> tuple:
        return self.parts  # a function, its arguments, and a state


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        (np.array(["a"]), "array of 'U1'"),
        (np.zeros(1, "f4,f4"), "array of 'V8'"),
        (_Reduced(np.dtype, ("i4",), (3, "<", None, ("a",), {}, 4, 4, 16)), "numbers are"),
        (_Reduced(np.dtype, ("i4",), 7), "numbers are 7"),
        (_Reduced(np.ndarray, ((1 << 40,),)), "not callable"),
        (np.dtype("i4"), "Dtype where a list is expected"),
    ],
)
def test_arrays_of_other_things_are_refused(labels: object, message: str) -> None:
    for protocol in (4, 5):
        file = io.BytesIO(pickle.dumps(_contents(labels=labels), protocol))
        with pytest.raises(PredictionsError, match=message):
            read_predictions(file, "p.pkl")


@pytest.mark.parametrize(
    "label", [2**32 + 1, -(2**31) - 1, 1.9, True, float("nan"), float("inf"), 1e300]
)
def test_labels_that_are_no_class_ids_are_refused(label: float) -> None:
    for labels in (np.array([label]), [label]):
        file = io.BytesIO(pickle.dumps(_contents(labels=labels)))
        with pytest.raises(PredictionsError, match="labels must be integers of 32 bits"):
            read_predictions(file, "p.pkl")


def test_an_array_must_have_the_bytes_of_its_shape() -> None:
    data = pickle.dumps(_contents(), 5)
    shape = b"K\x03\x85"  # (3,) of the labels and the scores
    assert shape in data
    with pytest.raises(PredictionsError, match=r"of shape \(200,\) in 12 bytes"):
        read_predictions(io.BytesIO(data.replace(shape, b"K\xc8\x85")), "p.pkl")


def _nested(value: object) -> object:
    """2**60 values in 60 lists."""
    for _ in range(60):
        value = [value, value]
    return value


def _images(count: int, **shared: object) -> list[dict]:
    return [{**_contents()["images"][0], "image_id": str(i), **shared} for i in range(count)]


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (pickle.dumps(_contents(labels=_nested(1))), "arrays or lists of numbers"),
        (pickle.dumps(_contents() | {"metadata": {"x": _nested(1)}}), "50 levels"),
        (pickle.dumps(_contents() | {"metadata": {"x": [[[0] * 999] * 999] * 9}}), "values"),
        (
            pickle.dumps(
                _contents() | {"images": _images(9000, labels=np.ones(100_000, np.int32))}
            ),
            "the same numbers, masks or names many times",
        ),
        # A value that is kept as number 2**31 of the memo, and 2**40 bytes that are not there.
        (b"\x80\x04Nr\xff\xff\xff\x7f.", "no dict"),
        (b"\x80\x04\x8e" + (1 << 40).to_bytes(8, "little") + b".", "cannot be read"),
        # A bytearray of 4 GB of which there is one byte.
        (b"\x80\x05\x96" + (1 << 32).to_bytes(8, "little") + b".", "ends within 4,294,967,296"),
    ],
)
def test_small_pickles_stay_small(
    data: bytes, message: str, tmp_path: Path, run_limited: Callable
) -> None:
    path = tmp_path / "p.pkl"
    path.write_bytes(data)
    result = run_limited("-m", "tpudet", "gen_sub", str(path))
    assert result.returncode == 2, result.stderr
    assert re.search(message, result.stderr)


def test_attributes_that_a_pickle_sets_are_lost() -> None:
    """BUILD changes what it is given: a function would keep the change for the next file."""
    reconstruct = b"cnumpy._core.multiarray\n_reconstruct\n"
    state = b"N}V__defaults__\nN}s\x86b."
    with pytest.raises(PredictionsError, match="cannot be read"):
        read_predictions(io.BytesIO(b"\x80\x02" + reconstruct + state), "p.pkl")
    assert read_predictions(written("p.pkl"), "p.pkl").images


class _Watched(io.BytesIO):
    """A file that notes which threads use it."""

    threads: set[int]

    def read(self, *size: Any) -> bytes:
        self.threads.add(threading.get_ident())
        return super().read(*size)

    def write(self, data: Any) -> int:
        self.threads.add(threading.get_ident())
        return super().write(data)


def test_no_thread_of_arrow_holds_the_file() -> None:
    """One that let it go while the interpreter ended was killed, and the process aborted."""
    file = _Watched()
    file.threads = set()
    blocks = [[image_of(f"{i}-{k}", [1, 2] * 50) for k in range(50)] for i in range(8)]
    write_predictions(file, "p.parquet", blocks, class_list_text=CLASSES, metadata={})
    file.seek(0)
    stored = open_predictions(file, "p.parquet")
    assert len(stored.image_ids()) == sum(len(block) for block in stored.blocks()) == 400
    assert file.threads == {threading.get_ident()}


def _traced_peak(work: Callable[[], object]) -> int:
    """The most bytes of Python objects and NumPy arrays that `work` held at once."""
    tracemalloc.start()
    try:
        work()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_verbs_on_predictions_hold_one_block_at_a_time(tmp_path: Path) -> None:
    """Of 40 blocks of masks less than a third is in memory, the rest of the command included."""
    mask = encode_rle(np.random.default_rng(0).random((20, 30)) < 0.5)
    image = image_of("", [1] * 20)._replace(masks=[mask] * 20)
    blocks = [[image._replace(image_id=f"{i:02}-{k}") for k in range(5)] for i in range(40)]
    path = tmp_path / "p.parquet"
    path.write_bytes(written("p.parquet", blocks).getvalue())

    def read_whole() -> int:
        with path.open("rb") as file:
            return len(read_predictions(file, path.name).images)

    assert read_whole() == 200
    whole = _traced_peak(read_whole)
    for number, (command, options) in enumerate(
        [
            (gen_sub.main, ["--hierarchy", "none", "--out"]),
            (gen_sub.main, ["--hierarchy", "none", "--masks", "--out"]),
            (convert_predictions.main, ["--to", "csv"]),
        ]
    ):
        call = [str(path), *options, str(tmp_path / f"{number}.csv"), "-f"]
        assert command(call) == 0  # imports, once for all calls
        assert _traced_peak(lambda command=command, call=call: command(call)) < whole / 3


def test_neither_the_file_nor_the_submission_imports_tensorflow() -> None:
    program = (
        "import sys, tpudet.detection.inference.submissions\n"
        "sys.exit('tensorflow' in sys.modules or 'keras' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


def test_damage_that_only_reading_finds_is_told_with_the_name_of_the_file() -> None:
    data = written("p.parquet").getvalue()
    assert data.count("ünïcode 猫".encode()) >= 1
    broken = data.replace("ünïcode 猫".encode(), b"\xff" * len("ünïcode 猫".encode()))
    stored = open_predictions(io.BytesIO(broken), "p.parquet")
    for read in (stored.image_ids, lambda: list(stored.blocks())):
        with pytest.raises(PredictionsError, match="p.parquet is not a usable .* decode byte 0xff"):
            read()
