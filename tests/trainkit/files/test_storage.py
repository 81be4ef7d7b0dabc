"""A file or folder has its name only when it is whole, wherever the write was stopped."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import tensorflow as tf

from tpudet.trainkit.files import exclusive, storage
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


@pytest.mark.parametrize("folder", ["local", "ram://meet"])
def test_writers_do_not_meet_in_one_temporary_file(folder: str, tmp_path: Path) -> None:
    path = f"{folder if '://' in folder else tmp_path}/shared.txt"
    with whole_file(path, "w") as first, whole_file(path, "w") as second:
        first.write("one")
        second.write("two")
    assert read_text(path) == "one"  # the outer block ended last


def kill_while_writing(path: Path) -> None:
    program = """
import os, sys
from tpudet.trainkit.files.storage import whole_file
with whole_file(sys.argv[1], "w") as file:
    file.write("half")
    file.flush()
    os.kill(os.getpid(), 9)
"""
    ended = subprocess.run([sys.executable, "-c", program, str(path)], check=False)
    assert ended.returncode == -signal.SIGKILL


def test_what_a_killed_process_left_is_removed_by_the_next(tmp_path: Path) -> None:
    path = tmp_path / "out.csv"
    kill_while_writing(path)
    (left,) = tmp_path.iterdir()
    with whole_file(str(tmp_path / "other.csv"), "w"):
        pass
    assert left.exists()  # it is another file's
    write_text(str(path), "whole")
    assert sorted(found.name for found in tmp_path.iterdir()) == ["other.csv", "out.csv"]
    assert path.read_text() == "whole"


def test_a_living_process_s_temporary_file_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "out.csv"
    program = """
import sys
from tpudet.trainkit.files.storage import whole_file
with whole_file(sys.argv[1], "w") as file:
    file.write("first")
    print("open", flush=True)
    sys.stdin.readline()
"""
    with subprocess.Popen(
        [sys.executable, "-c", program, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout
        assert process.stdout.readline() == b"open\n"
        write_text(str(path), "second, and longer")
        assert path.read_text() == "second, and longer"
        process.communicate(b"\n")
    assert process.returncode == 0
    assert path.read_text() == "first"
    assert [found.name for found in tmp_path.iterdir()] == ["out.csv"]


def first_temporary(path: Path) -> Path:
    name, descriptor = exclusive.create_temporary(str(path))
    os.close(descriptor)
    os.remove(name)
    return Path(name)


@pytest.mark.parametrize("kind", ["link", "dangling link", "fifo", "folder"])
def test_nothing_planted_under_a_temporary_name_is_written_to(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "out.csv"
    precious = tmp_path / "precious"
    precious.write_text("precious")
    planted = first_temporary(path)
    match kind:
        case "link":
            planted.symlink_to(precious)
        case "dangling link":
            planted.symlink_to(tmp_path / "nothing")
        case "fifo":
            os.mkfifo(planted)
        case "folder":
            planted.mkdir()
    write_text(str(path), "content")
    assert path.read_text() == "content"
    assert os.path.lexists(planted)
    assert precious.read_text() == "precious"
    assert not (tmp_path / "nothing").exists()


def test_a_temporary_file_removed_by_hand_publishes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "out.csv"
    path.write_text("old")

    def write() -> None:
        with whole_file(str(path), "w") as file:
            Path(file.name).unlink()
            Path(file.name).write_text("somebody else's")

    with pytest.raises(FileNotFoundError, match="another process removed it"):
        write()
    assert path.read_text() == "old"


@pytest.mark.parametrize("kind", ["fifo", "folder", "device"])
def test_only_a_file_is_replaced_by_a_file(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "out"
    match kind:
        case "fifo":
            os.mkfifo(path)
        case "folder":
            path.mkdir()
        case "device":
            path.symlink_to("/dev/null")
    mode = os.stat(path).st_mode
    with pytest.raises(OSError, match="not a file that can be replaced"):
        write_text(str(path), "content")
    assert os.stat(path).st_mode == mode
    assert [found.name for found in tmp_path.iterdir()] == ["out"]


def test_the_file_that_a_link_points_to_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    (tmp_path / "out.csv").symlink_to("disk/real.csv")
    for content in ("first", "second"):
        write_text(str(tmp_path / "out.csv"), content)
        assert (tmp_path / "disk/real.csv").read_text() == content
    assert os.readlink(tmp_path / "out.csv") == "disk/real.csv"
    assert os.listdir(tmp_path / "disk") == ["real.csv"]


def test_a_disk_that_cannot_flush_folders_is_no_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.fsync
    numbers = [22, 95, 5]  # EINVAL, ENOTSUP as FUSE gives them; EIO

    def fsync(descriptor: int) -> None:
        if os.path.isdir(f"/proc/self/fd/{descriptor}"):
            raise OSError(numbers[0], os.strerror(numbers[0]))
        real(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    for content in ("one", "two"):
        write_text(str(tmp_path / "a"), content)
        assert (tmp_path / "a").read_text() == content
        numbers.pop(0)
    with pytest.raises(OSError, match="Input/output"):
        write_text(str(tmp_path / "a"), "three")


def test_a_file_is_on_the_disk_before_it_gets_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A power cut after the renaming would otherwise leave an empty file in place of the old."""
    path, done = tmp_path / "a", []

    def fsync(descriptor: int) -> None:
        name = os.path.basename(os.readlink(f"/proc/self/fd/{descriptor}"))
        done.append("folder" if name == tmp_path.name else f"{os.fstat(descriptor).st_size} bytes")

    def rename(source: str, target: str) -> None:
        done.append("rename")
        os.replace(source, target)

    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(storage, "rename", rename)
    write_text(str(path), "content")
    assert done == ["7 bytes", "rename", "folder"]


