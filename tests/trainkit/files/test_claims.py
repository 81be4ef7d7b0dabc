"""One owner for every output, also of processes that are paused, killed or elsewhere."""

import errno
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tpudet.trainkit.errors import UserError
from tpudet.trainkit.files import claims, storage
from tpudet.trainkit.files.claims import Claim, ClaimError, claim_beside, remove_dead_claim
from tpudet.trainkit.files.exclusive import create_temporary
from tpudet.trainkit.training import jax_hosts

# Claims and writes `written` again and again, as long as the claim is its own.
OWNER = """
import sys, time
from pathlib import Path
from tpudet.trainkit.files.claims import Claim

with Claim(sys.argv[1], output="the set") as claim:
    print("claimed", flush=True)
    for line in sys.stdin:
        claim.verify()
        print("written", flush=True)
"""


class Owner:
    """A real process that holds a claim."""

    def __init__(self, path: Path, *prefix: str) -> None:
        self.process = subprocess.Popen(
            [*prefix, sys.executable, "-c", OWNER, str(path)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert self.process.stdout
        assert self.process.stdout.readline() == "claimed\n"

    def write(self) -> str:
        """Lets the process write once more; what it says."""
        assert self.process.stdin
        assert self.process.stdout
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        return self.process.stdout.readline()

    def errors(self) -> str:
        return self.process.communicate(timeout=120)[1]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "set.claim.json"


@pytest.fixture
def owner(path: Path) -> Iterator[Owner]:
    started = Owner(path)
    yield started
    started.process.kill()
    started.process.communicate()


def refused(path: Path | str) -> str:
    with pytest.raises(ClaimError) as caught, Claim(str(path), output="the set"):
        pass
    return str(caught.value)


def accepted(path: Path | str) -> None:
    with Claim(str(path), output="the set") as claim:
        claim.verify()
    assert not storage.exists(str(path))


def test_a_second_process_is_told_who_writes(owner: Owner, path: Path) -> None:
    message = refused(path)
    assert f"the set is being written by process {owner.process.pid} on " in message
    assert f"since {time.strftime('%Y-')}" in message
    assert f"remove {path}" in message
    assert not remove_dead_claim(str(path))
    assert owner.write() == "written\n"
    owner.process.communicate("")  # it ends
    accepted(path)


def test_the_same_process_is_refused_too(path: Path) -> None:
    with Claim(str(path), output="the set") as claim:
        assert f"process {os.getpid()} on" in refused(path)
        claim.verify()


def test_a_killed_owner_is_replaced_at_once(owner: Owner, path: Path) -> None:
    owner.process.send_signal(signal.SIGKILL)
    owner.process.wait()
    assert path.exists()
    accepted(path)


def test_a_claim_left_beside_a_complete_output_is_removed(owner: Owner, path: Path) -> None:
    owner.process.send_signal(signal.SIGKILL)
    owner.process.wait()
    assert remove_dead_claim(str(path))
    assert not path.exists()
    assert remove_dead_claim(str(path))


def test_a_paused_owner_keeps_its_claim_however_old(owner: Owner, path: Path) -> None:
    owner.process.send_signal(signal.SIGSTOP)
    fields = json.loads(path.read_text())
    path.write_text(json.dumps(fields | {"alive": time.time() - 10_000}))
    assert f"process {owner.process.pid} on" in refused(path)
    owner.process.send_signal(signal.SIGCONT)
    assert owner.write() == "written\n"


def test_a_paused_owner_that_lost_its_claim_stops_at_its_next_write(
    owner: Owner, path: Path
) -> None:
    owner.process.send_signal(signal.SIGSTOP)
    fields = json.loads(path.read_text())
    other = {"host": "elsewhere", "boot": "other", "process": 7, "token": "other"}
    path.write_text(json.dumps(fields | other))  # a machine that does not see the lock
    owner.process.send_signal(signal.SIGCONT)
    assert owner.write() == ""
    assert "the set was taken over by process 7 on elsewhere since " in owner.errors()
    assert json.loads(path.read_text())["token"] == "other"  # neither rewritten nor removed


def test_an_owner_whose_claim_was_removed_stops(owner: Owner, path: Path) -> None:
    path.unlink()
    with Claim(str(path), output="the set") as claim:  # as the message advises
        assert owner.write() == ""
        assert "taken over by process" in owner.errors()
        claim.verify()


def forge(path: Path, **fields: object) -> None:
    with Claim(str(path), output="the set"):
        own = json.loads(path.read_text())
    path.write_text(json.dumps(own | fields))


def test_two_requests_that_stall_one_after_the_other_make_no_process_a_dead_one() -> None:
    """TensorFlow's reader of checkpoints holds Python's lock for a minute each."""
    assert claims.REFRESH_SECONDS + 2 * 60 < claims.STALE_SECONDS
    assert jax_hosts.BEAT_SECONDS + 2 * 60 < jax_hosts.SILENT_SECONDS


@pytest.mark.parametrize("age", [0, 1000])
def test_a_process_elsewhere_with_this_process_s_id(path: Path, age: int) -> None:
    """Two containers' pid 7 on one disk: what counts is its last sign of life."""
    forge(path, boot="other", namespace="pid:[1]", alive=time.time() - age)
    if age < claims.STALE_SECONDS:
        assert f"process {os.getpid()} on" in refused(path)
    else:
        accepted(path)


@pytest.mark.parametrize("lives", [False, True])
def test_an_owner_whose_clock_is_a_month_ahead_lives_if_it_gives_signs(
    lives: bool, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(claims, "STALE_SECONDS", 1.0)
    monkeypatch.setattr(claims, "REFRESH_SECONDS", 0.2)
    ahead = time.time() + 30 * 86_400
    forge(path, boot="other", namespace="pid:[1]", alive=ahead)
    fields = json.loads(path.read_text())
    sign = threading.Timer(0.3, path.write_text, (json.dumps(fields | {"alive": ahead + 1}),))
    if not lives:
        accepted(path)
        return
    sign.start()
    assert f"process {os.getpid()} on" in refused(path)
    sign.join()


@pytest.mark.parametrize("place", ["ram://claims/set.claim.json", "unlocked"])
def test_without_locks_the_process_itself_is_looked_up(
    place: str, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if place == "unlocked":
        monkeypatch.setattr(claims, "lock_file", lambda descriptor: None)
        place = str(path)
    with Claim(place, output="the set") as claim:
        assert "process" in refused(place)
        text = storage.read_text(place) or ""
        claim.verify()
    assert not storage.exists(place)
    fields = json.loads(text)
    storage.write_text(place, json.dumps(fields | {"started": "1"}))  # its id was given again
    accepted(place)
    storage.write_text(place, json.dumps(fields | {"namespace": "pid:[1]"}))  # another container
    assert "process" in refused(place)
    storage.write_text(place, json.dumps(fields | {"namespace": "pid:[1]", "alive": 0.0}))
    accepted(place)


def test_two_that_enter_a_bucket_at_once_are_told_before_they_publish() -> None:
    place = "ram://claims/two.claim.json"
    with Claim(place, output="the set") as first:
        fields = json.loads(storage.read_text(place) or "")
        storage.write_text(place, json.dumps(fields | {"token": "second", "host": "b"}))
        with pytest.raises(ClaimError, match=r"taken over by process \d+ on b since"):
            first.verify()
        storage.write_text(place, json.dumps(fields))
        with pytest.raises(ClaimError):  # lost once is lost
            first.verify()


def test_of_two_that_write_at_once_to_a_bucket_only_the_last_enters(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    place, real = "ram://claims/at_once.claim.json", storage.write_text

    def write_before_another(path: str, text: str) -> None:
        real(path, text)
        real(path, json.dumps(json.loads(text) | {"token": "second", "host": "b"}))

    monkeypatch.setattr(storage, "write_text", write_before_another)
    assert "was taken over by process" in refused(place)
    assert json.loads(storage.read_text(place) or "")["token"] == "second"


def test_signs_of_life_go_on_and_do_not_take_a_claim_back(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(claims, "REFRESH_SECONDS", 0.05)
    with Claim(str(path), output="the set"):
        first = json.loads(path.read_text())
        deadline = time.monotonic() + 60
        while json.loads(path.read_text())["alive"] == first["alive"]:
            assert time.monotonic() < deadline
            time.sleep(0.02)
        path.write_text(json.dumps(first | {"token": "other"}))
        time.sleep(0.3)
        assert json.loads(path.read_text())["token"] == "other"


@pytest.mark.parametrize("content", ["", '{"host": "a", "proc', " \n", "\0\0", '{"host": "a"}'])
def test_a_torn_claim_is_replaced(path: Path, content: str) -> None:
    path.write_text(content)
    accepted(path)


@pytest.fixture
def lab() -> Iterator[Path]:
    """A folder that every user may write to, below none that others may not enter."""
    folder = Path(tempfile.mkdtemp())
    folder.chmod(0o777)
    yield folder
    shutil.rmtree(folder)


@contextmanager
def another_user() -> Iterator[None]:
    """Acts as nobody where this is root; otherwise files of mode 0444 stand for another user's."""
    is_root = os.geteuid() == 0
    if is_root:
        os.seteuid(65534)
    try:
        yield
    finally:
        if is_root:
            os.seteuid(0)


def test_another_user_is_told_who_writes_and_replaces_only_the_dead(lab: Path) -> None:
    path = lab / "m.csv.claim.json"
    with Claim(str(path), output="the set"):
        path.chmod(0o444)
        with another_user():
            message = refused(path)
        assert f"is being written by process {os.getpid()} on" in message
        assert f"remove {path}" in message
        left = path.read_text()
    path.write_text(left)  # of a process that was killed: nobody holds its lock
    path.chmod(0o444)
    with another_user():
        accepted(path)
    path.touch(0o444)  # torn
    with another_user():
        accepted(path)


@pytest.mark.skipif(os.geteuid() != 0, reason="needs the files of two users")
def test_a_dead_claim_that_only_its_user_may_remove_is_told_with_that_user(lab: Path) -> None:
    """In a sticky folder, such as /tmp."""
    path = lab / "m.csv.claim.json"
    forge(path)
    with another_user():
        accepted(path)
    lab.chmod(0o1777)
    forge(path)
    with another_user():
        message = refused(path)
    assert f"the set is still claimed by process {os.getpid()} on" in message
    assert f"only the user root may remove {path}." in message
    path.chmod(0o600)
    with another_user():
        message = refused(path)
    assert message.startswith("the set is claimed by the user root; you have no permission ")


@pytest.mark.skipif(os.geteuid() != 0, reason="needs the files of two users")
def test_another_user_s_temporary_file_is_stepped_over(lab: Path) -> None:
    """It was left in a sticky folder by a process that was killed."""
    lab.chmod(0o1777)
    temporary, descriptor = create_temporary(str(lab / "m.csv"))
    os.close(descriptor)
    with another_user():
        storage.write_text(str(lab / "m.csv"), "whole")
    assert (lab / "m.csv").read_text() == "whole"
    assert Path(temporary).exists()


@pytest.mark.parametrize("before", [None, "", '{"host": "a", "proc'])
def test_a_claim_that_could_not_be_written_leaves_nothing(
    path: Path, monkeypatch: pytest.MonkeyPatch, before: str | None
) -> None:
    def fail(*arguments: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    if before is not None:
        path.write_text(before)
    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", fail)
        with pytest.raises(UserError, match="^the set cannot be written: No space left on device"):
            Claim(str(path), output="the set").__enter__()
    assert not path.exists()
    accepted(path)


def test_a_folder_that_cannot_be_made_is_told_in_words(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match="^the set cannot be written: "):
        Claim(f"{tmp_path}/file/set.claim.json", output="the set").__enter__()


def test_one_output_has_one_claim_whatever_it_is_called(tmp_path: Path) -> None:
    (tmp_path / "real.csv").touch()
    (tmp_path / "link.csv").symlink_to("real.csv")
    (tmp_path / "folder").symlink_to(tmp_path, target_is_directory=True)
    names = ("real.csv", "link.csv", "real.csv/", "folder/link.csv")
    assert {claim_beside(f"{tmp_path}/{name}") for name in names} == {
        f"{os.path.realpath(tmp_path)}/real.csv.claim.json"
    }
    assert claim_beside("ram://a/ev/") == claim_beside("ram://a/ev") == "ram://a/ev.claim.json"


@pytest.mark.parametrize("kind", ["file", "large file", "link", "dangling link", "folder", "fifo"])
def test_what_is_no_claim_is_not_overwritten(path: Path, tmp_path: Path, kind: str) -> None:
    precious = tmp_path / "precious"
    precious.write_text('{"images": []}')
    match kind:
        case "file":
            path.write_text("my own notes")
        case "large file":
            path.write_text("[" + "1, " * 10_000 + "1]")
        case "link":
            path.symlink_to(precious)
        case "dangling link":
            path.symlink_to(tmp_path / "nothing")
        case "folder":
            path.mkdir()
        case "fifo":
            os.mkfifo(path)
    before = os.lstat(path)
    assert f"{path} is not a claim file of tpudet" in refused(path)
    assert os.lstat(path).st_ino == before.st_ino
    assert os.lstat(path).st_size == before.st_size
    assert precious.read_text() == '{"images": []}'
    assert not (tmp_path / "nothing").exists()


def test_many_at_once_have_one_owner(path: Path) -> None:
    """The owner holds on until the three others have ended."""
    started = [
        subprocess.Popen(
            [sys.executable, "-c", OWNER, str(path)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
        for _ in range(4)
    ]
    deadline = time.monotonic() + 240
    while sum(process.poll() is None for process in started) > 1:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    outputs = [process.communicate(timeout=240)[0] for process in started]
    assert sum(b"claimed" in output for output in outputs) == 1
    assert not path.exists()


def test_in_another_namespace_of_process_ids(path: Path) -> None:
    """The other container's process has an id that means nothing here."""
    command = ("unshare", "--user", "--map-root-user", "--pid", "--fork", "--mount-proc")
    if not shutil.which("unshare") or subprocess.run([*command, "true"], check=False).returncode:
        pytest.skip("unshare --pid is not allowed here")
    owner = Owner(path, *command, "--kill-child")
    try:
        assert json.loads(path.read_text())["process"] < 10
        assert "is being written by process" in refused(path)
    finally:
        owner.process.kill()
        owner.process.communicate()
    deadline = time.monotonic() + 60
    while not remove_dead_claim(str(path)):  # its child ends with it, a moment later
        assert time.monotonic() < deadline
        time.sleep(0.05)
