"""Inputs as other programs write them, through make_tfrecords and check_data: right or refused."""

import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from tpudet.detection.commands import check_data, make_tfrecords
from tpudet.detection.ops.numpy_masks import encode_rle

CATEGORIES = [{"id": 1, "name": "cat"}, {"id": 2, "name": "dog"}]


class Workbench:
    """A folder with images 1.jpg and 2.jpg, 64x48, and annotations beside it."""

    def __init__(self, folder: Path, encoded: bytes, read_back: Callable) -> None:
        self.folder, self.encoded, self._read_back = folder, encoded, read_back
        self.images = folder / "images"
        self.add_image("1.jpg")
        self.add_image("2.jpg")
        self.output = folder / "part"

    def add_image(self, name: str, encoded: bytes | None = None) -> None:
        path = self.images / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(encoded or self.encoded)

    def coco(self, annotations: list[dict], **changed: Any) -> str:
        images = [{"id": n, "file_name": f"{n}.jpg", "width": 64, "height": 48} for n in (1, 2)]
        content = {"images": images, "annotations": annotations, "categories": CATEGORIES}
        path = self.folder / "instances.json"
        path.write_text(json.dumps(content | changed))
        return str(path)

    def convert(self, kind: str, annotations: object, *more: object) -> int:
        arguments = ["--format", kind, "--annotations", annotations, "--images", self.images]
        arguments += ["--output", self.output, "--split", "val", "--workers", 1, *more]
        return make_tfrecords.main([str(argument) for argument in arguments])

    def check(self, kind: str, annotations: object, *more: object) -> int:
        arguments = ["--format", kind, "--annotations", annotations, "--images", self.images]
        return check_data.main([*map(str, [*arguments, "--workers", 1, *more])])

    def labels(self) -> dict[str, list[int]]:
        """Class ids by image."""
        return {image.source_id: image.labels for image in self._read_back(self.output, "val")}

    def boxes(self) -> list[list[float]]:
        """y1 x1 y2 x2 of all boxes, in pixels."""
        records = self._read_back(self.output, "val")
        return [np.round(box, 2).tolist() for image in records for box in image.boxes]

    def records(self) -> list:
        return self._read_back(self.output, "val")


@pytest.fixture
def bench(tmp_path: Path, encoded_image: Callable, read_back: Callable) -> Workbench:
    return Workbench(tmp_path, encoded_image(), read_back)


def box(image: object = 1, category: object = 1, **more: Any) -> dict:
    return {"image_id": image, "category_id": category, "bbox": [4, 5, 20, 30]} | more


@pytest.mark.parametrize(
    ("in_images", "in_annotations"),
    [(1, "1"), ("1", 1), ("0001", 1), (1, "0001"), (1.0, 1), (1, 1.0), ("1.0", 1)],
)
def test_image_ids_are_equal_whatever_their_type(bench, in_images, in_annotations) -> None:
    images = [{"id": in_images, "file_name": "1.jpg"}, {"id": 2, "file_name": "2.jpg"}]
    path = bench.coco([box(in_annotations), box(2, 2)], images=images)
    assert bench.convert("coco", path) == 0
    assert list(bench.labels().values()) == [[1], [2]]


@pytest.mark.parametrize(("in_categories", "in_annotations"), [(1, 1.0), (1.0, 1), ("01", 1)])
def test_category_ids_are_equal_whatever_their_type(bench, in_categories, in_annotations) -> None:
    categories = [{"id": in_categories, "name": "cat"}, {"id": "2", "name": "dog"}]
    path = bench.coco([box(1, in_annotations), box(2, 2)], categories=categories)
    assert bench.convert("coco", path) == 0
    assert bench.labels() == {"1": [1], "2": [2]}


def test_padded_ids_that_differ_stay_apart(bench) -> None:
    images = [{"id": "01", "file_name": "1.jpg"}, {"id": "1", "file_name": "2.jpg"}]
    assert bench.convert("coco", bench.coco([box("1"), box("1", 2)], images=images)) == 0
    assert bench.labels() == {"01": [], "1": [1, 2]}


def test_ids_of_any_number_of_digits_are_only_unlisted(bench) -> None:
    images = [{"id": "9" * 5000, "file_name": "1.jpg"}, {"id": 2, "file_name": "2.jpg"}]
    path = bench.coco([box("0" + "9" * 5000), box("8" * 5000), box(2, 2)], images=images)
    assert bench.convert("coco", path) == 0
    assert list(bench.labels().values()) == [[1], [2]]


