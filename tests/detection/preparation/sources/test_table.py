"""Tables whose columns the user names: every way to give a box, units, and what is refused."""

from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tpudet.detection.commands import make_tfrecords
from tpudet.detection.preparation.sources.annotations import Annotations
from tpudet.detection.preparation.sources.table import read_table
from tpudet.trainkit.errors import UserError

CORNERS = ["y1", "x1", "y2", "x2"]


def read(path: Path, columns: str, **more: Any) -> Annotations:
    named = dict(pair.split("=") for pair in columns.split(","))
    options: dict[str, Any] = {"coordinates": "pixels", "images": str(path.parent)} | more
    return read_table(str(path), columns=named, **options)


def write(tmp_path: Path, text: str) -> Path:
    for name in ("a.jpg", "b.png", "c.jpg"):
        (tmp_path / name).write_bytes(b"")
    path = tmp_path / "boxes.csv"
    path.write_text(text, errors="surrogateescape")
    return path


@pytest.mark.parametrize(
    ("columns", "header", "row"),
    [
        ("xywh=box", "box", '"[4, 5.0, 20, 30]"'),
        ("xyxy=box", "box", "4 5 24 35"),
        ("yxyx=box", "box", '"(5,4,35,24)"'),
        ("cxcywh=box", "box", '"14;20;20;30"'),
        ("x1=l,y1=t,x2=r,y2=b", "l,t,r,b", "4,5,24,35"),
        ("x=l,y=t,w=W,h=H", "l,t,W,H", "4,5,20,30"),
        ("cx=l,cy=t,w=W,h=H", "l,t,W,H", "14,20,20,30"),
    ],
)
def test_every_way_to_give_a_box(tmp_path, columns, header, row) -> None:
    path = write(tmp_path, f"id,{header},what\na,{row},cat\nb.png,{row},dog\nc,,\n")
    if "," in header:
        path.write_text(f"id,{header},what\na,{row},cat\nb.png,{row},dog\nc,,,,,\n")
    annotations = read(path, f"image=id,{columns},class=what")
    assert annotations.images["file"].tolist() == ["a.jpg", "b.png", "c.jpg"]
    assert annotations.boxes[CORNERS].to_numpy().tolist() == [[5, 4, 35, 24]] * 2
    assert annotations.boxes["label"].tolist() == ["cat", "dog"]
    assert [entry.name for entry in annotations.classes] == ["cat", "dog"]


def test_parquet_with_lists_and_numbers(tmp_path) -> None:
    path = write(tmp_path, "")
    frame = pd.DataFrame(
        {"f": ["a.jpg", "b", "c"], "bbox": [[4.0, 5, 20, 30], [0.0, 0, 9, 9], None]}
        | {"k": [10.0, 9.0, np.nan], "crowd": [0, 1, 0], "W": 64, "H": [48, 0, 48]}
    )
    frame.to_parquet(path)
    columns = "image=f,xywh=bbox,class=k,crowd=crowd,width=W,height=H"
    annotations = read(path, columns)
    assert annotations.boxes[CORNERS].to_numpy().tolist() == [[5, 4, 35, 24], [0, 0, 9, 9]]
    assert annotations.boxes["is_crowd"].tolist() == [False, True]
    assert [entry.identifier for entry in annotations.classes] == ["9", "10"]
    np.testing.assert_array_equal(annotations.images["height"], [48, np.nan, 48])


@pytest.mark.parametrize("kind", ["int64", "int32", "float32", "float64"])
def test_parquet_lists_of_any_number_are_boxes(tmp_path, kind) -> None:
    path = write(tmp_path, "")
    lists = pa.array([[4, 5, 20, 30]], pa.list_(pa.type_for_alias(kind)))
    pq.write_table(pa.table({"f": ["a.jpg"], "bbox": lists}), path)
    boxes = read(path, "image=f,xywh=bbox").boxes
    assert boxes[CORNERS].to_numpy().tolist() == [[5, 4, 35, 24]]
    assert boxes["fault"].tolist() == [None]


@pytest.mark.parametrize("separator", [",", ";", "\t", "|"])
def test_separators_fractions_and_a_single_class(tmp_path, separator) -> None:
    text = "id;xmin;ymin;xmax;ymax\r\na;0.1;0.2;0.5;0.6\r\nc;;;;\r\n;;;;\r\n"
    columns = "image=id,x1=xmin,y1=ymin,x2=xmax,y2=ymax"
    path = write(tmp_path, "\ufeff" + text.replace(";", separator))
    annotations = read(path, columns, coordinates="fractions", include_unlabeled=True)
    assert annotations.normalized
    assert annotations.boxes[CORNERS].to_numpy().tolist() == [[0.2, 0.1, 0.6, 0.5]]
    assert [entry.name for entry in annotations.classes] == ["object"]
    assert annotations.images["source_id"].tolist() == ["a", "c", "b"]
    with pytest.raises(UserError, match="pass --coordinates fractions"):
        read(path, columns)


