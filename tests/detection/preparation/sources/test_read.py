import json
import os
import time
from pathlib import Path

import numpy as np
import pytest

from tpudet.detection.preparation.sources.annotations import image_ids
from tpudet.detection.preparation.sources.box_csv import ALL_COLUMNS
from tpudet.detection.preparation.sources.coco import read_coco
from tpudet.detection.preparation.sources.input_files import read_image_list
from tpudet.detection.preparation.sources.open_images import image_file, read_open_images
from tpudet.detection.preparation.sources.table import read_table
from tpudet.detection.preparation.sources.voc import read_voc
from tpudet.trainkit.errors import UserError

CORNERS = ["y1", "x1", "y2", "x2"]


def write_xml(directory: Path, name: str, objects: str, size: str = "", filename: str = "") -> None:
    directory.mkdir(exist_ok=True)
    text = (
        f"<annotation><filename>{filename or name + '.jpg'}</filename>{size}{objects}</annotation>"
    )
    (directory / f"{name}.xml").write_text(text)


def thing(name: str, *corners: object) -> str:
    keys = ("xmin", "ymin", "xmax", "ymax")
    box = "".join(f"<{key}>{value}</{key}>" for key, value in zip(keys, corners, strict=True))
    return f"<object><name>{name}</name><bndbox>{box}</bndbox></object>"


def write_csv(path: Path, *rows: tuple) -> str:
    lines = [",".join(ALL_COLUMNS)]
    for image, label, x1, x2, y1, y2, group in rows:
        lines.append(f"{image},xclick,{label},1,{x1},{x2},{y1},{y2},0,0,{group},0,0")
    path.write_text("\n".join(lines) + "\n")
    return str(path)


def test_coco_boxes_classes_and_ids(write_coco, encoded_image) -> None:
    path, _ = write_coco(
        {"a.jpg": encoded_image()}, {"a.jpg": [(7, 1, 2, 10, 20), (3, 0, 0, 5, 5)]}
    )
    annotations = read_coco(str(path))
    assert [entry.identifier for entry in annotations.classes] == ["3", "7"]  # by id, with a gap
    assert annotations.class_ids()["7"] == annotations.class_ids()["dog"] == 2
    assert annotations.boxes[CORNERS].to_numpy().tolist() == [[2, 1, 22, 11], [0, 0, 5, 5]]
    assert annotations.images["source_id"].tolist() == ["1"]


def test_coco_annotations_without_image_or_box_are_found(tmp_path) -> None:
    content = {
        "images": [{"id": 1, "file_name": "a.jpg"}],
        "annotations": [
            {"image_id": 9, "category_id": 1, "bbox": [1, 2, 3, 4], "id": 50},
            {"image_id": 1, "category_id": 1, "bbox": [1, 2, 3]},
            {"image_id": 1, "category_id": 1},
        ],
        "categories": [{"id": 1, "name": "cat"}],
    }
    path = tmp_path / "a.json"
    path.write_text(json.dumps(content))
    annotations = read_coco(str(path))
    (finding,) = annotations.findings
    assert (finding.file, finding.detail) == ("image_id 9", "annotation 50")
    assert len(annotations.boxes) == 2  # the box checks report both
    assert np.isnan(annotations.boxes[CORNERS]).all(axis=None)


def test_a_segmentation_that_names_a_file_is_none(tmp_path) -> None:
    path = tmp_path / "boxes.json"
    square = [[0, 0, 4, 0, 4, 4]]
    boxes = [
        {"image_id": 1, "category_id": 1, "bbox": [0, 0, 4, 4], "segmentation": segmentation}
        for segmentation in ("/etc/passwd", square)
    ]
    content = {
        "images": [{"id": 1, "file_name": "a.jpg"}],
        "annotations": boxes,
        "categories": [{"id": 1, "name": "cat"}],
    }
    path.write_text(json.dumps(content))
    annotations = read_coco(str(path), include_segmentation=True)
    assert annotations.boxes["segmentation"].tolist() == [None, square]


