"""A class list for annotations that number their classes otherwise: names decide."""

import json
from pathlib import Path

import pytest

from tpudet.detection.commands import make_tfrecords
from tpudet.detection.preparation.sources.coco import read_coco
from tpudet.detection.preparation.sources.yolo import read_yolo
from tpudet.detection.preparation.sources.yolo_layout import find_yolo_set
from tpudet.trainkit.errors import UserError


def write_coco_of(folder: Path, name: str, categories: dict[int, str]) -> Path:
    """An image with a box of the width 10 * id for each category."""
    content = {
        "images": [{"id": 1, "file_name": "a.jpg", "width": 64, "height": 48}],
        "annotations": [
            {"image_id": 1, "category_id": number, "bbox": [1, 2, 10 * number, 20]}
            for number in categories
        ],
        "categories": [{"id": number, "name": text} for number, text in categories.items()],
    }
    path = folder / name
    path.write_text(json.dumps(content))
    return path


def class_names(annotations) -> list[str]:
    """The name of the class of each box."""
    ids = annotations.class_ids()
    return [annotations.classes[ids[label] - 1].name for label in annotations.boxes["label"]]


def test_two_files_that_number_the_same_classes_otherwise(
    encoded_image, tmp_path, read_back, capsys
) -> None:
    (tmp_path / "a.jpg").write_bytes(encoded_image())
    train = write_coco_of(tmp_path, "train.json", {1: "cat", 2: "dog"})
    val = write_coco_of(tmp_path, "val.json", {1: "dog", 2: "cat"})
    output = tmp_path / "part"
    common = ["--format", "coco", "--images", str(tmp_path), "--output", str(output)]
    common += ["--workers", "1"]
    assert make_tfrecords.main([*common, "--annotations", str(train), "--split", "train"]) == 0
    command = [*common, "--annotations", str(val), "--split", "val"]
    assert make_tfrecords.main(command) == 2
    said = capsys.readouterr().err
    assert f"{output}/classes.csv" in said
    assert "take that file as the class list here too" in said
    assert make_tfrecords.main([*command, "--classes", f"{output}/classes.csv"]) == 0
    widths = {}
    for split in ("train", "val"):
        (image,) = read_back(output, split)
        rows = zip(image.labels, image.boxes.tolist(), strict=True)
        widths[split] = {label: round(box[3] - box[1]) for label, box in rows}
    assert widths == {"train": {1: 10, 2: 20}, "val": {1: 20, 2: 10}}  # 1 is cat in both


def test_class_numbers_of_a_data_yaml_follow_its_names(tmp_path) -> None:
    (tmp_path / "images").mkdir()
    (tmp_path / "images/a.jpg").write_bytes(b"")
    (tmp_path / "images/a.txt").write_text("0 0.5 0.5 0.2 0.2\n1 0.5 0.5 0.4 0.4\n")
    (tmp_path / "data.yaml").write_text("train: images\nnames: [dog, cat]\n")
    (tmp_path / "classes.csv").write_text("0,cat\n1,dog\n")
    dataset = find_yolo_set(str(tmp_path / "data.yaml"), ["train"])
    annotations = read_yolo(dataset, classes=str(tmp_path / "classes.csv"))
    assert annotations.boxes["label"].tolist() == ["1", "0"]
    assert class_names(annotations) == ["dog", "cat"]


@pytest.mark.parametrize(
    ("categories", "listed", "found"),
    [
        ({1: "cat", 2: "dog"}, "cat,cat\ndog,dog\n", ["cat", "dog"]),  # as VOC makes it
        ({1: "cat", 2: "dog"}, "2,dog\n", ["dog"]),  # other boxes are of an unknown class
        ({1: "Cat", 2: "dog"}, "1,cat\n2,dog\n", ["cat", "dog"]),
        ({1: "cat", 2: "cat"}, "1,tabby\n2,siamese\n", ["tabby", "siamese"]),  # names repeat
        ({1: "1", 2: "2"}, "2,dog\n1,cat\n", ["cat", "dog"]),  # no names
        ({1: "cat", 2: "dog"}, "1,1\n2,2\n", ["1", "2"]),
        ({1: "/m/cat", 2: "/m/dog"}, "/m/dog,dog\n/m/cat,cat\n", ["cat", "dog"]),
    ],
)
def test_names_decide_where_there_are_any(tmp_path, categories, listed, found) -> None:
    path = write_coco_of(tmp_path, "a.json", categories)
    (tmp_path / "classes.csv").write_text(listed)
    annotations = read_coco(str(path), classes=str(tmp_path / "classes.csv"))
    ids = annotations.class_ids()
    known = annotations.boxes["label"].isin(list(ids))
    assert class_names(annotations._replace(boxes=annotations.boxes[known])) == found


def test_an_identifier_of_another_class_is_refused(tmp_path) -> None:
    path = write_coco_of(tmp_path, "a.json", {1: "cat", 2: "dog"})
    (tmp_path / "classes.csv").write_text("1,plane\n2,dog\n")
    with pytest.raises(UserError, match=r"call the same class differently: 1 is cat, there plane"):
        read_coco(str(path), classes=str(tmp_path / "classes.csv"))
