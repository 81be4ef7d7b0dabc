"""Model FLOPs utilization: the operations that the compiler counts, over time and the peak."""

from typing import Any

from tpudet.trainkit.training.tpu_machines import GENERATIONS

# bfloat16 without sparsity, operations per second of one device, by how JAX's device kind begins.
# The longest beginning counts.
_TPU_PEAKS = {generation.device_kind: generation.device_peak_flops for generation in GENERATIONS}
_GPU_PEAKS = {
    "NVIDIA A100": 312e12,
    "NVIDIA H100": 989e12,
    "NVIDIA H200": 989e12,
    "NVIDIA L4": 121e12,
}


def peak_flops(device_kind: str) -> float | None:
    """Returns the bfloat16 peak of a device by JAX's name of its kind; None if unknown."""
    peaks = _TPU_PEAKS | _GPU_PEAKS
    known = [kind for kind in peaks if device_kind.startswith(kind)]
    return peaks[max(known, key=len)] if known else None


def compiled_flops(executable: Any) -> float | None:
    """Returns the operations that one call of a compiled function costs each device, if known."""
    cost = executable.cost_analysis()
    flops = cost.get("flops") if cost else None
    return flops if flops and flops > 0 else None


def peak_share(
    flops: float | None, *, steps: int, seconds: float, device_kind: str
) -> float | None:
    """Returns the share of the peak that was used, 0..1; None if it cannot be said.

    Args:
        flops: of a step, on each device.
        steps: done in `seconds`.
        seconds: above 0, or no share is returned.
        device_kind: JAX's name.
    """
    peak = peak_flops(device_kind)
    if flops is None or peak is None or seconds <= 0.0:
        return None
    return flops * steps / seconds / peak
