"""The segmentation track as a part of a preset: leaf classes, boxes and masks in one set."""

import csv
import json
from pathlib import Path

import cv2
import numpy as np
import pytest

from tpudet.detection.commands import (
    evaluate_submission,
    gen_mask_truth,
    gen_tfrecords,
    prepare_folds,
    prepare_tfrecords,
)
from tpudet.detection.data.tfrecord import Example, parse_example
from tpudet.detection.evaluation.ground_truth import load_ground_truth
from tpudet.detection.evaluation.open_images.split import challenge_split
from tpudet.detection.submission.mask_text import encode_mask
from tpudet.detection.types import DetectionTable
from tpudet.trainkit.class_list import read_classes
from tpudet.trainkit.records import find_shards, read_records

HEIGHT, WIDTH = 48, 64
MASK_COLUMNS = "MaskPath,ImageID,LabelName,BoxID,BoxXMin,BoxXMax,BoxYMin,BoxYMax,PredictedIoU"
MASK_COLUMNS += ",Clicks"
FILES = ["--num_shards", "1", "--workers", "1"]
IMAGES = {"train": "0123", "validation": "abcd"}  # first characters of the ids


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, encoded_image, write_box_csv) -> Path:
    """$DATA: an animal, which is not a leaf, and a cat with a mask in four images per split."""
    folder = tmp_path / "data"
    folder.mkdir()
    classes = "/m/animal,Animal\n/m/cat,Cat\n/m/dog,Dog\n"
    (folder / "challenge-2019-classes-description-segmentable.csv").write_text(classes)
    leaves = [{"LabelName": "/m/cat"}, {"LabelName": "/m/dog"}]
    hierarchy = [{"LabelName": "/m/animal", "Subcategory": leaves}]
    (folder / "challenge-2019-label300-segmentable-hierarchy.json").write_text(
        json.dumps({"LabelName": "/m/0bl9f", "Subcategory": hierarchy})
    )
    mask = np.zeros((HEIGHT, WIDTH), np.uint8)
    mask[12:36, 16:40] = 255  # the right half of its box is outside
    for split, firsts in IMAGES.items():
        boxes, masks = [], [MASK_COLUMNS]
        (folder / split).mkdir()
        for first in firsts:
            name = first * 16
            (folder / split / f"{name}.jpg").write_bytes(encoded_image(WIDTH, HEIGHT))
            boxes += [(name, "/m/cat", 0.25, 1, 0.25, 0.75, 0), (name, "/m/animal", 0, 1, 0, 1, 0)]
            masks.append(f"{name}_m1.png,{name},/m/cat,b,0.250000,1.000000,0.250000,0.750000,0.8,")
            archive = folder / f"{split}_masks/challenge-2019-{split}-masks-{first}"
            archive.mkdir(parents=True)
            cv2.imwrite(str(archive / f"{name}_m1.png"), mask)
        stem = f"challenge-2019-{split}-segmentation"
        write_box_csv(folder / f"{stem}-bbox.csv", *boxes)
        (folder / f"{stem}-masks.csv").write_text("\n".join(masks) + "\n")
    monkeypatch.setenv("DATA", str(folder))
    monkeypatch.setenv("STORAGE", str(tmp_path / "output"))
    return folder


def read_examples(folder: Path, split: str) -> list[Example]:
    shards = find_shards(str(folder / f"{split}_{folder.name}"))
    return [parse_example(text, with_masks=True) for _, text in read_records(shards)]


def check_cat(example: Example) -> None:
    assert example.labels.numpy().tolist() == [1]
    assert example.is_crowd.numpy().tolist() == [False]
    np.testing.assert_allclose(example.boxes_normalized, [[0.25, 0.25, 0.75, 1]])
    assert example.masks is not None
    pixels = cv2.imdecode(np.frombuffer(example.masks.numpy()[0], np.uint8), 0)
    assert pixels is not None
    mask = pixels > 0
    assert mask.shape == (HEIGHT, WIDTH)
    assert mask.sum() == mask[12:36, 16:40].sum() == 24 * 24 == example.areas.numpy()[0]


