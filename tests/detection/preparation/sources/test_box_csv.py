import csv
import io
import threading
from contextlib import contextmanager

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import tensorflow as tf

from tpudet.detection.preparation.sources import box_csv
from tpudet.detection.preparation.sources.box_csv import (
    ALL_COLUMNS,
    read_boxes,
    stream_boxes,
    write_boxes,
)
from tpudet.trainkit.errors import UserError
from tpudet.trainkit.files import inputs

HEADER = ",".join(ALL_COLUMNS)


def row(image: str, label: str, *corners: object, flags: str = "0,0,0,0,0") -> str:
    return ",".join([image, "xclick", label, "1", *map(str, corners), flags])


@pytest.fixture
def in_small_pieces(monkeypatch) -> None:
    monkeypatch.setattr(box_csv, "_BLOCK_BYTES", 256)
    monkeypatch.setattr(box_csv, "_BLOCK_ROWS", 3)


@pytest.mark.usefixtures("in_small_pieces")
def test_types_and_order_of_categories(tmp_path) -> None:
    path = tmp_path / "boxes.csv"
    lines = [
        row("b", "/m/2", 0.1, 0.5, "1e-3", 1, flags="-1,0,1,0,"),
        row("a", "/m/2", "nan", "", 0, 1, flags="1,1,-1,0,1.0"),
        row("b", "", 0, 1, 0, 1),
        row("c", " /m/1", " 0.25", 1, 0, 1),
    ] * 50
    path.write_text("\n".join([HEADER, *lines]))  # no line end at the end
    boxes = read_boxes(str(path))
    assert len(boxes) == 200
    assert boxes["ImageID"].cat.categories.tolist() == ["b", "a", "c"]
    assert boxes["LabelName"].cat.categories.tolist() == ["/m/2", "/m/1"]
    assert boxes["LabelName"].cat.codes.tolist()[:4] == [0, 0, -1, 1]
    np.testing.assert_array_equal(boxes["XMin"][:4], [0.1, np.nan, 0, 0.25])
    np.testing.assert_array_equal(boxes["XMax"][:4], [0.5, np.nan, 1, 1])
    assert boxes["YMin"][0] == 0.001
    assert boxes["IsGroupOf"].dtype == np.int8
    assert boxes["IsGroupOf"].tolist()[:4] == [1, -1, 0, 0]
    assert boxes["IsInside"].tolist()[:4] == [-1, 1, 0, 0]  # a blank is unknown
    assert read_boxes(str(path), columns=("YMax", "ImageID")).columns.tolist() == [
        "YMax",
        "ImageID",
    ]


@pytest.mark.usefixtures("in_small_pieces")
def test_agrees_with_pandas_whatever_the_order_of_columns_and_the_line_ends(tmp_path) -> None:
    rng = np.random.default_rng(0)
    names = list(rng.permutation(ALL_COLUMNS)) + ["Extra, quoted"]
    text = io.StringIO()
    rows = csv.writer(text, lineterminator="\r\n", quoting=csv.QUOTE_ALL)
    rows.writerow(names)
    for number in range(100):
        values = {name: str(rng.integers(0, 2)) for name in names}
        values |= {name: repr(rng.random()) for name in ("XMin", "XMax", "YMin", "YMax")}
        values |= {"ImageID": f"i{number // 3}", "Extra, quoted": 'a "b",\r\n c'}
        rows.writerow([values[name] for name in names])
    path = tmp_path / "boxes.csv"
    path.write_bytes(b"\xef\xbb\xbf" + text.getvalue().encode())
    boxes = read_boxes(str(path))
    expected = pd.read_csv(path, dtype="str")
    for name in ALL_COLUMNS:
        read = boxes[name].tolist()
        assert [type(read[0])(text) for text in expected[name]] == read, name


