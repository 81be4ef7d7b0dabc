"""Commands whose standard streams are closed or full, and messages that are too long."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tpudet.trainkit.command_line import (
    add_config_arguments,
    add_override_arguments,
    new_parser,
    run_command,
)
from tpudet.trainkit.errors import UserError

PROGRAM = """
import os, sys
from tpudet.trainkit.command_line import new_parser, run_command
from tpudet.trainkit.files.storage import whole_file

def body(arguments):
    with whole_file("result.txt", "w") as file:
        file.write("content")
        file.flush()
        for number in (1, 2):
            os.write(number, b"a message of a library\\n")
        print("a warning", file=sys.stderr)
    return "a summary"

sys.exit(run_command(new_parser("tpudet test", ""), [], body))
"""


@pytest.mark.parametrize("closed", [">&-", "2>&-", "<&-", ">&- 2>&-", "<&- >&- 2>&-"])
def test_closed_streams(closed: str, tmp_path) -> None:
    (tmp_path / "program.py").write_text(PROGRAM)
    command = f"{sys.executable} program.py {closed}"
    done = subprocess.run(command, shell=True, cwd=tmp_path, capture_output=True, check=False)
    assert done.returncode == 0
    assert (tmp_path / "result.txt").read_text() == "content"


@pytest.mark.parametrize(
    ("streams", "code"),
    [
        (">/dev/full", 2),  # the summary is lost, and a pipe's next command should know
        ("2>/dev/full", 0),
        (">/dev/full 2>/dev/full", 2),
        ("| true; exit ${PIPESTATUS[0]}", 0),
    ],
)
def test_full_streams(streams: str, code: int, tmp_path: Path) -> None:
    program = PROGRAM.replace("os.write(number", "0 and os.write(number").replace(
        'print("a warning", file=sys.stderr)', "pass"
    )
    (tmp_path / "program.py").write_text(program)
    command = ["bash", "-c", f"{sys.executable} program.py {streams}"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == code, done.stderr
    assert (tmp_path / "result.txt").read_text() == "content"
    assert "Traceback" not in done.stderr
    told = "standard output cannot be written: No space left on device"
    assert (told in done.stderr) == (streams == ">/dev/full")


@pytest.mark.parametrize("is_stderr_read", [True, False])
def test_work_goes_on_when_the_reader_of_its_output_leaves(
    is_stderr_read: bool, tmp_path: Path
) -> None:
    program = """
import logging, sys
from pathlib import Path
from tpudet.trainkit.command_line import new_parser, run_command, start_logging
from tpudet.trainkit.screen import is_output_read, prepare_screen

def body(arguments):
    start_logging()
    for _ in range(3):
        print("x" * 100_000)
        print("a state", file=sys.stderr)
        logging.getLogger("tpudet").info("a message")
    Path("done").write_text(str(is_output_read()))
    print("what is flushed at the exit")
    return 3

prepare_screen()
sys.exit(run_command(new_parser("tpudet test", ""), [], body))
"""
    reader, writer = os.pipe()
    os.close(reader)
    command = [sys.executable, "-c", program]
    stderr = subprocess.PIPE if is_stderr_read else writer
    done = subprocess.run(
        command, cwd=tmp_path, stdout=writer, stderr=stderr, text=True, check=False
    )
    os.close(writer)
    assert done.returncode == 3
    assert done.stderr == ("a state\n" * 3 if is_stderr_read else None)
    assert (tmp_path / "done").read_text() == "False"


@pytest.mark.parametrize("mode", ["utf8=0", "utf8=1"])  # of an ordinary locale, and of C
def test_text_that_the_output_cannot_hold_has_backslashes(mode: str) -> None:
    program = r"""
import logging, sys
from tpudet.trainkit.command_line import new_parser, run_command, start_logging

def body(arguments):
    start_logging()
    logging.getLogger("tpudet").warning("a log of %s", "\ud800")
    return "a summary of \ud800"

sys.exit(run_command(new_parser("tpudet test", ""), [], body))
"""
    command = [sys.executable, "-X", mode, "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "Logging error" not in done.stderr
    assert r"a log of \ud800" in done.stdout
    assert r"a summary of \ud800" in done.stdout


@pytest.mark.parametrize("name", ["out/result.txt", "full/result.txt"])
def test_an_output_without_room_is_named_in_words(name: str, tmp_path: Path) -> None:
    """The system lets no file grow beyond 100 bytes; the claim of the second needs more."""
    program = """
import resource, sys
from tpudet.trainkit.command_line import new_parser, run_command
from tpudet.trainkit.files.claimed_file import claimed_file
from tpudet.trainkit.files.storage import make_folder, whole_file

def body(arguments):
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100))
    opened = claimed_file(path, "w", force=True) if is_claimed else whole_file(path, "w")
    with opened as file:
        file.write("content" * 1000)

