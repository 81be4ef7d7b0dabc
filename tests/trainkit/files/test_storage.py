"""A file has its name only when it is whole, wherever the write was stopped."""

from pathlib import Path

import pytest
import tensorflow as tf

from tpudet.trainkit.files.storage import read_text, whole_file, write_text


@pytest.mark.parametrize("folder", ["local", "ram://durable"])
def test_error_inside_leaves_what_was_there(folder: str, tmp_path: Path) -> None:
    folder = folder if "://" in folder else str(tmp_path)
    path = f"{folder}/notes.txt"
    write_text(path, "first")

    def fail_halfway() -> None:
        with whole_file(path, "w") as file:
            file.write("second")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail_halfway()
    assert read_text(path) == "first"
    write_text(path, "third")
    write_text(path, "4")
    assert read_text(path) == "4"  # neither appended nor left longer
    assert [name.rstrip("/") for name in tf.io.gfile.listdir(folder)] == ["notes.txt"]


def test_block_that_writes_nothing_makes_an_empty_file(tmp_path: Path) -> None:
    with whole_file(str(tmp_path / "empty.bin"), "wb"):
        pass
    assert (tmp_path / "empty.bin").read_bytes() == b""


def test_owners_do_not_meet_in_one_temporary_file(tmp_path: Path) -> None:
    path = str(tmp_path / "shared.txt")
    with whole_file(path, "w", owner="one") as first, whole_file(path, "w", owner="two") as second:
        first.write("one")
        second.write("two")
    assert Path(path).read_text() == "one"  # the outer block ended last
