"""Images divided anew into the same folder: no image is both trained on and evaluated on."""

import json
import shutil
from pathlib import Path

import cv2
import numpy as np
import pytest

from tpudet.classification.commands.images_to_tfrecords import main
from tpudet.classification.data.pipeline import read_names
from tpudet.classification.data.splits import find_joined_split
from tpudet.classification.preparation.plan_splits import plan_splits
from tpudet.classification.preparation.write_records import write_splits
from tpudet.trainkit.class_list import ClassEntry
from tpudet.trainkit.errors import UserError

CLASSES = [ClassEntry("a", "a")]


def divide(root: Path, **splits: str) -> Path:
    """Images of class a, one for each letter of a split."""
    for split, letters in splits.items():
        (root / split / "a").mkdir(parents=True)
        for letter in letters:
            pixels = np.full((8, 8, 3), ord(letter), np.uint8)
            assert cv2.imwrite(str(root / split / "a" / f"{letter}.png"), pixels)
    return root


def convert(source: Path, part: Path, *options: str) -> int:
    return main([str(source), "--output", str(part), "--workers", "1", *options])


def test_splits_of_two_divisions_are_not_read_together(tmp_path: Path) -> None:
    """As a division anew leaves them that is killed after train: three images are in both."""
    part = tmp_path / "part"
    assert convert(divide(tmp_path / "one", train="abcdef", val="ghi"), part) == 0
    find_joined_split(str(part), "train+val", CLASSES)
    plans, _ = plan_splits(
        str(divide(tmp_path / "two", train="abcghi", val="def")),
        str(part),
        **{"classes_file": None, "num_shards": None, "presize": None, "seed": 0},
    )
    write_splits(plans[:1], workers=1, overwrite=True)
    names = [
        set(read_names(find_joined_split(str(part), split, CLASSES).shards))
        for split in ("train", "val")
    ]
    assert names[0] & names[1] == {"a/g.png", "a/h.png", "a/i.png"}
    message = r"train \(division (\w{8})\), val \(division (?!\1)\w{8}\)"
    with pytest.raises(UserError, match=message):
        find_joined_split(str(part), "train+val", CLASSES)
    write_splits(plans, workers=1, overwrite=True)
    assert len(read_names(find_joined_split(str(part), "train+val", CLASSES).shards)) == 9


def test_a_split_that_the_source_no_longer_has_is_refused(tmp_path: Path, capsys) -> None:
    part = tmp_path / "part"
    assert convert(divide(tmp_path / "one", train="abcd", val="ef", test="gh"), part) == 0
    before = {path.name: path.stat().st_mtime_ns for path in part.iterdir()}
    other = divide(tmp_path / "two", train="abgh", val="cdef")
    assert convert(other, part, "--overwrite") == 2
    assert "has test of an earlier division, which may hold images" in capsys.readouterr().err
    assert {path.name: path.stat().st_mtime_ns for path in part.iterdir()} == before
    for path in part.glob("test_*"):
        path.unlink()
    assert convert(other, part, "--overwrite") == 0


def test_a_split_that_is_added_leaves_the_records_of_the_others(tmp_path: Path, capsys) -> None:
    """Their manifests name the new division, as if all had been written at once."""
    source, part = divide(tmp_path / "source", train="abcd", val="ef"), tmp_path / "part"
    assert convert(source, part) == 0
    shards = {path.name: path.stat().st_mtime_ns for path in part.glob("*.tfrecord")}
    divide(source, test="gh")
    assert convert(source, part) == 0
    assert capsys.readouterr().out.count("up to date") == 2
    now = {path.name: path.stat().st_mtime_ns for path in part.glob("*.tfrecord")}
    assert shards.items() <= now.items()
    find_joined_split(str(part), "train+val+test", CLASSES)
    shutil.move(part, tmp_path / "first")
    assert convert(source, part) == 0
    for path in part.glob("*.manifest.json"):
        assert path.read_bytes() == (tmp_path / "first" / path.name).read_bytes()


def test_sets_of_earlier_versions_are_read_and_renewed(tmp_path: Path) -> None:
    source, part = divide(tmp_path / "source", train="abcd", val="ef"), tmp_path / "part"
    assert convert(source, part) == 0
    manifests = sorted(part.glob("*.manifest.json"))
    whole = [path.read_bytes() for path in manifests]
    for path in manifests:
        fields = json.loads(path.read_text())
        path.write_text(json.dumps({**fields, "options": {**fields["options"], "division": None}}))
    find_joined_split(str(part), "train+val", CLASSES)
    assert convert(source, part) == 0
    assert [path.read_bytes() for path in manifests] == whole