def test_links_to_folders_are_followed_but_not_in_circles(tmp_path: Path) -> None:
    for name in ("a/inner", "b", "elsewhere"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "elsewhere/file").touch()
    (tmp_path / "a/here").symlink_to(".")
    (tmp_path / "a/inner/up").symlink_to("../..")
    (tmp_path / "a/to_b").symlink_to("../b")
    (tmp_path / "b/to_a").symlink_to("../a")
    (tmp_path / "b/out").symlink_to(tmp_path / "elsewhere")
    walked = [os.path.relpath(folder, tmp_path) for folder, _, _ in storage.walk(f"{tmp_path}/a")]
    assert sorted(walked) == ["a", "a/inner", "a/to_b", "a/to_b/out"]


def test_a_folder_is_walked_under_each_of_its_names_but_not_in_2_to_the_40_ways(
    tmp_path: Path,
) -> None:
    """A walk copies folders: each of two links has the files. 40 folders link to the next twice."""
    (tmp_path / "images/inner").mkdir(parents=True)
    for name in ("set/train", "set/val"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).symlink_to(tmp_path / "images")
    walked = [os.path.relpath(folder, tmp_path) for folder, _, _ in storage.walk(f"{tmp_path}/set")]
    assert sorted(walked) == ["set", "set/train", "set/train/inner", "set/val", "set/val/inner"]
    for number in range(40):
        (tmp_path / f"d{number}").mkdir()
        for name in "ab":
            (tmp_path / f"d{number}/{name}").symlink_to(f"../d{number + 1}")
    (tmp_path / "d40").mkdir()
    with pytest.raises(OSError, match="links lead to this folder in more than 100 ways"):
        list(storage.walk(f"{tmp_path}/d0"))


def test_a_link_to_the_root_is_a_folder_around(tmp_path: Path) -> None:
    (tmp_path / "root").symlink_to("/")
    assert [folder for folder, _, _ in storage.walk(str(tmp_path))] == [str(tmp_path)]


@pytest.mark.parametrize(
    "call",
    [
        storage.exists,
        storage.is_file,
        storage.is_folder,
        storage.stat,
        storage.make_folder,
        storage.read_text,
        lambda path: write_text(path, "text"),
    ],
)
def test_a_scheme_that_is_not_known_is_an_error_that_commands_tell(call) -> None:
    with pytest.raises(OSError, match=r"'s4' not implemented .*this machine or begin with .*gs://"):
        call("s4://bucket/file")


@pytest.mark.parametrize("size", [0, 5])
def test_a_file_in_a_bucket_is_read_to_its_end_whatever_size_was_heard_of_before(
    size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, text = "ram://sizes/config.yaml", "a: \u00e9\n" * (1 << 18)  # 1.25 MiB
    write_text(path, text)
    monkeypatch.setattr(tf.io.gfile.GFile, "size", lambda self: size)
    assert read_text(path) == text
    with storage.open_file(path, "rb") as file:
        assert (file.read(3), file.read(0)) == (b"a: ", b"")
        assert file.read() == text.encode()[3:]
        assert (file.read(), file.read(5)) == (b"", b"")


def test_a_signal_while_the_temporary_file_is_created_leaves_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Python handles a signal right after the call that created the file, before it has a name."""
    open_file = os.open

    def interrupted(path: str, flags: int, *mode: int) -> int:
        descriptor = open_file(path, flags, *mode)
        if flags & os.O_CREAT:
            os.close(descriptor)
            raise KeyboardInterrupt
        return descriptor

    monkeypatch.setattr(os, "open", interrupted)
    with pytest.raises(KeyboardInterrupt), whole_file(f"{tmp_path}/out", "w"):
        pass
    assert list(tmp_path.iterdir()) == []
