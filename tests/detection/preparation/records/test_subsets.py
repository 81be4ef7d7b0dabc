"""One source divided into splits or folds, and balanced, by make_tfrecords."""

import json
from argparse import ArgumentTypeError
from collections import Counter
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from tpudet.detection.commands import make_tfrecords
from tpudet.detection.commands.make_tfrecords import split_fractions
from tpudet.detection.preparation.records.subsets import labelled_images
from tpudet.detection.preparation.sources.annotations import build_annotations
from tpudet.trainkit.class_list import ClassEntry

THREE = "train=0.6,val=0.2,test=0.2"


def convert(annotations: Path, images: Path, output: Path, *more: object) -> int:
    arguments = ["--format", "coco", "--annotations", annotations, "--images", images]
    arguments += ["--output", output, "--workers", 1, "--num_shards", 2, *more]
    return make_tfrecords.main([str(argument) for argument in arguments])


def manifest_of(output: Path, split: str) -> dict:
    return json.loads((output / f"{split}_{output.name}.manifest.json").read_text())


@pytest.fixture
def forty(write_coco, encoded_image) -> tuple[Path, Path]:
    """Forty images: a dog in the first 30, a cat in the last 20, so both in ten; 40 has none."""
    names = [f"{number:02d}.jpg" for number in range(1, 42)]
    boxes = {name: [(7, 1, 1, 9, 9)] * (row < 30) for row, name in enumerate(names)}
    for name in names[20:40]:
        boxes[name] = boxes[name] + [(3, 5, 5, 20, 20)]
    return write_coco(dict.fromkeys(names, encoded_image()), boxes)


def test_shares_are_stratified_disjoint_and_complete(forty, tmp_path, read_back) -> None:
    output = tmp_path / "part"
    assert convert(*forty, output, "--split", THREE) == 0
    records = {split: read_back(output, split) for split in ("train", "val", "test")}
    ids = [record.source_id for split in records for record in records[split]]
    assert sorted(ids, key=int) == [str(number) for number in range(1, 42)]
    dogs = {split: sum(2 in r.labels for r in found) for split, found in records.items()}
    cats = {split: sum(1 in r.labels for r in found) for split, found in records.items()}
    assert dogs == {"train": 18, "val": 6, "test": 6}  # of 30
    assert cats == {"train": 12, "val": 4, "test": 4}  # of 20
    assert (output / "classes.csv").read_text() == "3,cat\n7,dog\n"
    for split in records:
        options = manifest_of(output, split)["options"]
        assert options["split"] == {"train": 0.6, "val": 0.2, "test": 0.2}
        assert (options["seed"], options["folds"], options["copies"]) == (0, None, None)
    val_ids = [int(record.source_id) for record in records["val"]]
    assert val_ids == sorted(val_ids)  # as annotated


def test_shares_do_not_depend_on_the_order_of_the_annotations(forty, tmp_path, read_back) -> None:
    path, images = forty
    ids = []
    for number, seed in enumerate((1, 1, 2)):
        content = json.loads(path.read_text())
        for section in ("images", "annotations"):
            np.random.default_rng(number).shuffle(content[section])
        path.write_text(json.dumps(content))
        output = tmp_path / f"part{number}"
        assert convert(path, images, output, "--split", "train=0.75,val=0.25", "--seed", seed) == 0
        ids.append([record.source_id for record in read_back(output, "train")])
    assert ids[0] == ids[1]
    assert set(ids[0]) != set(ids[2])