def test_an_image_id_of_two_files_is_refused(bench, capsys) -> None:
    images = [{"id": 1, "file_name": "1.jpg"}, {"id": "1", "file_name": "2.jpg"}]
    path = bench.coco([box()], images=images)
    for command in (bench.convert, bench.check):
        assert command("coco", path) == 2
        assert "1 image ids stand for several files" in capsys.readouterr().err


@pytest.mark.parametrize("flag", ["0", "False", float("nan"), None, 0, False, ""])
def test_crowd_flags_that_mean_no(bench, flag) -> None:
    assert bench.convert("coco", bench.coco([box(iscrowd=flag), box(2, 2, iscrowd="1")])) == 0
    assert [record.is_crowd for record in bench.records()] == [[False], [True]]


@pytest.mark.parametrize("flag", ["1", "True", "yes", 1, 1.0, "1.0", True])
def test_crowd_flags_that_mean_yes(bench, flag) -> None:
    assert bench.convert("coco", bench.coco([box(iscrowd=flag), box(2, 2)])) == 0
    assert [record.is_crowd for record in bench.records()] == [[True], [False]]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"annotations": [box(iscrowd=[0])]}, "'iscrowd' of 1 of 1 entries"),
        ({"annotations": [box(iscrowd="maybe")]}, "such as 'maybe'"),
        ({"annotations": [box(None)]}, "'image_id' of 1 of 1 entries"),
        ({"annotations": [box(1.5)]}, "such as 1.5"),
        ({"categories": [{"id": None, "name": "cat"}]}, "'id' of 1 of 1 entries in 'categories'"),
        ({"images": [{"id": 1, "file_name": None}]}, "'file_name' of 1 of 1"),
        ({"images": [{"id": 1, "file_name": "a\0.jpg"}]}, "is not a file name, such as 'a"),
        ({"categories": []}, "No classes are known, as the annotations define none"),
        ({"annotations": [], "categories": []}, "No classes are known, as the annotations have no"),
        ({"annotations": [box(bbox=[0.1, 0.1, 0.2, 0.3])] * 2}, "so they are fractions of the"),
        ({"annotations": [box(bbox=[40, 40, -20, -30])] * 2}, "2 of 2 boxes end left of where"),
        (
            {"annotations": [box(1, 0), box(2, 1, bbox=[1, 1, 9, 9])]},
            "All class numbers are one lower than those of the classes, which begin with 1 for cat",
        ),
        ({"images": [{"id": 1, "file_name": "1.jpg", "width": "wide"}]}, "such as 'wide'"),
        ({"images": [{"id": 1, "file_name": "../1.jpg"}]}, "1 file names of the annotations lead"),
        ({"images": [{"id": 1, "file_name": "/etc/1.jpg"}]}, "lead outside --images"),
        ({"images": [{"id": 1, "file_name": "a/../../1.jpg"}]}, "lead outside --images"),
        (
            {"categories": [{"id": 1, "name": "cat"}, {"id": 2, "name": " cat "}]},
            "name 'cat' is also in row 1",
        ),
        ({"categories": [{"id": 1, "name": ""}]}, "row 1: the name is empty"),
    ],
)
def test_values_that_are_refused_by_both_commands(bench, capsys, change, message) -> None:
    path = bench.coco(**({"annotations": [box()]} | change))
    for command in (bench.convert, bench.check):
        assert command("coco", path) == 2
        error = capsys.readouterr().err
        assert message in error
        assert "Traceback" not in error


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("cam/1.jpg", "such as cam/1.jpg; it has 1.jpg: call it so in the annotations."),
        ("deep.jpg", "such as deep.jpg; it has a/deep.jpg: call it so in the annotations."),
        ("1", "such as 1; it has 1.jpg, of another extension: rename either."),
        ("1.png", "such as 1.png; it has 1.jpg, of another extension: rename either."),
        ("/content/1.jpg", ": /content/1.jpg; it has 1.jpg: call it so in the annotations."),
        ("C:\\photos\\1.jpg", "such as C:/photos/1.jpg; it has 1.jpg: call it so in the"),
        ("other.jpg", "such as other.jpg.\n"),
    ],
)
def test_what_the_folder_calls_a_missing_image_is_said(bench, capsys, name, hint) -> None:
    bench.add_image("a/deep.jpg")
    path = bench.coco([box()], images=[{"id": 1, "file_name": name}])
    for command in (bench.convert, bench.check):
        assert command("coco", path) == 2
        assert hint in capsys.readouterr().err


