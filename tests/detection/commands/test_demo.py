"""The demo: the model that it exports, and its chain with masks."""

import os
from pathlib import Path

import pytest

from tpudet.detection.commands import demo


def test_the_saved_model_written_last(tmp_path: Path) -> None:
    for age, size in ((100, 256), (0, 128), (50, 320)):
        model = tmp_path / f"final/demo-sample-{size}/saved_model.pb"
        model.parent.mkdir(parents=True)
        model.touch()
        os.utime(model, (1e9 - age, 1e9 - age))
    (tmp_path / "final/demo-sample-64.replaced.temporary").mkdir()
    assert demo._saved_model(str(tmp_path), "demo-sample") == f"{tmp_path}/final/demo-sample-128"


# Nine processes, most of which import TensorFlow.
@pytest.mark.slow
def test_masks_go_through_the_whole_chain(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("STORAGE", str(tmp_path))
    steps = ("total_steps", "checkpoint_every_steps", "iterations_per_loop")
    overrides = [f"--set=train.{key}=4" for key in steps]
    overrides += ["--set=evaluation.schedule.every_steps=4", "--set=data.canvas_size=[64,64]"]
    # Without this no box of an untrained network would be written.
    overrides += ["--set=model.postprocess.score_threshold=0.0"]
    assert demo.main(["--masks", "--num_images", "16", *overrides]) == 0
    assert "mask_AP50: " in capfd.readouterr().out.partition("== Done")[2]
    name = "demo-masks-sample_masks"
    assert (tmp_path / f"final/{name}-64/saved_model.pb").is_file()
    lines = (tmp_path / f"predictions/{name}.csv").read_text().splitlines()
    assert lines[0] == "ImageID,ImageWidth,ImageHeight,PredictionString"
    assert len(lines) == 4  # of 16 images, 3 are of val
    assert any(line.split(",")[3] for line in lines[1:])
