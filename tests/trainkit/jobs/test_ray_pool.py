"""Jobs on a Ray cluster: results, progress, errors, an interruption, and what a job takes."""

import os
import socket
import subprocess
import sys

import pytest

from tpudet.trainkit.errors import UserError
from tpudet.trainkit.jobs.worker_pool import run_jobs

# Functions of the main program travel to the nodes by value, those of a test module do not.
RUN_SMALL_JOBS = """
import functools, os, pathlib, signal, sys, threading, time, types
from tpudet.trainkit.errors import UserError
from tpudet.trainkit.jobs.worker_pool import run_jobs

def square(job, progress):
    progress(2)
    progress(1)
    time.sleep(1.5 if job == 0 else 0)
    return job * job

def refuse(job, progress):
    raise UserError(f"{job} is not wanted")

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
amounts = []
run = functools.partial(run_jobs, workers=1, cluster="auto")
squares = run(square, range(5), progress=amounts.append)
print(next(squares))  # until it ends this process is connected, so the others join its cluster
for function in (refuse, only_here.unknown):
    try:
        list(run(function, [5], progress=id))
    except UserError as error:
        print(type(error).__name__, error)
threading.Thread(target=interrupt).start()
try:
    list(run(last_long, range(100), progress=id))
except KeyboardInterrupt:
    print("interrupted")
print(*squares)
print(sum(amounts), 0 in amounts)
"""


def test_results_progress_errors_and_an_interruption_on_a_cluster_of_its_own(
    ray_folder, no_cluster, tmp_path
) -> None:
    script = tmp_path / "run_small_jobs.py"
    script.write_text(RUN_SMALL_JOBS)
    done = subprocess.run(
        [sys.executable, script],
        cwd=tmp_path,
        env=no_cluster | {"RAY_TMPDIR": ray_folder},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    first, error, unknown, interrupted, others, progress = done.stdout.splitlines()
    assert sorted(map(int, [first, *others.split()])) == [0, 1, 4, 9, 16]
    assert error == "UserError 5 is not wanted"
    assert "cannot run the jobs: ModuleNotFoundError: No module named 'only_here'" in unknown
    # What was at work has ended in order; what was queued never began.
    assert interrupted == "interrupted"
    started = {path.stem for path in tmp_path.glob("*.started")}
    assert started == {path.stem for path in tmp_path.glob("*.ended")}
    assert 1 <= len(started) <= (os.cpu_count() or 1)
    assert progress == "15 True"  # 2 + 1 a job, and signs of life while one took 1.5 seconds


def test_clusters_that_cannot_be_joined(ray_folder, monkeypatch) -> None:
    def message_of(cluster: str) -> str:
        with pytest.raises(UserError) as caught:
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
    monkeypatch.delitem(sys.modules, "tpudet.trainkit.jobs.ray_pool", raising=False)
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(UserError, match=r"pip install 'tpudet\[cluster\]'"):
        list(run_jobs(lambda job, _: job, [1], workers=1, progress=id, cluster="auto"))


def test_a_job_occupies_a_gpu_or_without_gpus_a_node(ray_folder) -> None:
    from tpudet.trainkit.jobs.ray_pool import plan_slots

    gpu_box, cpu_box, head = {"CPU": 16.0, "GPU": 4.0}, {"CPU": 8.0}, {"CPU": 0.0}
    assert plan_slots([head, gpu_box, gpu_box], "gpu") == ({"num_cpus": 1, "num_gpus": 1}, 8)
    assert plan_slots([head, cpu_box, cpu_box], "gpu") == ({"num_cpus": 8}, 2)
    assert plan_slots([cpu_box, {"CPU": 16.0}], "gpu") == ({"num_cpus": 8}, 3)
    assert plan_slots([head, cpu_box, gpu_box], "cpu") == ({"num_cpus": 1}, 24)
    assert plan_slots([head], "gpu") == ({"num_cpus": 1}, 0)  # it grows on demand