def test_images_listed_twice_keep_the_boxes_of_both(tmp_path) -> None:
    content = {
        "images": [
            {"id": 1, "file_name": "a.jpg", "width": 64, "height": 48},
            {"id": 2, "file_name": "b.jpg", "width": 64, "height": 48},
            {"id": 3, "file_name": "a.jpg", "width": 64, "height": 48},
            {"id": 4, "file_name": "a.jpg", "width": 640, "height": 480},
        ],
        "annotations": [
            {"image_id": number, "category_id": 1, "bbox": [number, 0, 5, 5]}
            for number in (1, 2, 3, 4)
        ],
        "categories": [{"id": 1, "name": "cat"}],
    }
    path = tmp_path / "a.json"
    path.write_text(json.dumps(content))
    annotations = read_coco(str(path))
    assert annotations.images["file"].tolist() == ["a.jpg", "b.jpg"]
    assert annotations.boxes[["image", "x1"]].to_numpy().tolist() == [[0, 1], [0, 3], [1, 2]]
    assert [finding.repaired for finding in annotations.findings] == [True, False]


def test_voc_takes_the_list_and_the_names_of_all_files(tmp_path) -> None:
    size = "<size><width>64</width><height>48</height></size>"
    directory, images = tmp_path / "Annotations", tmp_path / "JPEGImages"
    images.mkdir()
    for name in ("one.jpg", "two.PNG"):
        (images / name).write_bytes(b"")
    write_xml(directory, "one", thing("dog", 1, 2, 11, 22), size)
    write_xml(directory, "two", thing("ant", "x", 2, 11, 22), filename="copied-from-elsewhere.jpg")
    listed = tmp_path / "train.txt"
    listed.write_text("two  1\none -1\ngone  0\none -1\n")
    annotations = read_voc(str(directory), images=str(images), image_list=str(listed))
    assert annotations.images["file"].tolist() == ["two.PNG", "one.jpg"]
    assert annotations.images["width"].tolist()[1] == 64
    assert np.isnan(annotations.images["width"][0])
    assert [entry.name for entry in annotations.classes] == ["ant", "dog"]
    assert annotations.boxes[CORNERS].to_numpy()[1].tolist() == [2, 1, 22, 11]
    assert np.isnan(annotations.boxes["x1"][0])
    reasons = {finding.file: finding.reason for finding in annotations.findings}
    assert reasons == {
        "gone": "annotation file missing",
        "one.jpg": "image listed twice: taken once",
    }

    listed.write_text("one\n")  # a split without ants has the same classes
    fewer = read_voc(str(directory), images=str(images), image_list=str(listed))
    assert fewer.classes == annotations.classes


def test_voc_boxes_marked_difficult_are_counted_or_ignored(tmp_path) -> None:
    directory = tmp_path / "Annotations"
    (tmp_path / "one.jpg").write_bytes(b"")
    marked = [
        thing("cat", n, 2, 11, 22).replace("<bndbox>", f"<difficult>{flag}</difficult><bndbox>")
        for n, flag in enumerate(("1", "0", "", "true"))
    ]
    write_xml(directory, "one", "".join([*marked, thing("cat", 5, 2, 11, 22)]))
    found = read_voc(str(directory), images=str(tmp_path))
    assert not found.boxes["is_crowd"].any()
    (finding,) = found.findings
    assert finding.reason == "marked difficult: taken as ordinary boxes; see --ignore_difficult"
    assert (finding.detail, finding.repaired) == ("2 of 5 boxes", True)
    ignored = read_voc(str(directory), images=str(tmp_path), ignore_difficult=True)
    assert ignored.boxes["is_crowd"].tolist() == [True, False, False, True, False]
    assert ignored.findings[0].reason == "marked difficult: taken as regions to ignore"


def test_open_images_groups_empty_rows_and_unlabeled_files(tmp_path) -> None:
    path = write_csv(
        tmp_path / "boxes.csv",
        ("f1", "/m/b", 0.1, 0.5, 0.2, 0.6, 0),
        ("f2", "/m/a", 0.1, 0.5, 0.2, 0.6, 1),
        ("f1", "/m/a", 0.1, 0.5, 0.2, 0.6, -1),
        ("f3", "", "", "", "", "", ""),
    )
    for name in ("f1.jpg", "f9.JPG", "notes.txt"):
        (tmp_path / name).write_bytes(b"")
    plain = read_open_images(path, images=str(tmp_path))
    assert plain.images["source_id"].tolist() == ["f1", "f2", "f3"]
    assert plain.normalized
    assert [entry.identifier for entry in plain.classes] == ["/m/a", "/m/b"]
    assert plain.boxes["image"].tolist() == [0, 0, 1]
    assert plain.boxes["is_crowd"].tolist() == [False, False, True]  # -1 is unknown, no group
    assert plain.boxes[CORNERS].to_numpy()[0].tolist() == [0.2, 0.1, 0.6, 0.5]
    everything = read_open_images(path, images=str(tmp_path), include_unlabeled=True)
    assert everything.images["file"].tolist() == ["f1.jpg", "f2.jpg", "f3.jpg", "f9.JPG"]

    listed = tmp_path / "list.txt"
    listed.write_text("f2\nf8.jpg\n")
    some = read_open_images(path, images=str(tmp_path), image_list=str(listed))
    assert some.images["source_id"].tolist() == ["f2", "f8"]
    assert some.boxes["image"].tolist() == [0]
    # The images without a row are those of the list; no other becomes one without objects.
    options = {"image_list": str(listed), "include_unlabeled": True}
    same = read_open_images(path, images=str(tmp_path), **options)
    assert same.images["file"].tolist() == ["f2.jpg", "f8.jpg"]


