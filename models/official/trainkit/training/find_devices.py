"""Finds the devices that a training on this machine would use, without taking them.

JAX takes a TPU for its process until that ends, so another process looks.
"""

import json
import subprocess
import sys
from typing import Literal, NamedTuple

from tpudet.trainkit.backend_arguments import find_tpu
from tpudet.trainkit.cpu import available_cores
from tpudet.trainkit.errors import UserError
from tpudet.trainkit.tpu_machine import refuse_pod


class FoundDevices(NamedTuple):
    """The devices that `tpudet train` uses on this machine."""

    kind: Literal["TPU", "GPU", "CPU"]
    num_devices: int  # of a CPU: the cores that this process may use
    name: str
    backend: Literal["jax", "tensorflow"]  # that --backend auto chooses

    def __str__(self) -> str:
        unit = "cores of a CPU" if self.kind == "CPU" else self.kind
        what = f"{self.num_devices} {unit}"
        return f"{what}{self.name and f' ({self.name})'}: training runs on {self.backend}"


def get_devices() -> FoundDevices:
    """Finds the TPU, else the GPUs, else the CPU, and prints what was found.

    Raises:
        UserError: neither TensorFlow nor JAX can be imported, the TPU cannot be used, or it is a
            pod's, which JAX shows to all its hosts at once; shows why.
    """
    refuse_pod("The devices are looked up on one host", "only `tpudet train` on all sees them")
    command = [sys.executable, "-m", "tpudet.trainkit.training.find_devices"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise UserError(f"the devices cannot be looked up:\n{done.stderr[-2000:]}")
    found = FoundDevices(**json.loads(done.stdout.splitlines()[-1]))
    print(found)
    return found


def _look() -> FoundDevices:
    if find_tpu():
        import jax

        devices = jax.devices()
        return FoundDevices("TPU", len(devices), devices[0].device_kind, "jax")
    import tensorflow as tf

    gpus = tf.config.list_physical_devices("GPU")
    if gpus:
        name = tf.config.experimental.get_device_details(gpus[0]).get("device_name", "")
        return FoundDevices("GPU", len(gpus), name, "tensorflow")
    return FoundDevices("CPU", available_cores(), "", "tensorflow")


if __name__ == "__main__":
    try:
        print(json.dumps(_look()._asdict()))
    except UserError as error:
        sys.exit(str(error))
