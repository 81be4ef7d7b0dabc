"""Searches for the largest batch that fits into a TPU's memory: a line through two, and a third."""

from collections.abc import Callable

from tpudet.trainkit.training.tpu_machines import TpuMachine
from tpudet.trainkit.training.tpu_plan import CompiledStep, Step, largest_batch

_ATTEMPTS = 3  # to confirm; each compiles for minutes


def search_batch(
    compile_batch: Callable[[int], Step], first: Step, *, machine: TpuMachine, num_devices: int
) -> CompiledStep | None:
    """Returns the step with the largest batch that was compiled and fits; None if none was found.

    Memory grows by a straight line with the batch, nearly: near the limit the compiler computes
    some values twice to save memory, so that a few more images may fit.

    Args:
        compile_batch: compiles the training step for a batch size over all devices.
        first: of the batch size that the config says.
        machine: with its memory.
        num_devices: the batch is a multiple of it, and of 8 a device if it is that large.
    """
    points = [first, compile_batch(_other_batch(first.batch_size, num_devices))]
    sizes = sorted((step.batch_size, size) for step in points if (size := _bytes(step)))
    found = [step for step in points if _fits(step, machine)]
    if len(sizes) == 2:
        unit = num_devices * (8 if first.batch_size >= 16 * num_devices else 1)
        batch = largest_batch(
            sizes[0], sizes[1], capacity=machine.memory_bytes, multiple=unit
        )  # fmt: skip
        tried = {step.batch_size for step in points}
        for _ in range(_ATTEMPTS):
            if batch <= 0 or batch in tried:
                break
            step = compile_batch(batch)
            if _fits(step, machine):
                found.append(step)
                break
            batch -= unit
    fitting = [step for step in found if isinstance(step, CompiledStep)]
    return max(fitting, key=lambda step: step.batch_size, default=None)


def _other_batch(batch: int, num_devices: int) -> int:
    """Half of the batch, or twice as much of the smallest one."""
    half = batch // 2 // num_devices * num_devices
    return half or 2 * batch


def _bytes(step: Step) -> int | None:
    return step.memory_bytes if isinstance(step, CompiledStep) else step.needed_bytes


def _fits(step: Step, machine: TpuMachine) -> bool:
    return isinstance(step, CompiledStep) and step.memory_bytes <= machine.memory_bytes