def test_text_for_numbers_is_kept_for_the_report(tmp_path) -> None:
    path = write(tmp_path, 'id,box,k\na,"[1,2,3]",cat\na,"1 2 x 4",cat\nb,1 2 3 4,\n')
    boxes = read(path, "image=id,xywh=box,class=k").boxes
    assert boxes["fault"].tolist()[:2] == ["xywh ['1', '2', '3']", "xywh ['1', '2', 'x', '4']"]
    assert boxes["label"].tolist() == ["cat", "cat", ""]


@pytest.mark.parametrize(
    ("text", "columns", "message"),
    [
        ("id,b\na,1 2 3 4\n", "image=id,xywh=box", "lacks the columns box; it has id, b"),
        ("id,b\na,1 2 3 4\n", "image=id", "one of these for the box: xyxy;"),
        ("id,b\na,1 2 3 4\n", "image=id,xywh=b,xyxy=b", "needs image, and one of these"),
        ("id,b\na,1 2 3 4\n", "image=id,xywh=b,colour=b", "Unknown: colour"),
        ("id,b\n", "image=id,xywh=b", "has no row"),
        ("", "image=id,xywh=b", "is empty; its first line must name the columns"),
        ("id,b" + ",c" * 999 + "\n", "image=id,xywh=b", "has 1,001 columns, and 1,000 at most"),
        ("id,b\na,1 2 3 4,5\n", "image=id,xywh=b", "is not a CSV or Parquet file"),
        ("id,b\n,1 2 3 4\n", "image=id,xywh=b", "row 1 names no image"),
        (
            "id,b,c\na,1 2 3 4,x\n",
            "image=id,xywh=b,crowd=c",
            "boxes.csv: the column crowd holds 'x'",
        ),
        ("\nid,b\na,1 2 3 4\n", "image=id,xywh=b", "its first line is blank"),
        ("id,b\na,50 50 9 9\nb,40 2 30 9\n", "image=id,xyxy=b", "2 of 2 boxes end left of"),
        ("id,b,c\na,1 2 3 4,x\n", "image=id,xywh=b,width=c", "width holds 'x'"),
        ("id,b,b\na,1 2 3 4,x\n", "image=id,xywh=b", "more than one column b; give each"),
        ("id,b\na,1 2 3 4\n", "image=id,xywh=b,class=b", "gives b several meanings"),
        ("id,b,k\na,1 2 3 4,caf\udce9\n", "image=id,xywh=b,class=k", "nor a CSV in UTF-8"),
    ],
)
def test_unusable_tables(tmp_path, text, columns, message) -> None:
    with pytest.raises(UserError, match=message):
        read(write(tmp_path, text), columns)


def test_an_image_with_two_files_is_refused(tmp_path) -> None:
    path = write(tmp_path, "id,b\na,1 2 3 4\n")
    (tmp_path / "a.png").write_bytes(b"")
    with pytest.raises(UserError, match=r"a: a.jpg or a.png"):
        read(path, "image=id,xywh=b")


def test_the_columns_of_the_wheat_challenge(tmp_path, encoded_image, read_back, capsys) -> None:
    images = tmp_path / "images"
    images.mkdir()
    rows = ["image_id,width,height,bbox,source"]
    for number in range(10):
        (images / f"w{number}.jpg").write_bytes(encoded_image())
        rows.append(f'w{number},64,48,"[4.0, 5.0, 20.0, 30.0]",farm_{number % 2}')
    path = tmp_path / "train.csv"
    path.write_text("\n".join(rows) + "\n")
    command = ["--format", "table", "--annotations", str(path), "--images", str(images)]
    command += ["--workers", "1", "--output", str(tmp_path / "part")]
    columns = ["--columns", "image=image_id,xywh=bbox,class=source"]
    assert make_tfrecords.main([*command, *columns, "--split", "train=0.8,val=0.2"]) == 0
    val = read_back(tmp_path / "part", "val")
    assert sorted(record.labels for record in val) == [[1], [2]]  # stratified
    assert val[0].boxes.round().tolist() == [[5, 4, 35, 24]]
    assert len(read_back(tmp_path / "part", "train")) == 8
    assert make_tfrecords.main([*command, "--split", "train"]) == 2
    assert "--format table needs --columns" in capsys.readouterr().err
    with pytest.raises(SystemExit, match="2"):
        make_tfrecords.main([*command, "--columns", "image", "--split", "train"])


