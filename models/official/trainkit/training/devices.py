"""Which devices train, in which precision, and how their shares are added up."""

from typing import Any, Literal

import tensorflow as tf

Device = Literal["auto", "cpu", "gpu"]
Precision = Literal["float32", "mixed_bfloat16", "mixed_float16"]

# bfloat16 arithmetic came to NVIDIA's GPUs with Ampere.
BFLOAT16_COMPUTE_CAPABILITY = (8, 0)


def choose_strategy(
    device: Device = "auto", num_devices: int | None = None
) -> tf.distribute.Strategy:
    """Returns the strategy that runs a training step on the devices of this machine.

    Args:
        device: "auto" takes the GPUs where there are any, else the CPU.
        num_devices: how many of them; None means every GPU, but one CPU device. Several CPU
            devices exist only where the process asked TensorFlow for logical ones; they share the
            cores, which is of use in tests alone.

    Returns:
        A OneDeviceStrategy, or a MirroredStrategy over several devices.

    Raises:
        ValueError: an unknown device, or more devices than there are.
    """
    if device not in ("auto", "cpu", "gpu"):
        raise ValueError(f"device is {device!r}; allowed are 'auto', 'cpu' and 'gpu'")
    found = {"cpu": _device_names("CPU"), "gpu": _device_names("GPU")}
    kind = ("gpu" if found["gpu"] else "cpu") if device == "auto" else device
    names = found[kind]
    wanted = num_devices if num_devices is not None else (len(names) if kind == "gpu" else 1)
    if not names or not 1 <= wanted <= len(names):
        there_are = f"TensorFlow sees {len(found['cpu'])} CPU and {len(found['gpu'])} GPU device(s)"
        asked = f"num_devices={num_devices} with device={device!r}"
        raise ValueError(
            f"{asked} cannot be had: {there_are}. Ask for 1 to {len(names)} devices"
            if names
            else f"{asked} cannot be had: {there_are}. Use device='cpu', or install the [cuda] "
            "extra and check the driver with nvidia-smi"
        )
    if wanted == 1:
        return tf.distribute.OneDeviceStrategy(names[0])
    # TensorFlow would join CPU devices by collective operations, whose keys start anew with each
    # strategy: a second strategy in one process then dies of "shape mismatch in the collective".
    adding = tf.distribute.ReductionToOneDevice() if kind == "cpu" else None
    return tf.distribute.MirroredStrategy(names[:wanted], cross_device_ops=adding)


def _device_names(kind: str) -> list[str]:
    return [device.name for device in tf.config.list_logical_devices(kind)]


def default_precision(strategy: tf.distribute.Strategy) -> Precision:
    """Returns the Keras dtype policy that suits the strategy's devices.

    Reduced precision on GPU and TPU only: on a CPU bfloat16 is slower than float32. Among mixed
    GPUs the oldest decides.
    """
    devices = [tf.DeviceSpec.from_string(name) for name in strategy.extended.worker_devices]
    capabilities: list[tuple[int, int] | None] = [
        gpu_compute_capability(device.device_index or 0)
        for device in devices
        if device.device_type == "GPU"
    ]
    oldest = min((known for known in capabilities if known is not None), default=None)
    return precision_for(devices[0].device_type or "CPU", oldest if all(capabilities) else None)


def gpu_compute_capability(index: int) -> tuple[int, int] | None:
    """Returns (major, minor) of the GPU's compute capability, None where it is not known."""
    gpu = tf.config.list_physical_devices("GPU")[index]
    return tf.config.experimental.get_device_details(gpu).get("compute_capability")


def precision_for(device_type: str, compute_capability: tuple[int, int] | None) -> Precision:
    """Returns the policy for one kind of device.

    Args:
        device_type: "CPU", "GPU" or "TPU".
        compute_capability: of a GPU; None where it is not known, which gives float32.
    """
    if device_type == "TPU":
        return "mixed_bfloat16"
    if device_type == "GPU" and compute_capability is not None:
        recent = compute_capability >= BFLOAT16_COMPUTE_CAPABILITY
        return "mixed_bfloat16" if recent else "mixed_float16"
    return "float32"


def sum_over_replicas(value: Any) -> Any:
    """Returns the sum of `value` over all replicas, the same on each.

    The identity with one replica and outside of a replica's step. Its gradient is the sum of the
    replicas' gradients, so a loss made of shares that add up is differentiated rightly.
    """
    context = tf.distribute.get_replica_context()
    if context is None or context.num_replicas_in_sync == 1:
        return value
    return context.all_reduce(tf.distribute.ReduceOp.SUM, value)