@pytest.mark.parametrize("size", [0, -1, "", None, float("nan"), "64"])
def test_sizes_that_are_not_known_are_those_of_the_file(bench, size) -> None:
    height = "48" if size == "64" else size
    images = [{"id": 1, "file_name": "1.jpg", "width": size, "height": height}]
    assert bench.convert("coco", bench.coco([box(bbox=[60, 5, 20, 30])], images=images)) == 0
    assert bench.boxes() == [[5, 60, 35, 64]]


def test_boxes_as_text_are_read_and_other_text_is_shown(bench, capsys) -> None:
    boxes = [box(bbox=["4", "5", "20", "30"]), box(2, bbox=["0,358", 5, 20, 30])]
    assert bench.convert("coco", bench.coco(boxes)) == 0
    assert bench.boxes() == [[5, 4, 35, 24]]
    assert "cat" not in capsys.readouterr().err
    manifest = json.loads((bench.output / "val_part.manifest.json").read_text())
    (fault,) = [f for f in manifest["left_out"] if f["reason"] == "box that cannot be read"]
    assert "'0,358'" in fault["detail"]


def test_annotations_without_bbox_get_that_of_their_polygons(bench) -> None:
    shapes = [
        [[4, 5, 24, 5, 24, 35]],
        [4, 5, 24, 5, 24, 35],
        [[4, 5, 9, 9, 4, 9], [20, 30, 24, 35, 20, 35]],
    ]
    path = bench.coco([{"image_id": 1, "category_id": 1, "segmentation": s} for s in shapes])
    assert bench.convert("coco", path) == 0
    assert bench.boxes() == [[5, 4, 35, 24]]  # all the same, so once


@pytest.mark.parametrize("is_crowd", [0, 1])
def test_annotations_without_bbox_get_that_of_their_run_lengths(bench, capsys, is_crowd) -> None:
    # Down the columns of an image 48 high: rows 5 to 34 of the columns 4 to 23.
    outside, inside = [4 * 48 + 5, *[18] * 19, 24 * 48], [30] * 20
    outside[-1] = 48 * 64 - sum(outside[:-1]) - sum(inside)
    counts = [run for pair in zip(outside, inside, strict=False) for run in pair] + outside[-1:]
    mask = np.zeros((48, 64), np.uint8)
    mask[5:35, 4:24] = 1
    shapes = [
        {"size": [48, 64], "counts": counts},
        encode_rle(mask),
        {"size": [48, 64], "counts": counts[:-1]},  # cut off
        {"size": [48, 64], "counts": [48 * 64]},  # nothing inside
        {"size": [64, 48], "counts": counts},  # of an image that lies on its side
    ]
    path = bench.coco(
        [{"image_id": 1, "category_id": 1, "segmentation": s, "iscrowd": is_crowd} for s in shapes]
        + [box(2, 2)]
    )
    assert bench.convert("coco", path) == 0
    assert bench.boxes()[:1] == [[5, 4, 35, 24]]
    assert [record.is_crowd[:1] for record in bench.records()] == [[bool(is_crowd)], [False]]
    printed = capsys.readouterr().out
    assert "2  box without bbox: that of its run lengths" in printed


def test_a_set_that_loses_its_boxes_is_refused(bench, capsys) -> None:
    path = bench.coco([box(7), box(7, 2)])
    assert bench.convert("coco", path) == 2
    error = capsys.readouterr().err
    assert "would lose all 2 boxes" in error
    assert "2 box of an image that is not listed (such as image_id 7: annotation None)" in error
    assert not (bench.output / "val_part.manifest.json").exists()
    assert bench.convert("coco", path, "--allow_empty") == 0
    assert bench.labels() == {"1": [], "2": []}


def test_a_class_that_loses_its_boxes_is_refused(bench, capsys) -> None:
    path = bench.coco([box(), box(2, 2, bbox=[4, 5, 0, 30])])
    for command in (bench.convert, bench.check):
        assert command("coco", path) == 2
        assert "would lose all boxes of dog (1)" in capsys.readouterr().err
    assert bench.convert("coco", path, "--dry_run") == 2
    # A class that never had a box loses none.
    assert bench.convert("coco", bench.coco([box()])) == 0


def test_a_label_that_is_no_class_is_refused_unless_a_list_chose_others(
    bench, tmp_path, capsys
) -> None:
    path = bench.coco([box(), box(2, 2), box(2, 7)])
    for command in (bench.convert, bench.check):
        assert command("coco", path) == 2
        error = capsys.readouterr().err
        assert "would lose all boxes of '7', which is no class (1). Left out: 1 unknown" in error
        assert "All class numbers" not in error
    assert bench.convert("coco", path, "--allow_empty") == 0
    classes = tmp_path / "classes.csv"
    classes.write_text("1,cat\n")
    assert bench.convert("coco", path, "--classes", classes, "--overwrite") == 0
    assert bench.labels() == {"1": [1], "2": []}


