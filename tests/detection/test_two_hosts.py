"""Two processes on loopback train a detector as two hosts, through the command."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tpudet.trainkit.training.checkpoints import list_checkpoints

SETTINGS = {
    "data.canvas_size": "[64, 64]",
    "model.min_level": "3",
    "model.max_level": "3",
    "train.total_steps": "4",
    "train.batch_size": "4",
    "train.log_every_steps": "1",
    "train.checkpoint_every_steps": "2",
    "evaluation.schedule.every_steps": "4",
    "evaluation.schedule.batch_size": "3",  # the fourth image of the split leaves fillers
    "evaluation.schedule.num_images": "2",
}

pytestmark = pytest.mark.slow


def start(
    model_dir: Path, part: str, *, index: int, count: int, address: str, **settings: str
) -> subprocess.Popen:
    flags = [f"--set={key}={value}" for key, value in (SETTINGS | settings).items()]
    command = [sys.executable, "-m", "tpudet", "train", "--config", "quickstart"]
    command += ["--model_dir", str(model_dir), f"--set=data.directory={part}", *flags]
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


def start_two(model_dir: Path, part: str, **settings: str) -> list[subprocess.Popen]:
    with socket.socket() as free:
        free.bind(("localhost", 0))
        address = f"localhost:{free.getsockname()[1]}"
    return [
        start(model_dir, part, index=index, count=2, address=address, **settings)
        for index in (0, 1)
    ]


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
def one_host(sample_part: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The model_dir of one process with two devices."""
    model_dir = tmp_path_factory.mktemp("one") / "run"
    process = start(model_dir, sample_part, index=0, count=1, address="")
    assert process.wait() == 0, log_of(model_dir, 0)[-3000:]
    return model_dir


@pytest.mark.parametrize("lost", [0, 1])
def test_two_hosts_train_as_one_stop_together_and_never_hang(
    lost: int, one_host: Path, sample_part: str, tmp_path: Path
) -> None:
    model_dir = tmp_path / "run"
    hosts = start_two(model_dir, sample_part, **{"train.total_steps": "100000"})
    wait_for_step(model_dir, 5, hosts[0])
    for kind in ("train", "eval"):
        for theirs, ours in zip(ledger(one_host, kind), ledger(model_dir, kind), strict=False):
            assert ours["step"] == theirs["step"]
            for key in {"loss", "AP", "AP50"} & theirs.keys():
                assert ours[key] == pytest.approx(theirs[key], rel=1e-4, abs=1e-4)
    assert len(ledger(one_host, "eval")) == 1

    hosts[lost].send_signal(signal.SIGTERM)
    assert [host.wait(300) for host in hosts] == [75, 75], log_of(model_dir, 1 - lost)[-3000:]
    saved = list_checkpoints(str(model_dir))[-1].step
    for index in (0, 1):
        assert f"at step {saved}; all steps are saved" in log_of(model_dir, index)
        assert "traced and compiled" in log_of(model_dir, index)

    hosts = start_two(model_dir, sample_part, **{"train.total_steps": "100000"})
    wait_for_step(model_dir, saved + 2, hosts[0])
    for index in (0, 1):
        assert "from the compile cache" in log_of(model_dir, index)
    hosts[lost].kill()
    assert hosts[1 - lost].wait(300) == 75, log_of(model_dir, 1 - lost)[-3000:]
    sentences = log_of(model_dir, 1 - lost)
    assert "cannot be finished" in sentences
    assert "the run resumes from the newest checkpoint" in sentences
    assert list_checkpoints(str(model_dir))[-1].step >= saved