def test_every_image_has_an_id_of_its_own(tmp_path) -> None:
    assert image_ids(["a.jpg", "b.jpg"]) == ["a", "b"]
    assert image_ids(["c/a.jpg", "d/a.jpg"]) == ["c/a", "d/a"]
    assert image_ids(["a.jpg", "a.png", "b.jpg"]) == ["a.jpg", "a.png", "b"]
    assert image_ids(["a.jpg", "a.jpg"]) == ["a", "a"]  # one image, listed twice
    assert image_file("cam1/0001") == "cam1/0001.jpg"
    assert image_file("cam1/0001.png") == "cam1/0001.png"
    path = write_csv(tmp_path / "boxes.csv", ("a", "/m/a", 0, 1, 0, 1, 0))
    for name in ("a.jpg", "a.png"):
        (tmp_path / name).write_bytes(b"")
    found = read_open_images(path, images=str(tmp_path), include_unlabeled=True)
    assert found.images["source_id"].tolist() == ["a", "a.png"]


def test_a_flag_of_voc_lists_ends_every_line_in_two_columns(tmp_path) -> None:
    listed = tmp_path / "list.txt"
    listed.write_text("2008_000008 -1\n2008_000015  1\n2008_000019  0\n")
    expected = ["2008_000008", "2008_000015", "2008_000019"]
    assert read_image_list(str(listed)) == expected
    for text in ("photo 1", "photo  1\nphoto"):
        listed.write_text(text)
        assert read_image_list(str(listed)) == text.splitlines()


def test_a_list_that_names_no_image_is_said_with_names_of_both(tmp_path) -> None:
    listed, table = tmp_path / "list.txt", tmp_path / "boxes.csv"
    listed.write_text("photo 1\n")
    table.write_text("f,box\nphoto.jpg,1 2 3 4\n")
    message = "names none of the 1 images of the annotations: it has photo 1, they are .* photo.jpg"
    with pytest.raises(UserError, match=message):
        read_table(
            str(table),
            columns={"image": "f", "xyxy": "box"},
            coordinates="pixels",
            images=str(tmp_path),
            image_list=str(listed),
        )


def test_a_voc_file_never_takes_the_image_of_another(tmp_path) -> None:
    directory, images = tmp_path / "Annotations", tmp_path / "JPEGImages"
    images.mkdir()
    (images / "a.jpg").write_bytes(b"")
    write_xml(directory, "a", thing("cat", 1, 2, 11, 22))
    write_xml(directory, "zz", thing("dog", 1, 2, 31, 32), filename="a.jpg")
    annotations = read_voc(str(directory), images=str(images))
    assert annotations.images["file"].tolist() == ["a.jpg", "zz.jpg"]
    assert annotations.boxes["image"].tolist() == [0, 1]


def test_open_images_ids_with_extensions_are_found_in_lists(tmp_path) -> None:
    rows = [(name, "/m/a", 0, 1, 0, 1, 0) for name in ("a.png", "b.jpg", "c")]
    path = write_csv(tmp_path / "boxes.csv", *rows)
    listed = tmp_path / "list.txt"
    listed.write_text("c.jpg\na\n")
    some = read_open_images(path, images=str(tmp_path), image_list=str(listed))
    assert some.images["file"].tolist() == ["c.jpg", "a.png"]
    assert some.boxes["image"].tolist() == [0, 1]


