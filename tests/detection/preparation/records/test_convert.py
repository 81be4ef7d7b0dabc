"""The commands on real data, on every fault at once, and on wrong usage."""

import csv
import io
import json
from collections import Counter
from pathlib import Path

import cv2
import numpy as np
import pytest
import tensorflow as tf
from PIL import Image
from pycocotools.coco import COCO

from tpudet.detection.commands import check_data, make_tfrecords


def convert(kind: str, annotations: Path, images: Path, output: Path, *more: object) -> int:
    arguments = ["--format", kind, "--annotations", annotations, "--images", images]
    arguments += ["--output", output, "--workers", 1, *more]
    return make_tfrecords.main([str(argument) for argument in arguments])


def check(kind: str, annotations: Path, images: Path, *more: object) -> int:
    arguments = ["--format", kind, "--annotations", annotations, "--images", images]
    return check_data.main([str(argument) for argument in (*arguments, "--workers", 1, *more)])


def manifest_of(output: Path, split: str) -> dict:
    return json.loads((output / f"{split}_{output.name}.manifest.json").read_text())


def raw_features(path: Path) -> list[tf.train.Example]:
    records = tf.data.TFRecordDataset(str(path)).as_numpy_iterator()
    return [tf.train.Example.FromString(record) for record in records]


def test_blood_cells_as_they_are(data_dir, tmp_path, read_back, capsys) -> None:
    folder = data_dir / "bccd/BCCD"
    output = tmp_path / "converted/cells"
    images, boxes, left_out = {}, Counter(), []
    for split in ("train", "val", "test"):
        listed = folder / f"ImageSets/Main/{split}.txt"
        more = ("--image_list", listed, "--split", split, "--num_shards", 3)
        assert convert("voc", folder / "Annotations", folder / "JPEGImages", output, *more) == 0
        manifest = manifest_of(output, split)
        images[split] = manifest["images"]
        boxes.update(manifest["boxes_per_class"])
        left_out += [(entry["file"], entry["reason"]) for entry in manifest["left_out"]]
        assert manifest["repaired"] == []
    assert images == {"train": 205, "val": 87, "test": 72}
    # 4888 boxes as annotated, and two of them without size.
    assert boxes == {"RBC": 4155 - 2, "WBC": 372, "Platelets": 361}
    assert sorted(left_out) == [
        ("BloodImage_00338.jpg", "zero-size box"),
        ("BloodImage_00343.jpg", "zero-size box"),
    ]
    assert (output / "classes.csv").read_text() == "Platelets,Platelets\nRBC,RBC\nWBC,WBC\n"
    assert "BloodImage_00338.jpg (RBC x1 504 y1 337 x2 504 y2 337)" in capsys.readouterr().out

    records = [record for split in images for record in read_back(output, split)]
    # test.csv of the data set is a second statement of the same boxes.
    expected: dict[str, list] = {}
    for row in csv.reader((data_dir / "bccd/test.csv").read_text().splitlines()):
        name, kind, *corners = row
        if name != "filename" and corners[0] != corners[1]:
            x1, x2, y1, y2 = map(int, corners)
            label = ("Platelets", "RBC", "WBC").index(kind) + 1
            expected.setdefault(Path(name).stem, []).append((label, y1, x1, y2, x2))
    assert len(records) == 364
    for record in records:
        found = [
            (label, *np.round(box, 3).tolist())
            for label, box in zip(record.labels, record.boxes, strict=True)
        ]
        assert sorted(found) == sorted(expected[record.source_id])
        original = (folder / f"JPEGImages/{record.source_id}.jpg").read_bytes()
        assert record.encoded == original


