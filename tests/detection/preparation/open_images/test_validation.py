"""The small validation set: picks by hand, a second implementation, images to look at."""

from pathlib import Path

import cv2
import numpy as np
import pandas as pd
import pytest

from tpudet.detection.commands.build_validation import main
from tpudet.detection.preparation.open_images.validation import pick_validation, read_blacklist
from tpudet.detection.preparation.sources.box_csv import read_boxes
from tpudet.trainkit.class_list import read_classes

CLASSES = "/m/c,Cat\n/m/d,Drink/Coffee cup\n/m/e,Eel\n"
BOX = (0.25, 0.5, 0.25, 0.75)  # x1, x2, y1, y2
ROWS = [
    ("i3", "/m/d", *BOX, 0),
    ("i1", "/m/c", *BOX, 0),
    ("i1", "/m/zzz", *BOX, 0),
    ("bad", "/m/c", *BOX, 0),
    ("i1", "Drink/Coffee cup", *BOX, 1),  # labels may be names
    ("i2", "/m/d", *BOX, 0),
    ("i2", "/m/c", *BOX, 0),
    ("i1", "/m/c", 0.1, 0.2, 0.1, 0.2, 0),
    ("i4", "/m/c", *BOX, 0),
    ("i4", "/m/d", *BOX, 0),
    ("i5", "/m/d", *BOX, 0),
]


@pytest.fixture
def arguments(write_box_csv, tmp_path: Path) -> list[str]:
    source = write_box_csv(tmp_path / "boxes.csv", *ROWS)
    (tmp_path / "classes.csv").write_text(CLASSES)
    (tmp_path / "blacklist.txt").write_text("bad.jpg\nblacklist.txt\n\nelsewhere.jpg\n")
    more = ["--num_samples", "2", "--blacklist", str(tmp_path / "blacklist.txt")]
    return [str(tmp_path / "val.csv"), source, str(tmp_path / "classes.csv"), *more]


def rows_of(path: Path, source: Path) -> list[int]:
    """Numbers of the rows of `source` that `path` holds, its text unchanged."""
    lines = source.read_text().splitlines()
    found = path.read_text().splitlines()
    assert found[0] == lines[0]
    return [lines.index(line) - 1 for line in found[1:]]


def test_picks_by_hand(arguments, tmp_path, capsys) -> None:
    assert main(arguments) == 0
    # Cat: i1, i2 (bad is blacklisted). Cup: i3, i1; i2 is there for its cat, with its cup too.
    assert rows_of(tmp_path / "val.csv", tmp_path / "boxes.csv") == [0, 1, 4, 5, 6, 7]
    out = capsys.readouterr().out
    assert "3 images with 6 boxes, 2 images per class; 1 blacklisted images skipped" in out
    assert "WARNING: 1 class(es) have fewer: Eel 0." in out


def test_as_it_was_an_image_keeps_only_what_it_was_picked_for(arguments, tmp_path) -> None:
    assert main([*arguments, "--only_picked_class"]) == 0
    assert rows_of(tmp_path / "val.csv", tmp_path / "boxes.csv") == [0, 1, 4, 6, 7]


def test_real_boxes_against_a_plain_loop(data_dir) -> None:
    source = data_dir / "openimages/val_annotations_names.csv"
    folder = data_dir / "openimages/derived"
    classes = read_classes(str(folder / "challenge-2019-classes-description-500.csv"))
    boxes = read_boxes(str(source), columns=("ImageID", "LabelName"))
    unwanted = ["i0.jpg", "i17", "i100.jpg"]
    pick = pick_validation(boxes, classes, num_samples=5, blacklist=unwanted)
    taken: dict[int, list[str]] = {number: [] for number in range(1, 501)}
    numbers = {entry.name: number for number, entry in enumerate(classes, 1)}
    table = pd.read_csv(source).dropna()
    table = table[~table["ImageID"].isin(["i0.jpg", "i17.jpg", "i100.jpg"])]
    for image, label in zip(table["ImageID"], table["LabelName"], strict=True):
        own = taken[numbers[label]]
        if image not in own and len(own) < 5:
            own.append(image)
    found = pick.picks.groupby("class_id")["image"].agg(list).to_dict()
    assert found == {number: images for number, images in taken.items() if images}
    assert pick.picks["class_id"].is_monotonic_increasing
    chosen = {image for images in taken.values() for image in images}
    expected = boxes["ImageID"].isin(chosen) & boxes["LabelName"].notna()
    np.testing.assert_array_equal(pick.kept, expected)
    per_class = table.drop_duplicates().groupby("LabelName")["ImageID"].nunique()
    assert pick.available.tolist() == [per_class.get(entry.name, 0) for entry in classes]
    assert (pick.available.sum(), pick.blacklisted) == (per_class.sum(), 3)


def test_the_real_blacklist_names_itself_and_61_images(data_dir) -> None:
    path = data_dir / "openimages/blacklist.txt"
    assert len(path.read_text().split()) == 62
    names = read_blacklist(str(path))
    assert len(names) == 61
    assert "000a1249af2bc5f0.jpg" in names
    assert "blacklist.txt" not in names