def test_open_images_real_boxes(data_dir, tmp_path) -> None:
    import pandas as pd

    real = pd.read_csv(data_dir / "openimages/val_annotations_names.csv")
    real["IsGroupOf"] = 0
    path = tmp_path / "val.csv"
    real.to_csv(path, index=False)
    annotations = read_open_images(str(path), images=str(tmp_path))
    assert len(annotations.images) == 3520
    assert annotations.images["file"][17] == "i17.jpg"
    assert len(annotations.boxes) == 36191  # the row after the last box is an image without one
    assert len(annotations.classes) == 497
    own = annotations.boxes[annotations.boxes["image"] == 17]
    expected = real[real["ImageID"] == annotations.images["source_id"][17]]
    np.testing.assert_array_equal(own["x1"], expected["XMin"])
    np.testing.assert_array_equal(own["y2"], expected["YMax"])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is empty"),
        (",".join(ALL_COLUMNS) + "\n", "has a header and no row"),
        (";".join(ALL_COLUMNS) + "\na;b\n", "separated by ';'"),
        ("ImageID,LabelName,XMin,XMax,YMin,IsGroupOf\na,b,0,1,0,0\n", "lacks the column YMax"),
        ("ImageID,LabelName\n", "lacks the columns XMin, XMax, YMin, YMax, IsGroupOf"),
        (",".join(ALL_COLUMNS) + "\n,xclick,/m/a,1,0,1,0,1,0,0,0,0,0\n", "line 2 has no ImageID"),
    ],
)
def test_unusable_csv_files(tmp_path, text: str, message: str) -> None:
    path = tmp_path / "boxes.csv"
    path.write_text(text)
    with pytest.raises(UserError, match=message):
        read_open_images(str(path), images=str(tmp_path))


def coco_text(**changed: object) -> str:
    """A COCO file with one image, some of whose fields are changed."""
    image = {"id": 1, "file_name": "a.jpg", "height": 10, "width": 10} | changed
    categories = [{"id": 1, "name": "cat"}, {"id": "b", "name": "dog"}]
    return json.dumps({"images": [image], "annotations": [], "categories": categories})


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "not JSON"),
        ("[]", "not COCO JSON"),
        ('{"images": [{"id": 1}], "annotations": []}', "'file_name'; no list 'categories'"),
        ('{"images": [], "annotations": [], "categories": []}', "no image"),
        (
            '{"images": [], "annotations": [], "categories": '
            '[{"id": 1, "name": "a"}, {"id": 1, "name": "b"}]}',
            "used twice: 1",
        ),
        ("[" * 100_000, "not JSON"),
        ('{"images": ' + "9" * 5000 + "}", "not JSON"),
        (
            coco_text(id=[1]),
            r"'id' of 1 of 1 entries in 'images' is not a number or string, such as \[1\]",
        ),
        (coco_text(file_name=3), "'file_name' of 1 of 1 entries in 'images' is not a file name"),
        (coco_text(height="tall"), "'height' of 1 of 1 entries .* is not a number, such as 'tall'"),
        (coco_text(width=10**400), "'width' of 1 of 1 entries"),
        (coco_text(file_name="\udcff.jpg"), r"1 'file_name' in .* as UTF-8, .*\\udcff.jpg"),
    ],
)
def test_unusable_json_files(tmp_path, text: str, message: str) -> None:
    path = tmp_path / "boxes.json"
    path.write_text(text)
    with pytest.raises(UserError, match=message):
        read_coco(str(path))


def test_boxes_and_category_ids_of_any_size(tmp_path) -> None:
    content = json.loads(coco_text())
    boxes = [[10**400, 0, 1, 1], [1e308, 0, 1e308, 1], [0, 0, "1", 1], {}, [True, 0, 1, 1]]
    content["annotations"] = [
        {"image_id": 1, "category_id": 1, "bbox": box, "area": 10**400} for box in boxes
    ]
    content["categories"] += [{"id": 10 + n, "name": f"c{n}"} for n in range(100_000)]
    path = tmp_path / "boxes.json"
    path.write_text(json.dumps(content))
    begin = time.monotonic()
    annotations = read_coco(str(path))
    assert time.monotonic() - begin < 30
    assert len(annotations.boxes) == 5
    assert annotations.boxes["area"].isna().all()
    assert [entry.identifier for entry in annotations.classes][-1] == "b"


def test_broken_xml_files_are_counted_and_named(tmp_path) -> None:
    directory = tmp_path / "Annotations"
    write_xml(directory, "good", thing("dog", 1, 2, 11, 22))
    (directory / "cut.xml").write_text("<annotation><object>")
    (directory / "page.xml").write_text("<html/>")
    os.mkfifo(directory / "waits.xml")
    message = r"(?s)3 of 4 files.*cut.xml: .*page.xml: .*<html>.*waits.xml: it is a device or FIFO"
    with pytest.raises(UserError, match=message):
        read_voc(str(directory), images=str(tmp_path))
