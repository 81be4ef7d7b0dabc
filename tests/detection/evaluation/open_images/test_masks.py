"""The instance segmentation challenge: text of masks, and matching in two stages."""

import base64
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from pycocotools import mask as coco_mask

from tpudet.detection.commands import compare_submissions, evaluate_submission
from tpudet.detection.submission import mask_text
from tpudet.detection.submission.mask_text import MaskError, decode_mask

SIZE = 20  # pixels, of the images here
TRUTH_HEADER = "ImageID,LabelName,XMin,XMax,YMin,YMax,IsGroupOf,ImageWidth,ImageHeight,Mask"
SUB_HEADER = "ImageId,ImageWidth,ImageHeight,PredictionString"


def rectangle(x1: int, y1: int, x2: int, y2: int) -> np.ndarray:
    mask = np.zeros((SIZE, SIZE), np.uint8)
    mask[y1:y2, x1:x2] = 1
    return mask


def encode_mask(mask: np.ndarray) -> str:
    """Inverse of decode_mask, by pycocotools."""
    rle: Any = coco_mask.encode(np.asfortranarray(mask, np.uint8))
    return base64.b64encode(zlib.compress(rle["counts"])).decode()


def truth_row(x1: int, y1: int, x2: int, y2: int, *, masked: bool = True, group: int = 0) -> str:
    box = ",".join(str(value / SIZE) for value in (x1, x2, y1, y2))
    mask = f"{SIZE},{SIZE},{encode_mask(rectangle(x1, y1, x2, y2))}" if masked else ",,"
    return f"a,/c,{box},{group},{mask}"


def precision(folder: Path, truth: list[str], found: list[tuple[float, np.ndarray]]) -> pd.Series:
    """Runs the command; the row of the one class."""
    (folder / "truth.csv").write_text("\n".join([TRUTH_HEADER, *truth]) + "\n")
    text = " ".join(f"/c {score} {encode_mask(mask)}" for score, mask in found)
    (folder / "sub.csv").write_text(f"{SUB_HEADER}\na,{SIZE},{SIZE},{text}\n")
    command = [f"{folder}/sub.csv", f"{folder}/truth.csv", "--masks", "-f"]
    command += ["--output", f"{folder}/result", "--num_curves", "0"]
    assert evaluate_submission.main(command) == 0
    return pd.read_csv(folder / "result/classes.csv").iloc[0]


# pycocotools 2.0.11 decodes through an interface that NumPy 2 warns of.
@pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")
def test_text_of_masks_is_what_pycocotools_reads() -> None:
    generator = np.random.default_rng(0)
    for _ in range(100):
        mask = (generator.random(generator.integers(1, 40, 2)) < generator.random()).astype(
            np.uint8
        )
        mask = np.kron(mask, np.ones(generator.integers(1, 9, 2), np.uint8))
        rle = decode_mask(encode_mask(mask), *mask.shape)
        np.testing.assert_array_equal(coco_mask.decode(rle), mask)


def test_what_is_no_mask_is_refused_before_pycocotools_reads_beyond_it() -> None:
    text = encode_mask(rectangle(0, 0, 5, 5))
    with pytest.raises(MaskError, match="not the mask of an image 21 wide and 20 high"):
        decode_mask(text, SIZE, SIZE + 1)
    with pytest.raises(MaskError, match="not base64 of zlib"):
        decode_mask("%%%", SIZE, SIZE)
    with pytest.raises(MaskError, match="not base64 of zlib"):
        decode_mask(base64.b64encode(b"not compressed").decode(), SIZE, SIZE)
    for counts in (b"", b"\x00\x01", b"oooooooooooooo0", b"o"):
        with pytest.raises(MaskError, match="is no"):
            decode_mask(base64.b64encode(zlib.compress(counts)).decode(), SIZE, SIZE)


def test_masks_are_compared_as_masks_not_by_their_boxes(tmp_path: Path) -> None:
    whole = rectangle(0, 0, 10, 10)
    frame = whole.copy()
    frame[1:9, 1:9] = 0  # the same box, a mask of 36 of the 100 pixels
    assert precision(tmp_path, [truth_row(0, 0, 10, 10)], [(0.9, frame), (0.8, whole)])["AP"] == 0.5


def test_stage_two_ignores_what_matches_boxes_without_masks(tmp_path: Path) -> None:
    truth = [truth_row(0, 0, 8, 8), truth_row(10, 10, 18, 18, masked=False)]
    found = [(0.9, rectangle(10, 10, 18, 18)), (0.8, rectangle(0, 0, 8, 8))]
    row = precision(tmp_path, truth, found)
    assert row["AP"] == 1.0  # the first is ignored, and the box is not an instance to be found
    assert (row["Boxes"], row["Predictions"], row["TruePositives"]) == (2, 2, 1)
    again = [(0.95, rectangle(10, 10, 18, 18)), *found]  # a box is taken once here too
    assert precision(tmp_path, truth, again)["AP"] == 0.5


