"""Every preset and a fold over coco_tiny, and ten steps of training on what came out."""

import csv
import functools
import json
from collections import Counter, defaultdict
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from tpudet.detection.commands import prepare_folds, prepare_tfrecords, train
from tpudet.detection.data.tfrecord import parse_example
from tpudet.trainkit.records import find_shards

ROOT = Path(__file__).parents[4]
PARTS = ("human_parts", "part_0", "part_1", "part_2", "part_3", "part_4")
ENDINGS = ("", ".offsets")  # of a shard and of its index
SMALL = ["--num_shards", "2", "--workers", "1"]
BALANCED = [*SMALL, "--max_copies", "2"]


def read_boxes(path: Path, classes: Path) -> dict[str, list[dict[str, str]]]:
    """By image, the rows whose class is in the list."""
    known = {line.split(",")[0] for line in classes.read_text().splitlines()}
    rows = defaultdict(list)
    with path.open(newline="") as file:
        for row in csv.DictReader(file):
            if row["LabelName"] in known:
                rows[row["ImageID"]].append(row)
    return rows


@functools.cache  # a trace of the parser each
def read_set(folder: Path, split: str) -> list:
    shards = find_shards(str(folder / f"{split}_{folder.name}"))
    return list(tf.data.TFRecordDataset(shards).map(parse_example).as_numpy_iterator())


def names_in(folder: Path, split: str) -> Counter[str]:
    return Counter(record.source_id.decode() for record in read_set(folder, split))


@pytest.fixture(scope="module")
def predictions(challenge, tmp_path_factory) -> Path:
    """The truth of the `test` images a little moved: one box per class and image."""
    content = challenge.splits["validation"]
    images = {image["id"]: image for image in content["images"]}
    rng = np.random.default_rng(7)
    texts: dict[int, dict[str, str]] = defaultdict(dict)
    for annotation in content["annotations"]:
        image = images[annotation["image_id"]]
        x, y, width, height = annotation["bbox"]
        box = np.array([x, y, x + width, y + height], dtype=np.float64)
        box += rng.uniform(-0.02, 0.02, 4) * np.tile([width, height], 2)
        box = (box / np.tile([image["width"], image["height"]], 2)).clip(0, 1)
        score = 0.95 if annotation["id"] % 2 else 0.9  # the latter is not above 0.9
        label = challenge.mids[annotation["category_id"]]
        numbers = " ".join(f"{value:.5f}" for value in box)
        texts[image["id"]].setdefault(label, f"{label} {score} {numbers}")
    path = tmp_path_factory.mktemp("predictions") / "submission.csv"
    rows = [f"{image:012d},{' '.join(found.values())}\n" for image, found in texts.items()]
    path.write_text("ImageId,PredictionString\n" + "".join(rows))
    return path


