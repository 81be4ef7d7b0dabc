"""YOLO data sets: where images and labels are found, boxes and polygons, what is refused."""

import os
from pathlib import Path

import numpy as np
import pytest

from tpudet.detection.commands import check_data, make_tfrecords
from tpudet.detection.preparation.sources.yolo import read_yolo
from tpudet.detection.preparation.sources.yolo_layout import find_yolo_set, label_paths
from tpudet.trainkit.errors import UserError

NAMES = "names: [cat, dog]\nnc: 2\n"
CORNERS = ["y1", "x1", "y2", "x2"]


def write(root: Path, files: dict[str, str | bytes]) -> str:
    """Writes files and returns the path of data.yaml."""
    for name, content in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content.encode() if isinstance(content, str) else content)
    return str(root / "data.yaml")


@pytest.mark.parametrize(
    ("train", "image", "label"),
    [
        ("images/train", "images/train/a.jpg", "labels/train/a.txt"),
        ("train/images", "train/images/deep/a.jpg", "train/labels/deep/a.txt"),
        ("../train/images", "train/images/a.PNG", "train/labels/a.txt"),  # as Roboflow writes it
        ("pictures", "pictures/a.jpg", "pictures/a.txt"),  # labels beside the images
        ("train.txt", "images/a.jpg", "labels/a.txt"),
        ("images", "images/a.JPG", "labels/a.TXT"),
        ("pictures", "pictures/a.jpg", "pictures/a.TXT"),
        ("[images/train, other]", "images/train/a.jpg", "labels/train/a.txt"),
        ("images\\train", "images/train/a.jpg", "labels/train/a.txt"),  # as Windows writes it
        ("windows.txt", "images/a.jpg", "labels/a.txt"),
    ],
)
def test_images_and_labels_are_found(tmp_path, train, image, label) -> None:
    files = {image: b"", label: "1 0.5 0.5 0.2 0.4\n", "train.txt": "./images/a.jpg\n"}
    files["windows.txt"] = ".\\images\\a.jpg\r\n"
    files |= {"other/b.jpg": b"", "data.yaml": f"train: {train}\n{NAMES}"}
    annotations = read_yolo(find_yolo_set(write(tmp_path, files), ["train"]))
    assert annotations.images["source_id"][0] == "a"
    np.testing.assert_allclose(annotations.boxes[CORNERS].to_numpy(), [[0.3, 0.4, 0.7, 0.6]])
    assert annotations.boxes["label"].tolist() == ["1"]
    assert [entry.name for entry in annotations.classes] == ["cat", "dog"]


def test_label_files_in_capitals_belong_to_their_images(tmp_path) -> None:
    files = {"images/a.jpg": b"", "labels/a.TXT": "1 0.5 0.5 0.2 0.4\n"}
    files |= {"images/b.jpg": b"", "labels/b.txt": "0 0.5 0.5 0.2 0.4\n", "labels/c.TXT": ""}
    data = write(tmp_path, files | {"data.yaml": f"train: images\n{NAMES}"})
    annotations = read_yolo(find_yolo_set(data, ["train"]))
    assert annotations.boxes["label"].tolist() == ["1", "0"]
    (finding,) = annotations.findings
    assert finding.file.endswith("labels/c.TXT")
    assert finding.reason == "label file without an image"


def test_an_image_without_a_label_file_is_told(tmp_path) -> None:
    """An empty one says that there are no objects; a missing one may have been forgotten."""
    files = {f"images/{name}.jpg": b"" for name in "abc"}
    files |= {"labels/a.txt": "1 0.5 0.5 0.2 0.4\n", "labels/b.txt": "", "list.txt": "a.jpg\nb.jpg"}
    dataset = find_yolo_set(
        write(tmp_path, files | {"data.yaml": f"train: images\n{NAMES}"}), ["train"]
    )
    annotations = read_yolo(dataset)
    assert annotations.images["source_id"].tolist() == ["a", "b", "c"]
    (finding,) = annotations.findings
    assert os.path.basename(finding.file) == "c.jpg"
    assert (finding.reason, finding.repaired) == (
        "no label file: taken as an image without objects",
        True,
    )
    assert read_yolo(dataset, image_list=str(tmp_path / "list.txt")).findings == ()


