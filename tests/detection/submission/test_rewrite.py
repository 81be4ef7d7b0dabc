"""Laws of all commands that rewrite submissions; one line of each, worked out by hand."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tpudet.detection.commands import (
    add_parents,
    drop_parents,
    join_subs,
    trim_sub_by_num_of_predicts,
    trim_sub_by_threshold,
    trim_sub_decimal_digits,
)
from tpudet.detection.submission import writer
from tpudet.trainkit.files.exclusive import create_temporary

HEADER = "ImageId,PredictionString\n"
CAT = "/m/01 0.90000 0.10000 0.20000 0.30000 0.40006"
DOG = "/m/02 0.03000 0.00000 0.00000 1.00000 1.00000"
CAR = "/m/03 0.02999 0.00000 0.00000 1.00000 1.00000"
PET = "/m/04 0.50000 0.00000 0.00000 1.00000 1.00000"
TEXT = f"{HEADER}a,{DOG} {CAT} {PET}\nb,\nc,{CAR}\n"
PET_OF_CAT = CAT.replace("/m/01", "/m/04")
# Cats and dogs are pets; of cars the hierarchy knows nothing.
HIERARCHY = {
    "LabelName": "/m/root",
    "Subcategory": [
        {"LabelName": "/m/04", "Subcategory": [{"LabelName": "/m/01"}, {"LabelName": "/m/02"}]}
    ],
}
COMMANDS = {  # what comes behind RESULT FILE, and the result
    "trim_sub_by_threshold": ([trim_sub_by_threshold, "0.03"], f"a,{DOG} {CAT} {PET}\nb,\nc,\n"),
    "trim_sub_by_num_of_predicts": ([trim_sub_by_num_of_predicts, "2"], f"a,{CAT} {PET}\nb,\nc,\n"),
    "trim_sub_decimal_digits": (
        [trim_sub_decimal_digits],
        "a,/m/02 0.03000 0.0000 0.0000 1.0000 1.0000 /m/01 0.90000 0.1000 0.2000 0.3000 0.4001 "
        "/m/04 0.50000 0.0000 0.0000 1.0000 1.0000\nb,\n"
        "c,/m/03 0.02999 0.0000 0.0000 1.0000 1.0000\n",
    ),
    "join_subs": ([join_subs, "--min_conf", "0.02999"], f"a,{CAT} {PET} {DOG}\nb,\nc,\n"),
    "add_parents": (
        [add_parents, "--hierarchy", "hierarchy.json"],
        f"a,{DOG} {CAT} {PET_OF_CAT} {PET}\nb,\nc,{CAR}\n",  # that of the dog is there, and better
    ),
    "drop_parents": (
        [drop_parents, "--hierarchy", "hierarchy.json"],
        f"a,{DOG} {CAT}\nb,\nc,{CAR}\n",
    ),
}
SPELLINGS: dict[str, Callable[[str], str]] = {
    "plain": lambda text: text,
    "other header": lambda text: text.replace("ImageId", "ImageID"),
    "windows": lambda text: text.replace("\n", "\r\n"),
    "no last line end": lambda text: text.rstrip("\n"),
    "quoted": lambda text: "".join(
        ",".join(f'"{field}"' for field in line.split(",")) + "\r\n" for line in text.splitlines()
    ),
}


@pytest.fixture(params=COMMANDS)
def run(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., int]:
    """Runs a command from in.csv to out.csv."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "hierarchy.json").write_text(json.dumps(HIERARCHY))
    command, *arguments = COMMANDS[request.param][0]

    def call(text: str, *more: str) -> int:
        (tmp_path / "in.csv").write_bytes(text.encode())
        return command.main(["out.csv", "in.csv", *arguments, *more])

    return call


@pytest.fixture
def expected(request: pytest.FixtureRequest, run: Callable[..., int]) -> str:
    """The file that the command of `run` is to write."""
    return HEADER + COMMANDS[request.node.callspec.params["run"]][1]