@pytest.fixture(scope="module")
def converted(challenge, storage, predictions) -> Path:
    """All presets and fold 3, made once."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DATA", str(challenge.data))
        patch.setenv("STORAGE", str(storage))
        for preset in ("v1", "v2", "v3", "v4", "v5"):
            more = ["--predictions", str(predictions)] if preset in ("v4", "v5") else []
            small = SMALL if preset in ("v2", "v4") else BALANCED
            assert prepare_tfrecords.main([preset, *small, *more]) == 0
        assert prepare_folds.main(["3", *BALANCED]) == 0
    return storage / "converted"


def test_presets_make_their_parts(converted) -> None:
    parts = {
        "v1": PARTS,
        "v2": PARTS,
        "v3": ("human_parts", "part_0", "part_3", "part_4"),
        "v4": ("human_parts", "part_0"),
        "v5": ("human_parts", "part_0"),
    }
    expected = {f"{preset}_{part}" for preset, names in parts.items() for part in names}
    expected |= {f"{part}_fold_3" for part in PARTS}
    assert {path.name for path in converted.iterdir()} == expected
    for name in expected:
        files = {path.name for path in (converted / name).iterdir()}
        assert files == {
            "classes.csv",
            *(f"train_{name}-0000{k}-of-00002.tfrecord{end}" for k in (0, 1) for end in ENDINGS),
            f"train_{name}.manifest.json",
            *(f"val_{name}-00000-of-00001.tfrecord{end}" for end in ENDINGS),
            f"val_{name}.manifest.json",
        }


def test_training_sets_hold_the_boxes_of_their_csv(challenge, prepared, converted) -> None:
    """Crowds in v1 alone; each image once in v2, at most twice in v3."""
    train_boxes = challenge.data / "challenge-2019-train-detection-bbox.csv"
    for part in PARTS:
        human = "_human_parts" if part == "human_parts" else ""
        classes = prepared / f"classes_{part}.csv"
        published = prepared / "train_human_parts.csv" if human else train_boxes
        without = read_boxes(prepared / f"train{human}_no_groups.csv", classes)
        v1 = read_set(converted / f"v1_{part}", "train")
        v2 = read_set(converted / f"v2_{part}", "train")
        expected = {name: len(rows) for name, rows in read_boxes(published, classes).items()}
        assert {r.source_id.decode(): len(r.labels) for r in v1} == expected
        assert names_in(converted / f"v2_{part}", "train") == dict.fromkeys(without, 1)
        assert sum(len(record.labels) for record in v2) == sum(map(len, without.values()))
        if part != "human_parts":
            assert len(v1) == len(expected)  # nothing is repeated
    assert sum(record.is_crowd.sum() for record in read_set(converted / "v1_human_parts", "train"))
    for part in ("human_parts", "part_0", "part_3", "part_4"):
        once = names_in(converted / f"v2_{part}", "train")
        # No class reaches hundreds of images here: every image that can be is copied to the cap.
        assert names_in(converted / f"v3_{part}", "train") == {name: 2 for name in once}


@pytest.mark.parametrize("part", ["human_parts", "part_0"])
def test_pseudo_labels_come_from_the_test_images(part, challenge, prepared, converted) -> None:
    classes = prepared / f"classes_{part}.csv"
    known = {line.split(",")[0] for line in classes.read_text().splitlines()}
    added: Counter[str] = Counter()
    seen = set()
    for annotation in challenge.splits["validation"]["annotations"]:
        pair = annotation["image_id"], challenge.mids[annotation["category_id"]]
        if pair not in seen and pair[1] in known and annotation["id"] % 2:
            added[f"{pair[0]:012d}"] += 1
        seen.add(pair)
    assert len(added) > 5
    trained = {
        record.source_id.decode(): len(record.labels)
        for record in read_set(converted / f"v2_{part}", "train")
    }
    v4 = read_set(converted / f"v4_{part}", "train")
    assert {record.source_id.decode(): len(record.labels) for record in v4} == trained | added
    assert len(v4) == len(trained) + len(added)
    assert names_in(converted / f"v5_{part}", "train") == dict.fromkeys(trained | added, 2)


@pytest.mark.parametrize("part", PARTS)
def test_coco_json_agrees_with_the_records(part, challenge, prepared, converted) -> None:
    content = json.loads((prepared / f"val_{part}.json").read_text())
    annotations = defaultdict(list)
    for annotation in content["annotations"]:
        annotations[annotation["image_id"]].append(annotation)
    records = read_set(converted / f"v1_{part}", "val")
    assert len(records) == len(content["images"]) >= 5
    originals = {image["id"]: image for image in challenge.splits["validation"]["images"]}
    for record, image in zip(records, content["images"], strict=True):
        assert image["source_id"] == record.source_id.decode()
        assert (image["height"], image["width"]) == (record.height, record.width)
        original = originals[int(image["source_id"])]
        assert (image["height"], image["width"]) == (original["height"], original["width"])
        own = annotations[image["id"]]
        assert [entry["category_id"] for entry in own] == record.labels.tolist()
        assert [entry["iscrowd"] for entry in own] == record.is_crowd.astype(int).tolist()
        sides = np.tile([record.height, record.width], 2)
        y1, x1, y2, x2 = (record.boxes_normalized * sides).T
        boxes = np.array([entry["bbox"] for entry in own])
        np.testing.assert_allclose(boxes, np.stack([x1, y1, x2 - x1, y2 - y1], 1), atol=1e-3)
        np.testing.assert_allclose([entry["area"] for entry in own], record.areas, rtol=1e-5)
        np.testing.assert_allclose(boxes[:, 2] * boxes[:, 3], record.areas, rtol=1e-4)
    classes = (converted / f"v1_{part}/classes.csv").read_text().splitlines()
    entries = [(entry["id"], entry["name"]) for entry in content["categories"]]
    assert entries == [(row, line.split(",")[1]) for row, line in enumerate(classes, 1)]


def test_a_fold_is_evaluated_on_its_own_images(prepared, converted) -> None:
    for part in PARTS:
        human = "_human_parts" if part == "human_parts" else ""
        source = prepared / f"train{human}_no_groups.csv"
        images = set(read_boxes(source, prepared / f"classes_{part}.csv"))
        trained = set(names_in(converted / f"{part}_fold_3", "train"))
        validated = names_in(converted / f"{part}_fold_3", "val")
        assert trained | set(validated) == images
        assert not trained & set(validated)
        assert validated.total() == len(validated)  # no copies
        assert abs(len(validated) - len(images) / 5) < 1


def test_up_to_date_sets_are_kept(
    challenge, storage, converted, tmp_path, capsys, monkeypatch
) -> None:
    monkeypatch.setenv("DATA", str(challenge.data))
    monkeypatch.setenv("STORAGE", str(storage))
    before = {path: path.stat().st_mtime_ns for path in storage.rglob("*")}
    command = ["v2", *SMALL, "--parts", "part_1", "part_3"]
    assert prepare_tfrecords.main(command) == 0
    assert capsys.readouterr().out.count("up to date, nothing was written") == 4
    assert prepare_tfrecords.main([*command, "--dry_run"]) == 0
    assert capsys.readouterr().out.count(": up to date, ") == 4
    assert prepare_tfrecords.main([*command, "--seed", "5", "--dry_run"]) == 0
    assert capsys.readouterr().out.count(": to do, ") == 2  # the order of val is that of the file
    assert prepare_folds.main(["4", *SMALL, "--parts", "part_1", "--dry_run"]) == 0
    listed = capsys.readouterr().out
    assert "[1/1] Split train_no_groups.csv into 5 folds, for part_1: up to date" in listed
    assert listed.count(": to do, ") == 2
    other = tmp_path / "other.csv"
    other.write_text("ImageId,PredictionString\n")
    v5 = ["v5", *BALANCED, "--parts", "part_0", "--predictions", str(other), "--dry_run"]
    assert prepare_tfrecords.main(v5) == 0
    listed = capsys.readouterr().out
    assert f"Add pseudo-labels to train_no_groups.csv: to do ({other} changed)" in listed
    (pending,) = (line for line in listed.splitlines() if "v5_part_0, train: to do (" in line)
    assert pending.endswith(".csv not made yet)")
    assert "v5_part_0, val: up to date, " in listed
    assert {path: path.stat().st_mtime_ns for path in storage.rglob("*")} == before


def test_ten_steps_on_a_fold(converted, tmp_path) -> None:
    settings = {
        "data.directory": str(converted / "part_4_fold_3"),
        "data.canvas_size": "[128, 128]",
        "model.min_level": "3",
        "model.max_level": "3",
        "train.batch_size": "2",
        "train.total_steps": "10",
        "train.learning_rate.peak": "1e-3",
        "evaluation.schedule.batch_size": "2",
        "evaluation.schedule.num_images": "2",
    }
    command = ["--config", "quickstart", "--model_dir", str(tmp_path / "run")]
    command += [text for key, value in settings.items() for text in ("--set", f"{key}={value}")]
    assert train.main(command) == 0
    ledger = [
        json.loads(line) for line in (tmp_path / "run/metrics.jsonl").read_text().split("\n")[:-1]
    ]
    assert [line["step"] for line in ledger if line["kind"] == "eval"] == [10]
    losses = [line["loss"] for line in ledger if line["kind"] == "train"]
    assert losses
    assert np.isfinite(losses).all()
