"""The submission CSV, against lines written by hand."""

import json
import re
from pathlib import Path

import numpy as np
import pytest

from tpudet.detection.commands.gen_sub import main
from tpudet.detection.inference import submissions
from tpudet.detection.inference.predictions_file import ImagePredictions, write_predictions
from tpudet.detection.submission.errors import SubmissionError
from tpudet.detection.submission.generate import find_wanted
from tpudet.detection.submission.hierarchy import HIERARCHY
from tpudet.detection.submission.open_images_csv import format_predictions
from tpudet.trainkit.class_list import ClassEntry

CLASSES = '/m/01,cat\n/m/02,"dog, big"\n'


def image_of(image_id: str, rows: list[tuple]) -> ImagePredictions:
    """Rows of (label, score, x1, y1, x2, y2)."""
    table = np.array(rows, np.float64).reshape(-1, 6)
    return ImagePredictions(
        image_id,
        table[:, 0].astype(np.int32),
        table[:, 1].astype(np.float32),
        table[:, 2:].astype(np.float32),
    )


IMAGES = [
    image_of("b", [(2, 0.87654321, 0.1, 0.2, 0.3, 0.4), (1, 0.5, -0.25, 0.0, 1.5, 1.0)]),
    image_of("c", []),
    image_of("a", [(1, 0.9, 0.5, 0.5, 0.5, 0.9), (1, 0.8, 1.1, 0.1, 1.2, 0.2)]),
]
EXPECTED = """ImageId,PredictionString
a,
b,/m/02 0.87654 0.10000 0.20000 0.30000 0.40000 /m/01 0.50000 0.00000 0.00000 1.00000 1.00000
broken,
c,
"""


@pytest.mark.parametrize(
    ("classes", "image_id", "message"),
    [
        ("traffic light,x\ncar,y\n", "a", "1 class identifiers .*: 'traffic light'; give others"),
        ('"a,b",x\n"c""d",y\n', "a", "2 class identifiers"),
        ("a,x\nb,y\n", "one,two", "1 image ids .*: 'one,two'; rename the images"),
        ("a,x\nb,y\n", 'a"b', "1 image ids"),
        ("a,x\nb,y\n", "my photo (1)", ""),  # a blank in an id cuts nothing
    ],
)
def test_what_readers_would_cut_in_two_is_not_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], classes: str, image_id: str, message: str
) -> None:
    path = tmp_path / "p.parquet"
    images = [image_of(image_id, [(1, 0.5, 0.1, 0.1, 0.2, 0.2)])]
    with path.open("wb") as file:
        write_predictions(file, path.name, [images], class_list_text=classes, metadata={})
    assert main([str(path)]) == (2 if message else 0)
    assert re.search(message, capsys.readouterr().err)
    assert (tmp_path / "p.csv").exists() == (not message)


