"""Jobs in worker processes: progress, failures, interruptions, and workers that always end."""

import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
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


@pytest.fixture
def expect_the_end(
    tmp_path: Path, is_running: Callable[[int], bool], wait_for: Callable[..., None]
) -> Callable[[], None]:
    """Within a minute, and without a file left, though each job takes five."""

    def expect() -> None:
        wait_for(lambda: not any(map(is_running, worker_ids(tmp_path))))
        left = [path.name for path in (tmp_path / "out").iterdir() if path.suffix != ".started"]
        assert left == []

    return expect


def test_every_amount_of_work_is_reported(tmp_path: Path) -> None:
    with started(tmp_path, *["counts"] * 5) as process:
        assert process.communicate(timeout=60)[0] == "5 jobs 100000 done\n"
    # One may have done all of them before the other had started.
    assert 1 <= len(set(worker_ids(tmp_path))) <= 2


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_worker_that_ends_unexpectedly_ends_the_others(
    tmp_path: Path, number: int, expect_the_end: Callable[[], None]
) -> None:
    with started(tmp_path, "slow", f"ends_by{number:d}", "slow") as process:
        assert "A worker process ended unexpectedly" in process.communicate(timeout=60)[0]
        expect_the_end()


def test_a_failed_job_ends_the_others_at_once(
    tmp_path: Path, expect_the_end: Callable[[], None]
) -> None:
    with started(tmp_path, *["slow", "fails", "slow", "slow"]) as process:
        assert "a broken shard" in process.communicate(timeout=60)[0]
        expect_the_end()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL, signal.SIGTERM])
def test_an_interrupted_run_ends_its_workers_at_once(
    tmp_path: Path, number: int, wait_for: Callable, expect_the_end: Callable[[], None]
) -> None:
    with started(tmp_path, *["slow"] * 6) as process:
        files = (tmp_path / "out").glob
        wait_for(lambda: sum(f.stat().st_size > 0 for f in files("*.temporary")) == 2, process)
        process.send_signal(number)
        output = process.communicate(timeout=60)[0]
        assert ("KeyboardInterrupt" in output) == (number == signal.SIGINT)
        expect_the_end()
    assert len(worker_ids(tmp_path)) == 2
