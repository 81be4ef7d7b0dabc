"""train, evaluate, export and classify of a classifier, through the command."""

import csv
import json
import shutil
from pathlib import Path

import cv2
import numpy as np
import pytest
import tensorflow as tf
from tensorflow.core.protobuf.saved_model_pb2 import SavedModel

from tpudet.classification.config import load_experiment
from tpudet.classification.experiment import check_export
from tpudet.cli import main
from tpudet.detection.build_detector import build_task as build_detector
from tpudet.detection.config import load_experiment as load_detection
from tpudet.trainkit.class_list import ClassEntry
from tpudet.trainkit.images.standardize import decode_rgb
from tpudet.trainkit.training.checkpoints import read_checkpoint
from tpudet.trainkit.weights.config import WeightsConfig
from tpudet.trainkit.weights.pretrained import load_pretrained, open_pretrained


def read_rows(path: Path) -> list[dict[str, str]]:
    return list(csv.DictReader(path.read_text().splitlines()))


def ledger(run: Path) -> list[dict]:
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


def test_a_run_is_evaluated_and_described(trained_run: Path) -> None:
    evaluations = [line for line in ledger(trained_run) if line["kind"] == "eval"]
    assert [line["step"] for line in evaluations] == [2, 4]
    assert {"top1", "macro_f1", "negative_loss"} <= evaluations[0].keys()
    assert "top5" not in evaluations[0]  # of three classes every image would be right
    losses = [line["loss_class"] for line in ledger(trained_run) if line["kind"] == "train"]
    assert losses[0] == pytest.approx(np.log(3), rel=0.5)
    assert load_experiment(str(trained_run / "config.yaml")).model.normalization == "imagenet"


def test_each_evaluation_leaves_a_report(trained_run: Path) -> None:
    page = (trained_run / "report.html").read_text()
    sections = ["classes", "progress", "confusions"]
    assert [name for name in sections if f'<section id="{name}">' in page] == sections
    assert "Evaluated on val at step 4." in page
    files = {"class_table.csv", "confusions.csv", "confusions.png", "losses.png", "metrics.png"}
    assert files <= {path.name for path in trained_run.iterdir()}


def test_evaluate_writes_the_class_table_and_the_confusions(trained_run: Path, capsys) -> None:
    assert main(["evaluate", "--model_dir", str(trained_run), "--split", "test"]) == 0
    printed = dict(
        line.split(": ") for line in capsys.readouterr().out.splitlines() if ": " in line
    )
    path = trained_run / "evaluation_test_4"
    metrics = json.loads(path.with_suffix(".json").read_text())
    assert float(printed["top1"]) == pytest.approx(metrics["top1"], abs=1e-4)
    rows = read_rows(Path(f"{path}_class_table.csv"))
    assert [row["class"] for row in rows] == ["blue", "green", "red"]
    assert [int(row["images"]) for row in rows] == [2, 2, 2]
    confusions = np.loadtxt(f"{path}_confusions.csv", delimiter=",", skiprows=1, usecols=(1, 2, 3))
    assert confusions.sum() == 6
    assert np.trace(confusions) / 6 == pytest.approx(metrics["top1"])
    assert "run on colors, step 4" in Path(f"{path}_report.html").read_text()


def test_the_export_gives_the_evaluated_probabilities(
    saved_model: str, trained_run: Path, class_folders: Path
) -> None:
    """Bytes of any number of images in, probabilities out; an image as an array gives the same."""
    paths = sorted(class_folders.glob("red/*.png"))[:2]
    encoded = [path.read_bytes() for path in paths]
    model = tf.saved_model.load(saved_model)
    outputs = model.signatures["serving_default"](input=tf.constant(encoded))
    probabilities = outputs["probabilities"].numpy()
    np.testing.assert_allclose(probabilities.sum(axis=1), 1, rtol=1e-5)
    np.testing.assert_array_equal(outputs["classes"], probabilities.argmax(axis=1) + 1)
    images = np.stack([decode_rgb(one) for one in encoded])
    same = model.signatures["image_tensor"](input=tf.constant(images))["probabilities"]
    np.testing.assert_allclose(same, probabilities, atol=1e-6)
    metadata = json.loads(Path(saved_model, "assets/metadata.json").read_text())
    assert metadata["task"] == "classification"
    assert (metadata["step"], metadata["image_size"], metadata["loss"]) == (4, [32, 32], "softmax")