@pytest.mark.parametrize("name", ["p.parquet", "p.pkl"])
def test_a_shard_of_the_images_is_no_submission(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    path = tmp_path / name
    for number, of in ((1, 2), (1, 1)):
        metadata = {"shard": {"number": number, "of": of}}
        with path.open("wb") as file:
            write_predictions(file, name, [IMAGES], class_list_text=CLASSES, metadata=metadata)
        assert main([str(path)]) == (2 if of == 2 else 0)
        assert (tmp_path / "p.csv").exists() == (of == 1)
        message = f"{path} has only shard 1 of 2 of the images"
        assert (message in capsys.readouterr().err) == (of == 2)


@pytest.fixture(autouse=True)
def no_data(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DATA", "none")


@pytest.fixture(params=["p.parquet", "p.pkl"])
def predictions(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    path = tmp_path / request.param
    with path.open("wb") as file:
        write_predictions(
            file,
            path.name,
            [IMAGES],
            class_list_text=CLASSES,
            metadata={"unreadable": {"broken.jpg": "empty file"}},
        )
    return path


def test_the_csv_is_the_one_written_by_hand(
    predictions: Path, capsys: pytest.CaptureFixture
) -> None:
    assert main([str(predictions)]) == 0
    assert predictions.with_name("p.csv").read_bytes().decode() == EXPECTED
    assert sorted(p.name for p in predictions.parent.iterdir()) == sorted(
        [predictions.name, "p.csv"]
    )
    assert capsys.readouterr().out.splitlines() == [
        f"{predictions.with_name('p.csv')}: 4 images, 2 predictions",
        "  2 images without any prediction",
        "  1 images that inference could not read; their rows are empty",
        "  1 predictions clipped to the image",
        "  2 predictions left out, without area inside the image",
        "  no ancestors added: no file none/challenge-2019-label500-hierarchy.json, and no "
        "--hierarchy",
    ]


def test_an_existing_file_is_replaced_only_when_told(
    predictions: Path, capsys: pytest.CaptureFixture
) -> None:
    out = predictions.with_name("out.csv")
    out.write_text("precious")
    assert main([str(predictions), "--out", str(out)]) == 2
    assert "out.csv exists; -f replaces it" in capsys.readouterr().err
    assert out.read_text() == "precious"
    assert main([str(predictions), "--out", str(out), "-f"]) == 0
    assert out.read_text() == EXPECTED


def pet_hierarchy(folder: Path) -> str:
    """Cats and dogs are pets, /m/09."""
    children = [{"LabelName": "/m/01"}, {"LabelName": "/m/02"}]
    tree = {"LabelName": "/m/r", "Subcategory": [{"LabelName": "/m/09", "Subcategory": children}]}
    (folder / "tree.json").write_text(json.dumps(tree))
    return str(folder / "tree.json")


def test_ancestors_are_added_once_at_the_best_score(
    tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    both = [(1, 0.5, -0.25, 0.0, 1.5, 1.0), (2, 0.75, -0.5, 0.0, 1.0, 1.0), (2, 0.25, 0, 0, 0, 1)]
    source, out = tmp_path / "p.parquet", tmp_path / "p.csv"
    with source.open("wb") as file:
        images = [image_of("a", both), image_of("b", [(1, 0.125, 0, 0, 0.5, 0.5)])]
        write_predictions(file, "p.parquet", [images], class_list_text=CLASSES, metadata={})
    assert main([str(source), "--hierarchy", pet_hierarchy(tmp_path)]) == 0
    box, other = "0.00000 0.00000 1.00000 1.00000", "0.00000 0.00000 0.50000 0.50000"
    assert out.read_text() == (
        "ImageId,PredictionString\n"
        f"a,/m/01 0.50000 {box} /m/02 0.75000 {box} /m/09 0.75000 {box}\n"
        f"b,/m/01 0.12500 {other} /m/09 0.12500 {other}\n"
    )
    assert capsys.readouterr().out.splitlines() == [
        f"{out}: 2 images, 5 predictions",
        "  2 of them ancestors of others",
        "  2 predictions clipped to the image",
        "  1 predictions left out, without area inside the image",
    ]


def test_the_hierarchy_in_data_is_taken_unless_another_or_none_is_given(
    predictions: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture,
) -> None:
    monkeypatch.setenv("DATA", str(tmp_path))
    default = Path(pet_hierarchy(tmp_path)).rename(tmp_path / HIERARCHY)
    out = predictions.with_name("p.csv")
    assert main([str(predictions)]) == 0
    assert "/m/09 0.87654" in out.read_text()
    assert f"  ancestors added by {default}" in capsys.readouterr().out.splitlines()
    assert main([str(predictions), "-f", "--hierarchy", "none"]) == 0
    assert out.read_text() == EXPECTED
    assert "ancestors" not in capsys.readouterr().out


def test_labels_that_the_hierarchy_lacks_are_named(
    predictions: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture,
) -> None:
    tree = Path(pet_hierarchy(tmp_path))
    tree.write_text(tree.read_text().replace("/m/02", "/m/5"))
    lacking = f"  1 of 2 classes have labels that {tree} lacks: /m/02"
    out = predictions.with_name("p.csv")
    assert main([str(predictions), "--hierarchy", str(tree)]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == lacking
    assert out.read_text().count("/m/09") == 1  # for the cat, /m/01
    monkeypatch.setenv("DATA", str(tmp_path))
    default = tree.rename(tmp_path / HIERARCHY)
    assert main([str(predictions), "-f"]) == 0
    added, missing = capsys.readouterr().out.splitlines()[-2:]
    assert (added, missing) == (
        f"  ancestors added by {default}",
        lacking.replace(str(tree), str(default)),
    )


def test_a_hierarchy_of_other_labels_is_refused_if_it_was_named(
    predictions: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture,
) -> None:
    tree = Path(pet_hierarchy(tmp_path))
    tree.write_text(tree.read_text().replace("/m/01", "/m/4").replace("/m/02", "/m/5"))
    reason = f"{tree} has none of the predicted labels: /m/01, /m/02"
    assert main([str(predictions), "--hierarchy", str(tree)]) == 2
    assert f"--hierarchy {reason}; name the hierarchy of these" in capsys.readouterr().err
    assert not predictions.with_name("p.csv").exists()
    monkeypatch.setenv("DATA", str(tmp_path))
    default = tree.rename(tmp_path / HIERARCHY)
    assert main([str(predictions)]) == 0
    last = capsys.readouterr().out.splitlines()[-1]
    assert last == f"  no ancestors added: {reason}".replace(str(tree), str(default))
    assert predictions.with_name("p.csv").read_text() == EXPECTED


@pytest.mark.parametrize("classes", ["/m/77,cow\n/m/02,whatever\n", '/m/02,"dog, big"\n'])
def test_a_class_list_chooses_classes(
    classes: str, predictions: Path, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    (tmp_path / "wanted.csv").write_text(classes)
    assert main([str(predictions), "--classes", str(tmp_path / "wanted.csv")]) == 0
    lines = predictions.with_name("p.csv").read_text().splitlines()
    assert lines[1:] == ["a,", "b,/m/02 0.87654 0.10000 0.20000 0.30000 0.40000", "broken,", "c,"]
    printed = capsys.readouterr().out
    assert "3 predictions left out, of classes that --classes lacks" in printed
    told = "found by their identifiers, with other names there: /m/02 is dog, big, there whatever"
    assert (f"wanted.csv: 1 classes {told}\n" in printed) == ("whatever" in classes)


def test_a_class_list_gives_labels_by_name_with_which_ancestors_are_found(
    predictions: Path, tmp_path: Path
) -> None:
    """Class 1, the cat, is left out; class 2 becomes /m/5, a pet."""
    (tmp_path / "wanted.csv").write_text('/m/77,cow\n/m/5,"dog, big"\n')
    tree = pet_hierarchy(tmp_path)
    Path(tree).write_text(Path(tree).read_text().replace("/m/02", "/m/5"))
    command = [str(predictions), "--classes", str(tmp_path / "wanted.csv"), "--hierarchy", tree]
    assert main(command) == 0
    box = "0.87654 0.10000 0.20000 0.30000 0.40000"
    assert f"\nb,/m/5 {box} /m/09 {box}\n" in predictions.with_name("p.csv").read_text()


@pytest.mark.parametrize(
    ("flag", "text", "message"),
    [
        ("--classes", "/m/77,cow\n", "it has none of the predicted classes, neither /m/01"),
        ("--classes", "/m/01,dog big\n/m/03,x\n/m/77", "row 3: '/m/77' has no second column"),
        ("--hierarchy", "{}", "The entry outermost has no LabelName"),
        ("--hierarchy", "", "It is not JSON"),
        ("--hierarchy", None, "No such file"),
        (
            "--hierarchy",
            '{"LabelName": "r", "Subcategory": [{"LabelName": "Human being"}]}',
            "1 labels of the hierarchy are empty, too long, or have blanks",
        ),
    ],
)
def test_wrong_lists_are_explained(
    flag: str, text: str | None, message: str, predictions: Path, capsys: pytest.CaptureFixture
) -> None:
    wrong = predictions.with_name("wrong")
    if text is not None:
        wrong.write_text(text)
    assert main([str(predictions), flag, str(wrong)]) == 2
    assert message in capsys.readouterr().err
    assert not predictions.with_name("p.csv").exists()


@pytest.mark.parametrize(
    ("predicted", "wanted", "identifiers", "remark"),
    [
        ("1,cat 2,dog", "1,person 17,cat 18,dog", "17 18", ""),  # numbered otherwise
        ("1,cat 2,dog", "2,cat 1,dog", "2 1", ""),
        (  # 17 shows that numbers mean other classes, and dogs are no bicycles
            "1,cat 2,dog",
            "1,person 2,bicycle 17,cat",
            "17 -",
            "1 classes left out, because their identifiers mean other classes there: "
            "2 is dog, there bicycle",
        ),
        (  # another spelling
            "/m/01,Cat /m/02,Dog",
            "/m/02,dog /m/01,house_cat",
            "/m/01 /m/02",
            "1 classes found by their identifiers, with other names there: "
            "/m/01 is Cat, there house_cat",
        ),
        ("cat,cat dog,dog", "/m/02,dog /m/01,cat", "/m/01 /m/02", ""),
        ("/m/01,/m/01 cat,Katze", "/m/01,dog /m/02,cat", "/m/01 /m/02", ""),  # a label as name
        ("1,cat 2,dog", "18,dog", "- 18", ""),
    ],
)
def test_classes_are_found_by_name_before_identifier(
    predicted: str, wanted: str, identifiers: str, remark: str
) -> None:
    lists = [[ClassEntry(*row.split(",")) for row in rows.split()] for rows in (predicted, wanted)]
    expected = tuple(text.strip("-") for text in identifiers.split())
    assert find_wanted(*lists) == (expected, remark)


def test_two_classes_cannot_become_one(tmp_path: Path) -> None:
    predicted = (ClassEntry("/m/01", "cat"), ClassEntry("/m/02", "dog"))
    with pytest.raises(SubmissionError, match=r"/m/01 \(cat\) and /m/02 \(dog\) are both its"):
        find_wanted(predicted, (ClassEntry("/m/01", "dog"),))


def test_an_interrupted_run_leaves_no_file(
    predictions: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(file, rows) -> int:
        file.write(next(rows)[1])
        raise KeyboardInterrupt

    monkeypatch.setattr(submissions, "write_submission", interrupted)
    monkeypatch.setattr(submissions, "tqdm", lambda rows, **_: rows)
    assert main([str(predictions)]) == 130
    assert [path.name for path in predictions.parent.iterdir()] == [predictions.name]


def test_wrong_input_is_explained(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    assert main([str(tmp_path / "none.parquet")]) == 2
    assert "none.parquet: PREDICTIONS is written by tpudet predict" in capsys.readouterr().err
    other = tmp_path / "other.parquet"
    other.write_text("ImageId\n")
    assert main([str(other)]) == 2
    assert "other.parquet is not a usable predictions file" in capsys.readouterr().err
    submission = tmp_path / "sub.csv"
    submission.write_text("ImageId,PredictionString\n")
    assert main([str(submission), "--out", str(submission), "-f"]) == 2
    assert "sub.csv would be replaced by its own submission" in capsys.readouterr().err
    assert submission.read_text() == "ImageId,PredictionString\n"
    submission.unlink()
    assert [p.name for p in tmp_path.iterdir()] == ["other.parquet"]


def test_a_box_whose_sides_round_to_the_same_number_is_left_out() -> None:
    found = format_predictions(
        ["/m/01"],
        np.array([1, 1]),
        np.array([0.5, 0.4]),
        np.array([[0.1, 0.1, 0.100004, 0.9], [0.1, 0.1, 0.10001, 0.9]]),
    )
    assert found == ("/m/01 0.40000 0.10000 0.10000 0.10001 0.90000", 1, 0, 1)
