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


def test_images_of_another_number_or_a_bucket_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("STORAGE", "gs://bucket/demo")
    assert demo.main([]) == 2
    assert "STORAGE is gs://bucket/demo; the demo needs a local folder" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())
    monkeypatch.setenv("STORAGE", str(tmp_path))
    (tmp_path / "images/train").mkdir(parents=True)
    for name in ("val_boxes.csv", "train/1.jpg", "train/2.jpg"):
        (tmp_path / "images" / name).touch()
    assert demo.main(["--num_images", "500"]) == 2
    message = f"--num_images 500: {tmp_path}/images has 2 images of an earlier run"
    assert message in capsys.readouterr().err
    commands: list[list[str]] = []
    monkeypatch.setattr(demo, "run_child", lambda command: commands.append(command) or 7)
    for more in ([], ["--num_images", "2"]):
        assert demo.main(more) == 7
    assert [command[3] for command in commands] == ["make_tfrecords"] * 2


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