def test_the_path_of_another_machine_is_replaced(tmp_path) -> None:
    files = {"sub/images/a.jpg": b"", "sub/labels/a.txt": "0 0.5 0.5 1 1\n"}
    text = f"path: /content/drive\ntrain: images\n{NAMES}"
    data = write(tmp_path, files | {"data.yaml": text})
    with pytest.raises(UserError, match="`train` is images, and there is no /content/drive/images"):
        find_yolo_set(data, ["train"])
    assert find_yolo_set(data, ["train"], str(tmp_path / "sub")).files == ["a.jpg"]


def test_lines_become_boxes_polygons_and_findings(tmp_path) -> None:
    lines = [
        "0 0.5 0.5 0.2 0.4",
        "1.0 0.1 0.2 0.5 0.2 0.5 0.8",  # a polygon: its box is 0.1..0.5, 0.2..0.8
        "0 0.5 0.5 0.2 0.4 0.93",  # with a score
        "0 0,5 0.5 0.2 0.4",
        "",
    ]
    files = {"images/a.jpg": b"", "images/b.jpg": b"", "labels/a.txt": "\n".join(lines)}
    files |= {"labels/gone.txt": "0 0.5 0.5 1 1", "data.yaml": f"val: images\n{NAMES}"}
    dataset = find_yolo_set(write(tmp_path, files), ["val"])
    annotations = read_yolo(dataset, include_segmentation=True)
    boxes = annotations.boxes
    assert annotations.images["file"].tolist() == ["a.jpg", "b.jpg"]
    np.testing.assert_allclose(boxes[CORNERS][:2], [[0.3, 0.4, 0.7, 0.6], [0.2, 0.1, 0.8, 0.5]])
    assert boxes["segmentation"][1] == [[0.1, 0.2, 0.5, 0.2, 0.5, 0.8]]
    scored = "'0 0.5 0.5 0.2 0.4 0.93' has 5 numbers behind the class, of which the last seems to"
    assert boxes["fault"].tolist()[2:] == [
        f"{scored} be a score: a box has 4",
        "'0 0,5 0.5 0.2 0.4'",
    ]
    gone, unlabelled = annotations.findings
    assert gone.reason == "label file without an image"
    assert gone.file.endswith("labels/gone.txt")
    assert unlabelled.file == "b.jpg"


def test_names_that_repeat_keep_their_folders(tmp_path) -> None:
    files = {f"{split}/images/a.jpg": b"" for split in ("train", "val")}
    files |= {"val/labels/a.txt": "0 0.5 0.5 1 1"}
    text = f"train: train/images\nval: val/images\ntest:\n{NAMES}"
    data = write(tmp_path, files | {"data.yaml": text})
    annotations = read_yolo(find_yolo_set(data, ["train", "val", "test"]))
    assert annotations.images["source_id"].tolist() == ["train/images/a", "val/images/a"]


# Ten values in each of ten levels: 400 bytes that stand for 10^10 values.
ALIASES = "l0: &l0 [1, 2, 3, 4, 5, 6, 7, 8, 9]\n" + "".join(
    f"l{level}: &l{level} [{', '.join([f'*l{level - 1}'] * 10)}]\n" for level in range(1, 10)
)


