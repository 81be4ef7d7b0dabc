"""The parts of a predictions file: those of images that have changed since are predicted again."""

from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tpudet.detection.commands.join_predicted_parts import main as join
from tpudet.detection.commands.predict import main
from tpudet.detection.inference import predict, run
from tpudet.detection.inference.parts import (
    PredictionTask,
    describe_image_files,
    digest_image_files,
)
from tpudet.detection.inference.predictions_file import Predictions, read_predictions
from tpudet.trainkit.image_folder import ImageFile


def read(path: Path) -> Predictions:
    with path.open("rb") as file:
        return read_predictions(file, path.name)


def stop(*_: object) -> Any:
    raise KeyboardInterrupt


@pytest.fixture
def folder(jpegs: dict[str, bytes], tmp_path: Path) -> Path:
    """Small, square, tall and wide, of which tall is a download that was cut off."""
    directory = tmp_path / "images"
    directory.mkdir()
    for name, encoded in jpegs.items():
        (directory / f"{name}.jpg").write_bytes(encoded[:900] if name == "tall" else encoded)
    return directory


@pytest.mark.parametrize("shard", [None, "2/2"])
def test_a_resumed_run_predicts_changed_images_again_and_keeps_other_parts(
    shard: str | None,
    saved_model: Path,
    folder: Path,
    jpegs: dict[str, bytes],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: Any,
) -> None:
    monkeypatch.setattr(predict, "PredictionTask", partial(PredictionTask, images_per_part=1))
    target = tmp_path / ("p_part_2_of_2.parquet" if shard else "p.parquet")
    command = [str(tmp_path / "p.parquet"), str(saved_model), "--images", str(folder)]
    first, ids = command, ["small", "square", "tall", "wide"]
    if shard:
        command, ids = [*command, "--shard", shard], ["tall", "wide"]
    with monkeypatch.context() as patch:
        patch.setattr(run, "finish_task", stop)
        assert main(command) == 130
    parts = Path(f"{target}.parts")
    before = {path.name: path.stat().st_mtime_ns for path in parts.iterdir()}
    assert len(before) == len(ids)
    (folder / "tall.jpg").write_bytes(jpegs["tall"])
    capsys.readouterr()
    assert main([*command, "--dry_run"]) == 0
    assert f"in {len(ids)} parts; {len(ids) - 1} are finished" in capsys.readouterr().out
    with monkeypatch.context() as patch:
        patch.setattr(run, "finish_task", stop)
        assert main(command) == 130
    assert f"{target}: 1 finished parts are predicted again" in capsys.readouterr().err
    after = {path.name: path.stat().st_mtime_ns for path in parts.iterdir()}
    changed = f"part-{ids.index('tall'):05d}.parquet"
    assert [name for name in before if before[name] != after[name]] == [changed]
    assert main(command) == 0
    if shard:
        assert main([*first, "--shard", "1/2"]) == 0
        shards = [str(tmp_path / f"p_part_{number}_of_2.parquet") for number in (1, 2)]
        assert join([str(tmp_path / "p.parquet"), *shards]) == 0
    found = read(tmp_path / "p.parquet")
    assert found.metadata["unreadable"] == {}
    assert [image.image_id for image in found.images] == ["small", "square", "tall", "wide"]
    assert all(len(image.labels) for image in found.images)
    assert main([str(tmp_path / "fresh.parquet"), *first[1:]]) == 0
    assert read(tmp_path / "fresh.parquet").metadata["image_files"] == found.metadata["image_files"]


def test_files_are_told_apart_by_name_and_size_and_asked_once(tmp_path: Path) -> None:
    (tmp_path / "a.jpg").write_bytes(b"12345")
    images = [ImageFile("a", str(tmp_path / "a.jpg")), ImageFile("b", "https://host/b.jpg")]
    facts = describe_image_files(images)
    assert facts == {"a": "a.jpg 5", "b": "https://host/b.jpg"}
    (tmp_path / "a.jpg").write_bytes(b"123456")
    changed = describe_image_files(images)
    (tmp_path / "a.jpg").unlink()  # the digests read no file
    assert digest_image_files(images, changed) != digest_image_files(images, facts)
    assert digest_image_files(images[1:], changed) == digest_image_files(images[1:], facts)
