"""Files that a user, or a file of others, names: what can be read without an end is not opened."""

import os
from pathlib import Path

import pytest

from tpudet.trainkit.errors import UserError
from tpudet.trainkit.files.inputs import read_input


def test_devices_and_fifos_are_refused_and_a_pipe_of_the_shell_is_read(tmp_path: Path) -> None:
    fifo = tmp_path / "classes.csv"
    os.mkfifo(fifo)
    for path in ("/dev/zero", str(fifo)):
        with pytest.raises(UserError, match=f"^--classes {path} .*a device or FIFO, not a file"):
            read_input(path, "--classes")
    reader, writer = os.pipe()
    os.write(writer, b"1,cat\n")
    os.close(writer)
    try:
        assert read_input(f"/dev/fd/{reader}", "--classes") == b"1,cat\n"  # of <(command)
    finally:
        os.close(reader)


def test_files_and_folders_are_told_apart(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"\x00\r\n")
    assert read_input(str(tmp_path / "a"), "--x") == b"\x00\r\n"
    with pytest.raises(UserError, match="is a directory; a file is expected"):
        read_input(str(tmp_path), "--x")
    with pytest.raises(UserError, match="does not exist"):
        read_input(str(tmp_path / "b"), "--x")
