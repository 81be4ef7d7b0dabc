"""tpudet train, evaluate, export and predict with two-stage detectors, masks included."""

import json
from pathlib import Path

import cv2
import numpy as np
import pytest

from tpudet.detection.commands import evaluate, export, make_tfrecords, predict, train
from tpudet.detection.inference.predictions_file import read_predictions
from tpudet.detection.inference.saved_detector import load_detector, read_saved_detector
from tpudet.detection.ops.numpy_masks import decode_rle

NARROW = {
    "model.backbone.kind": "resnet",
    "model.backbone.depth": "18",
    "model.min_level": "3",
    "model.max_level": "4",
    "model.neck.num_filters": "16",
    "model.rpn.num_filters": "16",
    "model.rpn.max_proposals": "20",
    "model.rpn.max_proposals_in_training": "20",
    "model.box_head.num_units": "16",
    "model.box_head.regions_per_image": "16",
    "model.mask_head.num_filters": "16",
    "model.mask_head.num_convs": "1",
    "model.postprocess.score_threshold": "0.0",  # so little training gives low scores
    "model.postprocess.max_detections": "10",
    "train.freeze": "[]",
    "train.batch_size": "2",
    "train.iterations_per_loop": "1",
    "train.log_every_steps": "1",
    "evaluation.schedule.batch_size": "2",
    "evaluation.schedule.num_images": "2",
    "data.canvas_size": "[64, 96]",
}


def flags(values: dict[str, str]) -> list[str]:
    return [text for key, value in values.items() for text in ("--set", f"{key}={value}")]


def read_ledger(model_dir: Path) -> list[dict]:
    return [json.loads(line) for line in (model_dir / "metrics.jsonl").read_text().splitlines()]


def write_split(
    folder: Path,
    part: Path,
    split: str,
    outlines: list[list[np.ndarray]],
    *,
    size: tuple[int, int],
) -> None:
    """Draws and converts images of this size; outlines [n, 2] x y by image and class."""
    images, objects = [], []
    (folder / split).mkdir()
    for number, of_image in enumerate(outlines, 1):
        pixels = np.full((*size, 3), 60, np.uint8)
        for class_id, outline in enumerate(of_image, 1):
            cv2.fillPoly(pixels, [outline.round().astype(np.int32)], [200, 40 * class_id, 90])
            low, high = outline.min(axis=0), outline.max(axis=0)
            objects.append(
                {
                    "id": len(objects) + 1,
                    "image_id": number,
                    "category_id": class_id,
                    "bbox": [*low.tolist(), *(high - low).tolist()],
                    "segmentation": [outline.ravel().tolist()],
                    "area": 1000,
                    "iscrowd": 0,
                }
            )
        name = f"{number}.png"
        cv2.imwrite(str(folder / split / name), pixels)
        images.append({"id": number, "file_name": name, "height": size[0], "width": size[1]})
    categories = [{"id": 1, "name": "disc"}, {"id": 2, "name": "square"}]
    annotations = {"images": images, "annotations": objects, "categories": categories}
    (folder / f"{split}.json").write_text(json.dumps(annotations))
    source = ["--annotations", f"{folder}/{split}.json", "--images", f"{folder}/{split}"]
    source += ["--format", "coco", "--include_masks", "--workers", "1", "--num_shards", "1"]
    assert make_tfrecords.main([*source, "--split", split, "--output", str(part)]) == 0


