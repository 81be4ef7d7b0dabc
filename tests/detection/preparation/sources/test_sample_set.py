"""The drawn data set: boxes touch what was drawn, and the same seed draws the same files."""

import csv
from collections.abc import Callable, Iterator
from pathlib import Path

import cv2
import numpy as np
import pytest

from tpudet.detection.commands.make_sample_set import main
from tpudet.detection.preparation.sources.box_csv import ALL_COLUMNS
from tpudet.detection.preparation.sources.sample_set import SHAPES, draw_image, write_sample_set
from tpudet.trainkit.files.claims import ClaimError


def contents(folder: Path) -> dict[str, bytes]:
    files = (path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


def test_boxes_enclose_exactly_what_was_drawn() -> None:
    """One object on a background drawn with the same numbers: only pixels in its box differ."""
    for seed in range(20):
        image, objects = draw_image(
            np.random.default_rng(seed), height=96, width=128, num_objects=1
        )
        background, nothing = draw_image(
            np.random.default_rng(seed), height=96, width=128, num_objects=0
        )
        assert nothing == []
        rows, columns = np.nonzero((image != background).any(axis=-1))
        y1, x1, y2, x2 = objects[0].box
        # The object's edge pixels may by chance have the background's colour.
        assert abs(rows.min() - y1) <= 1
        assert abs(rows.max() + 1 - y2) <= 1
        assert abs(columns.min() - x1) <= 1
        assert abs(columns.max() + 1 - x2) <= 1
        assert 0 <= y1 < y2 <= 96
        assert 0 <= x1 < x2 <= 128


def test_the_same_seed_writes_the_same_files_and_another_seed_others(tmp_path: Path) -> None:
    for name, seed in (("a", 3), ("b", 3), ("c", 4)):
        counts = write_sample_set(str(tmp_path / name), num_images=15, seed=seed)
        assert counts == {"train": 12, "val": 3}

    assert contents(tmp_path / "a") == contents(tmp_path / "b")
    assert contents(tmp_path / "a").keys() == contents(tmp_path / "c").keys()
    assert (
        contents(tmp_path / "a")["train_boxes.csv"] != contents(tmp_path / "c")["train_boxes.csv"]
    )


def test_the_box_file_has_the_columns_of_open_images_and_one_image_in_twelve_is_empty(
    tmp_path: Path,
) -> None:
    write_sample_set(str(tmp_path), num_images=30, seed=0)
    with open(tmp_path / "train_boxes.csv") as file:
        rows = list(csv.DictReader(file))
    assert tuple(rows[0]) == tuple(ALL_COLUMNS)
    assert {row["LabelName"] for row in rows} == {f"/sample/{label}" for label in SHAPES}
    images = {path.stem for path in (tmp_path / "train").glob("*.jpg")}
    assert images - {row["ImageID"] for row in rows} == {"train00011", "train00023"}


def test_masks_are_disjoint_and_fill_their_boxes_and_change_neither_images_nor_boxes(
    tmp_path: Path,
) -> None:
    write_sample_set(str(tmp_path / "boxes"), num_images=15, seed=0)
    write_sample_set(str(tmp_path / "masks"), num_images=15, seed=0, with_masks=True)
    with_masks = contents(tmp_path / "masks")
    assert contents(tmp_path / "boxes").items() <= with_masks.items()
    for split in ("train", "val"):
        with open(tmp_path / f"masks/{split}_boxes.csv") as file:
            boxes = list(csv.DictReader(file))
        with open(tmp_path / f"masks/{split}_masks.csv") as file:
            masks = list(csv.DictReader(file))
        assert len(boxes) == len(masks) > 5
        occupied: dict[str, np.ndarray] = {}
        for box, row in zip(boxes, masks, strict=True):
            assert [box[key] for key in ("ImageID", "LabelName", "XMin", "YMax")] == [
                row[key] for key in ("ImageID", "LabelName", "BoxXMin", "BoxYMax")
            ]
            path = tmp_path / f"masks/{split}_masks" / row["MaskPath"]
            pixels = cv2.imread(str(path), cv2.IMREAD_GRAYSCALE)
            assert pixels is not None
            mask = pixels > 0
            before = occupied.setdefault(row["ImageID"], np.zeros_like(mask))
            assert not (mask & before).any()
            before |= mask
            columns = np.flatnonzero(mask.any(axis=0))
            low, high = float(box["XMin"]) * mask.shape[1], float(box["XMax"]) * mask.shape[1]
            if box["IsOccluded"] == "0":
                assert [columns[0], columns[-1] + 1] == pytest.approx([low, high], abs=1e-3)
            else:
                assert low < columns[0] + 1e-3 < columns[-1] + 1 < high + 1e-3


def test_stopped_anywhere_no_box_file_is_short(tmp_path: Path) -> None:
    class Stopped(Exception):
        pass

    def stop_in_val(numbers: range) -> Iterator[int]:
        for number in numbers:
            if len(numbers) == 4 and number == 2:
                raise Stopped
            yield number

    write_sample_set(str(tmp_path / "whole"), num_images=20, seed=0)
    write_sample_set(str(tmp_path / "stopped"), num_images=30, seed=1)
    with pytest.raises(Stopped):
        write_sample_set(str(tmp_path / "stopped"), num_images=20, seed=0, progress=stop_in_val)
    names = {path.name for path in (tmp_path / "stopped").iterdir()}
    assert names == {"classes.csv", "train", "train_boxes.csv", "val"}
    write_sample_set(str(tmp_path / "stopped"), num_images=20, seed=0)
    assert contents(tmp_path / "stopped") == contents(tmp_path / "whole")


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("classes.csv", "apple,Apple\npear,Pear\n"),
        ("classes.csv", "/sample/disc,disc\npear,Pear\n"),
        ("train_boxes.csv", "ImageID,LabelName\na,apple\n"),
        ("val_masks.csv", ""),
        ("val/val00001.jpg", "mine"),
        ("train_masks/train00000_0.png", "mine"),
    ],
)
def test_a_file_of_another_origin_is_not_replaced(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, text: str
) -> None:
    path = tmp_path / name
    path.parent.mkdir(exist_ok=True)
    path.write_text(text)
    before = contents(tmp_path)
    assert main(["--output", str(tmp_path), "--num_images", "10", "--masks"]) == 2
    assert f"that no sample set has: {path}. Name another folder" in capsys.readouterr().err
    assert contents(tmp_path) == before
    path.unlink()
    other = tmp_path / "train/photo.jpg"
    other.parent.mkdir(exist_ok=True)
    other.write_text("mine")
    for _ in range(2):  # a set of its own is written anew
        assert main(["--output", str(tmp_path), "--num_images", "10", "--masks"]) == 0
    assert other.read_text() == "mine"


def test_one_process_draws_a_set(tmp_path: Path, hold_claim: Callable) -> None:
    with hold_claim(tmp_path / "sample_set.claim.json") as process:
        with pytest.raises(ClaimError, match=f"is being written by process {process} on"):
            write_sample_set(str(tmp_path), num_images=10, seed=0)
        assert [path.name for path in tmp_path.iterdir()] == ["sample_set.claim.json"]

    def lose_the_claim(numbers: range) -> Iterator[int]:
        yield 0
        (tmp_path / "sample_set.claim.json").unlink()
        yield 1

    with pytest.raises(ClaimError, match="no longer claimed"):
        write_sample_set(str(tmp_path), num_images=10, seed=0, progress=lose_the_claim)
    assert [path.name for path in (tmp_path / "train").iterdir()] == ["train00000.jpg"]
    assert not list(tmp_path.glob("*_boxes.csv*"))
