"""Submissions in every spelling, their index, and the writer that other commands build on."""

import threading
import time
from pathlib import Path

import numpy as np
import pytest

from tpudet.detection.submission.errors import BadRowsError, SubmissionError
from tpudet.detection.submission.files import (
    BlockResult,
    align,
    cut,
    in_file_order,
    open_submission,
    print_block,
    scan,
)
from tpudet.detection.submission.fusion.blocks import Block
from tpudet.detection.submission.writer import map_in_order, write_submission_file

CAT = "/m/01 0.90000 0.10000 0.20000 0.30000 0.40000"
DOG = "/m/02 0.50000 0.00000 0.00000 1.00000 1.00000"
PLAIN = f"ImageId,PredictionString\na,{CAT} {DOG}\nb,\nc,{DOG}\n"
SPELLINGS = {
    "plain": PLAIN,
    "other header": PLAIN.replace("ImageId", "ImageID"),
    "lower case": PLAIN.lower(),
    "windows": PLAIN.replace("\n", "\r\n"),
    "mark": "\ufeff" + PLAIN,
    "no last line end": PLAIN.rstrip("\n"),
    "blank lines": PLAIN.replace("\n", "\n\n \n"),
    "quoted": f'"ImageId","PredictionString"\n"a","{CAT} {DOG}"\n"b",""\n"c"," {DOG} "\n',
    "spread": f"ImageId , PredictionString\n a , {CAT}  \t{DOG} \nb, \nc,{DOG}\n",
    "other numbers": PLAIN.replace("0.90000", "9e-1").replace("1.00000", "1"),
}


def write(path: Path, text: str) -> str:
    path.write_bytes(text.encode())
    return str(path)


def copy(path: str, target: Path, **options: bool) -> BlockResult:
    with open_submission(path) as source:
        return write_submission_file(
            str(target),
            in_file_order(source),
            lambda block: print_block(block, *scan(block)),
            threads=2,
            skip_bad=options.get("skip_bad", False),
        )


@pytest.mark.parametrize("spelling", SPELLINGS)
def test_every_spelling_is_read_and_the_usual_one_written(spelling: str, tmp_path: Path) -> None:
    totals = copy(write(tmp_path / "in.csv", SPELLINGS[spelling]), tmp_path / "out.csv")
    assert (tmp_path / "out.csv").read_text() == PLAIN
    assert totals[1:4] == (3, 3, 3)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in.csv", "out.csv"]


@pytest.mark.parametrize(
    "text", ["", "\n", "a,b\n", "ImageId;PredictionString\n", "ImageId,Labels\n", "x" * 5000]
)
def test_other_files_are_refused_by_their_first_line(text: str, tmp_path: Path) -> None:
    path = write(tmp_path / "in.csv", text)
    with pytest.raises(SubmissionError, match=r"in\.csv .*its first line must be ImageId"):
        copy(path, tmp_path / "out.csv")
    assert [path.name for path in tmp_path.iterdir()] == ["in.csv"]


def test_a_submission_in_pixels_is_refused(tmp_path: Path) -> None:
    in_pixels = "/m/01 0.9 20 30 200 310.5 /m/02 0.5 0 0 64 48"
    rows = [f"{number},{in_pixels}" for number in range(500)]
    path = write(tmp_path / "in.csv", "\n".join(["ImageId,PredictionString", *rows]))
    with pytest.raises(SubmissionError, match=r"in\.csv is in pixels: 200 of 200 boxes") as raised:
        copy(path, tmp_path / "out.csv")
    assert "Divide x1 and x2 by the width" in str(raised.value)
    assert [path.name for path in tmp_path.iterdir()] == ["in.csv"]


@pytest.mark.parametrize(
    "text",
    [
        "/m/01 0.9 -0.2 0.1 1.4 1.2",  # a detector's box overhangs the image
        f"/m/01 0.9 20 30 200 310 {CAT}",  # half of the boxes, as of one wrong line in a file
    ],
)
def test_boxes_that_overhang_the_image_are_no_pixels(text: str, tmp_path: Path) -> None:
    path = write(tmp_path / "in.csv", f"ImageId,PredictionString\na,{text}\n")
    assert copy(path, tmp_path / "out.csv").num_images == 1


