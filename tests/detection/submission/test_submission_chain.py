"""From predictions files of parts to a trimmed ensemble, on real boxes: gen, join, merge, trim."""

import json
import re
from pathlib import Path

import numpy as np
import pytest

from tpudet.detection.commands import (
    evaluate_submission,
    gen_sub,
    join_subs,
    merge_subs,
    trim_sub_by_num_of_predicts,
    trim_sub_by_threshold,
)
from tpudet.detection.inference.predictions_file import ImagePredictions, write_predictions
from tpudet.detection.submission.open_images_csv import parse_predictions, read_submission

Truth = dict[str, tuple[np.ndarray, np.ndarray]]  # image id: classes [n] from 1, boxes [n, 4]


def read_truth(path: Path) -> tuple[Truth, list[str]]:
    """COCO boxes as fractions x1 y1 x2 y2, and the names of the classes."""
    content = json.loads(path.read_text())
    numbers = {entry["id"]: row for row, entry in enumerate(content["categories"], start=1)}
    truth = {}
    for image in content["images"]:
        found = [a for a in content["annotations"] if a["image_id"] == image["id"]]
        boxes = np.array([a["bbox"] for a in found], np.float64).reshape(-1, 4)
        boxes[:, 2:] += boxes[:, :2]
        boxes /= [image["width"], image["height"]] * 2
        truth[Path(image["file_name"]).stem] = (
            np.array([numbers[a["category_id"]] for a in found], np.int32),
            boxes,
        )
    return truth, [entry["name"] for entry in content["categories"]]


def jittered(
    truth: Truth, chosen: set[int], seed: int, *, spread: float = 0.05
) -> list[ImagePredictions]:
    """Made-up predictions of some classes: boxes moved by `spread` of their sides; clutter."""
    random = np.random.default_rng(seed)
    images = []
    for image_id, (classes, boxes) in truth.items():
        kept = np.isin(classes, list(chosen))
        classes, boxes = classes[kept], boxes[kept]
        sides = np.tile(boxes[:, 2:] - boxes[:, :2], 2)
        moved = np.sort(
            (boxes + random.normal(0, spread, boxes.shape) * sides).reshape(-1, 2, 2), 1
        )
        corners = random.random((5, 2)) * 0.8
        clutter = np.concatenate([corners, corners + 0.1], axis=1)
        scores = np.concatenate(
            [random.uniform(0.5, 1, len(classes)), random.uniform(0.01, 0.2, 5)]
        )
        labels = np.concatenate([classes, random.choice(sorted(chosen), 5)])
        images.append(
            ImagePredictions(
                image_id,
                labels.astype(np.int32),
                scores.astype(np.float32),
                np.concatenate([moved.reshape(-1, 4), clutter]).astype(np.float32),
            )
        )
    return images


def mean_overlap(truth: Truth, path: str) -> float:
    """Mean over true boxes of the best IoU among the predictions of their class."""
    with open(path) as file:
        rows = {image_id: parse_predictions(text) for image_id, text in read_submission(file)}
    best = []
    for image_id, (classes, boxes) in truth.items():
        found = rows[image_id]
        labels = np.array([int(name.removeprefix("/m/")) for name in found.identifiers], np.int64)
        for number, box in zip(classes, boxes, strict=True):
            others = found.boxes_normalized[labels == number]
            corners = np.maximum(others[:, :2], box[:2]), np.minimum(others[:, 2:], box[2:])
            shared = np.clip(corners[1] - corners[0], 0, None).prod(axis=1)
            areas = (others[:, 2:] - others[:, :2]).prod(axis=1) + (box[2:] - box[:2]).prod()
            best.append((shared / (areas - shared)).max(initial=0))
    return float(np.mean(best))


def mean_average_precision(printed: str) -> float:
    found = re.search(r"mAP (\d\.\d+) over", printed)
    assert found is not None, printed
    return float(found[1])


def write_truth(truth: Truth, path: Path) -> None:
    """The boxes as Open Images publishes them."""
    lines = ["ImageID,LabelName,XMin,XMax,YMin,YMax,IsGroupOf"]
    for image_id, (classes, boxes) in truth.items():
        for number, (x1, y1, x2, y2) in zip(classes, boxes, strict=True):
            lines.append(f"{image_id},/m/{number},{x1:.8f},{x2:.8f},{y1:.8f},{y2:.8f},0")
    path.write_text("\n".join(lines) + "\n")


@pytest.fixture
def models(
    data_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> tuple[Truth, list[str]]:
    """The truth, and three submissions, each joined from two parts of the classes."""
    return write_models(data_dir, tmp_path, monkeypatch, spread=0.05)


def write_models(
    data_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, spread: float
) -> tuple[Truth, list[str]]:
    monkeypatch.chdir(tmp_path)
    truth, names = read_truth(data_dir / "coco_tiny/annotations/instances_val2017.json")
    classes = "".join(f"/m/{row},{name}\n" for row, name in enumerate(names, start=1))
    present = sorted({int(k) for labels, _ in truth.values() for k in labels})
    submissions = []
    for model in range(3):
        parts = []
        for part in range(2):
            images = jittered(truth, set(present[part::2]), seed=10 * model + part, spread=spread)
            name = f"model_{model}-part_{part}.parquet"
            with open(name, "wb") as file:
                write_predictions(file, name, [images], class_list_text=classes, metadata={})
            assert gen_sub.main([name]) == 0
            parts.append(name.replace(".parquet", ".csv"))
        submissions.append(f"model_{model}.csv")
        assert join_subs.main([submissions[-1], *parts, "--min_conf", "0.01"]) == 0
    return truth, submissions


def test_the_ensemble_is_nearer_to_the_truth_than_each_model(
    models: tuple[Truth, list[str]], capsys: pytest.CaptureFixture[str]
) -> None:
    truth, submissions = models
    num_boxes = sum(len(labels) for labels, _ in truth.values())
    assert merge_subs.main(["merged.csv", *submissions, "--method", "wbf", "--iou", "0.5"]) == 0
    assert trim_sub_by_threshold.main(["high.csv", "merged.csv", "0.05"]) == 0
    capsys.readouterr()
    number = str(2 * num_boxes)
    assert trim_sub_by_num_of_predicts.main(["best.csv", "high.csv", number]) == 0
    assert f"{len(truth)} images, {number} predictions of the " in capsys.readouterr().out
    with open("best.csv") as file:
        assert [image_id for image_id, _ in read_submission(file)] == sorted(truth)
    single = [mean_overlap(truth, path) for path in submissions]
    ensemble = mean_overlap(truth, "best.csv")
    assert num_boxes > 100
    assert 0.7 < max(single) < 0.9
    assert ensemble > max(single) + 0.03


def test_by_the_challenge_metric_the_ensemble_beats_each_model(
    data_dir: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    truth, submissions = write_models(data_dir, tmp_path, monkeypatch, spread=0.18)
    write_truth(truth, Path("truth.csv"))
    assert merge_subs.main(["merged.csv", *submissions, "--method", "wbf", "--iou", "0.4"]) == 0
    assert trim_sub_by_threshold.main(["best.csv", "merged.csv", "0.02"]) == 0
    scores = []
    for path in (*submissions, "best.csv"):
        capsys.readouterr()
        assert evaluate_submission.main([path, "truth.csv", "--num_curves", "0"]) == 0
        scores.append(mean_average_precision(capsys.readouterr().out))
    assert max(scores[:3]) < 0.8
    assert scores[3] > max(scores[:3]) + 0.05
