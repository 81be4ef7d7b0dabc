"""gen_all_subs and merge_all_subs: which files they take, what they skip, what they say."""

import json
import os
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest

from tpudet.detection.commands import gen_all_subs, merge_all_subs
from tpudet.detection.inference.predictions_file import ImagePredictions, write_predictions
from tpudet.detection.submission import recorded_files

COMMANDS = {"gen_all_subs": gen_all_subs.main, "merge_all_subs": merge_all_subs.main}


class Done(NamedTuple):
    returncode: int
    stdout: str
    stderr: str


@pytest.fixture
def storage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "predictions").mkdir()
    monkeypatch.setenv("STORAGE", str(tmp_path))
    monkeypatch.setenv("DATA", "none")
    return tmp_path


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]):
    def call(command: str, *arguments: str) -> Done:
        try:
            code = COMMANDS[command](arguments)
        except SystemExit as error:
            code = int(error.code or 0)
        captured = capsys.readouterr()
        return Done(code, captured.out, captured.err)

    return call


def predict(storage: Path, name: str, label: str, score: float, **metadata: object) -> None:
    image = ImagePredictions(
        "a",
        np.array([1], np.int32),
        np.array([score], np.float32),
        np.array([[0, 0, 1, 1]], np.float32),
    )
    with (storage / "predictions" / name).open("wb") as file:
        classes = f"{label},x\n"
        write_predictions(file, name, [[image]], class_list_text=classes, metadata=metadata)


def submit(storage: Path, name: str, label: str, score: float) -> None:
    (storage / "predictions" / name).write_text(
        f"ImageId,PredictionString\na,{label} {score:.5f} 0.00000 0.00000 1.00000 1.00000\n"
    )


def test_every_predictions_file_gets_a_submission_once(storage: Path, run) -> None:
    predict(storage, "m-part_0-64.parquet", "/m/01", 0.5)
    predict(storage, "m-part_1-64.pkl", "/m/02", 0.5)
    predict(storage, "m_part_1_of_2.parquet", "/m/01", 0.5)
    predict(storage, "renamed.pkl", "/m/01", 0.5, shard={"number": 2, "of": 2})
    done = run("gen_all_subs")
    assert done.returncode == 0, done.stderr
    folder = storage / "predictions"
    assert sorted(path.stem for path in folder.glob("*.csv")) == [
        f"m-part_{k}-64" for k in range(2)
    ]
    assert "exists" not in done.stdout
    for name in ("m_part_1_of_2.parquet", "renamed.pkl"):
        assert f"{name}: skipped, a part of a whole" in done.stderr
    os.utime(folder / "m-part_0-64.parquet", (2e9, 2e9))
    predict(storage, "m-part_2-64.parquet", "/m/03", 0.5)
    submit(storage, "m-part_2-64.csv", "/m/03", 0.125)
    (folder / "broken.parquet").write_text("no parquet")
    predict(storage, "cells.parquet", "White Cell", 0.5)
    predict(storage, "zebra.parquet", "/m/04", 0.5)
    done = run("gen_all_subs")
    assert done.returncode == 1
    assert "cells.parquet: 1 class identifiers are empty" in done.stderr
    assert (folder / "zebra.csv").exists()
    assert "broken.parquet is not a usable predictions file" in done.stderr
    assert f"m-part_0-64.csv: older than {folder}/m-part_0-64.parquet; -f" in done.stderr
    assert "m-part_1-64.csv exists" in done.stdout
    # A submission of an earlier version, or of gen_sub.
    assert "m-part_2-64.csv exists without a record of the files and options" in done.stderr
    assert "4 of 8 files have no submission that is up to date" in done.stderr
    assert "0.12500" in (folder / "m-part_2-64.csv").read_text()


