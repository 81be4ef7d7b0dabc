"""Which backend computes, and which TPUs are refused instead of computing on the CPU unasked."""

import argparse
import os
from typing import Never

import pytest

from tpudet.trainkit import backend_arguments, tpu_machine
from tpudet.trainkit.backend_arguments import (
    add_backend_argument,
    add_hosts_arguments,
    choose_backend,
    has_tpu_driver,
    jax_start_error,
)
from tpudet.trainkit.command_line import new_parser
from tpudet.trainkit.errors import UserError

ADVICE = " (set JAX_PLATFORMS='' to automatically choose an available backend)"
BUSY = "Unable to initialize backend 'tpu': ABORTED: The TPU is in use by process with pid 7."


@pytest.fixture(autouse=True)
def _no_tpu(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.startswith(("TPU_", "COLAB_", "JAX_")):
            monkeypatch.delenv(name)
    monkeypatch.setenv("KERAS_BACKEND", "tensorflow")  # choose_backend changes it
    monkeypatch.setattr(tpu_machine, "has_tpu_device", lambda: False)


def parse(*words: str, hosts: bool = True) -> argparse.Namespace:
    parser = new_parser("train", "")
    add_backend_argument(parser)
    if hosts:
        add_hosts_arguments(parser)
    return parser.parse_args(words)


def see(monkeypatch: pytest.MonkeyPatch, platform: str | None) -> None:
    """Stands in for a JAX with libtpu that sees a platform, or whose TPU is busy."""
    jax = pytest.importorskip("jax")

    def default_backend() -> str:
        if platform is None:
            raise RuntimeError(f"{BUSY}{ADVICE}\nand more")
        return platform

    monkeypatch.setattr(backend_arguments, "has_tpu_driver", lambda: True)
    monkeypatch.setattr(jax, "default_backend", default_backend)


def test_auto_is_jax_where_it_sees_a_tpu(monkeypatch: pytest.MonkeyPatch) -> None:
    see(monkeypatch, "tpu")
    choose_backend(parse())
    assert os.environ["KERAS_BACKEND"] == "jax"
    see(monkeypatch, "cpu")
    choose_backend(parse())
    assert os.environ["KERAS_BACKEND"] == "tensorflow"


@pytest.mark.parametrize("backend", ["auto", "jax"])
def test_a_cpu_by_the_name_of_a_tpu_is_refused(
    monkeypatch: pytest.MonkeyPatch, backend: str
) -> None:
    pytest.importorskip("jax")
    monkeypatch.setattr(backend_arguments, "has_tpu_driver", lambda: False)
    monkeypatch.setenv("TPU_ACCELERATOR_TYPE", "v5e-8")
    with pytest.raises(UserError, match="TPU_ACCELERATOR_TYPE is set.*JAX sees no TPU"):
        choose_backend(parse("--backend", backend))
    choose_backend(parse("--backend", "tensorflow"))
    monkeypatch.setenv("JAX_PLATFORMS", "cpu")
    choose_backend(parse("--backend", backend))
    assert os.environ["KERAS_BACKEND"] == ("jax" if backend == "jax" else "tensorflow")


@pytest.mark.parametrize("backend", ["auto", "jax"])
def test_so_is_one_beside_the_device_of_a_tpu(
    monkeypatch: pytest.MonkeyPatch, backend: str
) -> None:
    """As on a TPU machine over ssh, which sets no variable, where libtpu was not installed."""
    pytest.importorskip("jax")
    monkeypatch.setattr(backend_arguments, "has_tpu_driver", lambda: False)
    monkeypatch.setattr(tpu_machine, "has_tpu_device", lambda: True)
    with pytest.raises(UserError, match=r"this machine has a TPU, and JAX sees no TPU.*\[tpu\]"):
        choose_backend(parse("--backend", backend))
    choose_backend(parse("--backend", "tensorflow"))
    assert os.environ["KERAS_BACKEND"] == "tensorflow"


@pytest.mark.parametrize("backend", ["auto", "jax"])
def test_a_tpu_that_another_process_holds_is_an_error_in_words(
    monkeypatch: pytest.MonkeyPatch, backend: str
) -> None:
    see(monkeypatch, None)
    with pytest.raises(UserError, match="in use by process with pid 7. Either another") as e:
        choose_backend(parse("--backend", backend))
    assert "JAX_PLATFORMS" not in str(e.value)
    assert "and more" not in str(e.value)


def test_other_devices_that_cannot_start_are_not_called_a_tpu() -> None:
    error = RuntimeError(
        "Unable to initialize backend 'cuda': no driver (you may need to uninstall the failing "
        "plugin package, or set JAX_PLATFORMS=cpu to skip this backend.)"
    )
    assert str(jax_start_error(error)) == (
        "JAX cannot start: Unable to initialize backend 'cuda': no driver. The driver of these "
        "devices is missing or of the wrong version. To train without JAX, give --backend "
        "tensorflow"
    )


@pytest.mark.parametrize("variable", ["TPU_LIBRARY_PATH", "JAX_PLATFORMS"])
def test_a_driver_may_be_named_instead_of_installed(
    monkeypatch: pytest.MonkeyPatch, variable: str
) -> None:
    monkeypatch.setattr(backend_arguments, "find_spec", lambda name: name == "jax" or None)
    assert not has_tpu_driver()
    monkeypatch.setenv(variable, "tpu,cpu")
    assert has_tpu_driver()


@pytest.mark.parametrize("backend", ["auto", "jax"])
def test_only_train_uses_the_tpu_of_a_pod(monkeypatch: pytest.MonkeyPatch, backend: str) -> None:
    """JAX would wait for the other hosts, which do not come."""
    see(monkeypatch, "tpu")
    monkeypatch.setenv("TPU_WORKER_HOSTNAMES", "t0,t1")
    choose_backend(parse("--backend", backend))  # train joins them before

    def wait() -> Never:
        raise AssertionError("JAX was started")

    monkeypatch.setattr(backend_arguments, "_sees_tpu", wait)
    with pytest.raises(UserError, match="one of the 2 hosts of a pod: give --backend tensorflow"):
        choose_backend(parse("--backend", backend, hosts=False))
    choose_backend(parse("--backend", "tensorflow", hosts=False))
    assert os.environ["KERAS_BACKEND"] == "tensorflow"