# pycocotools 2.0.11, the reference here, builds its arrays in a way that NumPy 2 deprecates.
@pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")
@pytest.mark.parametrize(("split", "count"), [("train", 470), ("val", 382)])
def test_coco_converts_whole(data_dir, tmp_path, read_back, split: str, count: int) -> None:
    path = data_dir / f"coco_tiny/annotations/instances_{split}2017.json"
    images = data_dir / f"coco_tiny/{split}2017"
    output = tmp_path / "tiny"
    more = ("--split", split, "--include_masks")
    assert convert("coco", path, images, output, *more) == 0
    manifest = manifest_of(output, split)
    assert (manifest["images"], manifest["boxes"], manifest["left_out"]) == (50, count, [])
    rows = (output / "classes.csv").read_text().splitlines()
    assert (len(rows), rows[0], rows[-1]) == (80, "1,person", "90,toothbrush")

    coco = COCO(str(path))
    category_ids = sorted(coco.cats)
    records = read_back(output, split)
    assert sum(sum(record.is_crowd) for record in records) == 5
    (shard,) = output.glob("*.tfrecord")
    for record, raw in zip(records, raw_features(shard), strict=True):
        annotations = coco.imgToAnns[int(record.source_id)]
        assert record.height == coco.imgs[int(record.source_id)]["height"]
        assert record.labels == [category_ids.index(a["category_id"]) + 1 for a in annotations]
        assert record.is_crowd == [bool(a["iscrowd"]) for a in annotations]
        np.testing.assert_allclose(record.areas, [a["area"] for a in annotations], rtol=1e-6)
        for box, annotation in zip(record.boxes, annotations, strict=True):
            x, y, width, height = annotation["bbox"]
            np.testing.assert_allclose(box, [y, x, y + height, x + width], atol=1e-3)
        masks = raw.features.feature["image/object/mask"].bytes_list.value
        for encoded, annotation in zip(masks, annotations, strict=True):
            mask = cv2.imdecode(np.frombuffer(encoded, np.uint8), cv2.IMREAD_UNCHANGED)
            np.testing.assert_array_equal(mask, coco.annToMask(annotation))


def test_open_images_images_with_boxes_and_without(data_dir, tmp_path, read_back) -> None:
    images = data_dir / "openimages/kaggle_test_images"
    names = sorted(path.stem for path in images.glob("*.jpg"))
    header = "ImageID,Source,LabelName,Confidence,XMin,XMax,YMin,YMax"
    header += ",IsOccluded,IsTruncated,IsGroupOf,IsDepiction,IsInside"
    path = tmp_path / "boxes.csv"
    path.write_text(
        f"{header}\n{names[0]},xclick,/m/015p6,1,0.25,0.5,0.125,1,0,0,0,0,0\n"
        f"{names[2]},xclick,/m/015p6,1,0,1,0,0.5,0,0,1,0,0\n"
    )
    classes = tmp_path / "classes.csv"
    classes.write_text("/m/011k07,Tortoise\n/m/015p6,Bird\n")
    output = tmp_path / "oid"
    more = ("--split", "val", "--classes", classes, "--include_unlabeled")
    assert convert("open_images", path, images, output, *more) == 0
    records = {record.source_id: record for record in read_back(output, "val")}
    assert sorted(records) == names
    assert [len(records[name].labels) for name in names] == [1, 0, 1, 0, 0]
    first, group = records[names[0]], records[names[2]]
    with Image.open(images / f"{names[0]}.jpg") as opened:
        width, height = opened.size
    assert (first.height, first.width, first.labels) == (height, width, [2])
    np.testing.assert_allclose(
        first.boxes[0], [height / 8, width / 4, height, width / 2], atol=1e-3
    )
    assert first.areas[0] == pytest.approx(height * 7 / 8 * width / 4, rel=1e-6)
    assert group.is_crowd == [True]


def faulty_set(write_coco, encode) -> tuple[Path, Path]:
    """Every image fault and some box faults, beside good images."""
    exif = Image.Exif()
    exif[0x0112] = 6
    lying = encode(exif=exif)
    gray16 = io.BytesIO()
    Image.fromarray(np.full((48, 64), 4711, np.uint16)).save(gray16, "PNG")
    cmyk = io.BytesIO()
    Image.open(io.BytesIO(encode())).convert("CMYK").save(cmyk, "JPEG")
    gray = io.BytesIO()
    Image.open(io.BytesIO(encode())).convert("L").save(gray, "JPEG")
    encoded_images = {
        "good.jpg": encode(),
        "gray.jpg": gray.getvalue(),
        "cmyk.jpg": cmyk.getvalue(),
        "sixteen.png": gray16.getvalue(),
        "png.jpg": encode(kind="PNG"),
        "webp.jpg": encode(kind="WEBP"),
        "cut.jpg": encode()[:700],
        "almost.jpg": encode()[:-2],
        "empty.jpg": b"",
        "text.jpg": b"not found",
        "gone.jpg": None,
        "upright.jpg": lying,
        "lying.jpg": lying,
        "resized.jpg": encode(width=32, height=24),
        "unsized.jpg": encode(),
        "trailing.jpg": encode() + b"\0\0\0",
        "negative.jpg": encode(),
    }
    boxes = {name: [(3, 4, 5, 20, 30)] for name in encoded_images}
    boxes["good.jpg"] += [(3, 4, 5, 20, 30), (99, 1, 1, 5, 5), (7, 40, 30, -10, -20)]
    boxes["unsized.jpg"] += [(3, 50, 40, 100, 100), (3, 64, 0, 5, 5)]
    boxes["negative.jpg"] = [(3, 4, 5, 0, 0)]
    sizes = {"upright.jpg": (48, 64), "unsized.jpg": None}
    return write_coco(encoded_images, boxes, sizes)


