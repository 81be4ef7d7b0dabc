"""The report of an evaluation: its files, and what the page says."""

import csv
from pathlib import Path

import cv2
import numpy as np

from tpudet.classification.evaluation.draw import Mistake, draw_mistakes
from tpudet.classification.evaluation.metrics import class_table, multi_label_class_table
from tpudet.classification.evaluation.report import EvaluatedSplit, write_report

NASTY = "<script>document.title='taken over'</script>"


def test_of_many_classes_the_chart_shows_those_with_the_most_images(tmp_path: Path) -> None:
    """30 classes, each with as many images as its number; the last is once taken for the first."""
    names = [*(f"class {k}" for k in range(29)), NASTY]
    matrix = np.diag(np.arange(30))
    matrix[29, 0], matrix[29, 29] = 1, 28
    results = EvaluatedSplit(
        split="val",
        step=1200,
        metrics={"top1": 434 / 435, "top5": 1.0, "macro_f1": 0.9, "negative_loss": -0.25},
        table=class_table(matrix, names),
        confusions=matrix,
        images=np.zeros((20, 30, 3), np.uint8),
    )
    write_report(results, prefix=f"{tmp_path}/", title="flowers")
    page = (tmp_path / "report.html").read_text()
    assert "Evaluated on val at step 1,200." in page
    assert "Of 30 classes the 20 with the most images are shown." in page
    assert NASTY not in page
    assert "<b>0.998</b><span>top1</span>" in page
    assert "<b>0.250</b><span>loss</span>" in page
    assert '<section id="images">' in page
    rows = list(csv.DictReader((tmp_path / "class_table.csv").read_text().splitlines()))
    assert (rows[0]["recall"], rows[0]["precision"]) == ("", "0.0000")  # without an image
    assert (rows[29]["recall"], rows[29]["mostly_taken_for"]) == ("0.9655", "class 0")
    counts = np.loadtxt(tmp_path / "confusions.csv", str, delimiter=",", skiprows=1)[:, 1:]
    np.testing.assert_array_equal(counts.astype(int), matrix)
    assert cv2.imread(str(tmp_path / "confusions.png")) is not None


def test_images_of_several_classes_have_a_table_and_no_matrix(tmp_path: Path) -> None:
    probabilities, targets = np.array([[0.9, 0.2]]), np.array([[1.0, 1.0]])
    results = EvaluatedSplit(
        split="fold_0",
        step=5,
        metrics={"top1": 0.0, "macro_f1": 0.5, "micro_f1": 2 / 3, "negative_loss": -0.8},
        table=multi_label_class_table(probabilities, targets, ["any", "subdural"]),
        confusions=None,
        images=None,
    )
    write_report(results, prefix=f"{tmp_path}/a_", title="ct")
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "a_class_table.csv",
        "a_report.html",
    ]
    page = (tmp_path / "a_report.html").read_text()
    assert 'id="confusions"' not in page
    assert "<span>micro_f1</span>" in page


def test_mistakes_are_drawn_with_room_for_their_captions() -> None:
    wrong = Mistake(np.full((32, 32, 3), 7, np.uint8), np.array([1.0, 0.0]), 1, 0.75)
    assert wrong.error == 0.75
    grid = draw_mistakes([wrong] * 5, ["rose", "daisy"])
    assert grid is not None
    height, width, _ = grid.shape
    assert width == 4 * 220 + 3 * 4  # four in a row, gaps of 4
    assert (height - 4) // 2 > 220  # two rows, each with a caption
    assert draw_mistakes([], ["rose", "daisy"]) is None
