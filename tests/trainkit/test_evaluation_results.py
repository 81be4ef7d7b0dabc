"""The files of an evaluation: one set of names for each data set, and no evaluation for nothing."""

import json
from pathlib import Path
from types import SimpleNamespace

import pytest

from tpudet.trainkit.errors import UserError
from tpudet.trainkit.evaluation_results import ResultFiles, result_files


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
    assert other.path == "/results/evaluation_blood_val_20"
    assert other.title == "run on blood, step 20"


def test_the_file_says_what_was_measured(model_dir: str, tmp_path: Path) -> None:
    files = find_files(model_dir, "/data/blood", output=f"{tmp_path}/new/results")
    assert files.write_metrics(lambda: {"AP": 0.5}) == {"AP": 0.5}
    assert json.loads(Path(f"{files.path}.json").read_text()) == {
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
    with pytest.raises(UserError, match=r"file/evaluation_val_20\.json cannot.*--output"):
        files.write_metrics(lambda: evaluations.append(1) or {})
    assert not evaluations