def test_submissions_of_other_options_or_files_are_out_of_date(storage: Path, run) -> None:
    predict(storage, "a.parquet", "/m/01", 0.5)
    submission = storage / "predictions/a.csv"
    box = "0.50000 0.00000 0.00000 1.00000 1.00000"
    (storage / "wanted.csv").write_text("/m/05,x\n")
    tree = {"LabelName": "r", "Subcategory": [{"LabelName": "/m/09", "Subcategory": []}]}
    tree["Subcategory"][0]["Subcategory"].append({"LabelName": "/m/05"})
    (storage / "tree.json").write_text(json.dumps(tree))
    lists = ["--classes", f"{storage}/wanted.csv", "--hierarchy", f"{storage}/tree.json"]
    assert run("gen_all_subs").returncode == 0

    def reason(*options: str) -> str:
        before = submission.read_bytes()
        done = run("gen_all_subs", *options)
        assert done.returncode == 1
        assert submission.read_bytes() == before
        first, last = done.stderr.splitlines()
        assert last == "1 of 1 files have no submission that is up to date"
        return first.removeprefix(f"{submission} ").removesuffix("; -f replaces all")

    assert reason(*lists[:2]) == "was made with other options: classes"
    assert reason(*lists, "--masks") == "was made with other options: classes, hierarchy, masks"
    assert run("gen_all_subs", *lists, "-f").returncode == 0
    assert submission.read_text() == f"ImageId,PredictionString\na,/m/05 {box} /m/09 {box}\n"
    assert run("gen_all_subs", *lists).stdout == f"{submission} exists\n"
    (storage / "tree.json").write_text(json.dumps(tree).replace("/m/09", "/m/08"))
    assert reason(*lists) == "was made with other options: hierarchy"
    (storage / "tree.json").rename(storage / "moved.json").write_text(json.dumps(tree, indent=1))
    moved = [*lists[:3], f"{storage}/moved.json"]  # the same content
    assert run("gen_all_subs", *moved).returncode == 0
    submission.write_text(submission.read_text() + "b,\n")
    assert reason(*moved) == "was changed after it was made"
    assert run("gen_all_subs", *moved, "-f").returncode == 0
    predict(storage, "a.pkl", "/m/05", 0.5)
    (storage / "predictions/a.parquet").unlink()
    other_files = "was made before these were added, removed or changed: "
    assert reason(*moved) == f"{other_files}a.parquet, a.pkl"


def test_models_of_a_part_are_merged_and_the_parts_joined(storage: Path, run) -> None:
    submit(storage, "b0-part_0-640.csv", "/m/01", 0.9)
    submit(storage, "b5-v3_part_0-fold_2-640.csv", "/m/01", 0.8)
    submit(storage, "b0-part_1-640.csv", "/m/02", 0.95)
    submit(storage, "b0-part_10-640.csv", "/m/10", 1)  # no part that is merged by default
    done = run("merge_all_subs", "--method", "hard")
    assert done.returncode == 0, done.stderr
    assert done.stderr.splitlines()[0] == "skipped, no part in their names:"
    assert done.stderr.splitlines()[1].endswith("b0-part_10-640.csv")
    box = "0.00000 0.00000 1.00000 1.00000"
    header = "ImageId,PredictionString\n"
    merged = {path.name: path.read_text() for path in (storage / "merged").glob("*.csv")}
    assert merged == {
        "part_0.csv": f"{header}a,/m/01 0.90000 {box}\n",
        "part_1.csv": f"{header}a,/m/02 0.95000 {box}\n",
        "joined.csv": f"{header}a,/m/02 0.95000 {box} /m/01 0.90000 {box}\n",
    }
    done = run("merge_all_subs", "--method", "hard")
    assert done.returncode == 0
    assert done.stdout.count(" exists") == 3
    os.utime(storage / "predictions/b0-part_1-640.csv", (2e9, 2e9))
    done = run("merge_all_subs", "--method", "hard")
    assert done.returncode == 1
    assert "part_1.csv: older than " in done.stderr
    assert "joined.csv: not joined, because a part is out of date" in done.stderr


