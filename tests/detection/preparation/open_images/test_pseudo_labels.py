"""Pseudo-labels: every rule by hand, the overlap search against a plain loop, odd submissions."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from tpudet.detection.commands import add_data_from_testset
from tpudet.detection.commands.add_pseudo_labels import main
from tpudet.detection.preparation.open_images.pseudo_labels import (
    DISTINCT,
    OF_EXISTING,
    OF_PREDICTION,
    find_duplicates,
)

SUBMISSION = """ImageID,PredictionString
t1,/m/c 0.95 0.1 0.2 0.3 0.4 /m/c 0.9 0.5 0.5 0.6 0.6 /m/d 0.91 0.1 0.2 0.3 0.4
t2,/m/c 0.92 0.5 0.5 0.9 0.9 /m/c 0.97 0.52 0.5 0.92 0.9 /m/c 0.2 0 0 1 1
t3,
i1,/m/c 0.99 0.25 0.25 0.5 0.74 /m/d 0.99 0.25 0.25 0.5 0.74 /m/c 0.99 0.6 0.6 0.8 0.8
t4,/m/c 0.99 -0.1 0.5 0.5 1.2 /m/c 0.99 0.4 0.4 0.4 0.6 /m/c 0.99 0.9 0.8 0.7 0.6 /m/e 0.99 0 0 1 1
"""
# As the submission says them, clipped and in order; scores of 0.9 and below are not above 0.9.
CERTAIN = [
    "t1,pseudolabels,/m/c,1,0.1,0.3,0.2,0.4,0,0,0,0,0",
    "t1,pseudolabels,/m/d,1,0.1,0.3,0.2,0.4,0,0,0,0,0",
    "t2,pseudolabels,/m/c,1,0.52,0.92,0.5,0.9,0,0,0,0,0",  # 0.97; the 0.92 overlaps it by 0.9
    "i1,pseudolabels,/m/d,1,0.25,0.5,0.25,0.74,0,0,0,0,0",  # i1 has that box as /m/c already
    "i1,pseudolabels,/m/c,1,0.6,0.8,0.6,0.8,0,0,0,0,0",
    "t4,pseudolabels,/m/c,1,0.0,0.5,0.5,1.0,0,0,0,0,0",
    "t4,pseudolabels,/m/c,1,0.7,0.9,0.6,0.8,0,0,0,0,0",
    "t4,pseudolabels,/m/e,1,0.0,1.0,0.0,1.0,0,0,0,0,0",
]


@pytest.fixture
def arguments(write_box_csv, tmp_path: Path) -> list[str]:
    rows = [("i1", "/m/c", 0.25, 0.5, 0.25, 0.75, 0), ("i0", "/m/zzz", 0.125, 0.5, 0, 1, -1)]
    source = write_box_csv(tmp_path / "boxes.csv", *rows)
    (tmp_path / "sub.csv").write_text(SUBMISSION)
    (tmp_path / "classes.csv").write_text("/m/c,Cat\n/m/d,Dog\n")
    return [str(tmp_path / "out.csv"), source, str(tmp_path / "sub.csv")]


def normalized(lines: list[str]) -> list[tuple]:
    """Lines of a box CSV with numbers as numbers: 0.0 and 0 are the same."""
    split = (line.split(",") for line in lines)
    return [(*row[:3], *map(float, row[3:8]), *row[8:]) for row in split]


def added(arguments: list[str], *more: object) -> list[tuple]:
    assert main([*arguments, *map(str, more)]) == 0
    source = Path(arguments[1]).read_text()
    written = Path(arguments[0]).read_text()
    assert written.startswith(source)
    return normalized(written.removeprefix(source).splitlines())


def test_every_rule_by_hand(arguments, capsys) -> None:
    assert added(arguments) == normalized(CERTAIN)
    out = capsys.readouterr().out
    assert "8 boxes added in 4 images: 5 /m/c, 2 /m/d, 1 /m/e." in out
    for words in (
        "2 not above the threshold",
        "1 with IoU above 0.5 with a box of BOXES",
        "1 with IoU above 0.5 with a more confident one",
        "1 zero-size box",
        "1 box clipped to the image",
        "1 swapped corners",
    ):
        assert words in out


def test_a_submission_in_pixels_is_refused(arguments, tmp_path, capsys) -> None:
    rows = "t1,/m/c 0.95 0 0 50 60\nt2,/m/c 0.95 0.5 0.4 50 60 /m/d 0.95 0.1 0.2 0.3 0.4\n"
    (tmp_path / "sub.csv").write_text(f"ImageID,PredictionString\n{rows}")
    assert main(arguments) == 2
    message = f"PREDICTIONS {arguments[2]} is in pixels: 2 of 3 boxes end beyond"
    error = capsys.readouterr().err
    assert message in error
    assert "--format" not in error  # it has no such option
    assert not Path(arguments[0]).exists()


def test_the_predecessors_command_adds_the_same_boxes(arguments, tmp_path) -> None:
    expected = added([*arguments, "--min_conf", "0.93", "--classes", str(tmp_path / "classes.csv")])
    Path(arguments[0]).unlink()
    Path(f"{arguments[0]}.step.json").unlink()
    options = ["--min_conf", "0.93", "--classes", str(tmp_path / "classes.csv")]
    assert add_data_from_testset.main([*arguments, *options]) == 0
    lines = Path(arguments[0]).read_text().splitlines()
    assert normalized(lines[-len(expected) :]) == expected


def test_classes_thresholds_and_overlap(arguments, tmp_path, capsys) -> None:
    thresholds = tmp_path / "thresholds.csv"
    thresholds.write_text("Cat,0.96\n/m/d,0.98\n")
    more = ("--classes", tmp_path / "classes.csv", "--class_thresholds", thresholds)
    # 0.95 of a cat and 0.91 of a dog are too little now; /m/e is not in the list.
    assert added(arguments, *more) == normalized(CERTAIN[2:-1])
    assert "1 of other classes" in capsys.readouterr().out
    # Boxes may overlap freely: the existing box of i1 again, and both cats of t2.
    assert len(added(arguments, "--max_iou", 1, "--overwrite")) == len(CERTAIN) + 2


def test_names_in_the_boxes_are_known_as_their_identifiers(arguments, tmp_path) -> None:
    source = Path(arguments[1])
    source.write_text(source.read_text().replace("/m/c", "Cat").replace("i1,", "i1.jpg,"))
    found = added(arguments, "--classes", tmp_path / "classes.csv")
    assert found == normalized(CERTAIN[:-1])


@pytest.mark.parametrize("content", ["ImageId,PredictionString\n", SUBMISSION.lower()])
def test_without_any_hit_the_boxes_stay_as_they_are(arguments, content: str, capsys) -> None:
    Path(arguments[2]).write_text(content)
    assert added(arguments, "--min_conf", "1") == []
    assert "0 boxes added in 0 images: none." in capsys.readouterr().out


def test_other_columns_in_another_order(arguments) -> None:
    source = Path(arguments[1])
    source.write_text('LabelName,ImageID,Note,YMin,XMin,XMax,YMax\n/m/c,i0,"a, b",0,0,1,1\n')
    assert main(arguments) == 0
    lines = Path(arguments[0]).read_text().splitlines()
    assert lines[:2] == source.read_text().splitlines()
    assert lines[2] == "/m/c,t1,,0.2,0.1,0.3,0.4"


def test_overlaps_against_a_plain_loop() -> None:
    rng = np.random.default_rng(4)

    def boxes(count: int) -> pd.DataFrame:
        starts = rng.random((count, 2)) * 0.5
        corners = np.hstack([starts, starts + 0.2 + 0.3 * rng.random((count, 2))])
        table = pd.DataFrame(corners, columns=pd.Index(["y1", "x1", "y2", "x2"]))
        where = rng.integers(0, 4, count), rng.integers(0, 3, count)
        return table.assign(image=where[0].astype(str), label=where[1].astype(str))

    found, existing = boxes(150).assign(score=rng.random(150).round(2)), boxes(30)

    def iou(a: pd.Series, b: pd.Series) -> float:
        height = min(a["y2"], b["y2"]) - max(a["y1"], b["y1"])
        width = min(a["x2"], b["x2"]) - max(a["x1"], b["x1"])
        shared = max(height, 0) * max(width, 0)
        areas = [(box["y2"] - box["y1"]) * (box["x2"] - box["x1"]) for box in (a, b)]
        return shared / (sum(areas) - shared)

    def repeats(a: pd.Series, others: list[pd.Series]) -> bool:
        same = [b for b in others if (a["image"], a["label"]) == (b["image"], b["label"])]
        return any(iou(a, b) > 0.4 for b in same)

    expected = np.zeros(150, int)
    kept: list[pd.Series] = []
    there = [row for _, row in existing.iterrows()]
    for number, row in found.sort_values("score", ascending=False, kind="stable").iterrows():
        if repeats(row, there):
            expected[int(str(number))] = OF_EXISTING
        elif repeats(row, kept):
            expected[int(str(number))] = OF_PREDICTION
        else:
            kept.append(row)
    result = find_duplicates(found, existing, max_iou=0.4)
    np.testing.assert_array_equal(result, expected)
    assert min(np.bincount(result)[[DISTINCT, OF_EXISTING, OF_PREDICTION]]) > 5


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("sub.csv", None, "sub.csv does not exist"),
        ("sub.csv", "", "is not a submission: it is empty"),
        ("sub.csv", "ImageId;PredictionString\n", "should be 'ImageId,PredictionString'"),
        ("sub.csv", "ImageId,PredictionString\na,/m/c 0.99 0 0 1\n", "a: 5 words"),
        ("sub.csv", "ImageId,PredictionString\na,/m/c 99 0 0 1 1\n", "the score 99 is above 1"),
        ("boxes.csv", "", "is empty"),
        ("boxes.csv", "ImageID;LabelName\na;b\n", "separated by ';'"),
        ("boxes.csv", "ImageID,LabelName,XMin,XMax,YMin\na,b,0,1,0\n", "lacks the column YMax"),
        ("limits.csv", "/m/c,0.5\n/m/c,0.6\nx,2\n/m/x,0.5\n", "/m/c already has a threshold"),
        ("limits.csv", "/m/c,0.5\n/m/c,0.6\nx,2\n/m/x,0.5\n", "line 3: 'x,2' is not"),
        ("limits.csv", "/m/c,0.5\n/m/c,0.6\nx,2\n/m/x,0.5\n", "line 4: /m/x is not in --classes"),
    ],
)
def test_unusable_inputs(
    arguments, tmp_path, capsys, name: str, content: str | None, message: str
) -> None:
    (tmp_path / "limits.csv").write_text("/m/c,0.5\n")
    (tmp_path / name).unlink()
    if content is not None:
        (tmp_path / name).write_text(content)
    before = sorted(tmp_path.iterdir())
    more = ["--class_thresholds", tmp_path / "limits.csv", "--classes", tmp_path / "classes.csv"]
    assert main([*arguments, *map(str, more)]) == 2
    assert message in capsys.readouterr().err
    assert sorted(tmp_path.iterdir()) == before


def test_numbers_out_of_range_are_refused(arguments, capsys) -> None:
    with pytest.raises(SystemExit, match="2"):
        main([*arguments, "--min_conf", "90"])
    assert "`90` is not a number from 0 to 1" in capsys.readouterr().err
