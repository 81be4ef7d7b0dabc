"""Shards made on a Ray cluster that loses a node are, byte for byte, those of one process."""

import importlib.util
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from detection.preparation import make_tfrecords
from detection.preparation.annotations import PreparationError
from detection.preparation.worker_pool import run_jobs

SCRIPT = Path(__file__).parents[3] / "scripts/make_tfrecords.py"
NUM_SHARDS = 8
needs_ray = pytest.mark.skipif(
    importlib.util.find_spec("ray") is None, reason="ray is not installed: cluster test"
)
# Functions of the main program travel to the nodes by value, those of a test module do not.
RUN_SMALL_JOBS = """
import functools, os, pathlib, signal, sys, threading, time, types
from detection.preparation.annotations import PreparationError
from detection.preparation.worker_pool import run_jobs

def square(job, progress):
    progress(2)
    progress(1)
    time.sleep(1.5 if job == 0 else 0)
    return job * job

def refuse(job, progress):
    raise PreparationError(f"{job} is not wanted")

def last_long(job, progress):
    pathlib.Path(f"{job}.started").touch()
    try:
        for _ in range(600):
            time.sleep(0.1)
    finally:
        pathlib.Path(f"{job}.ended").touch()

def interrupt():
    while not list(pathlib.Path().glob("*.started")):
        time.sleep(0.01)
    os.kill(os.getpid(), signal.SIGINT)

only_here = sys.modules["only_here"] = types.ModuleType("only_here")
exec("def unknown(job, progress): pass", vars(only_here))
times, amounts = [], []

def progress(amount):
    times.append(time.monotonic())
    amounts.append(amount)

run = functools.partial(run_jobs, workers=1, cluster="auto")
squares = run(square, range(5), progress=progress)
print(next(squares))  # until it ends this process is connected, so the others join its cluster
pause = len(times)
for function in (refuse, only_here.unknown):
    try:
        list(run(function, [5], progress=id))
    except PreparationError as error:
        print(type(error).__name__, error)
threading.Thread(target=interrupt).start()
try:
    list(run(last_long, range(100), progress=id))
except KeyboardInterrupt:
    print("interrupted")
print(*squares)
gaps = [after - before for before, after in zip(times, times[1:])]
print(sum(amounts), max(gaps[: pause - 1] + gaps[pause:]) < 1)
"""


def environment(**more: str) -> dict[str, str]:
    """Of a process that knows of no cluster but the one in `more`."""
    others = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    return others | {"RAY_USAGE_STATS_ENABLED": "0"} | more


@pytest.fixture(scope="module")
def ray_folder() -> Iterator[str]:
    """A short path: the sockets below it may not exceed 107 characters."""
    with tempfile.TemporaryDirectory(prefix="ray", ignore_cleanup_errors=True) as folder:
        yield folder


@pytest.fixture
def cluster(ray_folder: str) -> Iterator[subprocess.Popen[str]]:
    program = Path(__file__).with_name("two_node_cluster.py")
    with (
        open(f"{ray_folder}/cluster.log", "w") as log,
        subprocess.Popen(
            [sys.executable, program],
            env=environment(RAY_TMPDIR=ray_folder),
            text=True,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
        ) as process,
    ):
        yield process
        assert process.stdin
        process.stdin.close()
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()  # takes its cluster with it


def answer_of(cluster: subprocess.Popen[str], command: str = "") -> str:
    assert cluster.stdin
    assert cluster.stdout
    cluster.stdin.write(command)
    cluster.stdin.flush()
    return cluster.stdout.readline().strip()


def wait_for(condition, process: subprocess.Popen, seconds: float = 60) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert process.poll() is None, "ended too early"
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.01)


def contents(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in directory.iterdir()}


