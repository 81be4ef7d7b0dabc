"""tpudet train on two hosts, played by two processes: what they must share, and a missing one."""

import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

pytestmark = pytest.mark.slow

PROGRAM = """
import sys
from tpudet import cli
from tpudet.trainkit.training import jax_hosts
jax_hosts.JOIN_SECONDS = {seconds}
sys.exit(cli.main(sys.argv[1:]))
"""


class Ended(NamedTuple):
    """A host that has ended."""

    code: int
    errors: str


def run_hosts(
    folder: Path, part: str, *changes: tuple[str, ...], absent: int = 0, seconds: int = 120
) -> list[Ended]:
    """Runs a host for each tuple of arguments that only it gets; `absent` others never come."""
    with socket.socket() as free:
        free.bind(("localhost", 0))
        address = f"localhost:{free.getsockname()[1]}"
    command = ["train", "quickstart", "--backend", "jax", "--dry_run"]
    command += ["--model_dir", str(folder / "run"), "--set", f"data.directory={part}"]
    command += ["--set", "data.canvas_size=[64, 64]", "--set", "train.batch_size=4"]
    command += ["--coordinator_address", address, "--num_processes", str(len(changes) + absent)]
    started = [
        subprocess.Popen(
            [sys.executable, "-c", PROGRAM.format(seconds=seconds)]
            + [*command, "--process_id", str(index), *own],
            env=os.environ | {"JAX_PLATFORMS": "cpu"},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for index, own in enumerate(changes)
    ]
    try:
        errors = [process.communicate(timeout=300)[1] for process in started]
    finally:
        for process in started:
            process.kill()
    return [Ended(process.returncode, text) for process, text in zip(started, errors, strict=True)]


@pytest.mark.parametrize(
    ("change", "difference"),
    [
        (("--set", "train.seed=7"), "train.seed is 0 on process 0 and 7 on process 1"),
        (
            ("--mode", "train"),
            "--mode is train_and_eval on process 0 and train on process 1",
        ),
    ],
)
def test_hosts_with_different_settings_all_name_the_first_one_that_differs(
    change: tuple[str, ...], difference: str, sample_part: str, tmp_path: Path
) -> None:
    hosts = run_hosts(tmp_path, sample_part, (), change)
    assert [host.code for host in hosts] == [2, 2], hosts
    for host in hosts:
        assert f"tpudet train: the hosts would not train the same: {difference}" in host.errors


def test_hosts_with_the_same_settings_pass(sample_part: str, tmp_path: Path) -> None:
    hosts = run_hosts(tmp_path, sample_part, (), ())
    assert [host.code for host in hosts] == [0, 0], hosts


@pytest.mark.parametrize("index", [0, 1])
def test_a_host_says_that_another_one_did_not_come(
    index: int, sample_part: str, tmp_path: Path
) -> None:
    own = ("--process_id", str(index))
    (host,) = run_hosts(tmp_path, sample_part, own, absent=1, seconds=3)
    assert host.code == 75
    assert "the hosts did not come together within 3 s. Each must run" in host.errors