def names() -> list[str]:
    return sorted(path.name for path in Path().iterdir())


@pytest.mark.parametrize("spelling", SPELLINGS)
def test_the_lines_are_those_worked_out_by_hand(
    spelling: str, run: Callable[..., int], expected: str
) -> None:
    assert run(SPELLINGS[spelling](TEXT)) == 0
    assert Path("out.csv").read_bytes().decode() == expected
    assert names() == ["hierarchy.json", "in.csv", "out.csv"]


def test_a_label_that_no_submission_can_hold_is_refused(tmp_path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    Path("in.csv").write_text(TEXT)
    Path("classes.csv").write_text(f"{'x' * 256},cat\n")
    assert drop_parents.main(["out.csv", "in.csv", "--classes", "classes.csv"]) == 2
    error = capsys.readouterr().err
    assert "A label has at most 255 bytes in a submission" in error
    assert "of classes.csv has 256: correct it" in error
    assert names() == ["classes.csv", "in.csv"]
    Path("classes.csv").write_text("Human being,human\n/c,cat\n")  # the first matches no row
    assert drop_parents.main(["out.csv", "in.csv", "--classes", "classes.csv"]) == 0


@pytest.mark.usefixtures("plain_kernel")
def test_the_same_without_the_compiled_kernel(run: Callable[..., int], expected: str) -> None:
    assert run(TEXT) == 0
    assert Path("out.csv").read_text() == expected


@pytest.mark.parametrize("text", [HEADER, HEADER.rstrip(), f"{HEADER}a,\n\nb,\n"])
def test_a_file_without_predictions_stays_one(text: str, run: Callable[..., int]) -> None:
    """A header alone, too."""
    assert run(text) == 0
    assert Path("out.csv").read_text() == HEADER + ("a,\nb,\n" if "a," in text else "")


BAD_ROWS = {
    f"d,{CAT[:-8]}": "5 tokens, and 5 is not a multiple of 6",
    f"e,{CAT.replace('0.90000', 'NaN')}": "score is 'NaN', which is not a number",
    f"f,{CAT.replace('0.90000', '1.1')}": "the score is '1.1'; it must be in 0..1",
    f"g,{CAT.replace('0.30000', '0.09')}": "x2 < x1 or y2 < y1",
    "b,": "image 'b' is in line 3 already",
}


def test_bad_rows_are_named_or_left_out_and_counted(
    run: Callable[..., int], expected: str, capsys: pytest.CaptureFixture[str]
) -> None:
    text = TEXT + "".join(row + "\n" for row in BAD_ROWS)
    assert run(text) == 2
    error = capsys.readouterr().err
    assert "5 bad rows; --skip_bad leaves bad rows out and counts them" in error
    for line, reason in enumerate(BAD_ROWS.values(), start=5):
        assert any(f"in.csv, line {line}: " in row and reason in row for row in error.splitlines())
    assert "out.csv" not in names()
    assert run(text, "--skip_bad") == 0
    assert Path("out.csv").read_text() == expected
    assert "5 bad rows left out" in capsys.readouterr().out


def test_an_existing_result_needs_force(
    run: Callable[..., int], expected: str, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("out.csv").write_text("precious")
    assert run(TEXT) == 2
    assert "out.csv exists; -f replaces it" in capsys.readouterr().err
    assert Path("out.csv").read_text() == "precious"
    temporary, descriptor = create_temporary(os.path.realpath("out.csv"))
    os.close(descriptor)
    Path(temporary).write_text("of a run that was killed")
    assert run(TEXT, "-f") == 0
    assert Path("out.csv").read_text() == expected
    assert names() == ["hierarchy.json", "in.csv", "out.csv"]


def test_a_source_that_is_cut_while_it_is_read_is_an_error_in_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not the end of the process, which touching the mapped bytes would be."""
    program = """
import os, sys
from tpudet.detection.submission import files, writer
writer.cut = lambda images: files.cut(images, 1000)
with files.open_submission("in.csv") as source:
    def cut_the_file(block):
        os.truncate("in.csv", 100)
        return files.print_block(block, *files.scan(block))
    list(writer.run_blocks(files.in_file_order(source), cut_the_file, 1))
"""
    monkeypatch.chdir(tmp_path)
    rows = "".join(f"{i},/m/01 0.5 0 0 1 1\n" for i in range(100_000))
    Path("in.csv").write_text(f"ImageId,PredictionString\n{rows}")
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, check=False)
    assert done.returncode == 1
    assert b"in.csv was cut from 2,388,915 to 100 bytes while it was read" in done.stderr


@pytest.mark.parametrize("what", ["submission", "another map"])
def test_bytes_that_go_while_they_are_read_end_in_a_message(tmp_path: Path, what: str) -> None:
    """Between the look at a file's size and the read; other maps end a process as before."""
    program = """
import mmap, os, sys
from tpudet.detection.submission import files
path, what = sys.argv[1:]
with files.open_submission(path) as source:
    other = mmap.mmap(os.open(path, os.O_RDONLY), 0, access=mmap.ACCESS_READ)
    os.truncate(path, 100)
    print(other[-1] if what == "another map" else files.scan(files.in_file_order(source)))
"""
    rows = "".join(f"{i},/m/01 0.5 0 0 1 1\n" for i in range(10_000))
    path = tmp_path / "in.csv"
    path.write_text(f"ImageId,PredictionString\n{rows}")
    done = subprocess.run(
        [sys.executable, "-c", program, str(path), what], capture_output=True, check=False
    )
    message = f"{path} was cut while it was read; run this again when it is whole\n"
    expected = (2, message) if what == "submission" else (-signal.SIGBUS, "")
    assert (done.returncode, done.stderr.decode()) == expected
    assert done.stdout == b""


def test_one_process_writes_a_result(
    run: Callable[..., int], capsys: pytest.CaptureFixture[str], hold_claim: Callable
) -> None:
    with hold_claim("out.csv.claim.json") as process:
        assert run(TEXT) == 2
    assert f"out.csv is being written by process {process} on" in capsys.readouterr().err
    assert names() == ["hierarchy.json", "in.csv"]


@pytest.mark.usefixtures("small_blocks")
def test_an_interrupted_run_leaves_nothing_half_written(
    run: Callable[..., int], monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = writer.run_blocks

    def interrupted(*arguments) -> Iterator:
        for number, result in enumerate(whole(*arguments)):
            if number == 2:
                raise KeyboardInterrupt
            yield result

    monkeypatch.setattr(writer, "run_blocks", interrupted)
    rows = "".join(f"row{k},{CAT} {DOG}\n" for k in range(300))  # 29 KB: more than two blocks
    Path("out.csv").write_text("precious")
    assert run(TEXT + rows, "-f") == 130
    assert names() == ["hierarchy.json", "in.csv", "out.csv"]
    assert Path("out.csv").read_text() == "precious"


def test_other_files_and_arguments_are_refused(
    run: Callable[..., int], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("ImageId;PredictionString\n") == 2
    assert "in.csv starts with 'ImageId;PredictionString'" in capsys.readouterr().err
    with pytest.raises(SystemExit, match="2"):
        run(TEXT, "--threads", "0")
    assert "`0` is not an integer of at least 1" in capsys.readouterr().err
    assert "out.csv" not in names()


@pytest.mark.usefixtures("small_blocks")
def test_the_same_bytes_whatever_the_number_of_threads(
    run: Callable[..., int], random_submission: Callable[..., str]
) -> None:
    labels = ["/m/01", "/m/02", "/m/03", "/m/04"]
    text = Path(random_submission("random.csv", 1, labels=labels, box_steps=2)).read_text()
    assert len(text) > 15 * 2_000
    results = set()
    for threads in ("1", "2", "7"):
        assert run(text, "-f", "--threads", threads) == 0
        results.add(Path("out.csv").read_bytes())
    assert len(results) == 1