def test_both_signatures_share_one_network(saved_model: str) -> None:
    """One saved twice would be rebuilt twice, in Python, whenever the model is loaded."""
    contents = Path(saved_model, "saved_model.pb").read_bytes()
    (graph,) = SavedModel.FromString(contents).meta_graphs
    functions = graph.graph_def.library.function
    assert sum(any(node.op == "Conv2D" for node in one.node_def) for one in functions) == 1


@pytest.mark.slow  # a process of its own exports
def test_train_exports_its_best_checkpoint_in_one_command(
    trained_run: Path, tmp_path: Path
) -> None:
    """The run is finished, so the same command only exports."""
    shutil.copytree(trained_run, tmp_path / "run")
    command = ["train", "--config", str(trained_run / "config.yaml")]
    command += ["--model_dir", str(tmp_path / "run"), "--export", str(tmp_path / "final")]
    for _ in range(2):  # and again, which replaces it
        assert main(command) == 0
    metadata = json.loads((tmp_path / "final/run-32/assets/metadata.json").read_text())
    best = json.loads((trained_run / "best/best.json").read_text())
    assert metadata["step"] == best["step"]


def test_what_could_not_be_exported_is_refused_before_training(
    trained_run: Path, tmp_path: Path, capsys
) -> None:
    command = ["train", "--config", str(trained_run / "config.yaml")]
    command += ["--model_dir", str(tmp_path / "run"), "--export", str(tmp_path / "final")]
    windows = "data.windows=[[40, 80], [80, 200], [40, 480]]"
    assert main([*command, "--set", windows]) == 2
    assert "predict with tpudet gen_rsna_sub" in capsys.readouterr().err
    (tmp_path / "final/run-32").mkdir(parents=True)
    (tmp_path / "final/run-32/notes.txt").write_text("not of a SavedModel")
    assert main(command) == 2
    assert "exists and is not a SavedModel" in capsys.readouterr().err
    shutil.rmtree(tmp_path / "final")
    (tmp_path / "final").write_text("a file")
    assert main(command) == 2
    assert "final/run-32: Not a directory" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


def test_train_exports_over_a_model_of_the_same_run_only(
    saved_model: str, trained_run: Path, tmp_path: Path, capsys
) -> None:
    """Two runs may have one name: `a/fold_0` and `b/fold_0`."""
    config = load_experiment(str(trained_run / "config.yaml"))
    root = str(Path(saved_model).parent)
    check_export(config, model_dir=f"{trained_run}/", export_root=root)
    before = Path(saved_model, "saved_model.pb").stat().st_mtime_ns
    command = ["train", "--config", str(trained_run / "config.yaml"), "--export", root]
    assert main([*command, "--model_dir", str(tmp_path / "run")]) == 2
    assert f"is a SavedModel of the run {trained_run}, not of {tmp_path}" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()
    assert Path(saved_model, "saved_model.pb").stat().st_mtime_ns == before


def test_classify_predicts_every_image_once_from_folders_and_from_records(
    saved_model: str, colors_part: Path, tmp_path: Path, capsys
) -> None:
    divided = colors_part.parent / "divided/test"
    first, second = tmp_path / "folder.csv", tmp_path / "records.csv"
    command = ["classify", str(first), saved_model, "--images", str(divided), "--batch_size", "4"]
    assert main([*command, "--probabilities"]) == 0
    assert "of 6 images with labels" in capsys.readouterr().out
    rows = read_rows(first)
    assert [row["id"] for row in rows] == sorted(path.stem for path in divided.glob("*/*"))
    for row in rows:
        scores = {name: float(row[name]) for name in ("blue", "green", "red")}
        assert row["label"] == max(scores, key=lambda name: scores[name])
    assert main([*command]) == 2
    assert "--force replaces it" in capsys.readouterr().err
    assert main(["classify", str(second), saved_model, "--records", str(colors_part)]) == 0
    labels = {row["id"]: row["label"] for row in rows}
    assert {row["id"]: row["label"] for row in read_rows(second)} == labels
    assert list(read_rows(second)[0]) == ["id", "label"]