def test_group_of_masks_count_once_by_intersection_over_the_detection(tmp_path: Path) -> None:
    truth = [truth_row(0, 0, 4, 4), truth_row(6, 6, 20, 20, group=1)]
    inside = [(0.9, rectangle(7, 7, 9, 9)), (0.8, rectangle(10, 10, 12, 12))]
    row = precision(tmp_path, truth, [*inside, (0.7, rectangle(0, 0, 4, 4))])
    assert (row["AP"], row["TruePositives"], row["GroupOf"]) == (1.0, 2, 1)
    outside = (0.95, rectangle(3, 3, 8, 8))  # 4 of its 25 pixels inside
    row = precision(tmp_path, truth, [outside, *inside, (0.7, rectangle(0, 0, 4, 4))])
    assert row["AP"] == pytest.approx(2 / 3, abs=1e-6)  # precision 1/2, then 2/3


def test_group_of_boxes_without_mask_absorb_but_cannot_be_found(tmp_path: Path) -> None:
    truth = [truth_row(0, 0, 4, 4), truth_row(6, 6, 20, 20, masked=False, group=1)]
    found = [(0.9, rectangle(7, 7, 9, 9)), (0.8, rectangle(7, 7, 9, 9))]
    row = precision(tmp_path, truth, [*found, (0.7, rectangle(0, 0, 4, 4))])
    assert row["AP"] == 0.5  # the published scorer counts every group-of box in recall


def test_ground_truth_without_anything_to_score_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = [(0.9, rectangle(0, 0, 8, 8))]
    masked, bare = (truth_row(0, 0, 8, 8, masked=masked) for masked in (True, False))
    precision(tmp_path, [masked], found)
    sub, truth, classes = (f"{tmp_path}/{name}.csv" for name in ("sub", "truth", "classes"))
    Path(classes).write_text("/d,D\n")
    for rows, options in (
        ([bare], []),
        ([masked, bare.replace("/c", "/d")], ["--classes", classes]),
    ):
        Path(truth).write_text("\n".join([TRUTH_HEADER, *rows]) + "\n")
        assert evaluate_submission.main([sub, truth, "--masks", *options]) == 2
        assert compare_submissions.main([sub, sub, truth, "--masks", *options]) == 2
        message = f"{truth}: no box of a class that is scored has a mask or is group-of"
        assert capsys.readouterr().err.count(message) == 2
    assert not (tmp_path / "sub_evaluation").exists()
    group = truth_row(0, 0, 8, 8, masked=False, group=1)
    assert precision(tmp_path, [group], found)["AP"] == 0  # it counts in recall


def test_bad_rows_are_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    precision(tmp_path, [truth_row(0, 0, 8, 8)], [(0.9, rectangle(0, 0, 8, 8))])
    good = (tmp_path / "sub.csv").read_text()
    mask = encode_mask(rectangle(0, 0, 8, 8))
    command = [f"{tmp_path}/sub.csv", f"{tmp_path}/truth.csv", "--masks", "-f"]
    for bad, message in {
        f"b,20,20,/c 0.9 {mask} /c": "4 tokens",
        f"b,20,20,/c 1.9 {mask}": "the score is '1.9', not in 0..1",
        f"b,20,x,/c 0.9 {mask}": "ImageWidth,ImageHeight are 20,x",
        f"b,30,20,/c 0.9 {mask}": "its mask is not the mask of an image 30 wide",
        f"a,20,20,/c 0.9 {mask}": "image 'a' is in line 2 already",
    }.items():
        (tmp_path / "sub.csv").write_text(f"{good}{bad}\n")
        assert evaluate_submission.main(command) == 2
        error = capsys.readouterr().err
        assert message in error
        assert f"{tmp_path}/sub.csv, line 3" in error
        assert evaluate_submission.main([*command, "--skip_bad"]) == 0
        assert "1 bad rows left out" in capsys.readouterr().out
    (tmp_path / "sub.csv").write_text(good.replace("a,20,20", "a,10,40"))
    assert evaluate_submission.main(command) == 2
    assert "those of the ground truth 20 x 20" in capsys.readouterr().err
    (tmp_path / "truth.csv").write_text(f"{TRUTH_HEADER}\na,/c,0,1,0,1,0,20,20,eJwrKCgAAAAA\n")
    assert evaluate_submission.main(command) == 2
    assert "truth.csv, line 2: Mask" in capsys.readouterr().err


@pytest.mark.parametrize(("in_truth", "in_submission", "refused"), [(1, 2, "sub"), (2, 1, "truth")])
def test_masks_of_a_file_may_not_take_gigabytes_together(
    in_truth: int,
    in_submission: int,
    refused: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Each would be kept, in a file of which the limits of one mask and one row are kept too."""
    rows, mask = [truth_row(0, 0, 8, 8)], rectangle(0, 0, 8, 8)
    precision(tmp_path, rows * in_truth, [(0.9, mask)] * in_submission)
    size = len(decode_mask(encode_mask(mask), SIZE, SIZE)["counts"])
    monkeypatch.setattr(mask_text, "_GROWTH", 0)
    monkeypatch.setattr(mask_text, "_SLACK", size)
    command = [f"{tmp_path}/sub.csv", f"{tmp_path}/truth.csv", "--masks", "--skip_bad", "-f"]
    assert evaluate_submission.main(command) == 2
    message = f"{tmp_path}/{refused}.csv: its masks unpack to more than {size:,} bytes"
    assert message in capsys.readouterr().err
    monkeypatch.setattr(mask_text, "_SLACK", 2 * size)
    assert evaluate_submission.main(command) == 0
