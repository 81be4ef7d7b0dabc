"""evaluate_submission.py and compare_submissions.py, run as commands on files."""

import csv
import json
from collections.abc import Callable
from pathlib import Path

import cv2
import numpy as np
import pandas as pd
import pytest

from tpudet.detection.commands import compare_submissions, evaluate_submission

TRUTH = """ImageID,LabelName,XMin,XMax,YMin,YMax,IsGroupOf
a,/c,0.0,0.1,0.0,0.1,0
a,/c,0.2,0.4,0.0,0.2,1
"""
# The hand-worked case of the rules, in fractions of an image: AP 0.8333.
SUBMISSION = """ImageId,PredictionString
a,/c 0.9 0 0 0.1 0.1 /c 0.8 0.01 0 0.11 0.1 /c 0.7 0.21 0.01 0.3 0.1 /c 0.6 0.22 0.02 0.3 0.1 \
/c 0.5 0.6 0.6 0.7 0.7
"""


@pytest.fixture
def files(tmp_path: Path) -> Path:
    (tmp_path / "truth.csv").write_text(TRUTH)
    (tmp_path / "sub.csv").write_text(SUBMISSION)
    return tmp_path


def run(folder: Path, *more: str, sub: str = "sub.csv") -> int:
    return evaluate_submission.main([f"{folder}/{sub}", f"{folder}/truth.csv", *more])


