"""Jobs in worker processes: progress, failures, interruptions, and workers that always end."""

import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

PROGRAM = """
import os, sys, time
from pathlib import Path
from tpudet.trainkit.files.storage import whole_file
from tpudet.trainkit.jobs.worker_pool import run_jobs

def work(job, progress):
    kind, folder = job
    Path(folder, f"{kind}.{os.getpid()}.started").touch()
    for _ in range(20_000):  # a pipe that nobody reads holds some 7,300
        progress(1)
    if kind == "counts":
        return
    if kind == "fails":
        raise ValueError("a broken shard")
    if kind.startswith("ends_by"):
        os.kill(os.getpid(), int(kind[7:]))
    with whole_file(f"{folder}/{kind}.out", "w") as file:
        file.write("begun")
        file.flush()
        time.sleep(300)

def jobs():
    for kind in sys.argv[2:]:
        yield kind, sys.argv[1]

if __name__ == "__main__":
    amounts = []
    try:
        results = list(run_jobs(work, jobs(), workers=2, progress=amounts.append))
        print(len(results), "jobs", sum(amounts), "done")
    except (ValueError, KeyboardInterrupt) as error:
        print(repr(error))
"""


@contextmanager
def started(tmp_path: Path, *kinds: str) -> Iterator[subprocess.Popen]:
    (tmp_path / "program.py").write_text(PROGRAM)
    (tmp_path / "out").mkdir()
    with subprocess.Popen(
        [sys.executable, tmp_path / "program.py", tmp_path / "out", *kinds],
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def worker_ids(tmp_path: Path) -> list[int]:
    return [int(path.name.split(".")[1]) for path in (tmp_path / "out").glob("*.started")]


def is_running(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


def expect_the_end(tmp_path: Path, begin: float) -> None:
    """Within seconds, and without a file left, though each job takes five minutes."""
    while any(map(is_running, worker_ids(tmp_path))):
        assert time.monotonic() - begin < 60
        time.sleep(0.02)
    left = [path.name for path in (tmp_path / "out").iterdir() if path.suffix != ".started"]
    assert left == []


def test_every_amount_of_work_is_reported(tmp_path: Path) -> None:
    with started(tmp_path, *["counts"] * 5) as process:
        assert process.communicate(timeout=60)[0] == "5 jobs 100000 done\n"
    # One may have done all of them before the other had started.
    assert 1 <= len(set(worker_ids(tmp_path))) <= 2


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_worker_that_ends_unexpectedly_ends_the_others(tmp_path: Path, number: int) -> None:
    with started(tmp_path, "slow", f"ends_by{number:d}", "slow") as process:
        assert "A worker process ended unexpectedly" in process.communicate(timeout=60)[0]
        expect_the_end(tmp_path, time.monotonic())


def test_a_failed_job_ends_the_others_at_once(tmp_path: Path) -> None:
    with started(tmp_path, *["slow", "fails", "slow", "slow"]) as process:
        assert "a broken shard" in process.communicate(timeout=60)[0]
        expect_the_end(tmp_path, time.monotonic())


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL, signal.SIGTERM])
def test_an_interrupted_run_ends_its_workers_at_once(tmp_path: Path, number: int, wait_for) -> None:
    with started(tmp_path, *["slow"] * 6) as process:
        files = (tmp_path / "out").glob
        wait_for(lambda: sum(f.stat().st_size > 0 for f in files("*.temporary")) == 2, process)
        begin = time.monotonic()
        process.send_signal(number)
        output = process.communicate(timeout=60)[0]
        assert ("KeyboardInterrupt" in output) == (number == signal.SIGINT)
        expect_the_end(tmp_path, begin)
    assert len(worker_ids(tmp_path)) == 2