def test_a_merge_of_other_files_or_options_is_out_of_date(storage: Path, run) -> None:
    folder = storage / "predictions"
    for model, score in {"b0": 0.9, "b5": 0.8}.items():
        submit(storage, f"{model}-part_0-640.csv", "/m/01", score)
    submit(storage, "b0-part_1-640.csv", "/m/02", 0.95)
    options = ["--method", "wbf", "--iou", "0.55"]
    assert run("merge_all_subs", *options).returncode == 0
    before = {path: path.read_bytes() for path in (storage / "merged").iterdir()}

    def reason(*changed: str) -> str:
        done = run("merge_all_subs", *(changed or options))
        assert done.returncode == 1
        assert {path: path.read_bytes() for path in (storage / "merged").iterdir()} == before
        first = done.stderr.splitlines()[0]
        assert first.endswith("; -f replaces all")
        return first.removeprefix(f"{storage}/merged/part_0.csv ").removesuffix("; -f replaces all")

    assert reason("--iou", "0.55") == "was made with other options: method"
    assert reason("--method", "wbf") == "was made with other options: iou"
    (storage / "settings.csv").write_text("label,iou\n/m/01,0.6\n")
    with_settings = [*options, "--class_settings", f"{storage}/settings.csv"]
    assert reason(*with_settings) == "was made with other options: class_settings"
    other_files = "was made before these were added, removed or changed: "
    removed = (folder / "b5-part_0-640.csv").rename(storage / "kept.csv")
    assert reason() == f"{other_files}b5-part_0-640.csv"
    submit(storage, "b1-part_0-640.csv", "/m/01", 0.7)
    os.utime(folder / "b1-part_0-640.csv", (1e9, 1e9))
    assert reason() == f"{other_files}b1-part_0-640.csv, b5-part_0-640.csv"
    (folder / "b1-part_0-640.csv").unlink()
    removed.rename(folder / "b5-part_0-640.csv")
    assert run("merge_all_subs", *options).stdout.count(" exists") == 3
    record = storage / "merged/part_0.csv.merge.json"
    record.write_text("{}")
    before[record] = b"{}"
    assert reason() == "exists without a record of the files and options that it was made of"
    assert run("merge_all_subs", "-f", "--iou", "0.4").returncode == 0
    assert run("merge_all_subs", "--iou", "0.4").stdout.count(" exists") == 3
    part = storage / "merged/part_0.csv"
    part.write_text(part.read_text() + "b,\n")
    done = run("merge_all_subs", "--iou", "0.4")
    assert done.returncode == 1
    assert "part_0.csv was changed after it was made; -f replaces all" in done.stderr


def test_killed_before_its_record_a_merge_is_not_taken_for_one_of_other_options(
    storage: Path, run, monkeypatch
) -> None:
    """A mean of 0.9 and 0.5 is 0.7 by weights 1,1 and 0.6 by 1,3: the files have equal sizes."""

    class Killed(BaseException):
        pass

    def kill(*_: object) -> None:
        raise Killed

    submit(storage, "b0-part_0-640.csv", "/m/01", 0.9)
    submit(storage, "b5-part_0-640.csv", "/m/01", 0.5)
    merge = ("merge_all_subs", "part_0", "--method", "wbf", "--weights")
    result = storage / "merged/part_0.csv"
    assert run(*merge, "1,1").returncode == 0
    assert " 0.70000 " in result.read_text()
    with monkeypatch.context() as patch:
        patch.setattr(recorded_files, "write_json_text", kill)
        with pytest.raises(Killed):
            run(*merge, "1,3", "-f")
    assert " 0.60000 " in result.read_text()
    done = run(*merge, "1,1")
    assert (done.returncode, done.stdout.count(" exists")) == (1, 0)
    assert "part_0.csv exists without a record of the files and options" in done.stderr
    assert run(*merge, "1,3", "-f").returncode == 0
    assert run(*merge, "1,3").stdout.count(" exists") == 1
    result.write_text(result.read_text().replace("0.60000", "0.70000"))
    done = run(*merge, "1,3")
    assert done.returncode == 1
    assert "part_0.csv was changed after it was made" in done.stderr


def test_one_process_makes_a_merge_and_its_record(storage: Path, run, hold_claim) -> None:
    submit(storage, "b0-part_0-640.csv", "/m/01", 0.9)
    (storage / "merged").mkdir()
    with hold_claim(storage / "merged/part_0.csv.merge.json.claim.json") as process:
        done = run("merge_all_subs", "part_0")
        assert done.returncode == 2
        message = f"{storage}/merged/part_0.csv is being written by process {process} on"
        assert message in done.stderr
    assert not list((storage / "merged").iterdir())
    assert run("merge_all_subs", "part_0").returncode == 0