def test_every_image_is_validated_in_one_fold_and_trained_on_in_the_others(
    forty, tmp_path, read_back, capsys
) -> None:
    output = tmp_path / "part"
    assert convert(*forty, output, "--folds", 4, "--balance", 25) == 0
    seen = []
    for fold in range(4):
        folder = tmp_path / f"part_fold_{fold}"
        train, val = (read_back(folder, split) for split in ("train", "val"))
        seen += [record.source_id for record in val]
        trained = {record.source_id for record in train}
        assert trained.isdisjoint(record.source_id for record in val)
        assert len(trained) + len(val) == 41
        assert sum(1 in record.labels for record in val) == 5  # cats, of 20
        # 15 cats of 20 are trained on, and copied to be in 25 records.
        assert sum(1 in record.labels for record in train) == 25
        assert len(val) == len({record.source_id for record in val})
        options = manifest_of(folder, "train")["options"]
        assert (options["folds"], options["fold"], options["balance"]) == (4, fold, 25)
        assert options["copies"]["shortfalls"] == {}
    assert sorted(seen, key=int) == [str(number) for number in range(1, 42)]

    # One fold alone is the same fold, and the run that finds it does nothing.
    before = {path: path.read_bytes() for path in (tmp_path / "part_fold_2").iterdir()}
    capsys.readouterr()
    assert convert(*forty, output, "--folds", 4, "--balance", 25, "--fold", 2) == 0
    assert capsys.readouterr().out.count("up to date, nothing was written") == 2
    for path in before:
        path.unlink()
    assert convert(*forty, output, "--folds", 4, "--balance", 25, "--fold", 2) == 0
    assert {path: path.read_bytes() for path in (tmp_path / "part_fold_2").iterdir()} == before
    assert not output.exists()

    # A fold of another division would train on what these validate on.
    for more in (("--folds", 3), ("--folds", 4, "--seed", 1)):
        capsys.readouterr()
        assert convert(*forty, output, *more, "--fold", 0) == 2
        assert "into 4 folds with seed 0 instead of" in capsys.readouterr().err


def test_several_sets_go_on_where_they_were_and_none_is_begun_where_one_is_in_the_way(
    forty, tmp_path, capsys
) -> None:
    output = tmp_path / "part"
    assert convert(*forty, output, "--split", THREE) == 0
    train = {path: path.stat().st_mtime_ns for path in output.glob("train_*")}
    for path in output.glob("test_*"):
        path.unlink()
    capsys.readouterr()
    assert convert(*forty, output, "--split", THREE) == 0
    screen = capsys.readouterr().out
    assert [line for line in screen.splitlines() if "file(s)" in line and "written" in line] == [
        f"2 file(s) {output}/{split}_part-*: {state}. Manifest: {output}/{split}_part.manifest.json"
        for split, state in (
            ("train", "up to date, nothing was written"),
            ("val", "up to date, nothing was written"),
            ("test", "written"),
        )
    ]
    assert {path: path.stat().st_mtime_ns for path in train} == train

    for path in output.glob("train_*"):
        path.unlink()
    assert convert(*forty, output, "--split", THREE, "--seed", 1) == 2
    assert f"{output}/val_part.manifest.json already exists" in capsys.readouterr().err
    assert list(output.glob("train_*")) == []
    assert convert(*forty, output, "--split", THREE, "--seed", 1, "--overwrite") == 0


def test_images_that_are_missing_count_in_no_minimum_and_copies_repeat_no_finding(
    write_coco, encoded_image, tmp_path, read_back, capsys
) -> None:
    encoded_images = {f"{number}.jpg": encoded_image() for number in range(6)} | {"gone.jpg": None}
    boxes = {name: [(7, 1, 1, 9, 9)] for name in encoded_images}
    boxes["0.jpg"] += [(3, 50, 40, 30, 30), (3, 2, 2, 0, 5), (3, 2, 2, 0, 5)]
    boxes["gone.jpg"] += [(3, 1, 1, 5, 5)]
    boxes["1.jpg"] += [(3, 1, 1, 0, 0)]  # without size: no cat
    path, images = write_coco(encoded_images, boxes)
    output = tmp_path / "part"
    arguments = ("--split", "train", "--balance", 5, "--max_copies", 7)
    assert convert(path, images, output, *arguments, "--dry_run") == 0
    screen = capsys.readouterr().out
    assert "images per class before: least 1 (cat), most 6 (dog), ratio 6.0" in screen
    assert "images per class after:  least 5 (cat), most 10 (dog), ratio 2.0" in screen
    assert not output.exists()

    assert convert(path, images, output, *arguments) == 0
    ids = Counter(record.source_id for record in read_back(output, "train"))
    assert ids == {"1": 5, "2": 1, "3": 1, "4": 1, "5": 1, "6": 1}
    manifest = manifest_of(output, "train")
    assert (manifest["images"], manifest["boxes"]) == (10, 15)
    assert [tuple(entry.values()) for entry in manifest["left_out"]] == [
        ("gone.jpg", "missing file", "with 2 boxes"),
        *[("0.jpg", "zero-size box", "3 x1 2 y1 2 x2 2 y2 7")] * 2,
        ("1.jpg", "zero-size box", "3 x1 1 y1 1 x2 1 y2 1"),
    ]
    assert manifest["repaired_counts"] == {"box clipped to the image": 1}
    options = manifest["options"]
    assert (options["balance"], options["max_copies"]) == (5, 7)
    assert options["copies"] == {"images": 6, "records": 10, "most_copies": 5, "shortfalls": {}}


