"""Tells without JAX whether this machine has a TPU, and of how many hosts."""

import os
import urllib.error
import urllib.request
from pathlib import Path

from tpudet.trainkit.errors import UserError

DEVICES = Path("/dev")
PCI_DEVICES = Path("/sys/bus/pci/devices")

# Variables of the environment of Cloud TPUs, Kaggle's and Colab's.
_TPU_VARIABLES = ("TPU_ACCELERATOR_TYPE", "TPU_WORKER_HOSTNAMES", "TPU_NAME", "COLAB_TPU_ADDR")
_GOOGLE = "0x1ae0"
# v2 and v3, plc, v4, v5p, v5e, v6e, 7x, as in `jax._src.hardware_utils`. Of the same vendor are the
# network cards and disks of all virtual machines of Google.
_CHIPS = {"0x0027", "0x0056", "0x005e", "0x0062", "0x0063", "0x006f", "0x0076"}


def sign_of_tpu() -> str:
    """Says how this machine shows that it has a TPU; empty if it does not."""
    named = [name for name in _TPU_VARIABLES if os.environ.get(name)]
    if named:
        return f"{named[0]} is set, as on a TPU machine"
    return "this machine has a TPU" if has_tpu_device() else ""


def has_tpu_device() -> bool:
    """Whether this machine has a TPU that its processes may open."""
    if any(DEVICES.glob("accel[0-9]*")):
        return True
    # Other devices are passed through by VFIO too, such as GPUs.
    return any((DEVICES / "vfio").glob("[0-9]*")) and any(map(_is_chip, PCI_DEVICES.glob("*")))


def _is_chip(folder: Path) -> bool:
    try:
        vendor, device = ((folder / name).read_text().strip() for name in ("vendor", "device"))
    except OSError:  # unplugged meanwhile
        return False
    return vendor == _GOOGLE and device in _CHIPS


def pod_size() -> int:
    """Returns how many hosts the TPU slice of this machine has; 1 without a TPU.

    GKE says so in TPU_WORKER_HOSTNAMES, Compute Engine in the metadata of the machine.
    """
    names = os.environ.get("TPU_PROCESS_ADDRESSES") or os.environ.get("TPU_WORKER_HOSTNAMES")
    if names:
        return len(names.split(","))
    if not has_tpu_device() or "TPU_SKIP_MDS_QUERY" in os.environ:
        return 1  # others need no query over the network
    return len(_worker_endpoints().split(","))


def refuse_pod(what: str, advice: str) -> None:
    """Raises UserError on a host of a pod, where JAX waits for all the others.

    Args:
        what: begins the sentence; it runs on one host.
        advice: what to do instead.
    """
    hosts = pod_size()
    if hosts > 1 and os.environ.get("JAX_PLATFORMS") != "cpu":
        raise UserError(f"{what}, and this is one of the {hosts} hosts of a pod: {advice}")


def _worker_endpoints() -> str:
    """Returns what Compute Engine's metadata server says of a pod's hosts; empty if nothing."""
    host = os.environ.get("GCE_METADATA_IP", "metadata.google.internal")
    url = f"http://{host}/computeMetadata/v1/instance/attributes/worker-network-endpoints"
    request = urllib.request.Request(url, headers={"Metadata-Flavor": "Google"})
    try:
        with urllib.request.urlopen(request, timeout=5) as response:
            return response.read().decode()
    except urllib.error.HTTPError as error:
        error.close()  # it is the response, with an open connection
        return ""
    except OSError:
        return ""