def test_boxes_that_may_be_in_another_layout_are_said(bench, capsys) -> None:
    """Corners read as x, y, width, height end beyond the image; an overhang of a pixel is usual."""
    for corners, is_said in (([30, 20, 60, 40], True), ([30, 20, 34.5, 20], False)):
        assert bench.check("coco", bench.coco([box(bbox=corners), box(2, bbox=corners)])) == 0
        assert ("they may be corners x1, y1, x2, y2" in capsys.readouterr().out) == is_said


def test_pixels_within_the_first_are_told_from_fractions(bench, capsys) -> None:
    small = box(bbox=[0, 0, 1, 1])
    assert bench.convert("coco", bench.coco([small, box(2)])) == 0
    assert bench.convert("coco", bench.coco([box(bbox=[0.5, 0.5, 0, 0])]), "--overwrite") == 2
    assert "Left out: 1 zero-size box" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("corners", "message"),
    [
        ((0.1, 0.2, 0.3, 0.5), "fractions of the image and not pixels: multiply each <bndbox>"),
        ((40, 30, 20, 10), "2 of 2 boxes end left of where they begin"),
    ],
)
def test_voc_boxes_in_another_unit_or_layout_are_refused(
    bench, tmp_path, capsys, corners, message
) -> None:
    folder = tmp_path / "ann"
    folder.mkdir()
    for name in "12":
        (folder / f"{name}.xml").write_bytes(xml(thing("cat", corners)))
    for command in (bench.convert, bench.check):
        assert command("voc", folder) == 2
        assert message in capsys.readouterr().err


def test_listed_images_are_those_of_the_listed_folder(bench, tmp_path, capsys) -> None:
    for name in ("cam1/0001.jpg", "cam2/0001.jpg", "3.png"):
        bench.add_image(name)
    bench.add_image("3.jpg")
    names = ["cam1/0001.jpg", "cam2/0001.jpg", "3.jpg", "3.png"]
    images = [{"id": n, "file_name": name} for n, name in enumerate(names)]
    path = bench.coco([box(n) for n in range(4)], images=images)
    listed = tmp_path / "list.txt"
    for text, ids in (
        ("cam1/0001.jpg", ["0"]),
        ("cam2/0001", ["1"]),
        (f"{bench.images}/cam2/0001.jpg", ["1"]),
        ("other\\images\\cam1\\0001.jpg\n3.jpg", ["0", "2"]),
    ):
        listed.write_text(text)
        assert bench.convert("coco", path, "--image_list", listed, "--overwrite") == 0
        assert sorted(bench.labels()) == ids
    for text in ("0001.jpg", "3"):
        listed.write_text(text)
        assert bench.convert("coco", path, "--image_list", listed, "--overwrite") == 2
        assert "do not tell which image they mean" in capsys.readouterr().err


def test_listed_open_images_are_those_of_the_listed_folder(bench, write_box_csv, tmp_path) -> None:
    bench.add_image("train/a1.jpg")
    bench.add_image("val/a1.jpg")
    rows = [("train/a1.jpg", "/m/a", 0, 0.5, 0, 0.5, 0), ("val/a1.jpg", "/m/b", 0, 1, 0, 1, 0)]
    path = write_box_csv(tmp_path / "boxes.csv", *rows)
    listed = tmp_path / "list.txt"
    listed.write_text("train/a1.jpg\n")
    assert bench.convert("open_images", path, "--image_list", listed) == 0
    assert bench.labels() == {"train/a1.jpg": [1]}


def xml(objects: str, encoding: str = "UTF-8") -> bytes:
    head = f'<?xml version="1.0" encoding="{encoding}"?>'
    return f"{head}<annotation>{objects}</annotation>".encode(encoding)


def thing(name: str, *boxes: tuple) -> str:
    sides = ("xmin", "ymin", "xmax", "ymax")
    texts = [
        "".join(f"<{s}>{v}</{s}>" for s, v in zip(sides, corners, strict=True)) for corners in boxes
    ]
    return f"<object><name>{name}</name>{''.join(f'<bndbox>{t}</bndbox>' for t in texts)}</object>"