@pytest.mark.parametrize(
    ("text", "label", "message"),
    [
        ("train: images\n", "", "has no `names`"),
        (f"val: images\n{NAMES}", "", "has no split train; it has: val"),
        (
            f"train: images\n{NAMES}",
            None,
            "none of the 1 images has a label file, such as .*labels",
        ),
        (f"train: images\n{NAMES}", "0 320 240 64 96", "is in pixels: 1 of 1"),
        ("train: images\nnames: [cat]\nnc: 2\n", "", "nc is 2, and there are 1 names"),
        ("train: images\nnames: {a: cat}\n", "", "no class numbers: a"),
        ("train: [", "", "data.yaml:1: not valid YAML"),
        ("train: " + "[" * 10_000, "", "nested too deeply"),
        (f"train: images\nnc: {'9' * 5000}\n", "", "data.yaml:2: .* more than 64 bits"),
        ("train: images\nnc: !!int ''\n", "", "data.yaml:2: .*'' cannot be read as `!!int`"),
        ("train: images\nmade: !!timestamp x\n", "", "data.yaml:2: .*as `!!timestamp`"),
        (f"{ALIASES}names: [cat, *l9]\n", "", "21,345,679,024 values where its aliases"),
        (f"{ALIASES}train: images\npath: *l9\n{NAMES}", "", "values where its aliases"),
        ("train: images\npath: [a]\nnames: [cat]\n", "", "`path` must be a path, got a list"),
        ("train: [[images]]\nnames: [cat]\n", "", "`train` must be a path, got a list"),
        ("train: images\nnames: [cat, [dog]]\n", "", "the name of class 1 is a list or a mapping"),
        (f"train: /dev/zero\n{NAMES}", "", "`train` is /dev/zero, and there is no"),
        (f"train: empty\n{NAMES}", "", "there is no image in"),
        (f"train: gone.txt\n{NAMES}", "", "none of the first 2 images exists, such as /gone/a.jpg"),
        (f"train: images\nkpt_shape: 17\n{NAMES}", "", "kpt_shape. is 17; it must be"),
    ],
)
def test_unusable_sets(tmp_path, text, label, message) -> None:
    files: dict = {"images/a.jpg": b"", "empty/x.md": "", "data.yaml": text}
    files["gone.txt"] = "/gone/a.jpg\n/gone/b.jpg\n"
    files |= {} if label is None else {"labels/a.txt": label}
    with pytest.raises(UserError, match=message):
        read_yolo(find_yolo_set(write(tmp_path, files), ["train"]))


def test_a_fifo_for_a_label_file_is_not_waited_for(tmp_path) -> None:
    files = {"images/a.jpg": b"", "labels/b.txt": "", "data.yaml": f"train: images\n{NAMES}"}
    place = write(tmp_path, files)
    os.mkfifo(tmp_path / "labels/a.txt")
    with pytest.raises(OSError, match=r"it is a device or FIFO, not a file: .*labels/a.txt"):
        read_yolo(find_yolo_set(place, ["train"]))


def test_a_folder_for_a_label_file_is_named(tmp_path) -> None:
    files = {"images/a.jpg": b"", "labels/a.txt/x": "", "data.yaml": f"train: images\n{NAMES}"}
    with pytest.raises(IsADirectoryError, match="labels/a.txt"):
        read_yolo(find_yolo_set(write(tmp_path, files), ["train"]))


@pytest.mark.parametrize(
    ("line", "label", "fault"),
    [
        ("1, .5, .5, .2, .2", "1", "'1, .5, .5, .2, .2' has commas between its words"),
        ("1,.5,.5,.2,.2", "1", "'1,.5,.5,.2,.2' has commas between its words"),
        ("wolf .5 .5 .2 .2", "wolf", "'wolf .5 .5 .2 .2' does not begin with a class number"),
        ("dog .5 .5 .2 .2", "dog", None),
    ],
)
def test_lines_without_a_class_number_are_shown(tmp_path, line, label, fault) -> None:
    files = {"images/a.jpg": b"", "labels/a.txt": line, "data.yaml": f"train: images\n{NAMES}"}
    boxes = read_yolo(find_yolo_set(write(tmp_path, files), ["train"])).boxes
    assert boxes[["label", "fault"]].to_numpy().tolist() == [[label, fault]]


@pytest.mark.parametrize("encoding", ["utf-16", "utf-8-sig"])
def test_label_files_with_a_byte_order_mark_are_read(tmp_path, encoding) -> None:
    text = "1 .5 .5 .2 .4\n".encode(encoding)
    files = {"images/a.jpg": b"", "labels/a.txt": text, "data.yaml": f"train: images\n{NAMES}"}
    boxes = read_yolo(find_yolo_set(write(tmp_path, files), ["train"])).boxes
    np.testing.assert_allclose(boxes[CORNERS].to_numpy(), [[0.3, 0.4, 0.7, 0.6]])


