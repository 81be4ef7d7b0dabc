"""A command whose standard streams are closed writes its files as ever."""

import subprocess
import sys

import pytest

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
