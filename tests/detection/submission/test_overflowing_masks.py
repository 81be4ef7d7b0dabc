"""Masks whose run lengths have 2^64 more pixels than their image, which int64 does not show."""

from collections.abc import Sequence
from pathlib import Path

import cv2
import numpy as np
import pytest

from tpudet.detection.commands import draw_predictions, gen_sub, merge_subs
from tpudet.detection.inference import predictions_file
from tpudet.detection.inference.predictions_file import ImagePredictions, write_predictions
from tpudet.detection.submission.mask_header import HEADER
from tpudet.detection.submission.mask_text import encode_mask


@pytest.fixture
def inputs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, overflowing_counts: str
) -> Sequence[str]:
    """A submission, a pickle and a Parquet file with such a mask, and the image."""
    mask = {"size": [256, 256], "counts": overflowing_counts}
    score, box = np.ones(1, np.float32), np.array([[0, 0, 1, 1]], np.float32)
    image = ImagePredictions("a", np.ones(1, np.int32), score, box, [mask])
    paths = [tmp_path / name for name in ("sub.csv", "found.pkl", "found.parquet")]
    paths[0].write_text(f"{HEADER}\na,256,256,/cat 1 {encode_mask(mask)}\n")
    with monkeypatch.context() as patch:
        patch.setattr(predictions_file, "check_blocks", lambda blocks, num_classes: blocks)
        for path in paths[1:]:
            with path.open("wb") as file:
                write_predictions(
                    file, path.name, [[image]], class_list_text="/cat,cat\n", metadata={}
                )
    cv2.imwrite(f"{tmp_path}/a.jpg", np.zeros((256, 256, 3), np.uint8))
    return [str(path) for path in paths]


def test_every_command_refuses_them(
    inputs: Sequence[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Drawing them wrote beyond an array's memory."""
    sub, *found = inputs
    out, images = f"{tmp_path}/out", ["--images", str(tmp_path)]
    (tmp_path / "classes.csv").write_text("/cat,cat\n")
    classes = ["--classes", f"{tmp_path}/classes.csv"]

    def ends(command: int) -> None:
        assert command == 2
        assert "is not the mask of an image 256 wide and 256 high" in capsys.readouterr().err

    ends(merge_subs.main([out, sub, "--threads", "1"]))
    for path in found:
        ends(gen_sub.main([path, "--masks", "--hierarchy", "none", "-f"]))
        ends(draw_predictions.main([path, *images, "--output", out]))
    ends(draw_predictions.main([sub, *images, *classes, "--output", out]))
