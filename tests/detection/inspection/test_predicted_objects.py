"""Predictions as inspection reads them."""

from pathlib import Path

import numpy as np
import pytest

from tpudet.detection.inspection.predicted_objects import read_predicted_objects
from tpudet.detection.ops.numpy_masks import encode_rle
from tpudet.detection.submission import mask_rows, mask_text
from tpudet.detection.submission.errors import BadRowsError
from tpudet.detection.submission.mask_header import HEADER
from tpudet.trainkit.class_list import ClassEntry
from tpudet.trainkit.errors import UserError

CAT = ClassEntry("/cat", "cat")


def test_masks_of_a_row_and_of_a_file_may_not_take_gigabytes_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, rle = tmp_path / "sub.csv", encode_rle(np.eye(20, 30, dtype=bool))
    row = "30,20," + f" /cat 0.5 {mask_text.encode_mask(rle)}" * 2
    path.write_text(f"{HEADER}\na,{row}\nb,{row}\n")

    def count() -> int:
        found = read_predicted_objects(str(path), min_score=0, classes=[CAT], classes_from="here")
        return len(found.objects.scores)

    assert count() == 4
    size = len(rle["counts"])
    monkeypatch.setattr(mask_rows, "_MAX_ROW_BYTES", 2 * size - 1)
    with pytest.raises(BadRowsError, match="line 3: its masks unpack to more than"):
        count()
    monkeypatch.setattr(mask_rows, "_MAX_ROW_BYTES", 2 * size)
    monkeypatch.setattr(mask_text, "_GROWTH", 0)
    monkeypatch.setattr(mask_text, "_SLACK", 4 * size)
    assert count() == 4
    monkeypatch.setattr(mask_text, "_SLACK", 4 * size - 1)
    with pytest.raises(UserError, match=f"{path}: its masks unpack to more than"):
        count()