def test_a_header_alone_is_a_submission_of_no_images(tmp_path: Path) -> None:
    path = write(tmp_path / "in.csv", "ImageId,PredictionString")
    assert copy(path, tmp_path / "out.csv")[1:4] == (0, 0, 0)
    assert (tmp_path / "out.csv").read_text() == "ImageId,PredictionString\n"
    with open_submission(path) as source:
        assert len(align([source, source]).id_files) == 0


BAD = {
    f"d,{CAT[:-8]}": "5 tokens, and 5 is not a multiple of 6",
    f"d,{CAT} 0.1": "7 tokens, and 7 is not a multiple of 6",
    f"d,{CAT} /m/02 0.5 0 0 1 {DOG}": "17 tokens",
    f"d,{DOG} {CAT.replace('0.90000', 'nan')}": "2: score is 'nan', which is not a number",
    f"d,{CAT.replace('0.30000', '-inf')}": "prediction 1: x2 is '-inf', which is not a number",
    f"d,{CAT.replace('0.90000', '1.00001')}": "prediction 1: the score is '1.00001'",
    f"d,{CAT.replace('0.90000', '-0.00001')}": "the score is '-0.00001'; it must be in 0..1",
    f"d,{CAT.replace('0.30000', '0.09999')}": "x1 y1 x2 y2 = 0.10000 0.20000 0.09999 0.40000",
    f"d,{CAT.replace('0.40000', '0.1')}": "x2 < x1 or y2 < y1",
    f'd,{CAT} "x{CAT[1:]}': "prediction 2: the label '\"xm/01'",
    "d": "'d' has no comma behind an image id",
    f",{CAT}": "has no comma behind an image id, or the id is empty",
    "b,": "image 'b' is in line 3 already",
}


@pytest.mark.parametrize("row", BAD)
def test_bad_rows_are_named_and_left_out_only_when_told(row: str, tmp_path: Path) -> None:
    path = write(tmp_path / "in.csv", f"{PLAIN}{row}\ne,{CAT}\n")
    with pytest.raises(BadRowsError) as error:
        copy(path, tmp_path / "out.csv")
    assert "1 bad row;" in str(error.value)
    assert f"{path}, line 5: " in str(error.value)
    assert BAD[row] in str(error.value)
    assert [path.name for path in tmp_path.iterdir()] == ["in.csv"]
    totals = copy(path, tmp_path / "out.csv", skip_bad=True)
    assert (tmp_path / "out.csv").read_text() == f"{PLAIN}e,{CAT}\n"
    assert totals.num_images == 4
    assert totals.bad.total == 1


def test_the_first_ten_of_many_bad_rows_are_shown(tmp_path: Path) -> None:
    rows = "".join(f"i{k},{CAT} 7\n" for k in range(25))
    path = write(tmp_path / "in.csv", PLAIN + rows)
    with pytest.raises(BadRowsError) as error:
        copy(path, tmp_path / "out.csv")
    lines = str(error.value).splitlines()
    assert lines[0].startswith("25 bad rows;")
    assert [line.split(", line ")[1].split(":")[0] for line in lines[1:11]] == [
        str(number) for number in range(5, 15)
    ]
    assert lines[11] == "  … and 15 more"


def test_files_are_joined_by_id_in_whatever_order(tmp_path: Path) -> None:
    texts = [f"c,{DOG}\na,{CAT}\n", f"b,{DOG}\na,{DOG}\n", f"aa,{CAT}\n"]
    header = "ImageId,PredictionString\n"
    paths = [write(tmp_path / f"{k}.csv", header + text) for k, text in enumerate(texts)]
    sources = []
    for path in paths:
        with open_submission(path) as source:
            sources.append(source)
    images = align(sources)
    rows, faults = scan(images, [b"/m/02"])
    assert rows.label_numbers.tolist() == [-1, 0, -1, 0, 0]
    assert rows.images().tolist() == [0, 0, 1, 2, 3]
    assert images.piece_files.tolist() == [0, 1, 2, 1, 0]
    text = print_block(images, rows, faults, labels=[b"/m/02"]).text.decode()
    assert text == f"a,{CAT} {DOG}\naa,{CAT}\nb,{DOG}\nc,{DOG}\n"
    one_each = [print_block(block, *scan(block)).text for block in cut(images, 1)]
    assert len(one_each) == 4
    assert b"".join(one_each).decode() == text


