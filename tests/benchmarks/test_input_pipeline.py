import re

import pytest
from benchmarks import input_pipeline


@pytest.mark.slow  # nearly a minute
def test_prints_every_pipeline_of_both_settings(capsys):
    flags = "--images 2 --rounds 1 --seconds 0.05 --batch_size 2 --scale_range 0.5 1.5"
    flags += " --augmentations copy_paste grid_mask"
    assert input_pipeline.main(flags.split()) == 0
    printed = capsys.readouterr().out
    assert [match[1] for match in re.finditer(r"^(\d+x\d+) ", printed, re.MULTILINE)] == [
        "640x480",
        "1024x768",
    ]
    assert len(re.findall(r"^  ours, (?:copy_paste|grid_mask) +\d+ ", printed, re.MULTILINE)) == 4
    table = r"(\d+) +100% +[\d.]+ +[\d.]+\n +plain float32 +(\d+) .*\n +ours, scale 0.5-1.5 +(\d+) "
    rates = re.findall(table, printed)
    assert len(rates) == 2
    assert all(int(rate) > 0 for row in rates for rate in row)
    shares = [int(share) for share in re.findall(r" ms +(\d+)%", printed)]
    assert len(shares) == 10
    assert sum(shares) == pytest.approx(200, abs=6)  # each of two settings, rounded


def test_drawn_photos_weigh_what_photos_weigh():
    photos = input_pipeline.draw_photos(3, 480, 640, seed=1)
    assert all(100_000 < len(photo) < 140_000 for photo in photos)
    assert photos == input_pipeline.draw_photos(3, 480, 640, seed=1)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ("--images 0", "must be above 0"),
        ("--scale_range 0.05 1", "0.1 <= LOW <= HIGH <= 2.0"),
        ("--augmentations mosiac", "invalid choice: 'mosiac'"),
        ("--no_such_flag", "unrecognized arguments"),
    ],
)
def test_wrong_arguments(flags, message, capsys):
    with pytest.raises(SystemExit, match="2"):
        input_pipeline.main(flags.split())
    assert message in capsys.readouterr().err
