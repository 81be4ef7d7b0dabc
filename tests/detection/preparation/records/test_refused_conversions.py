"""Refusals of make_tfrecords and check_data: their words and exit codes."""

import json
from pathlib import Path

import pytest

from tpudet.detection.commands import check_data, make_tfrecords


def convert(annotations: Path, images: Path, output: Path, *more: object) -> int:
    arguments = ["--format", "coco", "--annotations", annotations, "--images", images]
    arguments += ["--output", output, "--workers", 1, *more]
    return make_tfrecords.main([str(argument) for argument in arguments])


def test_other_classes_in_the_same_part_are_refused(
    write_coco, encoded_image, tmp_path, capsys
) -> None:
    path, images = write_coco({"a.jpg": encoded_image()}, {"a.jpg": [(3, 1, 1, 9, 9)]})
    output = tmp_path / "part"
    assert convert(path, images, output, "--split", "train") == 0
    classes = tmp_path / "other.csv"
    classes.write_text("3,cat\n8,wolf\n7,dog\n")
    more = ("--split", "val", "--classes", classes)
    assert convert(path, images, output, *more) == 2
    message = capsys.readouterr().err
    assert "row 2 is '7,dog' there and '8,wolf' here" in message
    assert f"{output}/classes.csv" in message
    assert "or pass --overwrite if all splits there are to be replaced" in message
    assert not list(output.glob("val_*"))
    assert convert(path, images, output, *more, "--overwrite") == 2
    assert "that are not replaced: train_part-00000-of-00001" in capsys.readouterr().err
    assert (output / "classes.csv").read_text() == "3,cat\n7,dog\n"


def test_overwriting_all_splits_replaces_their_class_list(
    write_coco, encoded_image, tmp_path
) -> None:
    boxes = {name: [(7, 1, 1, 9, 9)] for name in ("a.jpg", "b.jpg")}
    path, images = write_coco(dict.fromkeys(boxes, encoded_image()), boxes)
    output, classes = tmp_path / "part", tmp_path / "other.csv"
    classes.write_text("8,wolf\n7,dog\n")
    division = ("--split", "train=0.5,val=0.5")
    assert convert(path, images, output, *division) == 0
    assert convert(path, images, output, *division, "--classes", classes, "--overwrite") == 0
    assert (output / "classes.csv").read_text() == classes.read_text()
    for split in ("train", "val"):
        manifest = json.loads((output / f"{split}_part.manifest.json").read_text())
        assert manifest["boxes_per_class"] == {"wolf": 0, "dog": 1}
    assert convert(path, images, output, *division, "--classes", classes) == 0


def test_names_that_differ_in_case_only_are_shown(
    write_coco, encoded_image, tmp_path, capsys
) -> None:
    path, images = write_coco({"A.JPG": encoded_image()}, {})
    (images / "A.JPG").rename(images / "a.jpg")
    assert convert(path, images, tmp_path / "part", "--split", "val") == 2
    assert "such as A.JPG; it has a.jpg: rename either." in capsys.readouterr().err


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"--annotations": "nowhere.json"}, "--annotations nowhere.json does not exist"),
        ({"--annotations": "."}, "is a directory; a file is expected"),
        ({"--images": "nowhere"}, "--images nowhere does not exist"),
        (
            {"--images": "{tmp}"},
            "has none of the first 1 images of the annotations, such as a.jpg",
        ),
        ({"--classes": "nowhere.csv"}, "--classes nowhere.csv does not exist"),
        ({"--image_list": "nowhere.txt"}, "--image_list nowhere.txt does not exist"),
        ({"--num_shards": "2"}, "--num_shards 2 must be in 1..1"),
        ({"--format": "voc"}, "is not a directory"),
        ({"--include_unlabeled": None}, "is for --format open_images, table only, not coco"),
        ({"--output": "/"}, "must end with the name of the part"),
    ],
)
def test_wrong_usage_is_one_message_and_status_2(
    write_coco, encoded_image, tmp_path, capsys, change: dict, message: str
) -> None:
    path, images = write_coco({"a.jpg": encoded_image()}, {})
    options = {"--format": "coco", "--annotations": str(path), "--images": str(images)}
    options |= {"--split": "val", "--output": str(tmp_path / "part"), "--workers": "1"} | change
    arguments = [part for pair in options.items() for part in pair if part is not None]
    status = make_tfrecords.main([part.replace("{tmp}", str(tmp_path)) for part in arguments])
    assert status == 2
    errors = capsys.readouterr().err
    assert message in errors
    assert errors.count("\n") == 1
    assert not (tmp_path / "part").exists()