def test_the_table_of_the_blood_cells_has_the_boxes_of_their_xml_files(data_dir) -> None:
    from tpudet.detection.preparation.sources.voc import read_voc

    images = str(data_dir / "bccd/BCCD/JPEGImages")
    columns = "image=filename,class=cell_type,x1=xmin,y1=ymin,x2=xmax,y2=ymax"
    table = read(data_dir / "bccd/test.csv", columns, images=images)
    xml = read_voc(str(data_dir / "bccd/BCCD/Annotations"), images=images)

    def rows(annotations) -> list[tuple]:
        files = annotations.images["file"].to_numpy()[annotations.boxes["image"]]
        labels = annotations.boxes["label"].astype(str)
        corners = annotations.boxes[CORNERS].to_numpy().tolist()
        return sorted((f, k, *c) for f, k, c in zip(files, labels, corners, strict=True))

    assert len(rows(table)) == 4888
    assert rows(table) == rows(xml)


def test_parquet_of_other_engines(tmp_path) -> None:
    """Spark and Impala write decimals for numbers and bytes for text."""
    path = write(tmp_path, "")
    corners = [Decimal("4.5"), Decimal("5.0"), Decimal("24.0"), Decimal("35.0")]
    frame = pd.DataFrame(
        {"f": [b"a.jpg"], "k": [b"cat"]} | dict(zip("ltrb", [[c] for c in corners], strict=True))
    )
    frame.to_parquet(path)
    annotations = read(path, "image=f,x1=l,y1=t,x2=r,y2=b,class=k")
    assert annotations.images["file"].tolist() == ["a.jpg"]
    assert annotations.boxes[CORNERS].to_numpy().tolist() == [[5, 4.5, 35, 24]]
    assert [entry.name for entry in annotations.classes] == ["cat"]


def test_text_of_a_parquet_file_that_is_not_utf_8_is_an_error_with_its_name(tmp_path) -> None:
    path = write(tmp_path, "")
    frame = pd.DataFrame({"f": ["a.jpg"], "l": [1], "t": [1], "r": [5], "b": [5]})
    frame.to_parquet(path, compression=None, use_dictionary=False, write_statistics=False)
    content = Path(path).read_bytes()
    assert content.count(b"a.jpg") == 1
    Path(path).write_bytes(content.replace(b"a.jpg", b"\xff.jpg"))
    with pytest.raises(UserError, match=f"{path} is not a CSV or Parquet file: .*UTF8"):
        read(path, "image=f,x1=l,y1=t,x2=r,y2=b")


def test_parquet_that_stands_for_gigabytes_is_refused_before_it_is_read(tmp_path) -> None:
    """A megabyte of letters for each of a thousand rows, and forty million equal numbers."""
    path = write(tmp_path, "")
    numbers = {name: pa.array(np.zeros(1000)) for name in "ltrb"}
    text = pa.array(["a" * 1_000_000] * 1000)
    spare = pa.ListArray.from_arrays(
        pa.array([*range(1000), 80_000_000], pa.int32()), pa.array(np.zeros(80_000_000, np.int8))
    )
    for table in ({"f": text}, {"f": pa.array(["a.jpg"] * 1000), "spare": spare}):
        pq.write_table(pa.table(table | numbers), path, compression="zstd")
        assert Path(path).stat().st_size < 100_000
        before = pa.total_allocated_bytes()
        with pytest.raises(UserError, match="the same values many times. Write it again"):
            read(path, "image=f,x1=l,y1=t,x2=r,y2=b")
        assert pa.total_allocated_bytes() - before < 10_000_000


def test_equal_paths_of_parquet_are_read_as_they_are(tmp_path) -> None:
    path = write(tmp_path, "")
    frame = pd.DataFrame({"p.f": ["a.jpg", "b.jpg", "a.jpg"]} | dict.fromkeys("ltrb", [0, 1, 2]))
    frame.astype({"p.f": "category"}).to_parquet(path)
    annotations = read(path, "image=p.f,x1=l,y1=t,x2=r,y2=b", coordinates="pixels")
    assert annotations.images["file"].tolist() == ["a.jpg", "b.jpg"]
    assert annotations.boxes["image"].tolist() == [0, 0, 1]


def test_row_groups_of_the_same_bytes_are_refused(tmp_path, with_shared_groups) -> None:
    path = write(tmp_path, "")
    numbers = {name: pa.array(np.arange(100.0)) for name in "ltrb"}
    pq.write_table(pa.table({"f": ["a.jpg"] * 100} | numbers), path)
    Path(path).write_bytes(with_shared_groups(Path(path).read_bytes()))
    with pytest.raises(UserError, match=r"its columns have [0-9,]+ bytes, the file"):
        read(path, "image=f,x1=l,y1=t,x2=r,y2=b")
