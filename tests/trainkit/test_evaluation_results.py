"""The files of an evaluation: one set of names for each data set, and no evaluation for nothing."""

import json
import os
from pathlib import Path
from types import SimpleNamespace

import pytest

from tpudet.trainkit.errors import UserError
from tpudet.trainkit.evaluation_results import ResultFiles, result_files
from tpudet.trainkit.files.claims import ClaimError


def experiment(directory: str) -> SimpleNamespace:
    return SimpleNamespace(data=SimpleNamespace(directory=directory, eval_split="val"))


@pytest.fixture
def model_dir(tmp_path: Path) -> str:
    folder = tmp_path / "saved" / "run"
    folder.mkdir(parents=True)
    (folder / "config.yaml").write_text("")
    return str(folder)


def find_files(model_dir: str, directory: str, output: str = "") -> ResultFiles:
    own = experiment("/data/bccd/")
    return result_files(experiment(directory), model_dir, 20, lambda path: own, output)


def test_another_data_set_replaces_no_results(model_dir: str) -> None:
    """A data set that has moved keeps its names."""
    assert find_files(model_dir, "/data/bccd").path == f"{model_dir}/evaluation_val_20"
    assert find_files(model_dir, "/moved/bccd").path == f"{model_dir}/evaluation_val_20"
    other = find_files(model_dir, "/data/blood/", output="/results/")
    assert other.path == "/results/evaluation_run_blood_val_20"
    assert other.title == "run on blood, step 20"


def test_the_file_says_what_was_measured(model_dir: str, tmp_path: Path) -> None:
    files = find_files(model_dir, "/data/blood", output=f"{tmp_path}/new/results")
    assert files.write_metrics(lambda: {"AP": 0.5}) == {"AP": 0.5}
    assert json.loads(Path(f"{files.path}.json").read_text()) == {
        "model_dir": model_dir,
        "data": "/data/blood",
        "split": "val",
        "step": 20,
        "AP": 0.5,
    }


def test_a_place_that_cannot_be_written_is_refused_before_the_evaluation(
    model_dir: str, tmp_path: Path
) -> None:
    """A file stands for a read-only folder, which root may write to."""
    (tmp_path / "file").touch()
    files = find_files(model_dir, "/data/bccd", output=f"{tmp_path}/file")
    evaluations = []
    with pytest.raises(UserError, match=r"file/evaluation_run_val_20\.json cannot.*--output"):
        files.write_metrics(lambda: evaluations.append(1) or {})
    assert not evaluations


def test_results_of_another_run_are_not_replaced(model_dir: str, tmp_path: Path) -> None:
    """Two runs are in one folder; a second run of the same name is refused before its work."""
    results = f"{tmp_path}/results"

    def evaluate(name: str, ap: float) -> None:
        folder = tmp_path / name
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "config.yaml").write_text("")
        files = find_files(str(folder), "/data/bccd", output=results)
        files.write_metrics(lambda: {"AP": ap} if ap else pytest.fail("it is evaluated"))

    evaluate("saved/run", 0.1)
    evaluate("saved/run", 0.2)  # its own results are replaced
    evaluate("saved/other", 0.3)
    message = f"run_val_20.json has results of another run, {model_dir}. Name another folder"
    with pytest.raises(UserError, match=message):
        evaluate("elsewhere/run", 0)
    found = {path.name: json.loads(path.read_text()) for path in Path(results).iterdir()}
    assert {name: (text["AP"], text["model_dir"]) for name, text in found.items()} == {
        "evaluation_run_val_20.json": (0.2, model_dir),
        "evaluation_other_val_20.json": (0.3, f"{tmp_path}/saved/other"),
    }


def test_a_run_that_moved_replaces_its_own_results(model_dir: str, tmp_path: Path) -> None:
    find_files(model_dir, "/data/bccd").write_metrics(lambda: {"AP": 0.1})
    Path(model_dir).rename(tmp_path / "moved")
    moved = f"{tmp_path}/moved"
    for output in ("", f"{moved}/", f"{tmp_path}/saved/../moved"):
        find_files(moved, "/data/bccd", output=output).write_metrics(lambda: {"AP": 0.2})
    (results,) = Path(moved).glob("evaluation_*")
    assert json.loads(results.read_text())["model_dir"] == moved


def test_one_process_evaluates_into_the_same_files(model_dir: str) -> None:
    """Two that differ by `--set evaluation.rules` alone would mix their metrics and reports."""
    files = find_files(model_dir, "/data/bccd")

    def evaluate() -> dict[str, float]:
        with pytest.raises(ClaimError, match=f"is being written by process {os.getpid()} on"):
            files.write_metrics(lambda: pytest.fail("a second evaluation"))
        return {"AP": 0.5}

    files.write_metrics(evaluate)
    assert sorted(os.listdir(model_dir)) == ["config.yaml", "evaluation_val_20.json"]