def test_images_show_the_boxes_and_other_files_stay(arguments, tmp_path, capsys) -> None:
    images = tmp_path / "images"
    images.mkdir()
    for name in ("i1", "i2", "i3"):
        cv2.imwrite(str(images / f"{name}.jpg"), np.full((300, 400, 3), 128, np.uint8))
    review = tmp_path / "review"
    review.mkdir()
    (review / "holiday.jpg").write_bytes(b"mine")
    drawn = [*arguments, "--image_dir", str(images), "--viz_directory", str(review)]
    assert main(drawn) == 0
    cats = ["Cat_i1.jpg", "Cat_i2.jpg"]
    cups = ["Drink_Coffee_cup_i1.jpg", "Drink_Coffee_cup_i3.jpg"]
    assert sorted(path.name for path in review.glob("*.jpg")) == [*cats, *cups, "holiday.jpg"]
    # On i3 one box: x 100 to 200, y 75 to 225, in the strong colour of its class on gray.
    image = cv2.imread(str(review / cups[1]))
    assert image is not None
    changed = abs(image.astype(int) - 128).max(axis=2) > 60
    for y, x in ((75, 190), (225, 150), (150, 100), (150, 200)):
        assert changed[y - 1 : y + 2, x - 1 : x + 2].any(), (y, x)
    assert not changed[90:210, 115:190].any()
    assert not changed[:, 215:].any()
    assert not changed[240:].any()

    assert main([*drawn, "--num_samples", "1"]) == 0  # i1 for the cat, i3 for the cup
    left = ["Cat_i1.jpg", "Drink_Coffee_cup_i3.jpg", "holiday.jpg"]
    assert sorted(path.name for path in review.glob("*.jpg")) == left
    assert (review / "holiday.jpg").read_bytes() == b"mine"
    capsys.readouterr()
    assert main([*drawn, "--num_samples", "1"]) == 0
    assert "up to date" in capsys.readouterr().out


def test_one_process_draws_into_a_folder(
    arguments, tmp_path, encoded_image, hold_claim, capsys
) -> None:
    for name in ("i1", "i2", "i3"):
        (tmp_path / f"{name}.jpg").write_bytes(encoded_image())
    review = tmp_path / "review"
    review.mkdir()
    with hold_claim(review / "written_images.claim.json") as process:
        drawn = [*arguments, "--image_dir", str(tmp_path), "--viz_directory", str(review)]
        assert main(drawn) == 2
        assert f"{review} is being written by process {process} on" in capsys.readouterr().err
        assert [path.name for path in review.iterdir()] == ["written_images.claim.json"]
    assert main(drawn) == 0
    assert not (review / "written_images.claim.json").exists()


def test_images_that_would_replace_anothers_are_refused(
    arguments, tmp_path, encoded_image, capsys
) -> None:
    for name in ("i1", "i2", "i3"):
        (tmp_path / f"{name}.jpg").write_bytes(encoded_image())
    mine = tmp_path / "Cat_i1.jpg"
    mine.write_bytes(b"mine")
    drawn = [*arguments, "--image_dir", str(tmp_path), "--viz_directory", str(tmp_path)]
    assert main(drawn) == 2
    assert "did not make and would replace, such as Cat_i1.jpg" in capsys.readouterr().err
    assert mine.read_bytes() == b"mine"
    assert not (tmp_path / "val.csv").exists()


def test_missing_images_are_counted_and_named(arguments, tmp_path, capsys) -> None:
    empty = tmp_path / "empty"
    empty.mkdir()
    drawn = [*arguments, "--image_dir", str(empty), "--viz_directory", str(tmp_path / "review")]
    assert main(drawn) == 2
    message = capsys.readouterr().err
    assert "3 of 3 image files are not in" in message
    assert "i2.jpg" in message
    assert not (tmp_path / "val.csv").exists()
    assert not list((tmp_path / "review").glob("*"))


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("boxes.csv", None, "boxes.csv does not exist"),
        ("boxes.csv", "", "is empty"),
        ("boxes.csv", "ImageID;LabelName\na;b\n", "separated by ';'"),
        ("boxes.csv", "ImageID,Source\na,b\n", "lacks the column LabelName"),
        ("boxes.csv", "ImageID,LabelName\na,/m/zzz\n", "no image with a box of a class of"),
        ("boxes.csv", "ImageID,LabelName\nbad,/m/c\n", "no image with a box of a class of"),
        ("classes.csv", "/m/c\n", "has no second column"),
        ("blacklist.txt", None, "blacklist.txt does not exist"),
    ],
)
def test_unusable_inputs(
    arguments, tmp_path, capsys, name: str, content: str | None, message: str
) -> None:
    (tmp_path / name).unlink()
    if content is not None:
        (tmp_path / name).write_text(content)
    before = sorted(tmp_path.iterdir())
    assert main(arguments) == 2
    assert message in capsys.readouterr().err
    assert sorted(tmp_path.iterdir()) == before
