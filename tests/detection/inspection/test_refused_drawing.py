"""Refusals of draw_predictions: named, exit code 2, nothing written."""

from pathlib import Path

import pytest

BOX = (0.1, 0.1, 0.5, 0.5)  # x1 y1 x2 y2

BASE = ("{found}", "--images", "{images}", "--output", "{output}")
REFUSED: dict[str, tuple[tuple[str, ...], str]] = {
    "no file": (("gone.parquet", *BASE[1:]), "no file gone.parquet: PREDICTIONS is written by"),
    "no truth": ((*BASE, "--worst", "3"), "--worst needs --groundtruth"),
    "unknown ids": ((*BASE, "--image_ids", "good,x1,x2"), "2 image ids are not in {found}: x1, x2"),
    "too many": ((*BASE, "--num", "501"), "501 images; a page shows at most 500"),
    "no ids": ((*BASE, "--image_ids", ","), "0 image ids"),
    "id without truth": (
        (*BASE, "--groundtruth", "{truth}", "--image_ids", "empty"),
        "1 image ids are not in {truth}: empty",
    ),
    "no image file": ((*BASE, "--image_ids", "nofile"), "nofile: no such image in {images}"),
    "broken image": ((*BASE, "--image_ids", "good,broken"), "broken.jpg cannot be drawn"),
    "no classes": (("{csv}", *BASE[1:]), "--classes FILE does"),
    "other classes": (
        (*BASE, "--groundtruth", "{part}"),
        "only in {found}: /m/01, /m/02; only in {part}: ",
    ),
    "other list": ((*BASE, "--classes", "{other}"), "only in {other}: /m/77"),
    "submission of other classes": (
        ("{csv}", *BASE[1:], "--classes", "{other}"), "{csv} and {other} have other classes"
    ),
    "truth of other classes": ((*BASE, "--groundtruth", "{strange}"), "have other classes"),
    "truth of other images": ((*BASE, "--groundtruth", "{away}"), "no image is in both"),
    "no split": ((*BASE, "--groundtruth", "{part}", "--split", "test"), "has no split test"),
    "bad truth": ((*BASE, "--groundtruth", "{csv}"), "lacks LabelName"),
    "bad row": (("{badcsv}", *BASE[1:], "--classes", "{classes}"), "line 3"),
    "no predictions file": (("{truth2}", *BASE[1:]), "not a usable predictions file"),
    "foreign folder": (
        (*BASE[:3], "--output", "{images}", "-f"), "has files that this command did not write"
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_wrong_is_named_and_nothing_is_written(
    case: str, write_found, write_truth, write_images, draw, tmp_path, sample_part, capsys
) -> None:
    images = write_images("good")
    found = {"good": [(1, 0.9, *BOX)], "bad": [(2, 0.8, *BOX)], "empty": []}
    (images / "broken.jpg").write_bytes(b"\xff\xd8\xff\xe0 broken")
    contents = {
        "classes.csv": "/m/01,cat\n/m/02,dog\n",
        "other.csv": "/m/77,cow\n",
        "strange.csv": "ImageID,LabelName,XMin,XMax,YMin,YMax\ngood,/m/5,0,1,0,1\n",
        "away.csv": "ImageID,LabelName,XMin,XMax,YMin,YMax\nelsewhere,cat,0,1,0,1\n",
        "badcsv.csv": "ImageId,PredictionString\ngood,\nbad,/m/01 nan 0 0 1 1\n",
        "truth2": "ImageID\n",
    }
    for name, text in contents.items():
        (tmp_path / name).write_text(text)
    places = {name.removesuffix(".csv"): tmp_path / name for name in contents}
    part = Path(sample_part)
    if case == "no split":  # whose classes must agree first
        places["found"] = write_found({"good": []}, classes=(part / "classes.csv").read_text())
    else:
        places["found"] = write_found({**found, "nofile": [], "broken": []})
    places |= {
        "csv": write_found(found, "found.csv"),
        "truth": write_truth(("good", "cat", *BOX), ("bad", "/m/01", *BOX)),
    }
    places |= {"images": images, "output": tmp_path / "out", "part": part}
    before = sorted(tmp_path.rglob("*"))
    arguments, message = REFUSED[case]
    assert draw(*(argument.format(**places) for argument in arguments)) == 2
    error = capsys.readouterr().err
    assert message.format(**places) in error
    assert "Traceback" not in error
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize(
    "wrong", [("--worst", "0"), ("--min_score", "1.5"), ("--num=1", "--worst=1")]
)
def test_wrong_arguments_exit_with_2(wrong: tuple[str, ...], draw) -> None:
    with pytest.raises(SystemExit, match="2"):
        draw("p", "--images", "i", "--output", "o", *wrong)


def test_an_error_on_the_way_leaves_the_page_that_was_there(
    write_found, write_images, draw, tmp_path
) -> None:
    found, images = write_found({"a": [(1, 0.9, *BOX)], "b": []}), write_images("a", "b")
    output = tmp_path / "out"
    base = (found, "--images", images, "--output", output, "-f", "--image_ids")
    assert draw(*base, "a") == 0
    before = {path: path.read_bytes() for path in output.iterdir()}
    (images / "b.jpg").write_bytes(b"")
    assert draw(*base, "a,b") == 2
    assert {path: path.read_bytes() for path in output.iterdir()} == before
    assert {path.name for path in tmp_path.iterdir()} == {"found.parquet", "images", "out"}


def test_a_submission_whose_identifiers_mean_other_classes_of_the_part(
    write_found, write_images, draw, tmp_path, sample_part, capsys
) -> None:
    rows = [line.split(",") for line in Path(sample_part, "classes.csv").read_text().splitlines()]
    (first, name), (second, other), *_ = rows
    rows[:2] = [[second, name], [first, other]]
    (tmp_path / "swapped.csv").write_text("".join(f"{a},{b}\n" for a, b in rows))
    found = write_found({"good": [(1, 0.9, *BOX)]}, "found.csv", f"{first},{name}\n")
    arguments = (found, "--images", write_images("good"), "--output", tmp_path / "out")
    arguments += ("--groundtruth", sample_part, "--classes", tmp_path / "swapped.csv")
    assert draw(*arguments) == 2
    assert f"not clear: {name} is {second} and {first}, {other} is" in capsys.readouterr().err