def test_regions_to_ignore_count_in_no_minimum(write_coco, encoded_image, tmp_path, capsys) -> None:
    names = [f"{number}.jpg" for number in range(4)]
    path, images = write_coco(
        dict.fromkeys(names, encoded_image()), {name: [(3, 5, 5, 20, 20)] for name in names}
    )
    content = json.loads(path.read_text())
    for annotation in content["annotations"][1:]:
        annotation["iscrowd"] = 1
    path.write_text(json.dumps(content))
    output = tmp_path / "part"
    assert convert(path, images, output, "--split", "train", "--balance", 8) == 0
    manifest = manifest_of(output, "train")
    # The one cat is written eight times, the three crowds once each.
    assert manifest["boxes_per_class"] == {"cat": 11, "dog": 0}
    assert manifest["crowds_per_class"] == {"cat": 3}
    assert convert(path, images, tmp_path / "other", "--split", "train=0.5,val=0.5") == 0


def test_objects_without_a_mask_belong_to_no_class() -> None:
    images = pd.DataFrame({"source_id": ["a", "b"], "file": ["a.jpg", "b.jpg"]})
    boxes = pd.DataFrame({"image": [0, 0, 1], "label": ["cat", "dog", "cat"], "area": np.nan})
    boxes = boxes.assign(y1=0.0, x1=0.0, y2=1.0, x2=1.0, is_crowd=False)
    annotations = build_annotations(
        images=images.assign(height=np.nan, width=np.nan),
        boxes=boxes.assign(lacks_mask=[True, False, False]),
        classes=(ClassEntry("cat", "cat"), ClassEntry("dog", "dog")),
        normalized=True,
    )
    found = labelled_images(annotations, np.arange(2))
    assert [column.tolist() for column in found] == [[0, 1], [1, 0]]


def test_split_fractions() -> None:
    assert split_fractions("val") == {"val": 1.0}
    assert split_fractions("train=0.7, val=.3") == {"train": 0.7, "val": 0.3}
    for text in ("dev", "train=0.8,val", "train=0.8,train=0.2", "train=0,val=1", "train=x"):
        with pytest.raises(ArgumentTypeError, match="train, val or test"):
            split_fractions(text)
    with pytest.raises(ArgumentTypeError, match=r"add up to 0\.9, not to 1"):
        split_fractions("train=0.8,val=0.1")


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (("--folds", 1), "--folds 1 is not a split"),
        (("--folds", 3, "--fold", 3), "--fold 3 must be in 0..2"),
        (("--split", "val", "--fold", 0), "--fold 0 needs --folds"),
        (("--split", "val", "--balance", 9), "9 images per class is for the split train only"),
        (("--split", "train", "--max_copies", 9), "--max_copies 9 limits copies, but"),
        (("--folds", 50), "--folds 50: 41 images cannot be split into 50"),
        (("--split", "train=0.99,val=0.01"), "val=0.01 of 41 images is less than one image"),
        (("--split", "train=0.97,val=0.03"), "--num_shards 2 must be in 1..1, the images of val"),
    ],
)
def test_divisions_that_make_no_sense(forty, tmp_path, capsys, more, message: str) -> None:
    before = sorted(tmp_path.rglob("*"))
    assert convert(*forty, tmp_path / "part", *more) == 2
    errors = capsys.readouterr().err
    assert message in errors
    assert errors.count("\n") == 1
    assert sorted(tmp_path.rglob("*")) == before
