"""The devices of JAX when a TPU fails, or cannot be started."""

from collections import deque
from typing import Any, Never

import numpy as np
import pytest

from tpudet.trainkit.errors import UserError
from tpudet.trainkit.training.jax_hosts import LostHostError

jax = pytest.importorskip("jax")

from tpudet.trainkit.training import jax_devices  # noqa: E402
from tpudet.trainkit.training.jax_engine import JaxEngine, _Pending  # noqa: E402

HALTED = "UNAVAILABLE: TPU device is halted\nmore"


class Fails:
    """The values of a step, or a field of a batch, whose transfer fails."""

    def __init__(self, message: str) -> None:
        self.message = message

    def __array__(self, *arguments: Any, **settings: Any) -> Never:
        raise jax.errors.JaxRuntimeError(self.message)


def devices_of(platform: str, num_processes: int = 1) -> jax_devices.JaxDevices:
    """CPUs that pass for others."""
    fields = {"platform": platform, "num_processes": num_processes}
    return type("Others", (jax_devices.JaxDevices,), fields)(jax.devices("cpu"))


def finish_step(devices: jax_devices.JaxDevices, message: str) -> None:
    engine = JaxEngine.__new__(JaxEngine)
    engine._devices = devices
    values: Any = Fails(message)
    engine._finish(deque([_Pending(7, values, [])]), [])


@pytest.mark.parametrize("code", ["UNAVAILABLE", "ABORTED", "INTERNAL"])
def test_a_tpu_that_fails_can_be_started_again(code: str) -> None:
    with pytest.raises(LostHostError) as error:
        finish_step(devices_of("tpu"), f"{code}: TPU device is halted\nmore")
    sentence = f"Step 7 cannot be finished: the TPU has failed ({code}: TPU device is halted). This"
    assert str(error.value).startswith(sentence)
    assert "exit code 75; start it again" in str(error.value)


@pytest.mark.parametrize(
    ("platform", "message"),
    [
        ("tpu", "RESOURCE_EXHAUSTED: 16G of memory"),
        ("tpu", "INVALID_ARGUMENT: shapes"),
        ("tpu", "UNIMPLEMENTED: an operation"),
        ("cpu", HALTED),
        ("gpu", HALTED),
    ],
)
def test_what_a_start_does_not_cure_stays_an_error(platform: str, message: str) -> None:
    with pytest.raises(jax.errors.JaxRuntimeError, match=message.partition("\n")[0]):
        finish_step(devices_of(platform), message)


def test_with_several_hosts_another_one_is_the_cause() -> None:
    with pytest.raises(LostHostError, match=r"another host is gone \(UNAVAILABLE"):
        finish_step(devices_of("tpu", num_processes=2), HALTED)


def test_a_fault_of_the_program_is_none_of_the_tpu() -> None:
    with pytest.raises(RuntimeError, match="a fault"), devices_of("tpu").waiting("Step 7"):
        raise RuntimeError("a fault")


def test_a_batch_that_does_not_reach_the_tpu(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*arguments: Any) -> Never:
        raise jax.errors.JaxRuntimeError(HALTED)

    monkeypatch.setattr(jax, "make_array_from_process_local_data", fail)
    with pytest.raises(LostHostError, match="The transfer of a batch cannot be finished: the TPU"):
        devices_of("tpu").place(np.zeros(2))
    with pytest.raises(jax.errors.JaxRuntimeError):
        devices_of("cpu").place(np.zeros(2))


@pytest.mark.parametrize("device", ["auto", "tpu"])
def test_a_jax_that_cannot_start_says_why(monkeypatch: pytest.MonkeyPatch, device: str) -> None:
    def fail(*arguments: Any) -> Never:
        raise RuntimeError("Unable to initialize backend 'tpu': busy (set JAX_PLATFORMS='' to)")

    monkeypatch.setattr(jax, "devices", fail)
    with pytest.raises(UserError, match=r"^JAX cannot start: .*'tpu': busy\. Either another"):
        jax_devices.choose_jax_devices(device, None, step_timeout_seconds=9.0)
