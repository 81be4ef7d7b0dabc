"""The command merge_subs.py, against lines written by hand."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tpudet.detection.commands.merge_subs import main

HEADER = "ImageId,PredictionString\n"
# On image a both see the same cat; HALF of B lies within A's box: IoU 0.5.
FIRST = "a,/m/01 0.90000 0.00000 0.00000 0.40000 0.40000 /m/02 0.01900 0.6 0.6 0.9 0.9\nb,\n"
SECOND = (
    "c,/m/02 0.30000 0.10000 0.10000 0.20000 0.20000\r\n"
    'a,"/m/01 0.80000 0.00000 0.00000 0.40000 0.20000"\r\n'
)
CAT = "/m/01 0.90000 0.00000 0.00000 0.40000 0.40000"
C = "c,/m/02 0.30000 0.10000 0.10000 0.20000 0.20000"


@pytest.fixture
def files(tmp_path: Path) -> list[str]:
    (tmp_path / "first.csv").write_bytes((HEADER + FIRST).encode())
    (tmp_path / "second.csv").write_bytes(("ImageID,PredictionString\r\n" + SECOND).encode())
    return [str(tmp_path / "out.csv"), str(tmp_path / "first.csv"), str(tmp_path / "second.csv")]


MERGED = {  # arguments: the predictions of image a, and of c
    "": (f"{CAT} /m/01 0.48522 0.00000 0.00000 0.40000 0.20000", C),  # 0.8 * exp(-0.25 / 0.5)
    "--sigma 0.1": (f"{CAT} /m/01 0.06567 0.00000 0.00000 0.40000 0.20000", C),
    "--method soft_linear": (f"{CAT} /m/01 0.40000 0.00000 0.00000 0.40000 0.20000", C),
    "--method hard": (CAT, C),
    "--method hard --iou 0.5 --max_per_image 1": (CAT, C),
    "--method hard --max_per_image 3000000000": (CAT, C),
    "--method hard --iou 0.5 --threshold 0.85": (CAT, "c,"),
    "--method wbf": (
        "/m/01 0.85000 0.00000 0.00000 0.40000 0.30588",  # (0.9 * 0.4 + 0.8 * 0.2) / 1.7
        "c,/m/02 0.15000 0.10000 0.10000 0.20000 0.20000",
    ),
    "--method wbf --weights 3,1": (
        "/m/01 0.87500 0.00000 0.00000 0.40000 0.35429",  # (2.7 * 0.4 + 0.8 * 0.2) / 3.5
        "c,/m/02 0.07500 0.10000 0.10000 0.20000 0.20000",
    ),
    "--method nmw": ("/m/01 0.90000 0.00000 0.00000 0.40000 0.33846", C),
    "--weights 0,5": ("/m/01 0.80000 0.00000 0.00000 0.40000 0.20000", C),
    "--threshold 0.019 --method hard": (f"{CAT} /m/02 0.01900 0.60000 0.60000 0.90000 0.90000", C),
}


@pytest.mark.parametrize("arguments", MERGED)
def test_the_merged_file_is_the_one_worked_out_by_hand(arguments: str, files: list[str]) -> None:
    assert main([*files, *arguments.split()]) == 0
    image_a, line_c = MERGED[arguments]
    assert Path(files[0]).read_text() == f"{HEADER}a,{image_a}\nb,\n{line_c}\n"


def test_classes_can_have_settings_of_their_own(
    files: list[str], tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    settings = tmp_path / "settings.csv"
    settings.write_text("label,method,threshold\n/m/01,hard,\n/m/02,,0.4\n/m/77,wbf,\n")
    assert main([*files, "--class_settings", str(settings)]) == 0
    assert Path(files[0]).read_text() == f"{HEADER}a,{CAT}\nb,\nc,\n"
    assert capsys.readouterr().out.splitlines() == [
        f"{files[0]}: 3 images, 1 predictions of the 4 in 2 files",
        "  no prediction has these labels of --class_settings: ['/m/77']",
        f"  {files[1]} has no usable row for 1 of the images",
        f"  {files[2]} has no usable row for 1 of the images",
    ]


def test_images_that_a_file_lacks_are_counted(
    files: list[str], capsys: pytest.CaptureFixture
) -> None:
    """Weighted boxes fusion has halved the score of c, which only the second file has."""
    assert main([*files, "--method", "wbf"]) == 0
    assert "c,/m/02 0.15000" in Path(files[0]).read_text()  # of 0.3
    assert capsys.readouterr().out.splitlines() == [
        f"{files[0]}: 3 images, 2 predictions of the 4 in 2 files",
        f"  {files[1]} has no usable row for 1 of the images",
        f"  {files[2]} has no usable row for 1 of the images",
    ]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("class,iou\n/m/01,0.5\n", "the header is 'class,iou'"),
        ("label,iou\n", "there is no row"),
        ("label,iou\n/m/01,high\n", "line 2 (/m/01): could not convert string to float: 'high'"),
        ("label,method\n/m/01,nms\n", "method 'nms' is not one of hard, soft_linear"),
        ("label,iou\n/m/01,0.5\n/m/01,0.6\n", "line 3 (/m/01): each row needs a label of its own"),
    ],
)
def test_wrong_class_settings_are_explained(
    text: str, message: str, files: list[str], tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    settings = tmp_path / "settings.csv"
    settings.write_text(text)
    assert main([*files, "--class_settings", str(settings)]) == 2
    error = capsys.readouterr().err
    assert f"{settings}: " in error
    assert message in error
    assert not Path(files[0]).exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("--weights 1", "1 weights for 2 files"),
        ("--weights 0,0", "one must be above 0"),
        ("--weights=-1,1", "none may be negative"),
        ("--weights nan,1", "none may be negative"),
        ("--method nms", "method 'nms' is not one of"),
        ("--sigma 0", "sigma 0.0 must be above 0"),
        ("--iou 1.5 --threshold nan", "iou 1.5 must be in 0..1\nthreshold nan must be in 0..1"),
    ],
)
def test_wrong_arguments_are_explained(
    arguments: str, message: str, files: list[str], capsys: pytest.CaptureFixture
) -> None:
    assert main([*files, *arguments.split()]) == 2
    assert message in capsys.readouterr().err
    assert not Path(files[0]).exists()


@pytest.mark.parametrize("arguments", ["--threads=0", "--max_per_image=-1"])
def test_numbers_out_of_range_are_refused(
    arguments: str, files: list[str], capsys: pytest.CaptureFixture
) -> None:
    with pytest.raises(SystemExit, match="2"):
        main([*files, arguments])
    assert "is not an integer of at least" in capsys.readouterr().err
    assert not Path(files[0]).exists()


def test_files_are_checked_before_anything_is_written(
    files: list[str], tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    out, first, second = files
    assert main([out, first, str(tmp_path / "none.csv")]) == 2
    assert "no file " in capsys.readouterr().err
    assert main([first, first, second, "-f"]) == 2
    assert f"{first} would be read and written" in capsys.readouterr().err
    assert main([f"{tmp_path}/no/out.csv", first]) == 2
    assert "no folder " in capsys.readouterr().err
    Path(out).write_text("precious")
    assert main(files) == 2
    assert "out.csv exists; -f replaces it" in capsys.readouterr().err
    assert Path(out).read_text() == "precious"
    assert Path(first).read_text() == HEADER + FIRST
    assert main([*files, "-f"]) == 0
    assert Path(out).read_text().startswith(HEADER + "a,/m/01 0.9")


def test_bad_rows_end_the_command_or_are_left_out(
    files: list[str], capsys: pytest.CaptureFixture
) -> None:
    out, first, second = files
    with open(first, "a") as file:
        file.write("c,/m/01 0.5 0 0 1\nd,/m/01 1.5 0 0 1 1\na,\n")
    assert main(files) == 2
    error = capsys.readouterr().err
    assert "3 bad rows; --skip_bad leaves" in error
    assert [f"{first}, line {line}: " in error for line in (3, 4, 5, 6)] == [
        False,
        True,
        True,
        True,
    ]
    assert not Path(out).exists()
    assert main([*files, "--skip_bad"]) == 0
    # c is still in the second file; d was bad in the only file that had it.
    assert Path(out).read_text() == f"{HEADER}a,{MERGED[''][0]}\nb,\n{C}\n"
    assert "3 bad rows left out" in capsys.readouterr().out


def test_the_same_bytes_whatever_the_number_of_threads(tmp_path: Path) -> None:
    random = np.random.default_rng(2)
    sources = []
    for model in range(3):
        lines = []
        for image in random.permutation(400):
            boxes = np.sort(random.integers(0, 20, (60, 2, 2)) / 20, axis=1).reshape(-1, 4)
            parts = (
                f"/m/{random.integers(4)} {random.integers(21) / 20:.5f} "
                + " ".join(f"{value:.5f}" for value in box)
                for box in boxes
            )
            lines.append(f"image{image}," + " ".join(parts) + "\n")
        sources.append(str(tmp_path / f"{model}.csv"))
        Path(sources[-1]).write_text(HEADER + "".join(lines))
    assert sum(Path(source).stat().st_size for source in sources) > 6 * (1 << 19)  # six blocks
    texts = set()
    for threads in ("1", "2", "7"):
        out = str(tmp_path / f"out{threads}.csv")
        assert main([out, *sources, "--method", "soft_linear", "--threads", threads]) == 0
        texts.add(Path(out).read_bytes())
    assert len(texts) == 1
    assert texts.pop().count(b"\n") == 401


def test_submissions_without_images_merge_to_one_without(tmp_path: Path) -> None:
    names = [str(tmp_path / name) for name in ("out.csv", "first.csv", "second.csv")]
    for name in names[1:]:
        Path(name).write_text(HEADER)
    assert main(names) == 0
    assert Path(names[0]).read_text() == HEADER


def test_boxes_are_merged_without_what_only_others_need(files: list[str]) -> None:
    """Start-up: neither TensorFlow nor masks, process pools, progress bars or masked arrays."""
    program = f"""
import sys
from tpudet.detection.commands.merge_subs import main
assert main({files!r}) == 0
unneeded = {{"tensorflow", "pycocotools", "multiprocessing", "tqdm", "numpy.ma"}}
print(sorted(unneeded & set(sys.modules)))
"""
    command = [sys.executable, "-c", program]
    printed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert printed.splitlines()[-1] == "[]"
