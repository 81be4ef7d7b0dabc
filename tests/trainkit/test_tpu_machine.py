"""Signs of a TPU: variables, devices, the PCI bus and the metadata of the machine."""

import http.server
import os
import threading
from pathlib import Path

import pytest

from tpudet.trainkit import tpu_machine
from tpudet.trainkit.errors import UserError
from tpudet.trainkit.tpu_machine import has_tpu_device, pod_size, refuse_pod, sign_of_tpu

V5E, GPU, NETWORK_CARD = ("0x1ae0", "0x0063"), ("0x10de", "0x20b0"), ("0x1ae0", "0x0042")


@pytest.fixture(autouse=True)
def _empty_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.startswith(("TPU_", "COLAB_", "JAX_")):
            monkeypatch.delenv(name)
    monkeypatch.setattr(tpu_machine, "DEVICES", tmp_path / "dev")
    monkeypatch.setattr(tpu_machine, "PCI_DEVICES", tmp_path / "sys")


def plug(folder: Path, *devices: tuple[str, str]) -> None:
    """Writes the files of a PCI bus."""
    for number, (vendor, device) in enumerate(devices):
        slot = folder / f"sys/0000:00:{number:02}.0"
        slot.mkdir(parents=True)
        (slot / "vendor").write_text(f"{vendor}\n")
        (slot / "device").write_text(f"{device}\n")


def touch(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch()


def test_a_pod_says_how_many_hosts_it_has(monkeypatch: pytest.MonkeyPatch) -> None:
    assert pod_size() == 1
    monkeypatch.setenv("TPU_WORKER_HOSTNAMES", "t0,t1,t2,t3")
    assert pod_size() == 4
    monkeypatch.setenv("TPU_WORKER_HOSTNAMES", "localhost")
    assert pod_size() == 1


def test_the_metadata_of_compute_engine_say_it_too(monkeypatch: pytest.MonkeyPatch) -> None:
    class Metadata(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            assert self.headers["Metadata-Flavor"] == "Google"
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b"unknown:unknown:10.0.0.2,unknown:unknown:10.0.0.3")

        def log_message(self, format: str, *args: object) -> None:
            pass

    with http.server.HTTPServer(("localhost", 0), Metadata) as server:
        thread = threading.Thread(target=server.handle_request)
        thread.start()
        monkeypatch.setenv("GCE_METADATA_IP", f"localhost:{server.server_port}")
        monkeypatch.setattr(tpu_machine, "has_tpu_device", lambda: True)
        assert pod_size() == 2
        thread.join()
        monkeypatch.setenv("GCE_METADATA_IP", "localhost:1")  # nobody answers
        assert pod_size() == 1


@pytest.mark.parametrize(
    ("file", "devices", "expected"),
    [
        ("accel0", (), True),
        ("accel1", (V5E,), True),
        ("accel", (), False),  # the folder of another kernel subsystem
        ("vfio/0", (NETWORK_CARD, V5E, V5E), True),
        ("vfio/3", (V5E,), True),
        ("vfio/vfio", (V5E,), False),  # in a container without the chips
        ("vfio/0", (GPU,), False),
        ("vfio/0", (GPU, NETWORK_CARD), False),  # of any virtual machine of Google
        ("null", (V5E,), False),
    ],
)
def test_a_tpu_has_a_device_and_a_chip_on_the_bus(
    tmp_path: Path, file: str, devices: tuple[tuple[str, str], ...], expected: bool
) -> None:
    assert not has_tpu_device()
    touch(tmp_path / "dev" / file)
    plug(tmp_path, *devices)
    assert has_tpu_device() == expected
    assert sign_of_tpu() == ("this machine has a TPU" if expected else "")


def test_a_variable_names_a_tpu_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TPU_NAME", "det-1")
    assert sign_of_tpu() == "TPU_NAME is set, as on a TPU machine"


def test_one_host_of_a_pod_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    refuse_pod("It runs on one host", "go on")
    monkeypatch.setenv("TPU_WORKER_HOSTNAMES", "t0,t1,t2,t3")
    with pytest.raises(UserError, match="^It runs on one host, and this is one of the 4 hosts of"):
        refuse_pod("It runs on one host", "go on")
    monkeypatch.setenv("JAX_PLATFORMS", "cpu")  # JAX does not look at the TPU then
    refuse_pod("It runs on one host", "go on")