def test_scanned_rows_are_taken_relabelled_and_rounded(tmp_path: Path) -> None:
    with open_submission(write(tmp_path / "in.csv", PLAIN)) as source:
        images = in_file_order(source)
    rows, faults = scan(images)
    assert rows.first_of_image().tolist() == [True, False, True]
    assert rows.scores.tolist() == [0.9, 0.5, 0.5]
    low = rows.take(rows.scores < 0.6)
    text = print_block(images, low, faults, box_decimals=2).text.decode()
    short = "/m/02 0.50000 0.00 0.00 1.00 1.00"
    assert text == f"a,{short}\nb,\nc,{short}\n"
    doubled = rows.take(np.array([1, 0, 0, 2]))
    doubled.label_numbers[2] = 1
    text = print_block(images, doubled, faults, labels=[b"no", b"/m/09"]).text.decode()
    assert text == f"a,{DOG} {CAT} {CAT.replace('01', '09', 1)}\nb,\nc,{DOG}\n"


@pytest.mark.parametrize("threads", [1, 2, 7])
def test_results_come_in_order_and_few_wait(threads: int) -> None:
    started, taken, lead = [], 0, 0
    lock = threading.Lock()

    def work(item: int) -> int:
        with lock:
            started.append(item)
        time.sleep(0.002 * (item % 3))
        return item

    for item in map_in_order(range(60), work, threads):
        assert item == taken
        taken += 1
        lead = max(lead, len(started) - taken)
    assert taken == 60
    assert lead <= 2 * threads


def test_an_error_in_a_thread_leaves_no_file(tmp_path: Path) -> None:
    path = write(tmp_path / "in.csv", PLAIN)
    (tmp_path / "out.csv").write_text("precious")

    def work(block: Block) -> BlockResult:
        raise OSError("disk full")

    with open_submission(path) as source, pytest.raises(OSError, match="disk full"):
        write_submission_file(
            str(tmp_path / "out.csv"), in_file_order(source), work, threads=2, skip_bad=False
        )
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in.csv", "out.csv"]
    assert (tmp_path / "out.csv").read_text() == "precious"


def test_the_index_is_small_and_a_bucket_is_read_too(tmp_path: Path) -> None:
    import tensorflow as tf

    text = "ImageId,PredictionString\n" + "".join(f"{k:016x},{DOG}\n" for k in range(20_000))
    with open_submission(write(tmp_path / "in.csv", text)) as source:
        assert source.rows.nbytes + source.image_ids.nbytes == 20_000 * (40 + 16)
    with tf.io.gfile.GFile("ram://submissions/in.csv", "w") as file:
        file.write(text)
    with open_submission("ram://submissions/in.csv") as remote:
        assert (remote.rows == source.rows).all()
        write_submission_file(
            "ram://submissions/out.csv",
            in_file_order(remote),
            lambda block: print_block(block, *scan(block)),
            threads=2,
            skip_bad=False,
        )
    with tf.io.gfile.GFile("ram://submissions/out.csv", "r") as file:
        assert file.read() == text


def test_rows_that_pass_over_a_piece_of_the_index_are_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The index is made 64 MB at a time; here 100 bytes, shorter than many rows."""
    from tpudet.detection.submission import files

    path = write(tmp_path / "in.csv", PLAIN + f"d,{CAT} {CAT} {CAT} {CAT}\n")
    found = []
    for size in (1 << 26, 100, 1):
        monkeypatch.setattr(files, "RELEASE_BYTES", size)
        with open_submission(path) as source:
            found.append((source.rows.tolist(), source.image_ids.tolist()))
    assert found[0] == found[1] == found[2]
    assert found[0][1] == [b"a", b"b", b"c", b"d"]
