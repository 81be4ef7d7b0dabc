"""Submissions of masks: every command on them."""

import base64
import csv
import json
import tracemalloc
import zlib
from pathlib import Path

import numpy as np
import pytest

from tpudet.detection.commands import (
    add_parents,
    drop_parents,
    evaluate_submission,
    gen_sub,
    join_subs,
    merge_subs,
    trim_sub_by_num_of_predicts,
    trim_sub_by_threshold,
    trim_sub_decimal_digits,
)
from tpudet.detection.inference.predictions_file import ImagePredictions, write_predictions
from tpudet.detection.ops.numpy_masks import decode_rle, encode_rle, mask_area, mask_box
from tpudet.detection.submission import mask_rows
from tpudet.detection.submission.mask_header import HEADER, is_mask_submission
from tpudet.detection.submission.mask_rows import (
    MaskPrediction,
    MaskRow,
    decode_masks,
    format_row,
    open_masks,
    parse_row,
)
from tpudet.detection.submission.mask_text import MaskError, decode_mask, encode_mask

HEIGHT, WIDTH = 20, 30
HIERARCHY = {
    "LabelName": "/root",
    "Subcategory": [
        {"LabelName": "/animal", "Subcategory": [{"LabelName": "/cat"}, {"LabelName": "/dog"}]}
    ],
}


def rectangle(y1: int, x1: int, y2: int, x2: int) -> np.ndarray:
    mask = np.zeros((HEIGHT, WIDTH), bool)
    mask[y1:y2, x1:x2] = True
    return mask


def text_of(mask: np.ndarray) -> str:
    return encode_mask(encode_rle(mask))


def row_of(image_id: str, *predictions: tuple[str, float, np.ndarray]) -> MaskRow:
    found = [MaskPrediction(label, score, text_of(mask)) for label, score, mask in predictions]
    return MaskRow(image_id, WIDTH, HEIGHT, tuple(found))


def write(path: Path, *rows: MaskRow, header: str = HEADER) -> str:
    path.write_text(f"{header}\n" + "".join(map(format_row, rows)))
    return str(path)


def read(path: str | Path) -> dict[str, list[tuple[str, float, np.ndarray]]]:
    with open_masks(str(path)) as file:
        return {
            row.image_id: [
                (label, score, decode_rle(decode_mask(text, row.height, row.width)))
                for label, score, text in row.predictions
            ]
            for row in file.rows()
        }


def labels_and_scores(path: str | Path) -> dict[str, list[tuple[str, float]]]:
    return {
        name: [(label, score) for label, score, _ in found] for name, found in read(path).items()
    }


A, B, C = rectangle(0, 0, 10, 10), rectangle(0, 0, 10, 9), rectangle(12, 15, 18, 25)


def test_a_row_comes_back() -> None:
    row = row_of("x", ("/cat", 0.12345, A), ("/dog", 1.0, C))
    assert parse_row(format_row(row).encode()) == row
    assert parse_row(b'"x",30,20,""\r\n') == MaskRow("x", 30, 20, ())


def test_a_long_mask_is_read_whatever_csv_readers_of_the_process_allow() -> None:
    limit = csv.field_size_limit()
    row = row_of("x", *[("/cat", 0.5, A)] * 5000)
    assert len(format_row(row)) > limit
    assert len(parse_row(format_row(row).encode()).predictions) == 5000
    assert csv.field_size_limit() == limit == 131072


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ('"x,30,20,', "a quote without its end"),
        ('x,30,"20"",', "a quote without its end"),
        ("x," + "9" * 5000 + ",20,", "ImageWidth,ImageHeight are 9999"),
        ("x,60000,60000,", "60000 x 60000 pixels are too many"),
    ],
)
def test_a_row_that_cannot_be_read_says_why(line: str, reason: str) -> None:
    with pytest.raises(MaskError, match=reason):
        parse_row(line.encode())


def test_a_mask_that_unpacks_to_gigabytes_is_refused_at_once() -> None:
    bomb = base64.b64encode(zlib.compress(b"0" * 10_000_000)).decode()
    assert len(bomb) < 20_000
    with pytest.raises(MaskError, match="more than the 4,207 bytes"):  # 7 * (20 * 30 + 1)
        decode_mask(bomb, HEIGHT, WIDTH)
    with pytest.raises(MaskError, match="^unpacks to more than the 4,194,304 bytes"):
        decode_mask(bomb, 10_000, 10_000)


