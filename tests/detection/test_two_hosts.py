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


def test_two_hosts_train_as_one_with_as_many_devices_and_restart_without_compiling(
    sample_part: str, tmp_path: Path
) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    assert start(one, sample_part, index=0, count=1, address="").wait() == 0, log_of(one, 0)
    hosts = start_two(two, sample_part)
    assert [host.wait() for host in hosts] == [0, 0], log_of(two, 0) + log_of(two, 1)
    for kind in ("train", "eval"):
        expected, found = ledger(one, kind), ledger(two, kind)
        assert [line["step"] for line in found] == [line["step"] for line in expected]
        for ours, theirs in zip(found, expected, strict=True):
            for key in {"loss", "AP", "AP50"} & theirs.keys():
                assert ours[key] == pytest.approx(theirs[key], rel=1e-4, abs=1e-4)
    assert [found.step for found in list_checkpoints(str(two))] == [2, 4]
    assert "traced and compiled" in log_of(two, 0)

    hosts = start_two(two, sample_part, **{"train.total_steps": "6"})
    assert [host.wait() for host in hosts] == [0, 0], log_of(two, 0) + log_of(two, 1)
    assert [found.step for found in list_checkpoints(str(two))][-1] == 6
    for index in (0, 1):
        assert "from the compile cache" in log_of(two, index)


@pytest.mark.parametrize("index", [0, 1])
def test_sigterm_on_either_host_saves_one_step_on_both(
    index: int, sample_part: str, tmp_path: Path
) -> None:
    model_dir = tmp_path / "run"
    hosts = start_two(model_dir, sample_part, **{"train.total_steps": "10000"})
    wait_for_step(model_dir, 2, hosts[0])
    hosts[index].send_signal(signal.SIGTERM)
    assert [host.wait(120) for host in hosts] == [75, 75], log_of(model_dir, 1 - index)[-3000:]
    step = list_checkpoints(str(model_dir))[-1].step
    for host in (0, 1):
        assert f"at step {step}; all steps are saved" in log_of(model_dir, host)


@pytest.mark.parametrize("killed", [0, 1])
def test_one_host_killed_lets_the_other_end_and_both_start_again(
    killed: int, sample_part: str, tmp_path: Path
) -> None:
    model_dir = tmp_path / "run"
    hosts = start_two(model_dir, sample_part, **{"train.total_steps": "10000"})
    wait_for_step(model_dir, 3, hosts[0])
    hosts[killed].kill()
    assert hosts[1 - killed].wait(120) == 75, log_of(model_dir, 1 - killed)[-3000:]
    sentences = log_of(model_dir, 1 - killed)
    assert "cannot be finished" in sentences
    assert "the run goes on from the newest checkpoint" in sentences
    restored = list_checkpoints(str(model_dir))[-1].step
    again = start_two(model_dir, sample_part, **{"train.total_steps": str(restored + 2)})
    assert [host.wait() for host in again] == [0, 0], log_of(model_dir, 0) + log_of(model_dir, 1)
    assert list_checkpoints(str(model_dir))[-1].step == restored + 2
