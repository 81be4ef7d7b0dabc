"""The COCO JSON against the TFRecords of the same CSV, record by record, on odd boxes and files."""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from pycocotools.coco import COCO

from tpudet.detection.commands import gen_tfrecords, make_tfrecords
from tpudet.detection.commands.gen_coco_val_json import main

ROWS = [
    ("turned", "/m/b", 0.25, 0.5, 0.125, 0.5, 0),
    ("plain", "/m/a", 0.1, 0.3, 0.2, 0.4, 1),
    ("other", "/m/zzz", 0.1, 0.3, 0.2, 0.4, 0),  # no class of the part
    ("plain", "/m/b", -0.1, 0.5, 0.5, 1.5, 0),  # clipped
    ("cut", "/m/a", 0.1, 0.3, 0.2, 0.4, 0),  # a truncated file
    ("plain", "Bird", 0.9, 0.7, 0.8, 0.6, 0),  # swapped, and by its name
    ("plain", "/m/a", 0.1, 0.3, 0.2, 0.4, 1),  # a duplicate
    ("plain", "/m/a", "nan", 0.3, 0.2, 0.4, 0),
    ("plain", "/m/zzz", 0.1, 0.3, 0.2, 0.4, 0),
    ("bare", "/m/a", 0.5, 0.5, 0.2, 0.4, 0),  # without size: an image without objects
    ("small.png", "/m/b", 0.123456, 0.654321, 0.0001, 0.9999, -1),
    ("none", "", "", "", "", "", ""),  # an image without objects
]


@pytest.fixture
def odd_set(
    write_box_csv: Callable[..., str], encoded_image: Callable[..., bytes], tmp_path: Path
) -> list[str]:
    """The arguments OUTPUT INPUT CLASSES --image_dir DIR."""
    exif = Image.Exif()
    exif[0x0112] = 6
    images = tmp_path / "images"
    images.mkdir()
    encoded_images = {
        "turned.jpg": encoded_image(exif=exif),
        "cut.jpg": encoded_image()[:-200],
        "small.png": encoded_image(width=37, height=23, kind="PNG"),
        **{f"{name}.jpg": encoded_image() for name in ("plain", "other", "bare", "none")},
    }
    for name, encoded in encoded_images.items():
        (images / name).write_bytes(encoded)
    classes = tmp_path / "classes.csv"
    classes.write_text("/m/a,Ant\n/m/b,Bird\n/m/never,Never\n")
    source = write_box_csv(tmp_path / "boxes.csv", *ROWS)
    return [str(tmp_path / "val.json"), source, str(classes), "--image_dir", str(images)]


def assert_same(path: str, records: list) -> None:
    """Every number of the JSON is that of the record whose number is the image's id."""
    content = json.loads(Path(path).read_text())
    assert [image["id"] for image in content["images"]] == list(range(len(records)))
    assert [a["id"] for a in content["annotations"]] == list(
        range(1, len(content["annotations"]) + 1)
    )
    for image, record in zip(content["images"], records, strict=True):
        own = [a for a in content["annotations"] if a["image_id"] == image["id"]]
        assert image["source_id"] == record.source_id
        assert (image["height"], image["width"]) == (record.height, record.width)
        assert [a["category_id"] for a in own] == record.labels
        assert [bool(a["iscrowd"]) for a in own] == record.is_crowd
        np.testing.assert_allclose([a["area"] for a in own], record.areas, rtol=1e-6)
        y1, x1, y2, x2 = record.boxes.reshape(-1, 4).T
        expected = np.stack([x1, y1, x2 - x1, y2 - y1], axis=1)
        found = np.array([a["bbox"] for a in own]).reshape(-1, 4)
        np.testing.assert_allclose(found, expected, atol=1e-5)


def test_numbers_by_hand(odd_set, capsys) -> None:
    assert main(odd_set) == 0
    content = json.loads(Path(odd_set[0]).read_text())
    assert content["categories"] == [
        {"id": 1, "name": "Ant"},
        {"id": 2, "name": "Bird"},
        {"id": 3, "name": "Never"},
    ]
    files = [image["file_name"] for image in content["images"]]
    assert files == ["turned.jpg", "plain.jpg", "bare.jpg", "small.png"]
    turned = content["images"][0]  # stored 64 wide and 48 high, to be turned by a quarter
    assert turned == {
        **{"id": 0, "file_name": "turned.jpg", "source_id": "turned"},
        **{"height": 64, "width": 48},
    }
    first, group, clipped, swapped, last = content["annotations"]
    assert first["bbox"] == [12, 8, 12, 24]
    assert (first["image_id"], first["category_id"], first["area"]) == (0, 2, 288)
    np.testing.assert_allclose(group["bbox"], [6.4, 9.6, 12.8, 9.6])
    assert (group["image_id"], group["iscrowd"]) == (1, 1)
    assert group["area"] == pytest.approx(12.8 * 9.6)
    assert clipped["bbox"] == [0, 24, 32, 24]
    np.testing.assert_allclose(swapped["bbox"], [44.8, 28.8, 12.8, 9.6])
    assert (last["image_id"], last["iscrowd"]) == (3, 0)  # -1 is unknown, no group
    out = capsys.readouterr().out
    assert "4 images, 5 boxes, 3 classes." in out
    for words in (
        "1 exact duplicate of a box (plain.jpg)",
        "1 zero-size box (bare.jpg)",
        "1 truncated JPEG: its end marker is missing (cut.jpg)",
        "1 box clipped to the image (plain.jpg)",
    ):
        assert words in out