def test_a_row_whose_masks_unpack_to_gigabytes_together_is_refused(monkeypatch) -> None:
    text = encode_mask(encode_rle(np.eye(HEIGHT, WIDTH, dtype=bool)))
    row = MaskRow("a", WIDTH, HEIGHT, (MaskPrediction("/cat", 0.5, text),) * 4)
    size = len(decode_mask(text, HEIGHT, WIDTH)["counts"])
    monkeypatch.setattr(mask_rows, "_MAX_ROW_BYTES", 3 * size)
    assert len(list(decode_masks(row, (0, 1, 3)))) == 3
    with pytest.raises(MaskError, match=f"its masks unpack to more than {3 * size:,} bytes"):
        list(decode_masks(row, range(4)))


def test_a_mask_that_is_cut_off_is_refused() -> None:
    whole = base64.b64decode(encode_mask(encode_rle(np.eye(HEIGHT, WIDTH, dtype=bool))))
    with pytest.raises(MaskError, match="^is not base64 of zlib: it is cut off"):
        decode_mask(base64.b64encode(whole[:-5]).decode(), HEIGHT, WIDTH)


@pytest.mark.parametrize("command", ["join", "add", "trim", "merge"])
def test_a_file_that_is_cut_in_its_last_mask_is_refused(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Wherever in the mask; whole, but without the end of its line, it is read."""
    (tmp_path / "tree.json").write_text(json.dumps(HIERARCHY))
    path, out = tmp_path / "1.csv", f"{tmp_path}/out.csv"
    write(path, row_of("a", ("/cat", 0.8, A)), row_of("b", ("/dog", 0.9, C), ("/cat", 0.5, B)))
    whole, length = path.read_bytes(), len(text_of(B))
    run = {
        "join": lambda *flags: join_subs.main([out, str(path), *flags]),
        "add": lambda *flags: add_parents.main(
            [out, str(path), "--hierarchy", f"{tmp_path}/tree.json", *flags]
        ),
        "trim": lambda *flags: trim_sub_by_threshold.main([out, str(path), "0.1", *flags]),
        "merge": lambda *flags: merge_subs.main([out, str(path), "--threads", "1", *flags]),
    }[command]
    for num_missing in range(1, length):
        path.write_bytes(whole[: -1 - num_missing])
        assert run() == 2, num_missing
        message = capsys.readouterr().err
        assert f"{path}, line 3: prediction 2: its mask " in message
        assert "; the line has no end, as in a file that is cut" in message
    assert run("--skip_bad") == 0
    assert list(read(out)) == ["a"]
    path.write_bytes(whole[:-1])
    assert run("-f") == 0
    assert list(read(out)) == ["a", "b"]


def test_reading_a_row_does_not_copy_the_ids_of_all_rows(tmp_path: Path) -> None:
    """Ids of 20,000 images are 160 KB as a tuple; rows are to be read in proportion to rows."""
    names = [f"{number:05}" for number in range(20_000)]
    path = write(tmp_path / "sub.csv", *(row_of(name) for name in names))
    with open_masks(path) as file:
        assert file.image_ids() is file.image_ids()
        assert list(file.image_ids()) == names
        tracemalloc.start()
        try:
            rows = [file.row(name) for name in names[::1000]]
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
        assert [row.image_id for row in rows if row] == names[::1000]
        assert peak < 50_000
        assert file.row("elsewhere") is None


def test_area_and_box_of_a_mask() -> None:
    assert mask_area(encode_rle(C)) == 60
    assert mask_box(encode_rle(C)) == (12 / 20, 15 / 30, 18 / 20, 25 / 30)


def test_headers_tell_masks_from_boxes(tmp_path: Path) -> None:
    for header in (HEADER, HEADER.replace("ImageID", "ImageId"), f"\ufeff{HEADER}"):
        assert is_mask_submission(write(tmp_path / "a.csv", header=header))
    assert not is_mask_submission(write(tmp_path / "a.csv", header="ImageId,PredictionString"))


def test_joining_sorts_by_score_and_counts_lacking_images(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first = write(tmp_path / "1.csv", row_of("b", ("/cat", 0.5, A)), MaskRow("a", 1, 1, ()))
    second = write(tmp_path / "2.csv", row_of("a", ("/dog", 0.3, C), ("/dog", 0.01, A)))
    third = write(tmp_path / "3.csv", row_of("b", ("/dog", 0.9, C)), row_of("a", ("/cat", 0.8, A)))
    assert join_subs.main([f"{tmp_path}/out.csv", first, second, third]) == 0
    assert f"{second} has no usable row for 1 of the images" in capsys.readouterr().out
    assert (tmp_path / "out.csv").read_text() == (
        f"{HEADER}\n"
        + format_row(row_of("a", ("/cat", 0.8, A), ("/dog", 0.3, C)))
        + format_row(row_of("b", ("/dog", 0.9, C), ("/cat", 0.5, A)))
    )
    bad = write(tmp_path / "bad.csv", row_of("a", ("/cat", 0.8, A)))
    Path(bad).write_text(Path(bad).read_text().replace("0.8", "8.0"))
    assert join_subs.main([f"{tmp_path}/out.csv", bad, "-f", "--skip_bad"]) == 0
    assert (
        "no usable row" not in capsys.readouterr().out
    )  # a row without any usable one is no image
    boxes = tmp_path / "boxes.csv"
    boxes.write_text("ImageId,PredictionString\na,/cat 0.5 0 0 1 1\n")
    assert join_subs.main([f"{tmp_path}/out.csv", "-f", first, str(boxes)]) == 2
    assert f"{first} is a submission of masks, {boxes} is not" in capsys.readouterr().err


def test_trimming_keeps_the_best_and_of_equal_scores_the_earlier(tmp_path: Path) -> None:
    source = write(
        tmp_path / "in.csv",
        row_of("b", ("/cat", 0.5, A), ("/dog", 0.2, C)),
        row_of("a", ("/cat", 0.5, A), ("/dog", 0.9, C)),
        row_of("c", ("/dog", 0.1, C)),
    )
    out = f"{tmp_path}/out.csv"
    assert trim_sub_by_threshold.main([out, source, "0.5"]) == 0
    expected = {"b": [("/cat", 0.5)], "a": [("/cat", 0.5), ("/dog", 0.9)], "c": []}
    assert labels_and_scores(out) == expected
    assert trim_sub_by_threshold.main([out, source, "0.5", "--keep_first", "-f"]) == 0
    assert labels_and_scores(out) == expected | {"c": [("/dog", 0.1)]}
    assert trim_sub_by_num_of_predicts.main([out, source, "2", "-f"]) == 0
    assert labels_and_scores(out) == {"b": [("/cat", 0.5)], "a": [("/dog", 0.9)], "c": []}
    assert trim_sub_decimal_digits.main([out, source, "--score_digits", "0", "-f"]) == 0
    assert {score for found in labels_and_scores(out).values() for _, score in found} == {0, 1}


def test_parents_are_added_once_per_mask_and_dropped_again(tmp_path: Path) -> None:
    hierarchy = tmp_path / "tree.json"
    hierarchy.write_text(json.dumps(HIERARCHY))
    source = write(
        tmp_path / "in.csv",
        row_of("a", ("/cat", 0.5, A), ("/dog", 0.7, A), ("/dog", 0.6, C), ("/other", 0.4, C)),
    )
    out, back = f"{tmp_path}/out.csv", f"{tmp_path}/back.csv"
    assert add_parents.main([out, source, "--hierarchy", str(hierarchy)]) == 0
    own = [("/cat", 0.5), ("/dog", 0.7), ("/animal", 0.7), ("/dog", 0.6), ("/animal", 0.6)]
    assert labels_and_scores(out) == {"a": [*own, ("/other", 0.4)]}
    assert add_parents.main([back, out, "--hierarchy", str(hierarchy)]) == 0
    assert Path(back).read_text() == Path(out).read_text()
    assert drop_parents.main([back, out, "--hierarchy", str(hierarchy), "-f"]) == 0
    assert Path(back).read_text() == Path(source).read_text()


def test_merging_names_labels_of_class_settings_that_no_prediction_has(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = tmp_path / "settings.csv"
    settings.write_text("label,iou\n/cat,0.5\n/bird,0.4\n")
    source = write(tmp_path / "1.csv", row_of("a", ("/cat", 0.8, A)))
    options = ["--class_settings", str(settings)]
    assert merge_subs.main([f"{tmp_path}/out.csv", source, *options]) == 0
    expected = "no prediction has these labels of --class_settings: ['/bird']"
    assert expected in capsys.readouterr().out


@pytest.mark.parametrize("threads", ["1", "2"])
def test_merging_files(tmp_path: Path, capsys: pytest.CaptureFixture[str], threads: str) -> None:
    first = write(tmp_path / "1.csv", row_of("b", ("/cat", 0.8, A)), row_of("a", ("/dog", 0.5, C)))
    second = write(tmp_path / "2.csv", row_of("b", ("/cat", 0.6, B)))
    out = f"{tmp_path}/out.csv"
    options = ["--iou", "0.5", "--mask_votes", "0", "--threads", threads]
    assert merge_subs.main([out, first, second, *options]) == 0
    assert capsys.readouterr().out.splitlines() == [
        f"{out}: 2 images, 2 predictions of the 3 in 2 files",
        f"  {second} has no usable row for 1 of the images",
    ]
    found = read(out)
    assert labels_and_scores(out) == {"a": [("/dog", 0.25)], "b": [("/cat", 0.7)]}
    np.testing.assert_array_equal(found["b"][0][2], A)
    damaged = Path(first).read_text().replace(text_of(A), "AAAA")
    Path(first).write_text(damaged)
    assert merge_subs.main([out, first, second, *options, "-f"]) == 2
    assert "line 2: prediction 1: its mask is not base64 of zlib" in capsys.readouterr().err
    assert merge_subs.main([out, first, second, *options, "-f", "--skip_bad"]) == 0
    assert "1 bad rows left out" in capsys.readouterr().out
    assert labels_and_scores(out)["b"] == [("/cat", 0.3)]
    assert merge_subs.main([out, first, *options, "-f", "--skip_bad"]) == 0
    assert "1 images, 1 predictions of the 1 in 1 files" in capsys.readouterr().out
    assert list(read(out)) == ["a"]  # nothing is known of b


def test_from_predictions_to_a_score(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Masks of a predictions file are submitted and found again in the ground truth."""
    images = [
        ImagePredictions(
            "a",
            np.array([1, 2], np.int32),
            np.array([0.9, 0.8], np.float32),
            np.array([[0, 0, 1, 1], [0, 0, 0.5, 0.5]], np.float32),
            [encode_rle(C), encode_rle(rectangle(0, 0, 0, 0))],
        ),
        ImagePredictions("b", np.zeros(0, np.int32), np.zeros(0), np.zeros((0, 4), np.float32), []),
    ]
    path, sub, truth = tmp_path / "p.parquet", tmp_path / "p.csv", tmp_path / "truth.csv"
    with path.open("wb") as file:
        write_predictions(
            file, path.name, [images], class_list_text="/cat,cat\n/dog,dog\n", metadata={}
        )
    assert gen_sub.main([str(path), "--masks", "--hierarchy", "none"]) == 0
    output = capsys.readouterr().out
    assert "2 images, 1 predictions" in output
    assert "1 predictions left out, without area inside the image" in output
    expected = format_row(row_of("a", ("/cat", 0.9, C))) + "b,1,1,\n"
    assert sub.read_text() == f"{HEADER}\n{expected}"
    header = "ImageID,LabelName,XMin,XMax,YMin,YMax,IsGroupOf,ImageWidth,ImageHeight,Mask"
    box = f"a,/cat,{15 / 30},{25 / 30},{12 / 20},{18 / 20},0,30,20,{text_of(C)}"
    truth.write_text(f"{header}\n{box}\n")
    command = [str(sub), str(truth), "--masks", "--output", f"{tmp_path}/scores"]
    assert evaluate_submission.main([*command, "--num_curves", "0"]) == 0
    assert "mAP 1.000000 over 1 classes" in capsys.readouterr().out