def test_the_preset_lists_the_leaves_and_writes_both_splits(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert prepare_tfrecords.main(["segmentation", "--dry_run", *FILES]) == 0
    assert "classes_segmentation.csv not made yet" in capsys.readouterr().out
    assert not (tmp_path / "output").exists()
    assert prepare_tfrecords.main(["segmentation", *FILES]) == 0
    folder = tmp_path / "output/converted/segmentation_segmentation"
    assert (folder / "classes.csv").read_text() == "/m/cat,Cat\n/m/dog,Dog\n"
    for split in ("train", "val"):
        examples = read_examples(folder, split)
        assert len(examples) == 4
        for example in examples:
            check_cat(example)
    assert prepare_tfrecords.main(["segmentation", *FILES]) == 0
    assert capsys.readouterr().out.count("up to date, nothing was written") == 2


def test_overwriting_replaces_the_class_list_of_both_splits(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert prepare_tfrecords.main(["segmentation", *FILES]) == 0
    folder = tmp_path / "output/converted/segmentation_segmentation"
    published = data / "challenge-2019-classes-description-segmentable.csv"
    published.write_text("/m/animal,Animal\n/m/dog,Dog\n/m/cat,Cat\n")
    before = {path: path.read_bytes() for path in folder.iterdir()}
    assert prepare_tfrecords.main(["segmentation", *FILES]) == 2
    error = capsys.readouterr().err
    assert "row 1 is '/m/cat,Cat' there and '/m/dog,Dog' here" in error
    assert "--overwrite" in error
    assert "--output" not in error  # it has no such option
    assert {path: path.read_bytes() for path in folder.iterdir()} == before
    assert prepare_tfrecords.main(["segmentation", *FILES, "--overwrite"]) == 0
    assert (folder / "classes.csv").read_text() == "/m/dog,Dog\n/m/cat,Cat\n"
    for split in ("train", "val"):
        assert [example.labels.numpy().tolist() for example in read_examples(folder, split)] == (
            [[2]] * 4
        )
    screen = capsys.readouterr().out
    assert screen.index("[1/2]") < screen.index("[2/2]") < screen.index("written. Manifest")
    assert prepare_tfrecords.main(["segmentation", *FILES]) == 0
    assert capsys.readouterr().out.count("up to date, nothing was written") == 2


def test_folds_keep_their_masks(data: Path, tmp_path: Path) -> None:
    assert prepare_folds.main(["1", "--num_folds", "2", "--preset", "segmentation", *FILES]) == 0
    folder = tmp_path / "output/converted/segmentation_fold_1"
    ids = []
    for split in ("train", "val"):
        examples = read_examples(folder, split)
        assert len(examples) == 2
        for example in examples:
            check_cat(example)
            ids.append(example.source_id.numpy().decode())
    assert sorted(ids) == [first * 16 for first in IMAGES["train"]]


def test_folds_of_another_division_are_refused(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """With --overwrite each of them can be written again; those that are left are named."""
    command = ["--preset", "segmentation", *FILES]
    assert prepare_folds.main(["0", "--num_folds", "2", *command]) == 0
    folder = tmp_path / "output/converted/segmentation_fold_0"
    tables = {path: path.read_bytes() for path in (tmp_path / "output/prepared/folds").iterdir()}
    capsys.readouterr()
    for other, shown in (
        (["1", "--num_folds", "4"], "into 2 folds with seed 777 instead of 4"),
        (["1", "--num_folds", "2", "--fold_seed", "5"], "instead of 2 with seed 5"),
    ):
        assert prepare_folds.main([*other, *command]) == 2
        error = capsys.readouterr().err
        assert f"{folder}: of another division" in error
        assert shown in error
    assert {path: path.read_bytes() for path in tables} == tables
    assert prepare_folds.main(["1", "--num_folds", "2", *command]) == 0
    capsys.readouterr()
    assert prepare_folds.main(["0", "--num_folds", "4", *command, "--overwrite"]) == 0
    assert f"WARNING: {folder}, {folder.parent}/segmentation_fold_1" in capsys.readouterr().out
    for fold in "123":
        assert prepare_folds.main([fold, "--num_folds", "4", *command, "--overwrite"]) == 0
        assert ("WARNING" in capsys.readouterr().out) == (fold == "1")


def test_folds_of_other_boxes_are_refused(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["--num_folds", "2", "--preset", "segmentation", *FILES]
    assert prepare_folds.main(["0", *command]) == 0
    folder = tmp_path / "output/converted/segmentation_fold_0"
    boxes = data / "challenge-2019-train-segmentation-bbox.csv"
    lines = boxes.read_text().splitlines()
    boxes.write_text("\n".join(line for line in lines if "3" * 16 not in line) + "\n")
    capsys.readouterr()
    assert prepare_folds.main(["1", *command]) == 2
    assert f"{folder}: of another division, into 2 folds with seed 777, of other images" in (
        capsys.readouterr().err
    )
    boxes.write_text("\n".join(lines) + "\n")
    assert prepare_folds.main(["1", *command]) == 0


def test_missing_tables_and_filtered_boxes_are_refused(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    presets = tmp_path / "presets.yaml"
    presets.write_text(
        "mine:\n  description: x\n  segmentation: {boxes: no_groups, num_shards: 1}\n"
    )
    assert prepare_tfrecords.main(["mine", "--presets", str(presets), *FILES]) == 2
    message = "presets.yaml:3: boxes of segmentation must be all, got no_groups"
    assert message in capsys.readouterr().err
    (data / "challenge-2019-validation-segmentation-bbox.csv").unlink()
    assert prepare_tfrecords.main(["segmentation", *FILES]) == 2
    assert "challenge-2019-validation-segmentation-bbox.csv" in capsys.readouterr().err
    (data / "challenge-2019-label300-segmentable-hierarchy.json").unlink()
    assert prepare_tfrecords.main(["segmentation", *FILES]) == 2
    assert "challenge-2019-label300-segmentable-hierarchy.json" in capsys.readouterr().err


def test_gen_tfrecords_takes_masks(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    classes = tmp_path / "classes_cats.csv"
    classes.write_text("/m/cat,Cat\n")
    stem = f"{data}/challenge-2019-train-segmentation"
    arguments = ["--image_info_file", f"{stem}-bbox.csv", "--classes_file", str(classes), *FILES]
    masks = ["--include_masks", "--mask_dir", f"{data}/train_masks"]
    assert gen_tfrecords.main([*arguments, *masks]) == 2
    message = "need --include_masks, --mask_csv FILE and --mask_dir DIR together"
    assert message in capsys.readouterr().err
    assert gen_tfrecords.main([*arguments, *masks, "--mask_csv", f"{stem}-masks.csv"]) == 0
    examples = read_examples(tmp_path / "output/converted/cats", "train")
    assert len(examples) == 4
    for example in examples:
        check_cat(example)


def test_the_truth_in_one_csv_scores_its_own_masks_1(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Half the masks are as large as their image, half are half as large, as some are published."""
    for first in "ab":
        name = first * 16
        path = data / f"validation_masks/challenge-2019-validation-masks-{first}/{name}_m1.png"
        mask = cv2.imread(str(path), cv2.IMREAD_GRAYSCALE)
        assert mask is not None
        cv2.imwrite(str(path), mask[::2, ::2])
    assert gen_mask_truth.main([]) == 0
    assert "8 boxes in 4 images, 4 of them with a mask" in capsys.readouterr().out
    path = tmp_path / "output/prepared/val_masks.csv"
    with path.open() as file:
        rows = list(csv.DictReader(file))
    assert [row["Mask"] != "" for row in rows] == [True, False] * 4
    assert {(row["ImageWidth"], row["ImageHeight"]) for row in rows} == {("64", "48")}
    cats = [row for row in rows if row["Mask"]]
    assert len({row["Mask"] for row in cats}) == 1
    submission = tmp_path / "sub.csv"
    lines = [f"{row['ImageID']},64,48,/m/cat 0.9 {row['Mask']}\n" for row in cats]
    submission.write_text("ImageID,ImageWidth,ImageHeight,PredictionString\n" + "".join(lines))
    assert evaluate_submission.main([str(submission), str(path), "--masks"]) == 0
    assert "mAP 1.000000" in capsys.readouterr().out


def test_a_mask_that_cannot_be_used_is_named_and_nothing_is_written(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    name = "a" * 16
    mask = data / f"validation_masks/challenge-2019-validation-masks-a/{name}_m1.png"
    mask.write_bytes(mask.read_bytes()[:40])
    assert gen_mask_truth.main([]) == 2
    message = capsys.readouterr().err
    assert "1 of 4 masks are missing, damaged, empty or of another shape" in message
    assert str(mask) in message
    assert not (tmp_path / "output/prepared/val_masks.csv").exists()
    assert gen_mask_truth.main(["--mask_dir", str(tmp_path / "nowhere")]) == 2
    assert "nowhere" in capsys.readouterr().err


def test_training_scores_masks_as_the_submission_of_the_same_detections_is_scored(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Besides its cat each image has a cat without a mask; the first has a group of cats too.

    All four cats with a mask are found, before them two without and after them one of the group.
    Recall counts the four and the group: 4 / 5, as the group without a mask cannot be found.
    """
    rows = [f"{first * 16},xclick,/m/cat,1,0.5,1,0.75,1,0,0,0,0,0\n" for first in "abcd"]
    rows.append(f"{'a' * 16},xclick,/m/cat,1,0,1,0,0.25,0,0,1,0,0\n")
    with (data / "challenge-2019-validation-segmentation-bbox.csv").open("a") as file:
        file.writelines(rows)
    assert prepare_tfrecords.main(["segmentation", *FILES]) == 0
    assert gen_mask_truth.main([]) == 0
    folder = tmp_path / "output/converted/segmentation_segmentation"
    classes = read_classes(str(folder / "classes.csv"))
    shards = find_shards(str(folder / "val_segmentation_segmentation"))
    names = [entry.name for entry in classes]
    truth = load_ground_truth(shards, names, with_masks=True)
    assert truth.masks is not None
    assert truth.lacks_mask is not None
    assert (len(truth.classes), truth.is_crowd.sum(), truth.lacks_mask.sum()) == (9, 1, 5)
    kinds = truth.lacks_mask.astype(int) + truth.is_crowd  # cat, without mask, group
    kept = np.array([row for row in range(9) if kinds[row] != 1 or truth.image_indices[row] < 2])
    masks = [truth.masks[row] for row in kept]
    scores = np.array([0.8, 0.9, 0.7])[kinds[kept]]
    found = DetectionTable(
        truth.image_indices[kept], truth.boxes[kept], scores, truth.classes[kept], masks
    )
    tree = str(data / "challenge-2019-label300-segmentable-hierarchy.json")
    metrics = challenge_split(truth, classes, hierarchy=tree, image_labels="").metrics(found)
    assert metrics["mask_AP/Cat"] == metrics["mask_AP"] == pytest.approx(4 / 5)
    lines = ["ImageID,ImageWidth,ImageHeight,PredictionString"]
    for image, name in enumerate(truth.source_ids):
        own = np.flatnonzero(found.image_indices == image)
        text = [f"/m/cat {found.scores[row]} {encode_mask(masks[row])}" for row in own]
        lines.append(f"{name},{WIDTH},{HEIGHT},{' '.join(text)}")
    (tmp_path / "sub.csv").write_text("\n".join(lines) + "\n")
    command = [f"{tmp_path}/sub.csv", f"{tmp_path}/output/prepared/val_masks.csv", "--masks"]
    command += ["--hierarchy", tree, "--classes", str(folder / "classes.csv")]
    capsys.readouterr()
    assert evaluate_submission.main(command) == 0
    assert "mAP 0.800000" in capsys.readouterr().out