def test_the_records_of_gen_tfrecords(odd_set, tmp_path, read_back) -> None:
    _, source, classes, _, images = odd_set
    output = tmp_path / "converted/part"
    arguments = ["--image_info_file", source, "--classes_file", classes, "--image_dir", images]
    arguments += ["--output", str(output), "--split", "val", "--num_shards", "2"]
    assert gen_tfrecords.main([*arguments, "--workers", "1"]) == 0
    assert main(odd_set) == 0
    records = read_back(output, "val")
    assert (len(records), sum(len(record.labels) for record in records)) == (4, 5)
    assert_same(odd_set[0], records)


def test_the_records_of_make_tfrecords(odd_set, tmp_path, read_back) -> None:
    _, source, classes, _, images = odd_set
    output = tmp_path / "converted/part"
    arguments = ["--format", "open_images", "--annotations", source, "--classes", classes]
    arguments += ["--images", images, "--output", str(output), "--split", "val"]
    assert make_tfrecords.main([*arguments, "--workers", "1", "--num_shards", "2"]) == 0
    assert main([*odd_set, "--keep_all_images", "--image_check", "full"]) == 0
    records = read_back(output, "val")
    assert (len(records), sum(len(record.labels) for record in records)) == (6, 5)
    assert_same(odd_set[0], records)


# pycocotools 2.0.11, the reference here, builds its arrays in a way that NumPy 2 deprecates.
@pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")
def test_pycocotools_reads_it(odd_set) -> None:
    assert main(odd_set) == 0
    coco = COCO(odd_set[0])
    assert sorted(coco.imgs) == [0, 1, 2, 3]
    assert [len(coco.imgToAnns[number]) for number in range(4)] == [1, 3, 0, 1]
    assert coco.getAnnIds(areaRng=[0, 32**2], iscrowd=False) == [1, 3, 4, 5]


def test_real_boxes_of_real_images(data_dir, write_box_csv, tmp_path) -> None:
    images = data_dir / "openimages/kaggle_test_images"
    names = sorted(path.stem for path in images.glob("*.jpg"))
    rows = [(name, "/m/015p6", 0.25, 0.75, 0.25, 0.75, 0) for name in reversed(names)]
    source = write_box_csv(tmp_path / "boxes.csv", *rows)
    classes = data_dir / "openimages/derived/challenge-2019-classes-description-500.csv"
    output = tmp_path / "val.json"
    assert main([str(output), source, str(classes), "--image_dir", str(images)]) == 0
    content = json.loads(output.read_text())
    assert [image["source_id"] for image in content["images"]] == names[::-1]
    number = 1 + [line.split(",")[0] for line in classes.read_text().split("\n")].index("/m/015p6")
    for image, annotation in zip(content["images"], content["annotations"], strict=True):
        with Image.open(images / image["file_name"]) as opened:
            assert opened.size == (image["width"], image["height"])
        assert annotation["area"] == opened.width * opened.height / 4
        assert annotation["category_id"] == number


def test_missing_images_are_counted_and_ten_named(odd_set, write_box_csv, capsys) -> None:
    rows = [(f"gone{number:02}", "/m/a", 0, 1, 0, 1, 0) for number in range(12)]
    write_box_csv(Path(odd_set[1]), *rows, ROWS[1])
    assert main(odd_set) == 2
    message = capsys.readouterr().err
    assert "12 of 13 image files are not in" in message
    assert "gone09.jpg" in message
    assert "gone10.jpg" not in message
    assert not Path(odd_set[0]).exists()


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("boxes.csv", None, "does not exist"),
        ("boxes.csv", "", "is empty"),
        ("boxes.csv", "ImageID;LabelName\na;b\n", "separated by ';'"),
        ("boxes.csv", "ImageID,LabelName\na,b\n", "lacks the columns XMin"),
        ("classes.csv", "/m/x,Xerus\n", "None of the 11 boxes belongs to"),
    ],
)
def test_unusable_inputs(
    odd_set, tmp_path, capsys, name: str, content: str | None, message: str
) -> None:
    (tmp_path / name).unlink()
    if content is not None:
        (tmp_path / name).write_text(content)
    before = sorted(tmp_path.iterdir())
    assert main(odd_set) == 2
    assert message in capsys.readouterr().err
    assert sorted(tmp_path.iterdir()) == before


def test_no_image_can_be_used(odd_set, tmp_path, capsys) -> None:
    for path in (tmp_path / "images").iterdir():
        path.write_bytes(b"")
    before = sorted(tmp_path.iterdir())
    assert main(odd_set) == 2
    assert "No image can be used, nothing was written: 5 empty file" in capsys.readouterr().err
    assert sorted(tmp_path.iterdir()) == before