@pytest.fixture(scope="module")
def mask_part(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A converted part of 4 training and 2 validation images, each with a disc and a square."""
    folder = tmp_path_factory.mktemp("shapes")
    angles = np.linspace(0, 2 * np.pi, 24, endpoint=False)
    disc = np.stack([30 + 18 * np.cos(angles), 40 + 18 * np.sin(angles)], 1)
    square = np.array([[70.0, 20], [100, 20], [100, 50], [70, 50]])
    for split, count in (("train", 4), ("val", 2)):
        outlines = [[disc + number, square - number] for number in range(count)]
        write_split(folder, folder / "converted/shapes", split, outlines, size=(80, 120))
    return folder / "converted/shapes"


def train_steps(version: str, part: Path, model_dir: Path, **values: str) -> list[dict]:
    """Trains through the command, five steps by default; returns the ledger's line of each."""
    command = ["--config", version, "--model_dir", str(model_dir), "--mode", "train"]
    changed = {"data.directory": str(part), "train.total_steps": "5"}
    changed |= values
    assert train.main([*command, *flags(NARROW | changed)]) == 0
    steps = [line for line in read_ledger(model_dir) if line["kind"] == "train"]
    assert [line["step"] for line in steps] == list(range(1, int(changed["train.total_steps"]) + 1))
    return steps


@pytest.fixture(scope="module")
def mask_run(mask_part: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model_dir after five steps."""
    model_dir = tmp_path_factory.mktemp("saved") / "masks"
    train_steps("mask-quickstart", mask_part, model_dir)
    return model_dir


def test_a_shipped_config_learns_masks_through_the_command(mask_run: Path) -> None:
    parts = ("loss_rpn_class", "loss_rpn_box", "loss_class", "loss_box", "loss_mask")
    for line in read_ledger(mask_run):
        if line["kind"] == "train":
            assert all(np.isfinite(line[name]) and line[name] > 0 for name in parts)


@pytest.mark.slow
def test_masks_go_from_a_checkpoint_to_a_predictions_file(
    mask_run: Path, mask_part: Path, tmp_path: Path
) -> None:
    arguments = ["--model_dir", str(mask_run), "--export_root", str(tmp_path / "final")]
    assert export.main(arguments) == 0
    check_predictions(mask_part.parents[1] / "val", tmp_path / "final/masks-64x96", tmp_path)


@pytest.mark.slow
def test_one_image_is_learned_by_heart(tmp_path: Path) -> None:
    """Boxes and masks of a disc and a square of 64 pixels, to an AP of 0.9."""
    angles = np.linspace(0, 2 * np.pi, 48, endpoint=False)
    disc = np.stack([40 + 32 * np.cos(angles), 44 + 32 * np.sin(angles)], 1)
    square = np.array([[60.0, 60], [124, 60], [124, 124], [60, 124]])
    part = tmp_path / "converted/one"
    write_split(tmp_path, part, "train", [[disc, square]], size=(128, 128))
    values = NARROW | {
        "data.directory": str(part),
        "data.canvas_size": "[128, 128]",
        "data.eval_split": "train",
        "data.horizontal_flip": "false",
        "data.scale_range": "[1.0, 1.0]",
        "model.max_level": "5",
        "model.neck.num_filters": "64",
        "model.box_head.num_units": "128",
        "model.box_head.regions_per_image": "32",
        "model.mask_head.num_convs": "2",
        "model.mask_head.num_filters": "64",
        "model.postprocess.score_threshold": "0.05",
        "train.batch_size": "1",
        "train.reference_batch_size": "1",
        "train.ema_decay": "null",
        "train.iterations_per_loop": "50",
        "train.log_every_steps": "50",
        "train.total_steps": "400",
        "evaluation.schedule.every_steps": "400",
        "train.learning_rate.peak": "1e-3",
    }
    command = ["--config", "mask-quickstart", "--model_dir", str(tmp_path / "run")]
    assert train.main([*command, *flags(values)]) == 0
    metrics = [line for line in read_ledger(tmp_path / "run") if line["kind"] == "eval"][-1]
    assert metrics["AP"] >= 0.9
    assert metrics["mask_AP"] >= 0.9


@pytest.mark.slow
def test_a_run_is_evaluated_with_masks_and_goes_on(
    mask_part: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["--config", "mask-quickstart", "--model_dir", str(tmp_path)]
    values = NARROW | {"data.directory": str(mask_part), "train.total_steps": "1"}
    assert train.main([*command, *flags(values)]) == 0
    assert "mask_AP50: " in capsys.readouterr().out
    assert train.main([*command, *flags(values | {"train.total_steps": "2"})]) == 0
    lines = [(line["kind"], line["step"]) for line in read_ledger(tmp_path)]
    assert [line for line in lines if line[0] != "state"] == [
        *(("train", 1), ("eval", 1)),
        *(("train", 2), ("eval", 2)),
    ]
    metrics = [line for line in read_ledger(tmp_path) if line["kind"] == "eval"][-1]
    assert {"AP", "mask_AP", "mask_ARmax100", "mask_AP/disc"} <= metrics.keys()
    assert evaluate.main(["--model_dir", str(tmp_path), "--step", "2"]) == 0
    assert "step 2</title>" in (tmp_path / "evaluation_val_2_report.html").read_text()
    tables = [tmp_path / f"{name}class_table.csv" for name in ("", "evaluation_val_2_")]
    assert tables[0].read_text() == tables[1].read_text()  # the same checkpoint
    again = json.loads((tmp_path / "evaluation_val_2.json").read_text())
    assert again["mask_AP"] == pytest.approx(metrics["mask_AP"])


def check_predictions(images: Path, saved_model: Path, folder: Path) -> None:
    """The file holds masks of the images' size; a batch gives what its images give alone."""
    saved = read_saved_detector(str(saved_model))
    assert saved.metadata["mask_side"] == 28
    file = str(folder / "masks.parquet")
    assert predict.main([file, str(saved_model), "--images", str(images), "--workers", "1"]) == 0
    with open(file, "rb") as opened:
        predicted = read_predictions(opened, file).images
    assert [image.image_id for image in predicted] == ["1", "2"]
    detect = load_detector(saved)
    encoded = [path.read_bytes() for path in sorted(images.iterdir())]
    together = detect(encoded)
    for number, image in enumerate(predicted):
        (alone,) = detect(encoded[number : number + 1])
        assert len(alone.labels) > 1
        for found in (together[number], image):
            np.testing.assert_array_equal(found.labels, alone.labels)
            np.testing.assert_allclose(found.scores, alone.scores, atol=1e-5)
            np.testing.assert_allclose(found.boxes_normalized, alone.boxes_normalized, atol=1e-4)
            assert found.masks is not None
            assert alone.masks is not None
            for one, other in zip(found.masks, alone.masks, strict=True):
                one, other = decode_rle(one), decode_rle(other)
                assert one.shape == (80, 120)
                assert np.mean(one != other) < 1e-3


@pytest.mark.slow
@pytest.mark.parametrize("version", ["faster-r50", "cascade-r50", "mask-nasfpn"])
def test_other_two_stage_detectors_train_through_the_command(
    version: str, mask_part: Path, tmp_path: Path
) -> None:
    values: dict[str, str] = {}
    if version == "mask-nasfpn":
        values = {"model.max_level": "7", "data.canvas_size": "[128, 128]"}
        values |= {"model.neck.kind": "nas_fpn", "model.neck.num_repeats": "1"}
    steps = train_steps(version, mask_part, tmp_path / "run", **values)
    assert all(np.isfinite(line["loss"]) for line in steps)
    assert ("loss_mask" in steps[-1]) == (version != "faster-r50")


@pytest.mark.slow
def test_twenty_steps_on_real_masks_with_crowds(data_dir: Path, tmp_path: Path) -> None:
    coco, part = data_dir / "coco_tiny", tmp_path / "converted/coco"
    source = ["--annotations", str(coco / "annotations/instances_train2017.json")]
    source += ["--images", str(coco / "train2017"), "--format", "coco", "--include_masks"]
    source += ["--workers", "1", "--num_shards", "1", "--split", "train", "--output", str(part)]
    assert make_tfrecords.main(source) == 0
    values = {"train.total_steps": "20", "data.canvas_size": "[160, 160]"}
    steps = train_steps("mask-quickstart", part, tmp_path / "run", **values)
    assert all(np.isfinite(line["loss"]) for line in steps)
    assert np.mean([line["loss_mask"] > 0 for line in steps]) > 0.9