def test_voc_files_of_other_systems(bench, tmp_path, capsys) -> None:
    """Several boxes in an object, upper case names, Chinese encodings, macOS copies."""
    folder = tmp_path / "ann"
    folder.mkdir()
    (folder / "1.XML").write_bytes(xml(thing("cat", (4, 5, 24, 35), (1, 2, 9, 9), (0, 0, 5, 5))))
    (folder / "2.xml").write_bytes(xml(thing("猫", (4, 5, 24, 35)), "gb2312"))
    (folder / "._2.xml").write_bytes(b"\x00\x05\x16\x07")
    bench.add_image("._1.jpg", b"\x00\x05\x16\x07")
    assert bench.convert("voc", folder) == 0
    assert bench.labels() == {"1": [1, 1, 1], "2": [2]}
    assert (bench.output / "classes.csv").read_text() == "cat,cat\n猫,猫\n"
    (folder / "1.xml").write_bytes(xml(""))
    assert bench.convert("voc", folder) == 2
    assert "1.XML and 1.xml" in capsys.readouterr().err


def test_voc_numbers_and_names_that_cannot_be_read(bench, tmp_path, capsys) -> None:
    folder = tmp_path / "ann"
    folder.mkdir()
    good = thing("cat", (4, 5, 24, 35))
    (folder / "1.xml").write_bytes(xml(good + thing("cat", ("10,5", 5, 24, 35)) + thing("dog")))
    (folder / "2.xml").write_bytes(xml(good + thing("", (4, 5, 24, 35))))
    assert bench.convert("voc", folder) == 2
    error = capsys.readouterr().err
    assert "all boxes of dog (1)" in error
    assert "2 box that cannot be read (such as 1.jpg: cat xmin '10,5')" in error
    assert bench.convert("voc", folder, "--allow_empty") == 0
    assert bench.labels() == {"1": [1], "2": [1]}
    summary = capsys.readouterr().out
    assert "1.jpg (cat xmin '10,5')" in summary
    assert "1.jpg (dog no <bndbox>)" in summary
    assert "box without a class\n           2.jpg" in summary
    assert bench.check("voc", folder) == 2
    assert "all boxes of dog (1)" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([("1", "/m/a", '"0,1"', 0.5, 0, 0.5, 0)], "XMin of line 2 is '0,1'"),
        ([("1", "/m/a", 4, 24, 5, 35, 0), ("2", "/m/a", 0, 40, 0, 30, 0)], "is in pixels"),
    ],
)
def test_box_csvs_in_other_units_are_refused(
    bench, write_box_csv, tmp_path, capsys, rows, message
) -> None:
    assert bench.convert("open_images", write_box_csv(tmp_path / "boxes.csv", *rows)) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("classes", "status", "message"),
    [
        ("/m/a,cat\r/m/b,dog\r", 0, ""),
        ("LabelName,DisplayName\n/m/a,cat\n", 2, "is a header"),
        ("id,name\n/m/a,cat\n", 2, "is a header"),
        ('/m/a,"' + "x" * 140_000, 2, "not a CSV"),
    ],
)
def test_class_lists_of_other_programs(
    bench, write_box_csv, tmp_path, capsys, classes, status, message
) -> None:
    path = write_box_csv(tmp_path / "boxes.csv", ("1", "/m/a", 0, 0.5, 0, 0.5, 0))
    listed = tmp_path / "classes.csv"
    listed.write_bytes(classes.encode())
    assert bench.convert("open_images", path, "--classes", listed) == status
    assert message in capsys.readouterr().err
    if status == 0:
        assert (bench.output / "classes.csv").read_text() == "/m/a,cat\n/m/b,dog\n"


def test_a_tiff_with_alpha_keeps_its_colours(bench) -> None:
    pixels = np.full((48, 64, 4), (200, 100, 50, 0), np.uint8)
    pixels[:, 32:, 3] = 128
    for name, kind in (("1.tif", "TIFF"), ("2.png", "PNG")):
        stream = io.BytesIO()
        Image.fromarray(pixels).save(stream, kind)
        bench.add_image(name, stream.getvalue())
    images = [{"id": n, "file_name": name} for n, name in enumerate(("1.tif", "2.png"))]
    assert bench.convert("coco", bench.coco([box(0), box(1)], images=images)) == 0
    for record in bench.records():
        decoded = np.asarray(Image.open(io.BytesIO(record.encoded)))
        assert (decoded == (200, 100, 50)).all()


def test_a_mask_is_drawn_from_its_usable_polygons(bench) -> None:
    square, point = [4, 5, 24, 5, 24, 35, 4, 35], [4, 5, 6, 7]
    path = bench.coco(
        [
            box(segmentation=[point, square]),
            box(2, segmentation=square),
            box(2, segmentation=[point]),
        ]
    )
    assert bench.convert("coco", path, "--include_masks") == 0
    assert bench.labels() == {"1": [1], "2": [1]}