@needs_ray
def test_a_node_is_lost_amid(cluster, ray_folder, write_coco, encoded_picture, tmp_path) -> None:
    # Large pictures that must be encoded anew: slow enough to lose the node amid a shard.
    picture = encoded_picture(width=1200, height=900, kind="WEBP")
    names = [f"{number:02d}.jpg" for number in range(8 * NUM_SHARDS)]
    boxes = {name: [(3, number, 0, 10, 10)] for number, name in enumerate(names)}
    sizes = dict.fromkeys(names, (1200, 900))
    path, images = write_coco(dict.fromkeys(names, picture), boxes, sizes)
    source = ["--format", "coco", "--annotations", path, "--images", images]
    source = [str(part) for part in (*source, "--split", "train", "--num_shards", NUM_SHARDS)]
    alone, output = tmp_path / "alone/part", tmp_path / "together/part"
    assert make_tfrecords.main([*source, "--output", str(alone), "--workers", "1"]) == 0

    command = [sys.executable, SCRIPT, *source, "--output", "together/part", "--cluster", "auto"]
    progress = output / "train_part.progress"

    def at_work() -> int:
        return len(list(output.glob("*.tfrecord.*")))

    def finished() -> int:
        return len(list(progress.glob("*.tfrecord.json")))

    # One node is removed when each of the two has finished something or is amid a shard.
    with subprocess.Popen(
        command,
        cwd=tmp_path,
        env=environment(RAY_ADDRESS=answer_of(cluster)),
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        wait_for(lambda: finished() >= 1 and at_work() == 2, process)
        assert answer_of(cluster, "\n") == "removed"
        before = finished()
        printed, errors = process.communicate(timeout=60)
    assert process.returncode == 0, errors
    assert before < NUM_SHARDS
    assert "The cluster lost a node, 2 left" in errors
    assert "raylet" not in printed + errors  # Ray's own words
    assert contents(output) == contents(alone)


@needs_ray
def test_results_progress_errors_and_an_interruption_on_a_cluster_of_its_own(
    ray_folder, tmp_path
) -> None:
    script = tmp_path / "run_small_jobs.py"
    script.write_text(RUN_SMALL_JOBS)
    done = subprocess.run(
        [sys.executable, script],
        cwd=tmp_path,
        env=environment(RAY_TMPDIR=ray_folder),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    first, error, unknown, interrupted, others, progress = done.stdout.splitlines()
    assert sorted(map(int, [first, *others.split()])) == [0, 1, 4, 9, 16]
    assert error == "PreparationError 5 is not wanted"
    assert "cannot run the jobs: ModuleNotFoundError: No module named 'only_here'" in unknown
    # What was at work has ended in order; what was queued never began.
    assert interrupted == "interrupted"
    started = {path.stem for path in tmp_path.glob("*.started")}
    assert started == {path.stem for path in tmp_path.glob("*.ended")}
    assert 1 <= len(started) <= (os.cpu_count() or 1)
    assert progress == "15 True"  # 2 + 1 a job, and never a second without a sign of life


@needs_ray
def test_clusters_that_cannot_be_joined(monkeypatch) -> None:
    def message_of(cluster: str) -> str:
        with pytest.raises(PreparationError) as caught:
            list(run_jobs(lambda job, _: job, [1], workers=1, progress=id, cluster=cluster))
        return str(caught.value)

    with socket.socket() as taken:  # bound, but nobody listens
        taken.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        assert f"The Ray cluster at {address} cannot be joined: " in message_of(address)
        assert "refused" in message_of(address)
        monkeypatch.setenv("RAY_ADDRESS", address)
        assert f"The Ray cluster at {address} cannot be joined: " in message_of("auto")
    for wrong in ("gpu-box", "ray://host:10001", "host:port", "host:123456"):
        assert "must be auto or HOST:PORT" in message_of(wrong)


def test_without_ray_the_extra_is_named(monkeypatch) -> None:
    monkeypatch.delitem(sys.modules, "detection.preparation.ray_pool", raising=False)
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(PreparationError, match=r"pip install 'tpudet\[cluster\]'"):
        list(run_jobs(lambda job, _: job, [1], workers=1, progress=id, cluster="auto"))
