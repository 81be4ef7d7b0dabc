"""tpudet plot_schedule: the file it writes, and its messages for wrong input."""

from pathlib import Path

import cv2
import pytest

from tpudet.detection.commands.plot_schedule import main
from tpudet.trainkit.training import schedule_plot


def test_the_image_is_written_whole(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    output = tmp_path / "rate.png"
    assert main(["quickstart", "--output", str(output)]) == 0
    assert capsys.readouterr().out == f"Wrote {output}\n"
    image = cv2.imread(str(output))
    assert image is not None
    assert image.shape == (720, 1080, 3)
    blue = (image[..., 0] > 150) & (image[..., 2] < 60)
    assert blue.any(axis=0).sum() > 800  # the curve goes over the width of the image
    assert [path.name for path in tmp_path.iterdir()] == ["rate.png"]


def test_epochs_become_steps_of_the_training_images(
    tmp_path: Path, sample_part: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three epochs of 16 images in batches of 8 are 6 steps, of half of them 3."""
    drawn = []
    draw = schedule_plot.draw_schedule
    monkeypatch.setattr(
        schedule_plot,
        "draw_schedule",
        lambda train, **others: drawn.append(train.total_steps) or draw(train, **others),
    )
    command = ["quickstart", "--output", str(tmp_path / "rate.png")]
    command += ["--set", "train.total_epochs=3", "--set", f"data.directory={sample_part}"]
    assert main(command) == 0
    assert main([*command, "--set", "data.fraction=0.5"]) == 0
    assert drawn == [6, 3]


def test_epochs_without_data_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "rate.png"
    assert main(["quickstart", "--output", str(output), "--set", "train.total_epochs=3"]) == 2
    assert "data.directory is empty: name the folder" in capsys.readouterr().err
    assert not output.exists()


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--set", "train.total_step=5"], "unknown key train.total_step; did you mean"),
        (
            [
                "--set",
                "train.learning_rate={kind: step, peak: 1, drop_steps: [9], drop_rates: [0.1]}",
            ],
            "drop_steps must not come before the end of the 500 warmup_steps, got [9]",
        ),
    ],
)
def test_a_wrong_config_is_one_message(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], flags: list[str], words: str
) -> None:
    output = tmp_path / "rate.png"
    assert main(["quickstart", "--output", str(output), *flags]) == 2
    message = capsys.readouterr().err
    assert message.startswith("tpudet plot_schedule: ")
    assert words in message
    assert not output.exists()


def test_a_folder_that_is_not_there_is_one_message(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["quickstart", "--output", str(tmp_path / "no/rate.png")])
    assert ended.value.code == 2
    assert "no/rate.png cannot be written: there is no folder" in capsys.readouterr().err


def test_a_drawing_replaces_a_drawing_and_no_settings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Also under the name that no argument gives."""
    monkeypatch.chdir(tmp_path)
    output = tmp_path / "quickstart_schedule.png"
    for peak in ("0.1", "0.2"):
        assert main(["quickstart", "--set", f"train.learning_rate.peak={peak}"]) == 0
    output.write_text("train: {}\n")
    capsys.readouterr()
    assert main(["quickstart"]) == 2
    assert "_schedule.png exists and is not a drawing of tpudet" in capsys.readouterr().err
    assert output.read_text() == "train: {}\n"