def test_unknown_flags_exit_with_2(capsys) -> None:
    for command in (make_tfrecords.main, check_data.main):
        with pytest.raises(SystemExit, match="2"):
            command(["--format", "pickle"])
        assert "usage:" in capsys.readouterr().err


def test_a_check_of_missing_annotations_is_one_message_and_status_2(capsys) -> None:
    arguments = ["--format", "coco", "--annotations", "nowhere.json", "--images", "."]
    assert check_data.main(arguments) == 2
    assert capsys.readouterr().err == (
        "tpudet check_data: --annotations nowhere.json does not exist.\n"
    )


@pytest.mark.parametrize(
    "more", [("--split", "train=0.5,val=0.5"), ("--folds", 2), ("--split", "train", "--balance", 2)]
)
def test_a_class_whose_images_are_all_missing_is_refused_for_several_sets_too(
    write_coco, encoded_image, tmp_path, capsys, more: tuple
) -> None:
    images = {f"{number}.jpg": encoded_image() for number in range(4)} | {"gone.jpg": None}
    boxes = {name: [(3, 1, 1, 10, 10)] for name in images} | {"gone.jpg": [(7, 1, 1, 10, 10)] * 2}
    path, folder = write_coco(images, boxes)
    assert convert(path, folder, tmp_path / "part", *more) == 2
    message = capsys.readouterr().err
    assert "All boxes of dog (2) would be lost: 1 of 5 image files are missing" in message
    assert not list(tmp_path.glob("part*"))
    assert convert(path, folder, tmp_path / "part", *more, "--allow_empty", "--dry_run") == 0


def test_a_check_gives_no_advice_that_it_cannot_take(write_coco, encoded_image, capsys) -> None:
    path, folder = write_coco({"a.jpg": encoded_image()}, {"a.jpg": [(3, 99, 99, 5, 5)]})
    options = ["--format", "coco", "--annotations", str(path), "--images", str(folder)]
    assert check_data.main([*options, "--workers", "1"]) == 2
    message = capsys.readouterr().err
    assert "would lose all 1 boxes" in message
    assert "--allow_empty" not in message


def test_mask_folders_hold_their_own_images(tmp_path, capsys) -> None:
    options = ["--format", "mask_folders", "--annotations", str(tmp_path), "--images", "/nowhere"]
    assert check_data.main(options) == 2
    assert "--images is for --format coco, voc, yolo, open_images, table only" in (
        capsys.readouterr().err
    )


def test_a_set_without_one_usable_image_is_not_written(
    write_coco, encoded_image, tmp_path, capsys
) -> None:
    path, images = write_coco({"a.jpg": encoded_image()[:99]}, {})
    output = tmp_path / "part"
    assert convert(path, images, output, "--split", "val") == 2
    assert "No image can be used" in capsys.readouterr().err
    assert list(output.iterdir()) == []


def test_a_split_without_a_box_is_not_trained_on(
    write_coco, encoded_image, tmp_path, capsys
) -> None:
    path, images = write_coco({f"{n}.jpg": encoded_image() for n in range(2)}, {})
    division = ("--split", "train=0.5,val=0.5")
    for more in (division, (*division, "--dry_run")):
        assert convert(path, images, tmp_path / "part", *more) == 2
        error = capsys.readouterr().err
        assert "train_part would have no box, so that nothing can be learned" in error
        assert "--allow_empty" in error
    assert convert(path, images, tmp_path / "part", *division, "--allow_empty") == 0
    assert convert(path, images, tmp_path / "others", "--split", "val") == 0
    assert convert(path, images, tmp_path / "others", "--split", "test") == 0


def test_a_balance_that_fits_no_memory_is_refused(
    write_coco, encoded_image, tmp_path, capsys
) -> None:
    path, images = write_coco({"a.jpg": encoded_image()}, {"a.jpg": [(3, 1, 1, 9, 9)]})
    more = ("--split", "train", "--balance", 10**11)
    assert convert(path, images, tmp_path / "part", *more) == 2
    error = capsys.readouterr().err
    assert "100,000,000 at most are written: lower it, or limit the copies" in error
    assert "--max_copies" in error
