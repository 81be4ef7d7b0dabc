"""Two processes on loopback train a detector, or a classifier, as two hosts, by the command."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tpudet.trainkit.training.checkpoints import list_checkpoints

SHARED = {
    "train.total_steps": "4",
    "train.batch_size": "4",
    "train.log_every_steps": "1",
    "train.checkpoint_every_steps": "2",
    "evaluation.schedule.every_steps": "4",
    "evaluation.schedule.batch_size": "3",  # the fourth image of the split leaves fillers
}


class Task(NamedTuple):
    """A task to train, and its records."""

    part: str
    config: str
    settings: dict[str, str]

    def with_settings(self, **settings: str) -> "Task":
        return self._replace(settings=self.settings | settings)


pytestmark = pytest.mark.slow


def start(model_dir: Path, task: Task, *, index: int, count: int, address: str) -> subprocess.Popen:
    flags = [f"--set={key}={value}" for key, value in task.settings.items()]
    command = [sys.executable, "-m", "tpudet", "train", "--config", task.config]
    command += ["--model_dir", str(model_dir), f"--set=data.directory={task.part}", *flags]
    command += ["--backend", "jax"]
    if count > 1:
        command += ["--coordinator_address", address]
        command += ["--num_processes", str(count), "--process_id", str(index)]
    environment = os.environ | {
        "JAX_PLATFORMS": "cpu",
        "XLA_FLAGS": f"--xla_force_host_platform_device_count={2 // count}",
    }
    with open(model_dir.with_suffix(f".{index}.log"), "w") as log:
        return subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, env=environment)


@pytest.fixture
def start_two() -> Iterator[Callable[[Path, Task], list[subprocess.Popen]]]:
    """Starts two hosts; those that a failed test leaves behind are ended."""
    started: list[subprocess.Popen] = []

    def start_both(model_dir: Path, task: Task) -> list[subprocess.Popen]:
        with socket.socket() as free:
            free.bind(("localhost", 0))
            address = f"localhost:{free.getsockname()[1]}"
        hosts = [start(model_dir, task, index=index, count=2, address=address) for index in (0, 1)]
        started.extend(hosts)
        return hosts

    yield start_both
    for process in started:
        process.kill()
        process.wait()


def log_of(model_dir: Path, index: int) -> str:
    return model_dir.with_suffix(f".{index}.log").read_text()


def ledger(model_dir: Path, kind: str) -> list[dict[str, Any]]:
    path = model_dir / "metrics.jsonl"
    lines = path.read_text().splitlines(keepends=True) if path.exists() else []
    found = [json.loads(line) for line in lines if line.endswith("\n")]
    return [line for line in found if line["kind"] == kind]


def wait_for_step(model_dir: Path, step: int, process: subprocess.Popen) -> None:
    while not any(line["step"] >= step for line in ledger(model_dir, "train")):
        assert process.poll() is None, log_of(model_dir, 0)[-3000:]
        time.sleep(0.05)


@pytest.fixture(scope="module")
def detector(sample_part: str) -> Task:
    own = {
        "data.canvas_size": "[64, 64]",
        "model.min_level": "3",
        "model.max_level": "3",
        "evaluation.schedule.num_images": "2",
    }
    return Task(sample_part, "quickstart", SHARED | own)


@pytest.fixture(scope="module")
def classifier(class_part: str) -> Task:
    own = {
        "data.image_size": "[32, 32]",
        "data.augmentations": "[{kind: affine}]",  # mixed images find partners in their process
        "train.learning_rate.warmup_steps": "0",
    }
    return Task(class_part, "resnet18_224", SHARED | own)


@pytest.fixture(scope="module")
def one_host(task: Task, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The model_dir of one process with two devices."""
    model_dir = tmp_path_factory.mktemp("one") / "run"
    process = start(model_dir, task, index=0, count=1, address="")
    assert process.wait() == 0, log_of(model_dir, 0)[-3000:]
    return model_dir


@pytest.fixture(scope="module")
def task(request: pytest.FixtureRequest) -> Task:
    """The task that a test names."""
    return request.getfixturevalue(request.param)


@pytest.mark.parametrize(
    ("task", "lost"), [("detector", 0), ("detector", 1), ("classifier", 1)], indirect=["task"]
)
def test_two_hosts_train_as_one_stop_together_and_never_hang(
    task: Task,
    lost: int,
    one_host: Path,
    start_two: Callable[[Path, Task], list[subprocess.Popen]],
    tmp_path: Path,
) -> None:
    model_dir = tmp_path / "run"
    endless = task.with_settings(**{"train.total_steps": "100000"})
    hosts = start_two(model_dir, endless)
    wait_for_step(model_dir, 5, hosts[0])
    for kind in ("train", "eval"):
        for theirs, ours in zip(ledger(one_host, kind), ledger(model_dir, kind), strict=False):
            assert ours["step"] == theirs["step"]
            for key in {"loss", "AP", "AP50", "top1", "negative_loss"} & theirs.keys():
                assert ours[key] == pytest.approx(theirs[key], rel=1e-4, abs=1e-4)
    assert len(ledger(one_host, "eval")) == 1

    hosts[lost].send_signal(signal.SIGTERM)
    assert [host.wait(300) for host in hosts] == [75, 75], log_of(model_dir, 1 - lost)[-3000:]
    saved = list_checkpoints(str(model_dir))[-1].step
    for index in (0, 1):
        assert f"at step {saved}; all steps are saved" in log_of(model_dir, index)
        assert "traced and compiled" in log_of(model_dir, index)

    hosts = start_two(model_dir, endless)
    wait_for_step(model_dir, saved + 2, hosts[0])
    for index in (0, 1):
        assert "from the compile cache" in log_of(model_dir, index)
    hosts[lost].kill()
    assert hosts[1 - lost].wait(300) == 75, log_of(model_dir, 1 - lost)[-3000:]
    sentences = log_of(model_dir, 1 - lost)
    assert "cannot be finished" in sentences
    assert "the run resumes from the newest checkpoint" in sentences
    assert list_checkpoints(str(model_dir))[-1].step >= saved