def test_the_hand_worked_case_from_file_to_files(
    files: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(files) == 0
    out = capsys.readouterr().out
    assert out.startswith("mAP 0.833333 over 1 classes with ground truth")
    assert "errors (TIDE" in out
    folder = files / "sub_evaluation"
    with (folder / "classes.csv").open() as file:
        (row,) = csv.DictReader(file)
    assert row == {
        "LabelName": "/c", "Name": "/c", "AP": "0.833333", "Boxes": "1", "GroupOf": "1",
        "Predictions": "5", "TruePositives": "2", "BestRecall": "1.000000",
    }  # fmt: skip
    summary = json.loads((folder / "summary.json").read_text())
    assert summary["mAP"] == pytest.approx(5 / 6)
    assert sum(error["share"] for error in summary["errors"].values()) == pytest.approx(1)
    chart = cv2.imread(str(folder / "precision_recall_1.png"))
    assert chart is not None
    assert len(np.unique(chart)) > 10


def test_truth_that_is_not_given_is_told(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (files / "labels.csv").write_text("ImageID,LabelName,Confidence\na,/c,1\n")
    (files / "tree.json").write_text('{"LabelName": "/e", "Subcategory": [{"LabelName": "/c"}]}')
    given = ["--hierarchy", f"{files}/tree.json", "--image_labels", f"{files}/labels.csv"]
    for flags, missing in (
        ([], ["no --hierarchy: ", "no --image_labels: "]),
        (given[:2], ["no --image_labels: "]),
        (given, []),
    ):
        assert run(files, *flags, "--num_curves", "0", "-f") == 0
        notes = capsys.readouterr().out.split("\n")
        found = [line.strip() for line in notes if line.strip().startswith("no --")]
        assert [note.partition(": ")[0] + ": " for note in found] == missing


@pytest.mark.parametrize("force", [[], ["-f"]])
def test_the_class_list_of_a_prepared_set_is_not_replaced(
    files: Path, force: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    (files / "set").mkdir()
    (files / "set/classes.csv").write_text("/c,cat\n")
    assert run(files, "--output", f"{files}/set", *force) == 2
    assert "set/classes.csv is another command's" in capsys.readouterr().err
    assert [path.name for path in (files / "set").iterdir()] == ["classes.csv"]


def test_predictions_of_other_classes_are_refused(
    files: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (files / "sub.csv").write_text(SUBMISSION.replace("/c", "/m/1"))
    assert run(files) == 2
    error = capsys.readouterr().err
    assert (
        "5 predictions ignored, of labels that are not classes: /m/1 …; the first class is /c"
        in error
    )
    assert not (files / "sub_evaluation").exists()


def test_existing_results_need_force(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    output = ["--output", f"{files}/result", "--num_curves", "0"]
    assert run(files, *output) == 0
    assert not list(files.glob("result/*.png"))
    assert run(files, *output) == 2
    assert "summary.json exists; -f replaces it" in capsys.readouterr().err
    assert run(files, *output, "-f") == 0


def test_a_folder_has_one_owner_with_and_without_a_slash(
    files: Path, hold_claim: Callable, capsys: pytest.CaptureFixture[str]
) -> None:
    with hold_claim(files / "result.claim.json") as process:
        for output in (f"{files}/result", f"{files}/result/"):
            assert run(files, "--output", output, "--num_curves", "0") == 2
            message = f"{output} is being written by process {process} on"
            assert message in capsys.readouterr().err
    assert not (files / "result").exists()


def write_thirty_classes(folder: Path, *, num_found: int) -> None:
    """One object of each class, of which the first are found."""
    classes = [f"/c{number:02}" for number in range(30)]
    lines = [f"a,{label},0.1,0.5,0.1,0.5,0" for label in classes]
    (folder / "truth.csv").write_text("\n".join([TRUTH.splitlines()[0], *lines]) + "\n")
    found = " ".join(f"{label} 0.5 0.1 0.1 0.5 0.5" for label in classes[:num_found])
    (folder / "sub.csv").write_text(f"ImageId,PredictionString\na,{found}\n")


def test_replaced_results_have_no_page_of_the_earlier_ones(tmp_path: Path) -> None:
    write_thirty_classes(tmp_path, num_found=30)
    output = ["--output", f"{tmp_path}/result"]
    assert run(tmp_path, *output, "--num_curves", "30") == 0
    (tmp_path / "result/precision_recall_notes.png").touch()
    assert len(list(tmp_path.glob("result/*.png"))) == 3  # 25 curves, 5 curves, the user's own
    assert run(tmp_path, *output, "-f") == 0
    assert sorted(path.name for path in (tmp_path / "result").iterdir()) == [
        "classes.csv", "precision_recall_1.png", "precision_recall_notes.png", "summary.json"
    ]  # fmt: skip


def test_no_gain_is_told_of_missed_objects(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without them 29 of 30 classes have no object left, which is no AP of 0."""
    write_thirty_classes(tmp_path, num_found=1)
    assert run(tmp_path, "--num_curves", "0") == 0
    assert "Miss not found (29)\n" in capsys.readouterr().out
    errors = json.loads((tmp_path / "sub_evaluation/summary.json").read_text())["errors"]
    assert errors["Miss"] == {"kind": "Miss", "number": 29, "share": 1.0, "ap_gain": None}
    assert errors["Loc"]["ap_gain"] == 0


def test_what_does_not_count_is_reported(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    more = 'b,"/c 0.9 0 0 1 1 /c 0.8 0 0 1 1"\r\n'
    (files / "sub.csv").write_text(
        SUBMISSION.rstrip().replace("ImageId", "ImageID")
        + " /unknown 0.9 0 0 1 1 /d 0.9 0 0 1 1\n"
        + more
    )
    (files / "truth.csv").write_text(TRUTH + "z,/d,0,1,0,1,0\nempty,,,,,,\n")
    assert run(files) == 0
    out = capsys.readouterr().out
    assert out.startswith("mAP 0.416667 over 2 classes")  # /d is missed on z, ignored on a
    assert "1 images are not in the ground truth and ignored, with 2 predictions" in out
    assert "2 images of the ground truth have no row" in out
    assert "1 predictions ignored: their class is not verified" in out
    assert "1 predictions ignored, of labels that are not classes: /unknown" in out


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ("b,/c 0.9 0 0 1", "5 tokens"),
        ("b,/c nan 0 0 1 1", "score"),
        ("b,/c 1.5 0 0 1 1", "must be in 0..1"),
        ("b,/c 0.5 0.9 0 0.1 1", "x2 < x1"),
        ("a,/c 0.5 0 0 1 1", "in line 2 already"),
    ],
)
def test_bad_rows_of_a_submission(
    files: Path, capsys: pytest.CaptureFixture[str], row: str, message: str
) -> None:
    (files / "sub.csv").write_text(f"{SUBMISSION}{row}\n")
    assert run(files) == 2
    error = capsys.readouterr().err
    assert message in error
    assert f"{files}/sub.csv, line 3" in error
    assert not (files / "sub_evaluation").exists()
    assert run(files, "--skip_bad") == 0
    out = capsys.readouterr().out
    assert out.startswith("mAP 0.833333")
    assert "1 bad rows left out" in out


def test_unusable_files_are_one_message_and_exit_code_2(
    files: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def message(*more: str, sub: str = "sub.csv") -> str:
        assert run(files, *more, sub=sub) == 2
        return capsys.readouterr().err

    assert "no file" in message("--hierarchy", f"{files}/none.json")
    (files / "tree.json").write_text("{")
    assert "It is not JSON" in message("--hierarchy", f"{files}/tree.json")
    (files / "other.csv").write_text("ImageId,PredictionString\nq,/c 0.9 0 0 1 1\n")
    assert "none of the 1 images of" in message(sub="other.csv")
    assert "its first line must be" in message(sub="truth.csv")
    (files / "truth.csv").write_text(TRUTH + "a,a b,0,1,0,1,0\na,a c,0,1,0,1,0\n")
    assert "2 labels that are scored are empty, too long, or have blanks" in message()
    (files / "truth.csv").write_text(TRUTH + "a,/c,0.5,0.1,0,1,0\n")
    assert "truth.csv, line 4: XMax < XMin" in message()
    assert not (files / "sub_evaluation").exists()


def test_an_empty_submission_scores_nothing(files: Path, capsys: pytest.CaptureFixture) -> None:
    (files / "sub.csv").write_text("ImageId,PredictionString\na,\n")
    assert run(files) == 0
    assert capsys.readouterr().out.startswith("mAP 0.000000")


def real_truth(data_dir: Path, folder: Path) -> pd.DataFrame:
    """Real boxes by MID, exact duplicates left out: no two detections can find both of them."""
    table = pd.read_csv(data_dir / "openimages/val_annotations_names.csv").drop_duplicates()
    classes = data_dir / "openimages/derived/challenge-2019-classes-description-500.csv"
    mids = pd.read_csv(classes, header=None, index_col=1)[0]
    table["LabelName"] = table["LabelName"].map(mids)
    table.to_csv(folder / "truth.csv", index=False)
    return table.dropna()


def write_jittered(path: Path, table: pd.DataFrame, *, sigma: float, seed: int) -> None:
    generator = np.random.default_rng(seed)
    boxes = table[["XMin", "YMin", "XMax", "YMax"]].to_numpy()
    sides = np.tile(boxes[:, 2:] - boxes[:, :2], 2)
    boxes = np.clip(boxes + generator.normal(0, 1, boxes.shape) * sigma * sides, 0, 1)
    boxes[:, 2:] = np.maximum(boxes[:, :2], boxes[:, 2:])
    scores = generator.random(len(boxes))
    rows: dict[str, list[str]] = {}
    for image, label, score, box in zip(
        table["ImageID"], table["LabelName"], scores, boxes.tolist(), strict=True
    ):
        text = " ".join(f"{value:.7f}" for value in box)
        rows.setdefault(image, []).append(f"{label} {score:.5f} {text}")
    lines = [f"{image},{' '.join(parts)}" for image, parts in rows.items()]
    path.write_text("\n".join(["ImageId,PredictionString", *lines]) + "\n")


def test_real_boxes_a_perfect_submission_and_worse_ones(
    data_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    table = real_truth(data_dir, tmp_path)
    found = []
    for sigma in (0.0, 0.1, 0.2, 0.4):
        write_jittered(tmp_path / "sub.csv", table, sigma=sigma, seed=1)
        assert run(tmp_path, "-f", "--num_curves", "0") == 0
        found.append(float(capsys.readouterr().out.split()[1]))
    assert found[0] == 1.0
    assert sorted(found, reverse=True) == found
    assert len(set(found)) == 4
    assert found[3] < 0.5


def test_comparison_finds_what_changed_and_how_sure_that_is(
    data_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    table = real_truth(data_dir, tmp_path)
    frequent = table["LabelName"].value_counts().index[:20]
    table = table[table["LabelName"].isin(frequent)]
    table.to_csv(tmp_path / "truth.csv", index=False)
    write_jittered(tmp_path / "a.csv", table, sigma=0.15, seed=1)
    write_jittered(tmp_path / "b.csv", table, sigma=0.15, seed=1)
    text = (tmp_path / "b.csv").read_text()
    worse = frequent[3]
    (tmp_path / "b.csv").write_text(text.replace(f"{worse} ", "/m/none "))
    command = [f"{tmp_path}/{name}.csv" for name in ("a", "b", "truth")]
    command += ["--resamples", "100", "--output", f"{tmp_path}/changes.csv"]
    assert compare_submissions.main(command) == 0
    out = capsys.readouterr().out
    assert "20 classes with ground truth; 0 are better and 1 worse" in out
    changes = pd.read_csv(tmp_path / "changes.csv").set_index("LabelName")
    assert changes["AP_B"].to_dict()[worse] == 0
    assert changes["High"].to_dict()[worse] < 0
    others = changes.drop(worse)
    assert (others[["Change", "Low", "High"]] == 0).all().all()
    first = (tmp_path / "changes.csv").read_bytes()
    assert compare_submissions.main([*command, "-f"]) == 0  # the seed gives the same draws
    assert (tmp_path / "changes.csv").read_bytes() == first
    assert compare_submissions.main([*command, "-f", "--seed", "1"]) == 0
    assert (tmp_path / "changes.csv").read_bytes() != first


def test_comparison_of_a_submission_with_itself_and_wrong_arguments(
    files: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = [f"{files}/sub.csv", f"{files}/sub.csv", f"{files}/truth.csv"]
    assert compare_submissions.main([*command, "--resamples", "5"]) == 0
    assert "mAP 0.8333 -> 0.8333 (+0.0000, +0.0000 to +0.0000)" in capsys.readouterr().out
    with pytest.raises(SystemExit, match="2"):
        compare_submissions.main([*command, "--resamples", "0"])
    assert "argument --resamples: `0` is not" in capsys.readouterr().err
    wrong = ["--confidence", "2", "--output", f"{files}/sub.csv"]
    assert compare_submissions.main([*command, *wrong]) == 2
    error = capsys.readouterr().err
    assert "--confidence 2.0" in error
    assert "exists" in error


@pytest.mark.parametrize("command", [evaluate_submission, compare_submissions])
def test_help(command, capsys: pytest.CaptureFixture) -> None:
    with pytest.raises(SystemExit, match="0"):
        command.main(["--help"])
    out = capsys.readouterr().out
    assert "example: tpudet " in out
    assert "exit codes: 0 done, 2" in out
