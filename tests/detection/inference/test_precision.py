"""The precision of a prediction on CPUs: what decides it, and that parts of two are not mixed."""

from pathlib import Path

import pytest

from tpudet.detection.inference import predict
from tpudet.detection.inference.parts import InferenceError, PredictionTask, is_finished
from tpudet.detection.inference.predictions_file import write_predictions
from tpudet.trainkit.image_folder import ImageFile
from tpudet.trainkit.saved_model import SavedModel

TASK = PredictionTask(SavedModel("model", "", {}, "fingerprint"), [], "predictions.parquet")


@pytest.mark.parametrize(
    ("precision", "gains", "is_shared", "in_bfloat16"),
    [
        ("auto", True, False, True),
        ("auto", False, False, False),
        ("auto", True, True, False),  # the other machines may have other CPUs
        ("float32", True, False, False),
        ("bfloat16", False, True, True),
    ],
)
def test_auto_is_bfloat16_where_this_cpu_is_faster_with_it(
    monkeypatch: pytest.MonkeyPatch,
    precision: predict.InferencePrecision,
    gains: bool,
    is_shared: bool,
    in_bfloat16: bool,
) -> None:
    monkeypatch.setattr(predict, "gains_from_bfloat16", lambda: gains)
    assert predict.choose_bfloat16(precision, is_shared=is_shared) is in_bfloat16


def test_parts_of_another_precision_are_not_continued() -> None:
    assert TASK.key() != TASK._replace(in_bfloat16=True).key()


def test_a_file_of_another_precision_is_not_taken_for_finished(tmp_path: Path) -> None:
    task = TASK._replace(predictions_path=str(tmp_path / "p.parquet"), in_bfloat16=True)
    with (tmp_path / "p.parquet").open("wb") as file:
        write_predictions(file, "p.parquet", [], class_list_text="1,a\n", metadata=task.identity())
    assert is_finished(task)
    other = task._replace(in_bfloat16=False)
    with pytest.raises(InferenceError, match="of another --precision; --overwrite replaces it"):
        is_finished(other)
    assert is_finished(other._replace(any_precision=True))


def test_a_file_of_before_names_no_precision_and_is_finished(tmp_path: Path) -> None:
    task = TASK._replace(predictions_path=str(tmp_path / "p.parquet"))
    metadata = {name: fact for name, fact in task.identity().items() if name != "precision"}
    with (tmp_path / "p.parquet").open("wb") as file:
        write_predictions(file, "p.parquet", [], class_list_text="1,a\n", metadata=metadata)
    assert is_finished(task)
    assert is_finished(task._replace(in_bfloat16=True))


def test_a_dry_run_counts_only_parts_that_the_run_would_keep(tmp_path: Path) -> None:
    images = [ImageFile(name, f"{name}.jpg") for name in "abc"]
    task = TASK._replace(images=images, predictions_path=str(tmp_path / "p.parquet"))
    task = task._replace(images_per_part=1)
    (tmp_path / "p.parquet.parts").mkdir()
    with Path(task.parts()[0].path).open("wb") as file:
        metadata = {"key": task.key(), "unreadable": {}}
        write_predictions(file, "p.parquet", [], class_list_text="1,a\n", metadata=metadata)
    described = predict.describe_tasks([task], overwrite=False)
    assert described.endswith("p.parquet in 3 parts; 1 are finished")
    other = task._replace(in_bfloat16=True)
    message = "part-00000.parquet was left by a run with another model.*--overwrite removes it"
    with pytest.raises(InferenceError, match=message):
        predict.describe_tasks([other], overwrite=False)
    described = predict.describe_tasks([other], overwrite=True)
    assert described.endswith("p.parquet in 3 parts; 0 are finished")