path, is_claimed = sys.argv[1], sys.argv[1].startswith("full")
sys.exit(run_command(new_parser("tpudet test", ""), [], body))
"""
    (tmp_path / name).parent.mkdir()
    command = [sys.executable, "-c", program, name]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    path = name if name.startswith("full") else tmp_path / name
    assert done.stderr == f"tpudet test: {path} cannot be written: File too large\n"
    assert list((tmp_path / name).parent.iterdir()) == []


def test_an_error_of_the_system_begins_with_its_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def body(arguments: object) -> None:
        (tmp_path / "nothing").read_text()

    assert run_command(new_parser("tpudet test", ""), [], body) == 2
    message = f"tpudet test: {tmp_path}/nothing: No such file or directory\n"
    assert capsys.readouterr().err == message


def test_a_long_message_ends_where_nobody_reads_on(capsys: pytest.CaptureFixture[str]) -> None:
    mistakes = [f"row {number}: wrong" for number in range(250)]

    def body(arguments: object) -> None:
        raise UserError("\n".join(["x" * 5000, *mistakes]))

    assert run_command(new_parser("tpudet test", ""), [], body) == 2
    first, *others = capsys.readouterr().err.splitlines()
    assert first == f"tpudet test: {'x' * 1000}… (4,000 more characters)"
    assert others == [*mistakes[:99], "... and 151 more lines"]


@pytest.mark.parametrize(
    ("words", "config"),
    [
        ("quickstart", "quickstart"),
        ("--config quickstart", "quickstart"),
        ("--config=quickstart --set a=1", "quickstart"),
        ("--set a=1 quickstart --set b=2", "quickstart"),
        ("quickstart --config quickstart", "quickstart"),
        ("--set a=1", None),
    ],
)
def test_a_config_is_given_with_or_without_its_flag(words: str, config: str | None) -> None:
    parser, seen = new_parser("tpudet try", ""), []
    add_config_arguments(parser)
    assert run_command(parser, words.split(), lambda arguments: seen.append(arguments.config)) == 0
    assert seen == [config]


def run_with_paths(*words: str) -> int:
    parser = new_parser("tpudet try", "")
    parser.add_argument("sources", nargs="*")
    parser.add_argument("--output", default="out")
    parser.add_argument("--add", action="append")
    add_override_arguments(parser)
    return run_command(parser, words, lambda _: None)


@pytest.mark.parametrize(
    ("words", "right"),
    [
        (["a", "gs:/bucket/x"], "write gs://bucket/x"),
        (["--output", "s3:/b"], "write s3://b"),
        (["--add", "a", "--add", "hdfs:/b/x"], "write hdfs://b/x"),
        (["--set", "data.directory=gs:/b/x"], "write gs://b/x"),
        (["--output=~/x"], "write $HOME/x"),
        (["--output=~"], "write $HOME"),
        (["--set", "data.directory=~/x"], "write $HOME/x"),
        (["--params_override=~/x.yaml"], "write $HOME/x.yaml"),
    ],
)
def test_a_path_that_would_be_another_folder_is_refused(
    words: list[str], right: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_with_paths(*words) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"tpudet try: {words[-1].rpartition('=')[2]}")
    assert error.endswith(f"{right}\n")


@pytest.mark.parametrize("variable", ["DATA", "STORAGE"])
def test_a_variable_that_would_be_another_folder_is_refused(
    variable: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for value in ("gs:/bucket/x", "~/x"):
        monkeypatch.setenv(variable, value)
        assert run_with_paths() == 2
        assert f"tpudet try: ${variable}: {value}" in capsys.readouterr().err
    monkeypatch.setenv(variable, "gs://bucket/x")
    assert run_with_paths() == 0


@pytest.mark.parametrize(
    "words",
    [
        ["gs://bucket/x", "ram://x", "https://x/~/y", "./~/x", "./gs:/x", "~x", "a~", "/~/x"],
        ["--output", "^(gs|s3):/", "--add", "label=gs:/x", "--add", "~|^x"],
        ["--set", "train.weights=~", "--set", "a= ~ ", "--params_override", "{a: ~, b: gs:/x}"],
    ],
)
def test_texts_that_are_no_such_paths_are_taken(words: list[str]) -> None:
    assert run_with_paths(*words) == 0


@pytest.mark.parametrize("words", ["a --config b", "--config b a", "--config a --config b", "a b"])
def test_two_configs_are_refused(words: str, capsys: pytest.CaptureFixture[str]) -> None:
    parser = new_parser("tpudet try", "")
    add_config_arguments(parser)
    with pytest.raises(SystemExit) as ended:
        run_command(parser, words.split(), lambda _: None)
    assert ended.value.code == 2
    assert "one CONFIG is needed" in (err := capsys.readouterr().err) or "unrecognized" in err
