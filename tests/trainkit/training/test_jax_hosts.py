"""Two processes on loopback train as two hosts: like one, stopped together, and never hanging."""

import json
import os
import re
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

SCRIPT = Path(__file__).with_name("host_runs.py")

pytestmark = pytest.mark.slow


class Ended(NamedTuple):
    """A process that has ended."""

    code: int
    output: str
    errors: str

    @property
    def result(self) -> dict[str, Any]:
        found = re.search("RESULT (.*) END", self.output)
        assert found, self.errors[-3000:]
        return json.loads(found[1])


def run_hosts(num_processes: int, killed: int = 1) -> list[Ended]:
    """Starts the processes, and returns their results once all have ended by themselves."""
    with socket.socket() as free:
        free.bind(("localhost", 0))
        address = f"localhost:{free.getsockname()[1]}"
    environment = os.environ | {
        "KERAS_BACKEND": "jax",
        "JAX_PLATFORMS": "cpu",
        "XLA_FLAGS": f"--xla_force_host_platform_device_count={2 // num_processes}",
    }
    started = [
        subprocess.Popen(
            [sys.executable, SCRIPT, address, str(num_processes), str(index), str(killed)],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for index in range(num_processes)
    ]
    try:
        outputs = [process.communicate(timeout=600) for process in started]
    finally:
        for process in started:
            process.kill()
    return [
        Ended(process.returncode, *output) for process, output in zip(started, outputs, strict=True)
    ]


@pytest.fixture(scope="module")
def one_host() -> Ended:
    """One process with two devices."""
    pytest.importorskip("jax")
    return run_hosts(1)[0]


@pytest.fixture(scope="module")
def two_hosts(one_host: Ended) -> list[Ended]:
    """Two processes with a device each; the second kills itself at the end."""
    return run_hosts(2)


def test_two_hosts_have_the_losses_of_one_with_as_many_devices(
    one_host: Ended, two_hosts: list[Ended]
) -> None:
    expected = [losses["loss"] for losses in one_host.result["losses"]]
    for host in two_hosts:
        found = [losses["loss"] for losses in host.result["losses"]]
        np.testing.assert_allclose(found, expected, rtol=1e-5)
    assert two_hosts[0].result["losses"] == two_hosts[1].result["losses"]
    assert [host.result["chief"] for host in two_hosts] == [True, False]


def test_both_hosts_hold_the_same_snapshot(one_host: Ended, two_hosts: list[Ended]) -> None:
    first, second = (host.result["snapshot"] for host in two_hosts)
    assert first == second
    assert first.keys() == one_host.result["snapshot"].keys()
    assert first["records_consumed"] == [48]


def test_every_image_is_predicted_once_by_one_of_the_hosts(
    one_host: Ended, two_hosts: list[Ended]
) -> None:
    expected = one_host.result["predicted"]
    assert len(expected) == 16
    for host in two_hosts:
        assert host.result["predicted"].keys() == expected.keys()
        for record, value in host.result["predicted"].items():
            assert value == pytest.approx(expected[record], rel=1e-4, abs=1e-5)


@pytest.mark.parametrize("name", ["accumulated", "sharded"])
@pytest.mark.parametrize("number", [1, 2])
def test_a_batch_in_parts_and_a_divided_state_train_alike(
    one_host: Ended, two_hosts: list[Ended], name: str, number: int
) -> None:
    """With losses divided by a sum over the whole batch, and L2, clipping and averages."""
    found = (one_host if number == 1 else two_hosts[1]).result["variants"]
    expected_losses, expected_state = found["whole"]
    losses, state = found[name]
    for ours, theirs in zip(losses, expected_losses, strict=True):
        assert ours == pytest.approx(theirs, rel=1e-5)
    assert state.keys() == expected_state.keys()
    for key, value in state.items():
        np.testing.assert_allclose(value, expected_state[key], rtol=1e-4, atol=1e-6)


def test_a_stop_of_one_host_stops_both_at_the_same_step(two_hosts: list[Ended]) -> None:
    first, second = (host.result["stopped"] for host in two_hosts)
    assert first["at"] == second["at"] > 6
    assert first["seen"]
    assert second["seen"]


def test_hosts_with_other_weights_do_not_begin(one_host: Ended, two_hosts: list[Ended]) -> None:
    """The second host's kernel is off by 0.001: both say so, and neither trains a mixture."""
    assert one_host.result["agreement"] == ["", ""]
    for host in two_hosts:
        same, other = host.result["agreement"]
        assert same == ""
        assert other.startswith("the hosts begin with different weights: the file that train.weig")


def check_killed(hosts: list[Ended], killed: int) -> None:
    survivor = hosts[1 - killed]
    assert hosts[killed].code == -9
    assert survivor.code == 75, survivor.errors[-2000:]
    assert re.search(r"Step \d+ cannot be finished: .*gone.*start it again", survivor.errors)


def test_a_host_whose_partner_is_killed_ends_by_itself_and_says_why(two_hosts: list[Ended]) -> None:
    check_killed(two_hosts, killed=1)


def test_a_host_also_ends_if_the_first_one_is_killed(one_host: Ended) -> None:
    check_killed(run_hosts(2, killed=0), killed=0)