def test_images_of_one_name_in_two_folders_have_ids_with_the_folder(
    saved_model: str, class_folders: Path, tmp_path: Path
) -> None:
    for label in ("blue", "red"):
        (tmp_path / "images" / label).mkdir(parents=True)
        content = (class_folders / label / f"{label}_0.jpg").read_bytes()
        (tmp_path / "images" / label / "1.jpg").write_bytes(content)
    output = tmp_path / "predictions.csv"
    assert main(["classify", str(output), saved_model, "--images", str(tmp_path / "images")]) == 0
    assert [row["id"] for row in read_rows(output)] == ["blue/1", "red/1"]


def test_classify_lists_what_it_cannot_read(saved_model: str, tmp_path: Path, capsys) -> None:
    """A flat folder without labels; one file is cut off."""
    images = tmp_path / "images"
    images.mkdir()
    cv2.imwrite(str(images / "whole.jpg"), np.full((30, 30, 3), 90, np.uint8))
    (images / "cut.jpg").write_bytes((images / "whole.jpg").read_bytes()[:200])
    output = tmp_path / "predictions.csv"
    assert main(["classify", str(output), saved_model, "--images", str(images)]) == 1
    captured = capsys.readouterr()
    assert "not predicted: " in captured.err
    assert "cut.jpg" in captured.err
    assert "accuracy" not in captured.out
    assert [row["id"] for row in read_rows(output)] == ["whole"]


def test_training_images_are_drawn_with_their_classes(
    colors_part: Path, trained_run: Path, tmp_path: Path
) -> None:
    config, output = str(trained_run / "config.yaml"), tmp_path / "images.png"
    mix = "data.augmentations=[{kind: mixup, probability: 1.0}]"
    command = ["show_augmented", config, "--output", str(output), "--num_images", "4"]
    assert main([*command, "--set", mix]) == 0
    grid = cv2.imread(str(output))
    assert grid is not None
    assert grid.shape[1] == 2 * 32 + 4  # two columns and a gap
    assert len(np.unique(grid.reshape(-1, 3), axis=0)) > 500


def test_find_lr_writes_the_curve(trained_run: Path, tmp_path: Path, capsys) -> None:
    """Twenty rates of the same ratio, and of these a suggestion within the trimmed ends."""
    output = tmp_path / "rate.png"
    command = ["find_lr", "--config", str(trained_run / "config.yaml"), "--output", str(output)]
    assert main([*command, "--start", "1e-6", "--end", "1e-2", "--num_steps", "20"]) == 0
    rows = read_rows(tmp_path / "rate.csv")
    rates = np.array([float(row["learning_rate"]) for row in rows])
    np.testing.assert_allclose(rates, np.logspace(-6, -2, 20), rtol=1e-3)
    suggested = float(capsys.readouterr().out.partition("Suggestion: ")[2].split(",")[0])
    assert rates[10] * 0.99 < suggested < rates[14] * 1.01
    assert cv2.imread(str(output)) is not None


def test_the_backbone_of_a_classifier_loads_whole_into_a_detector(trained_run: Path) -> None:
    """The point of pretraining: every tensor of the backbone is taken, by name."""
    pretrained = open_pretrained(WeightsConfig(path=str(trained_run)))
    assert pretrained.notes == ()
    assert pretrained.family[1:] == ("imagenet", "tensorflow", 1e-4)
    overrides = ["model.max_level=5", "model.backbone.depth=18"]
    config = load_detection("quickstart", overrides)
    task = build_detector(config, num_classes=2, canvas_size=(64, 64))
    report = load_pretrained(
        task.model,
        pretrained,
        normalization="imagenet",
        classes=[ClassEntry("cat", "cat"), ClassEntry("dog", "dog")],
        class_layers=task.class_layers,
        other_parts=lambda path, names: None,
    )
    stored = read_checkpoint(str(trained_run / "model.ckpt-4"))
    backbone = {name for name in stored if name.startswith("backbone/")}
    assert set(report.loaded) == backbone
    assert len(backbone) == 100
    assert report.backbone_share == 1.0
    assert report.differences == ()
    weights = {variable.path: np.asarray(variable.value) for variable in task.model.variables}
    for name in backbone:
        np.testing.assert_array_equal(weights[name], stored[name])