def test_weights_must_suit_all_parts_before_any_is_written(storage: Path, run) -> None:
    for name in ("b0-part_0-640.csv", "b5-part_0-640.csv", "b0-part_1-640.csv"):
        submit(storage, name, "/m/01", 0.9)
    done = run("merge_all_subs", "--weights", "1,2")
    assert (done.returncode, done.stdout) == (2, "")
    assert "part_1: 2 weights for 1 files; give one for each" in done.stderr
    assert "part_0" not in done.stderr
    assert not (storage / "merged").exists()
    done = run("merge_all_subs", "part_0", "--method", "wbf", "--weights", "1,0")
    assert done.stdout.startswith("part_0: b0-part_0-640.csv, b5-part_0-640.csv\n")


def test_sets_of_any_preset_belong_to_their_part(storage: Path, run) -> None:
    """Those of masks too, which are not joined; the rest is named."""
    for name in (
        "mask-segmentation_segmentation-1024.csv",
        "mask-segmentation_balanced_segmentation-1024.csv",
        "mask-segmentation-fold_0-1024.csv",
        "b0-own_part_1-640.csv",
        "b0-v3_part_0_fold_2-640.csv",
        "b0-department_0-640.csv",
    ):
        submit(storage, name, "/m/01", 0.9)
    done = run("merge_all_subs")
    assert done.returncode == 0, done.stderr
    assert [line for line in done.stdout.splitlines() if "/" not in line] == [
        "part_0: b0-v3_part_0_fold_2-640.csv",
        "part_1: b0-own_part_1-640.csv",
        "segmentation: mask-segmentation-fold_0-1024.csv, "
        "mask-segmentation_balanced_segmentation-1024.csv, mask-segmentation_segmentation-1024.csv",
    ]
    skipped = f"{storage}/predictions/b0-department_0-640.csv"
    assert done.stderr.splitlines() == ["skipped, no part in their names:", skipped]
    record = json.loads((storage / "merged/joined.csv.merge.json").read_text())
    assert sorted(record["files"]) == ["part_0.csv", "part_1.csv"]
    done = run("merge_all_subs", "segmentation", "part_0")
    assert done.stdout.count(" exists") == 2
    assert done.stderr.splitlines() == [
        "skipped, none of these parts in their names:",
        skipped,
        f"{storage}/predictions/b0-own_part_1-640.csv",
    ]


@pytest.mark.parametrize(
    ("command", "arguments", "message"),
    [
        ("gen_all_subs", ["file"], "unrecognized arguments: file"),
        ("gen_all_subs", ["--out", "x"], "unrecognized arguments: --out x"),
        ("gen_all_subs", [], "no *.parquet or *.pkl in "),
        ("merge_all_subs", [], "has a part in its name; see --help"),
        ("merge_all_subs", ["part_7"], "no submission of part_7 in "),
        ("merge_all_subs", ["part.*"], "may have only letters, digits and underscores"),
    ],
)
@pytest.mark.usefixtures("storage")
def test_wrong_calls_say_what_is_wrong(
    command: str, arguments: list[str], message: str, run
) -> None:
    done = run(command, *arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert message in done.stderr


def test_wrong_lists_are_told_once(storage: Path, run) -> None:
    """They would be the mistake of every file."""
    for name in ("a.parquet", "b.parquet"):
        predict(storage, name, "/m/01", 0.5)
    done = run("gen_all_subs", "--classes", "none.csv")
    assert done.returncode == 2
    assert done.stderr.count("none.csv") == 1


def test_weights_that_are_no_numbers_are_named(storage: Path, run) -> None:
    submit(storage, "b0-part_0-640.csv", "/m/01", 0.9)
    done = run("merge_all_subs", "--weights", "a,b")
    assert done.returncode == 2
    assert "argument --weights: `a,b` is not a list of numbers" in done.stderr