LEFT_OUT = {
    ("good.jpg", "exact duplicate of a box"),
    ("good.jpg", "unknown class"),
    ("cut.jpg", "truncated JPEG: its end marker is missing"),
    ("almost.jpg", "truncated JPEG: its end marker is missing"),
    ("empty.jpg", "empty file"),
    ("text.jpg", "unreadable: in no known image format"),
    ("gone.jpg", "missing file"),
    ("resized.jpg", "declared size differs from the file's"),
    ("unsized.jpg", "box wholly outside the image"),
    ("negative.jpg", "zero-size box"),
}
REPAIRED = {
    ("good.jpg", "swapped corners of a box put in order"),
    ("cmyk.jpg", "CMYK JPEG converted to RGB"),
    ("sixteen.png", "16-bit PNG reduced to 8 bits"),
    ("png.jpg", "PNG file named .jpg: read as PNG"),
    ("webp.jpg", "WebP converted"),
    ("webp.jpg", "WebP file named .jpg: read as WebP"),
    ("upright.jpg", "turned upright by its EXIF orientation"),
    ("lying.jpg", "turned upright by its EXIF orientation"),
    ("lying.jpg", "boxes drawn on the image as stored: turned upright with it"),
    ("unsized.jpg", "box clipped to the image"),
    ("negative.jpg", "all its boxes left out: kept as an image without objects"),
}


@pytest.mark.parametrize("image_check", ["full", "headers"])
def test_every_fault_is_repaired_or_left_out_and_said(
    write_coco, encoded_image, tmp_path, read_back, capsys, image_check: str
) -> None:
    path, images = faulty_set(write_coco, encoded_image)
    output = tmp_path / "faulty"
    classes = tmp_path / "classes.csv"  # without it, a label that is no class is refused
    classes.write_text("3,cat\n7,dog\n")
    more = ("--split", "test", "--image_check", image_check, "--classes", classes)
    assert convert("coco", path, images, output, *more) == 0
    screen = capsys.readouterr().out
    manifest = manifest_of(output, "test")
    assert {(entry["file"], entry["reason"]) for entry in manifest["left_out"]} == LEFT_OUT
    assert {(entry["file"], entry["reason"]) for entry in manifest["repaired"]} == REPAIRED
    assert manifest["left_out_counts"]["truncated JPEG: its end marker is missing"] == 2
    details = {entry["file"]: entry.get("detail") for entry in manifest["left_out"]}
    assert details["gone.jpg"] == "with 1 box"
    assert details["resized.jpg"] == "declared 64x48, file 32x24; with 1 box"
    for file, reason in LEFT_OUT | REPAIRED:
        assert reason in screen
        assert file in screen

    records = {record.source_id: record for record in read_back(output, "test")}
    assert len(records) == manifest["images"] == 11
    assert sum(len(record.labels) for record in records.values()) == manifest["boxes"] == 12
    content = json.loads(path.read_text())
    for record in records.values():
        decoded = tf.io.decode_image(record.encoded, channels=3).numpy()
        assert decoded.shape == (record.height, record.width, 3)
        declared = content["images"][int(record.source_id) - 1]
        if "width" in declared:
            size = [declared["width"], declared["height"]]
            is_turned = declared["file_name"] == "lying.jpg"
            assert [record.width, record.height] == (size[::-1] if is_turned else size)
    good = records["1"]
    np.testing.assert_allclose(good.boxes, [[5, 4, 35, 24], [10, 30, 30, 40]], atol=1e-4)
    np.testing.assert_allclose(records["15"].boxes[1], [40, 50, 48, 64], atol=1e-4)
    assert records["17"].labels == []
    for example in raw_features(output / "test_faulty-00000-of-00001.tfrecord"):
        # Its digest takes longer than all else that is done to an image that is not decoded.
        assert ("image/key/sha256" in example.features.feature) == (image_check == "full")

    report, command = tmp_path / "report.json", ("coco", path, images, "--classes", classes)
    for _ in range(2):  # its own report is replaced
        assert check(*command, "--report", report) == 1
    found = json.loads(report.read_text())
    assert found["left_out"] == manifest["left_out"]
    assert found["repaired"] == manifest["repaired"]
    with pytest.raises(SystemExit, match="2"):
        check(*command, "--report", tmp_path / "gone/report.json")
    assert "report.json cannot be written: there is no folder" in capsys.readouterr().err
    with pytest.raises(SystemExit, match="2"):
        check(*command, "--report", output / "test_faulty.manifest.json")
    assert "manifest.json exists and is not a report of findings" in capsys.readouterr().err