def test_class_numbers_from_1_and_lines_with_commas_are_refused(
    tmp_path, encoded_image, capsys
) -> None:
    """The numbers of YOLO begin at 0: cats would be dogs, and dogs of no class."""
    files: dict = {f"images/{name}.jpg": encoded_image() for name in "ab"}
    files["data.yaml"] = f"train: images\n{NAMES}"
    files |= {f"labels/{name}.txt": f"{n} .5 .5 .2 .2" for n, name in enumerate("ab", start=1)}
    command = ["--format", "yolo", "--annotations", write(tmp_path, files), "--workers", "1"]
    assert check_data.main(command) == 2
    error = capsys.readouterr().err
    assert "would lose all boxes of '2', which is no class (1)" in error
    assert "All class numbers are one higher than those of the classes, which begin with 0" in error
    write(tmp_path, {f"labels/{name}.txt": "0, .5, .5, .2, .2" for name in "ab"})
    assert check_data.main(command) == 2
    assert "2 box that cannot be read (such as a.jpg: 0 '0, .5, .5" in capsys.readouterr().err


def test_the_last_folder_named_images_has_labels_beside_it() -> None:
    assert label_paths("/images/x/images/1.jpg")[0] == "/images/x/labels/1.txt"
    assert label_paths("images/1.tar.jpg")[0] == "labels/1.tar.txt"


def test_through_the_commands(tmp_path, encoded_image, read_back, capsys) -> None:
    """Each split of data.yaml, and a division of train and val that leaves test out."""
    files: dict = {}
    for number, split in enumerate(["train"] * 4 + ["val"] * 4 + ["test"]):
        files[f"{split}/images/{number}.jpg"] = encoded_image()
        files[f"{split}/labels/{number}.txt"] = f"{number % 2} 0.25 0.25 0.5 0.25 0.25 0.5\n"
    files["data.yaml"] = f"train: train/images\nval: val/images\ntest: test/images\n{NAMES}"
    data = write(tmp_path, files)
    command = ["--format", "yolo", "--annotations", data, "--workers", "1"]
    part = tmp_path / "part"
    masks = ["--include_masks", "--output", str(part)]
    assert make_tfrecords.main([*command, "--split", "val", *masks]) == 0
    records = read_back(part, "val")
    assert [record.source_id for record in records] == ["4", "5", "6", "7"]
    assert [record.labels for record in records] == [[1], [2], [1], [2]]
    np.testing.assert_allclose(records[0].boxes, [[12, 16, 24, 32]])  # of 48 x 64 pixels
    divided = tmp_path / "divided"
    fractions = ["--split", "train=0.5,val=0.5", "--output", str(divided)]
    assert make_tfrecords.main([*command, *fractions]) == 0
    ids = [record.source_id for split in ("train", "val") for record in read_back(divided, split)]
    assert sorted(ids) == list("01234567")
    assert check_data.main(command) == 0
    assert "9 images, 9 boxes" in capsys.readouterr().out


@pytest.mark.parametrize("numbers_each", [2, 3])
def test_keypoints_behind_a_box_are_no_polygon(tmp_path, numbers_each) -> None:
    points = " 0.1 0.1 2 0.9 0.9 1" if numbers_each == 3 else " 0.1 0.1 0.9 0.9"
    files = {"images/a.jpg": b"", "labels/a.txt": f"1 0.5 0.5 0.2 0.4{points}\n0 0.5 0.5 1 1\n"}
    text = f"train: images\nkpt_shape: [2, {numbers_each}]\n{NAMES}"
    data = write(tmp_path, files | {"data.yaml": text})
    boxes = read_yolo(find_yolo_set(data, ["train"])).boxes
    np.testing.assert_allclose(boxes[CORNERS], [[0.3, 0.4, 0.7, 0.6], [0, 0, 1, 1]])


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        ("[yes, no]", ["yes", "no"]),
        ("{0: off, 1: 007}", ["off", "007"]),
        ("{'0': 1e3, '1': 2026-01-01}", ["1e3", "2026-01-01"]),
        ("[cat, dog]\nnc: '2'", ["cat", "dog"]),
        ("[cat, dog]\nnc:", ["cat", "dog"]),
        ("[cat, dog]\nmade: 2026-99-99", ["cat", "dog"]),
    ],
)
def test_names_are_text_whatever_they_mean_in_yaml(tmp_path, names, expected) -> None:
    files = {
        "images/a.jpg": b"",
        "labels/a.txt": "",
        "data.yaml": f"train: images\nnames: {names}\n",
    }
    dataset = find_yolo_set(write(tmp_path, files), ["train"])
    assert [entry.name for entry in dataset.classes] == expected
