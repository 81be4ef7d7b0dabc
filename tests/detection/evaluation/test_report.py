"""The report of an evaluation: its files, its page in a browser, charts that name classes."""

import csv
import json
import re
from pathlib import Path

import cv2
import numpy as np
import pytest

from tpudet.detection.evaluation.coco import coco_class_scores, coco_metrics
from tpudet.detection.evaluation.ground_truth import GroundTruth
from tpudet.detection.evaluation.report import report_run, write_report
from tpudet.detection.evaluation.results import EvaluatedSplit, collect_results
from tpudet.detection.types import DetectionTable

NASTY = "<script>document.title='taken over'</script> & $x$"


def evaluated(class_names: list[str], *, with_image: bool = True) -> EvaluatedSplit:
    """Every class has one object in the one image; the last one is taken for the first."""
    count = len(class_names)
    starts = 12.0 * np.arange(count)
    boxes = np.stack([starts, starts, starts + 10, starts + 10], axis=1)
    classes = np.arange(1, count + 1)
    truth = GroundTruth(
        records=np.arange(1),
        sizes=np.full((1, 2), 12.0 * count),
        image_indices=np.zeros(count, int),
        boxes=boxes,
        classes=classes,
        is_crowd=np.zeros(count, bool),
        areas=np.full(count, 100.0),
    )
    found = DetectionTable(
        np.zeros(count, int), boxes, np.full(count, 0.9), np.where(classes == count, 1, classes)
    )
    image = np.random.default_rng(0).integers(0, 255, (60, 80, 3), np.uint8)
    return collect_results(
        truth,
        found,
        split="val",
        step=30,
        metrics=coco_metrics(truth, found, class_names),
        scores=coco_class_scores(truth, found, count),
        class_names=class_names,
        images=image if with_image else None,
    )


@pytest.fixture
def model_dir(tmp_path: Path) -> Path:
    """A ledger of three log lines and one evaluation before the reported one."""
    lines = [
        {"kind": "train", "step": k, "loss": 3 / k, "loss_box": 1 / k, "learning_rate": 0.1}
        for k in (10, 20, 30)
    ]
    lines.append({"kind": "eval", "step": 20, "AP": 0.25, "AP50": 0.5, "APs": -1.0})
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return tmp_path


def test_a_run_gets_tables_charts_and_a_page_that_a_browser_shows(model_dir: Path, browse) -> None:
    report_run(evaluated(["cat", "dog", NASTY]), str(model_dir))
    table = list(csv.DictReader((model_dir / "class_table.csv").read_text().splitlines()))
    assert [(row["class"], row["instances"], row["recall"]) for row in table] == [
        ("cat", "1", "1.0000"),
        ("dog", "1", "1.0000"),
        (NASTY, "1", "0.0000"),
    ]
    confusions = list(csv.reader((model_dir / "confusions.csv").read_text().splitlines()))
    assert confusions[0] == ["ground truth", "cat", "dog", NASTY, "(nothing)"]
    assert confusions[3] == [NASTY, "1", "0", "0", "0"]
    for name in ("losses", "metrics", "precision_recall", "f1", "confusions"):
        image = cv2.imread(str(model_dir / f"{name}.png"))
        assert image is not None
        assert min(image.shape[:2]) > 300
    visit = browse(model_dir / "report.html")
    assert visit.console == ""
    assert visit.data == {"images": 1, "loaded": 1, "overflow": 0}
    assert f"<title>{model_dir.name}</title>" in visit.dom
    assert visit.dom.count("<svg") == 5
    assert "<script>document" not in visit.dom


def test_the_page_in_the_dark_on_a_narrow_screen(model_dir: Path, browse) -> None:
    report_run(evaluated(["cat", "dog", "sheep"]), str(model_dir))
    visit = browse(model_dir / "report.html", width=500, dark=True)
    assert visit.data == {"images": 1, "loaded": 1, "overflow": 0}
    assert visit.margin < 40


def test_a_table_that_is_too_wide_scrolls_in_its_box_and_shows_that_it_does(
    model_dir: Path, browse
) -> None:
    report_run(evaluated(["cat", "dog", "sheep"]), str(model_dir))
    script = """
        const box = document.querySelector("#classes .scroll"), place = box.getBoundingClientRect();
        const last = box.querySelector("th:last-child");
        data.right = Math.round(place.right);
        data.middle = Math.round((place.top + place.bottom) / 2);
        data.hidden = box.scrollWidth - box.clientWidth;
        box.scrollLeft = 1e6;
        data.beyond = Math.round(last.getBoundingClientRect().right - place.right);
        box.scrollLeft = 0;
    """
    narrow, wide = (browse(model_dir / "report.html", width=w, script=script) for w in (500, 1280))
    assert narrow.data["overflow"] == 0
    assert narrow.data["hidden"] > 100
    assert wide.data["hidden"] == 0
    assert narrow.data["beyond"] <= 0
    for visit, is_shaded in ((narrow, True), (wide, False)):
        row = visit.image[visit.data["middle"], : visit.data["right"] - 1].astype(int)
        assert (row[-3:].mean() < row[-40:-20].max() - 10) == is_shaded


@pytest.mark.parametrize("count", [11, 60])
def test_letters_in_charts_of_any_number_of_classes_can_be_read(
    count: int, model_dir: Path, browse
) -> None:
    report_run(evaluated([f"class {k:03}" for k in range(count)]), str(model_dir))
    script = """
        const letters = [...document.querySelectorAll("#confusions svg text")]
          .map(text => [parseFloat(getComputedStyle(text).fontSize), text.getScreenCTM()])
          .map(([size, shape]) => size * Math.hypot(shape.a, shape.b));
        data.tenths = Math.round(10 * Math.min(...letters));
        data.cut = [...document.querySelectorAll("svg text")].filter(text => {
          const inner = text.getBoundingClientRect();
          const outer = text.ownerSVGElement.getBoundingClientRect();
          return inner.bottom > outer.bottom + 1 || inner.right > outer.right + 1;
        }).length;
    """
    data = browse(model_dir / "report.html", script=script).data
    assert data["tenths"] > 80
    assert data["cut"] == 0


def test_charts_name_as_many_classes_as_can_be_told_apart(tmp_path: Path) -> None:
    few, many = ([f"class {k:03}" for k in range(count)] for count in (20, 100))
    for number, names in enumerate((few, many)):
        results = evaluated(names, with_image=False)
        write_report(results, prefix=f"{tmp_path}/{number}_", title="t")
        page = (tmp_path / f"{number}_report.html").read_text()
        svg = "".join(re.findall(r"<svg.*?</svg>", page, flags=re.DOTALL))
        assert len(set(re.findall(r"class \d{3}", svg))) == 20
        assert ("the 20 with the most instances" in page) == (number == 1)
        assert page.count("<section") == 3  # neither a ledger nor images
    assert (tmp_path / "1_class_table.csv").read_text().count("\n") == 101