def test_check_data_is_content_with_good_data_and_writes_nothing(
    write_coco, encoded_image, tmp_path
) -> None:
    encoded_images = {"a.jpg": encoded_image(), "b.jpg": encoded_image(kind="WEBP")}
    path, images = write_coco(encoded_images, {"a.jpg": [(3, 4, 5, 20, 30)]})
    before = sorted(tmp_path.rglob("*"))
    assert check("coco", path, images) == 0
    output = tmp_path / "converted/part"
    assert convert("coco", path, images, output, "--split", "val", "--dry_run") == 0
    assert sorted(tmp_path.rglob("*")) == before


def test_a_mask_that_cannot_be_drawn_takes_its_box_along(
    write_coco, encoded_image, tmp_path, read_back
) -> None:
    path, images = write_coco(
        {"a.jpg": encoded_image()},
        {"a.jpg": [(3, 4, 5, 20, 30), (3, 1, 1, 9, 9), (7, 0, 0, 9, 9)]},
    )
    content = json.loads(path.read_text())
    content["annotations"][0]["segmentation"] = [[4, 5, 24, 5, 24, 35, 4, 35]]
    content["annotations"][1]["segmentation"] = [[4, 5]]
    path.write_text(json.dumps(content))
    output = tmp_path / "masks"
    options = ("--split", "val", "--include_masks", "--allow_empty")  # it is the only dog
    assert convert("coco", path, images, output, *options) == 0
    manifest = manifest_of(output, "val")
    assert manifest["left_out_counts"] == {"object without a usable mask": 2}
    details = [entry["detail"] for entry in manifest["left_out"]]
    assert [detail.partition(": ")[2] for detail in details] == ["no polygon", "no segmentation"]
    assert [record.labels for record in read_back(output, "val")] == [[1]]


def test_train_is_shuffled_by_the_seed_and_other_splits_are_not(
    write_coco, encoded_image, tmp_path, read_back
) -> None:
    boxes = {"0.jpg": [(3, 4, 5, 20, 30)]}
    path, images = write_coco({f"{n}.jpg": encoded_image() for n in range(12)}, boxes)
    orders = {}
    for name, split, seed in (
        ("a", "train", 0),
        ("b", "train", 0),
        ("c", "train", 1),
        ("a", "val", 0),
    ):
        output = tmp_path / name / "part"
        more = ("--split", split, "--seed", seed, "--num_shards", 5)
        assert convert("coco", path, images, output, *more) == 0
        orders[name, split] = [int(record.source_id) for record in read_back(output, split)]
    assert orders["a", "val"] == list(range(1, 13))
    assert orders["a", "train"] == orders["b", "train"]
    assert len({tuple(order) for order in orders.values()}) == 3
    assert all(sorted(order) == list(range(1, 13)) for order in orders.values())


def test_everything_lies_in_memory_when_asked(write_coco, encoded_image) -> None:
    path, images = write_coco({"a.jpg": encoded_image()}, {"a.jpg": [(3, 4, 5, 20, 30)]})
    for local in (path, images / "a.jpg"):
        tf.io.gfile.makedirs("ram://in")
        tf.io.gfile.copy(str(local), f"ram://in/{local.name}", overwrite=True)
    arguments = ["--format", "coco", "--annotations", "ram://in/instances.json", "--workers", "1"]
    arguments += ["--images", "ram://in", "--output", "ram://out/part", "--split", "val"]
    assert make_tfrecords.main(arguments) == 0
    names = sorted(tf.io.gfile.listdir("ram://out/part"))
    assert names == [
        "classes.csv",
        "val_part-00000-of-00001.tfrecord",
        "val_part-00000-of-00001.tfrecord.offsets",
        "val_part.manifest.json",
    ]
