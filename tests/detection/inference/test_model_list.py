"""inference.py --models: one list, every mistake at once, what is finished is skipped."""

import json
import shutil
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest

from tpudet.detection.commands.predict import main
from tpudet.detection.inference.predictions_file import read_predictions

MODELS = """\
- {dataset: part_0, version: '2.6', step: 12, resolution: 64x96}
- dataset: part_1
  version: 2.6.1
  step: best
  resolution: 64x96
"""


@pytest.fixture
def storage(
    saved_model: Path, jpegs: dict[str, bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Path:
    """$STORAGE with two models and $DATA with four images."""
    root = tmp_path / "output"
    for name in ("2.6-part_0-64x96", "2.6.1-part_1-64x96"):
        shutil.copytree(saved_model, root / "final" / name)
    (tmp_path / "data" / "test").mkdir(parents=True)
    for name, encoded in jpegs.items():
        (tmp_path / "data" / "test" / f"{name}.jpg").write_bytes(encoded)
    monkeypatch.setenv("STORAGE", str(root))
    monkeypatch.setenv("DATA", str(tmp_path / "data"))
    monkeypatch.chdir(tmp_path)
    Path("models.yml").write_text(MODELS)
    return root


def errors_of(capsys: Any, *arguments: str) -> str:
    assert main(arguments) == 2
    return capsys.readouterr().err


def test_a_list_is_worked_off_and_what_is_finished_is_skipped(storage: Path, capsys: Any) -> None:
    assert main(["--models", "models.yml", "--dry_run"]) == 0
    assert "2 models of models.yml, 2 to do; 4 images" in capsys.readouterr().out
    assert not (storage / "predictions").exists()
    assert main(["--models", "models.yml"]) == 0
    printed = capsys.readouterr().out
    first, second = sorted((storage / "predictions").iterdir())
    assert [first.name, second.name] == ["2.6-part_0-64x96.parquet", "2.6.1-part_1-64x96.parquet"]
    assert f"{first}: 4 images predicted" in printed
    assert "8 images in " in printed
    assert "images/s; waited " in printed

    second.unlink()
    written = first.stat().st_mtime_ns
    assert main(["--models", "models.yml"]) == 0
    printed = capsys.readouterr().out
    assert f"{first}: finished, skipped" in printed
    assert "2 models of models.yml, 1 to do" in printed
    assert first.stat().st_mtime_ns == written
    assert second.exists()
    assert main(["--models", "models.yml"]) == 0  # nothing left

    # Shards have files of their own.
    assert main(["--models", "models.yml", "--shard", "2/4"]) == 0
    part = storage / "predictions" / "2.6-part_0-64x96_part_2_of_4.parquet"
    with part.open("rb") as file:
        assert [i.image_id for i in read_predictions(file, part.name).images] == ["square"]


def test_predictions_of_another_model_are_not_taken_for_finished(
    storage: Path, capsys: Any
) -> None:
    assert main(["--models", "models.yml"]) == 0
    metadata = storage / "final/2.6.1-part_1-64x96/assets/metadata.json"
    facts = json.loads(metadata.read_text())
    metadata.write_text(json.dumps(facts | {"step": 13}))
    (metadata.parent / "files.json").unlink()  # else it is not a whole SavedModel
    text = errors_of(capsys, "--models", "models.yml")
    assert "models.yml:2: 2.6.1-part_1-64x96: " in text
    assert "2.6.1-part_1-64x96.parquet exists, of another model; --overwrite" in text
    text = errors_of(capsys, "--models", "models.yml", "--tta", "flip", "--ids", "models.yml")
    assert "no such image in" in text
    Path("ids.txt").write_text("wide\n")
    text = errors_of(capsys, "--models", "models.yml", "--tta", "flip", "--ids", "ids.txt")
    assert "mistakes: 2" in text
    assert "exists, of another list of images and other views (--tta)" in text
    assert main(["--models", "models.yml", "--overwrite"]) == 0


def test_other_images_of_the_same_names_are_not_taken_for_finished(
    storage: Path, capsys: Any
) -> None:
    folder, moved, other = Path("data/test"), Path("moved"), Path("cam2")
    assert main(["--models", "models.yml", "--images", str(folder)]) == 0
    shutil.copytree(folder, moved)
    assert main(["--models", "models.yml", "--images", str(moved)]) == 0  # all finished
    assert "2 models of models.yml, 0 to do" in capsys.readouterr().out
    other.mkdir()
    for path in folder.iterdir():  # the same ids
        cv2.imwrite(str(other / f"{path.stem}.png"), np.zeros((40, 60, 3), np.uint8))
    text = errors_of(capsys, "--models", "models.yml", "--images", str(other))
    assert text.count("exists, of other images of the same names; --overwrite") == 2
    assert main(["--models", "models.yml", "--images", str(other), "--overwrite"]) == 0


def test_all_mistakes_of_a_list_are_named_at_once(storage: Path, capsys: Any) -> None:
    Path("models.yml").write_text(
        "- {dataset: part_0, version: '2.6', step: 11, resolution: 64x96}\n"
        "- {dataset: part_0, version: 2.6, step: best, resolution: 64x96}\n"
        "- {dataset: part_1, versoin: 2.6.1, step: best, resolution: 640}\n"
        "- {dataset: part_2, version: 2.6.1, step: last, resolution: 640x}\n"
        "- {dataset: part_3, version: 2.6.1, step: 1, resolution: 640}\n"
        "- {dataset: part_1, version: 2.6.1, step: 12, resolution: 64x96}\n"
        "- {dataset: part_1, version: 2.6.1, step: 12, resolution: 64x96}\n"
        "- {dataset: a/b, version: 2.6.1, step: 12, resolution: wide}\n"
        "- part_5\n"
    )
    text = errors_of(capsys, "--models", "models.yml")
    for mistake in (
        "was exported from step 12, the list says 11",
        "models.yml:2: version must be a string, got 2.6",
        "models.yml:3: unknown key versoin; did you mean `version`?",
        "models.yml:3: missing key version",
        "models.yml:4: step must be an integer or one of best, latest, got 'last'",
        "models.yml:5: 2.6.1-part_3-640: no directory",
        "models.yml:7: 2.6.1-part_1-64x96 is listed in models.yml:6 already",
        "models.yml:8: ModelEntry: dataset 'a/b' must be a name, without / and not empty; "
        "resolution 'wide' must be pixels or HEIGHTxWIDTH",
        "models.yml:9:  must be a mapping of keys, got 'part_5'",
    ):
        assert mistake in text
    assert "mistakes: 9" in text
    assert not (storage / "predictions").exists()


def test_wrong_use_is_explained(storage: Path, capsys: Any) -> None:
    assert "give no PREDICTIONS" in errors_of(capsys, "p.parquet", "--models", "models.yml")
    assert "give PREDICTIONS and SAVED_MODEL, or --models FILE" in errors_of(capsys, "p.parquet")
    assert "give PREDICTIONS and SAVED_MODEL" in errors_of(capsys)
    assert "none.yml: cannot be read" in errors_of(capsys, "--models", "none.yml")
    for wrong in ("a: 1\n", "", "- [1\n"):
        Path("wrong.yml").write_text(wrong)
        text = errors_of(capsys, "--models", "wrong.yml")
        assert "expected a list at the top level" in text or "not valid YAML" in text
    model = str(storage / "final/2.6-part_0-64x96")
    assert "--shard '3/2': I/N takes" in errors_of(capsys, "p.parquet", model, "--shard", "3/2")
    assert "must be auto or HOST:PORT" in errors_of(capsys, "p.parquet", model, "--cluster", "x")
    text = errors_of(capsys, "p.parquet", model, "--tta", "flop,scales", "--tta_scales", "9")
    assert "'flop' is not flip or scales; scale 9 must be in 0.25..4" in text
