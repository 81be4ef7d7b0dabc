"""The labels of exported classifiers, of chosen probabilities for the six images of a split."""

import csv
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import tensorflow as tf

from tpudet.classification.evaluation.metrics import multi_label_metrics
from tpudet.classification.inference import classify as module
from tpudet.cli import main

# In the order of the records: two images each of blue, green and red.
PROBABILITIES = np.array(
    [
        *([0.7, 0.1, 0.2], [0.499, 0.3, 0.4]),  # blue: right, and of no class from 0.5 on
        *([0.1, 0.5, 0.1], [0.8, 0.9, 0.2]),  # green: right, and of a class too many
        *([0.2, 0.3, 0.9], [0.9, 0.1, 0.2]),  # red: right, and another class
    ],
    np.float32,
)


@pytest.fixture
def classify(saved_model: str, colors_part: Path, tmp_path: Path, monkeypatch):
    """Predicts the split val by a model with these probabilities and this loss."""
    real = module.read_saved_model

    def run(probabilities: np.ndarray, loss: str) -> tuple[int, dict[str, str]]:
        def read(*arguments, **options):
            saved = real(*arguments, **options)
            return saved._replace(metadata={**saved.metadata, "loss": loss})

        signature = SimpleNamespace(
            signatures={
                "serving_default": lambda input: {"probabilities": tf.constant(probabilities)}
            }
        )
        monkeypatch.setattr(module, "read_saved_model", read)
        monkeypatch.setattr(module, "load_saved_model", lambda saved: signature)
        output = tmp_path / "out.csv"
        command = ["classify", str(output), saved_model, "--records", str(colors_part)]
        code = main([*command, "--split", "val"])
        rows = list(csv.DictReader(output.read_text().splitlines())) if output.exists() else []
        return code, {row["id"]: row["label"] for row in rows}

    return run


def test_an_image_of_several_classes_is_labelled_with_all_from_half_on(classify, capsys) -> None:
    code, labels = classify(PROBABILITIES, "sigmoid")
    assert code == 0
    assert sorted(labels.values()) == ["", "blue", "blue", "blue;green", "green", "red"]
    assert "accuracy 0.5000 of 6 images with labels" in capsys.readouterr().out
    targets = np.repeat(np.eye(3, dtype=np.float32), 2, axis=0)
    assert multi_label_metrics(PROBABILITIES, targets, class_weights=())["top1"] == 0.5


def test_an_image_of_one_class_is_labelled_with_the_most_probable(classify, capsys) -> None:
    code, labels = classify(PROBABILITIES, "softmax")
    assert code == 0
    assert sorted(labels.values()) == ["blue", "blue", "blue", "green", "green", "red"]
    assert "accuracy 0.8333 of 6 images with labels" in capsys.readouterr().out


def test_images_whose_probabilities_are_not_finite_have_no_label(classify, capsys) -> None:
    broken = PROBABILITIES.copy()
    broken[1, 2] = np.nan
    code, labels = classify(broken, "softmax")
    assert code == 1
    assert len(labels) == 5
    captured = capsys.readouterr()
    assert "not predicted: blue_" in captured.err
    assert "its probabilities are not finite" in captured.err
    assert "accuracy 0.8000 of 5 images" in captured.out


def test_a_model_without_any_finite_probability_is_refused(classify, capsys) -> None:
    code, labels = classify(np.full_like(PROBABILITIES, np.nan), "sigmoid")
    assert (code, labels) == (2, {})
    assert "the probabilities of all 6 images are not finite" in capsys.readouterr().err