@pytest.mark.usefixtures("in_small_pieces")
def test_writing_what_was_streamed_gives_the_same_bytes(tmp_path) -> None:
    lines = [
        "ImageID,LabelName,XMin,My column",
        "a,/m/1,0.10000000000000000001,1.50",
        "a,,1e-05, blank before",
        'b,"with, comma",0.30,"said ""so"""',
        'c,"two\nlines",007,\u00e4\u6f22',
        "d,,,",
    ]
    source = tmp_path / "boxes.csv"
    source.write_text("\n".join([*lines, *lines[1:] * 40]) + "\n")
    for target in (f"{tmp_path}/copy.csv", "ram://box_csv/copy.csv"):
        assert write_boxes(target, stream_boxes(str(source))) == 205
        with tf.io.gfile.GFile(target, "rb") as file:
            assert file.read() == source.read_bytes()
    assert sum(batch.num_rows for batch in stream_boxes("ram://box_csv/copy.csv")) == 205


def test_tables_with_numbers_are_written_so_that_they_read_back(tmp_path) -> None:
    corners = np.random.default_rng(3).random(1000)
    table = pa.table({"ImageID": [f"i{k % 9}" for k in range(1000)], "XMin": corners})
    path = str(tmp_path / "boxes.csv")
    write_boxes(path, [table.slice(0, 400), table.slice(400)])
    np.testing.assert_array_equal(read_boxes(path, columns=("XMin",))["XMin"], corners)


def test_a_failed_write_leaves_what_was_there(tmp_path) -> None:
    path = tmp_path / "boxes.csv"
    path.write_text("old")
    pieces = (pa.table({name: ["1"]}) for name in ("a", "b"))
    with pytest.raises(ValueError, match="Columns"):
        write_boxes(str(path), pieces)
    assert path.read_text() == "old"
    assert [entry.name for entry in tmp_path.iterdir()] == ["boxes.csv"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "boxes.csv is empty"),
        (HEADER + "\r\n", "has a header and no row"),
        (HEADER.replace(",", ";") + "\na;b\n", "lacks the columns .* separated by ';'"),
        ("ImageID,LabelName,ImageID\na,b,c\n", "more than one column ImageID"),
        (HEADER + "\na,b\n", "not a CSV: .*Expected 13 columns, got 2: a,b"),
        (f"{HEADER}\n{row('a', 'b', 0, 1, 0, 1)}\n{row(' ', 'b', 0, 1, 0, 1)}\n", "line 3 has no"),
        (
            f"{HEADER}\n" + row("a", "b", 0, 1, 0, 1, flags="0,0,yes,0,0"),
            "IsGroupOf of line 2 is 'yes'",
        ),
        (f"{HEADER}\n" + row("a", "b", 0, 1, 0, 1, flags="0,0,300,0,0"), "line 2 is '300'"),
        (f"{HEADER}\n" + row("\udce9", "b", 0, 1, 0, 1), "not a CSV: .*UTF8"),
    ],
)
def test_unusable_files(tmp_path, text: str, message: str) -> None:
    path = tmp_path / "boxes.csv"
    path.write_bytes(text.encode(errors="surrogateescape"))
    with pytest.raises(UserError, match=rf"(?s)^INPUT .*{message}"):
        read_boxes(str(path), "INPUT", columns=ALL_COLUMNS if "Source" in text else ("ImageID",))


def test_missing_files_and_folders(tmp_path) -> None:
    for path, message in ((tmp_path / "none.csv", "does not exist"), (tmp_path, "is a directory")):
        with pytest.raises(UserError, match=message):
            next(stream_boxes(str(path)))


@pytest.mark.usefixtures("in_small_pieces")
@pytest.mark.parametrize("folder", ["local", "ram://threads"])
def test_no_thread_of_arrow_holds_a_python_file(
    folder: str, tmp_path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that let it go while the interpreter ended was killed, and the process aborted."""
    path = f"{tmp_path if folder == 'local' else folder}/boxes.csv"
    with tf.io.gfile.GFile(path, "w") as file:
        file.write("\n".join([HEADER, *[row("a", "/m/1", 0, 1, 0, 1)] * 50]))
    threads = set()

    class Watched:
        def __init__(self, file) -> None:
            self._file = file

        def read(self, *size: int) -> bytes:
            threads.add(threading.get_ident())
            return self._file.read(*size)

    @contextmanager
    def open_input(path: str, name: str):
        with inputs.open_input(path, name) as file:
            yield Watched(file)

    monkeypatch.setattr(box_csv, "open_input", open_input)
    assert len(read_boxes(path)) == 50
    assert threads == {threading.get_ident()}
