"""The verdict on a compiled step on a TPU: whether it fits, its least time, and what bounds it.

Pure arithmetic over what the compiler reports; `tpu_compiler` gets the reports.
"""

import math
import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from tpudet.trainkit.training.tpu_machines import GIB, TpuMachine

# Exit codes of `tpudet plan`, beside 0 (fits) and 2 (wrong usage).
EXIT_DOES_NOT_FIT = 3
EXIT_UNSUPPORTED = 4
EXIT_NO_COMPILER = 5

# XLA's estimate is shown from this multiple of the roofline on: below, it cannot be a duration.
_LEAST_ESTIMATE = 0.5

_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}


class CompiledStep(NamedTuple):
    """The compiler's report on a step; sizes and counts are those of one device."""

    step: str  # "train" or "evaluate"
    batch_size: int  # over all devices
    compile_seconds: float
    flops: float
    moved_bytes: int  # between the core and the device's memory, see `tpu_program`
    cycles: dict[str, int]  # of the core, by the compiler's model, of each part of the network
    argument_bytes: int
    output_bytes: int
    aliased_bytes: int  # outputs that take the place of arguments
    temporary_bytes: int
    code_bytes: int
    waiting_bytes: int  # of the batches that wait on the device

    @property
    def memory_bytes(self) -> int:
        """Memory of a device that the step takes."""
        kept = self.argument_bytes + self.output_bytes - self.aliased_bytes
        return kept + self.temporary_bytes + self.code_bytes + self.waiting_bytes


class FailedStep(NamedTuple):
    """A step that did not compile."""

    step: str
    batch_size: int
    kind: str  # "memory", "unsupported" or "compiler"
    message: str  # the compiler's, shortened
    needed_bytes: int | None = None  # of a device's memory, if the compiler says so
    layer: str = ""  # that the operation comes from, if known


Step = CompiledStep | FailedStep


class Roofline(NamedTuple):
    """The least time that a step can take (Williams et al., CACM 2009), in seconds."""

    arithmetic: float
    memory: float

    @property
    def bound(self) -> float:
        """The longer of the two: the step cannot be faster."""
        return max(self.arithmetic, self.memory)

    @property
    def binds(self) -> str:
        """Which of the two it is."""
        return "memory traffic" if self.memory > self.arithmetic else "arithmetic"


def roofline(step: CompiledStep, machine: TpuMachine) -> Roofline:
    """Returns the time for the step's operations and bytes at the peaks of the machine."""
    return Roofline(step.flops / machine.peak_flops, step.moved_bytes / machine.bandwidth)


def sane_estimate(step: CompiledStep, machine: TpuMachine) -> float | None:
    """Returns XLA's estimate of the duration in seconds; None where it cannot be one.

    That is the cycles of all operations. The `optimal_seconds` of XLA's cost analysis are not
    usable: -283 for a step of `r50_fpn_640` on v5e.
    """
    estimate = sum(step.cycles.values()) / machine.clock_hz
    return estimate if estimate >= _LEAST_ESTIMATE * roofline(step, machine).bound else None


def largest_batch(
    small: tuple[int, int], large: tuple[int, int], *, capacity: int, multiple: int
) -> int:
    """Returns the largest batch whose memory stays within the capacity, by the line through two.

    Args:
        small: a batch and its bytes on a device.
        large: another, with more of both.
        capacity: bytes of a device.
        multiple: the batch is a multiple of it; 0 is returned if not even that fits.

    Raises:
        ValueError: the line does not rise.
    """
    slope = (large[1] - small[1]) / (large[0] - small[0])
    if slope <= 0:
        raise ValueError(f"memory does not grow with the batch: {small} and {large}")
    batch = small[0] + (capacity - small[1]) / slope
    return max(0, math.floor(batch / multiple) * multiple)


def read_failure(step: str, batch_size: int, message: str, layer: str = "") -> FailedStep:
    """Tells from the compiler's message what went wrong."""
    needed = _needed_bytes(message)
    is_memory = needed is not None or "RESOURCE_EXHAUSTED" in message
    kind = "memory" if is_memory else "unsupported"
    short = "\n".join(message.strip().splitlines()[:3])[:600]
    return FailedStep(step, batch_size, kind, short, needed, layer or _layer(message))


def _needed_bytes(message: str) -> int | None:
    """Reads `Used 20.50G of 15.75G hbm` of an older libtpu, or `temporaries (43.00G)` of 0.0.52."""
    found = re.search(r"(?:[Uu]sed |HLO temporaries \()([\d.]+)([KMGT]?)\b", message)
    return round(float(found[1]) * _UNITS[found[2]]) if found else None


def _layer(message: str) -> str:
    """Reads the layers of `op_name="jit(take)/jvp(RetinaNet)/head/conv"`, without JAX's own."""
    found = re.search(r'op_name="([^"]+)"', message)
    return layer_path(found[1]) if found else ""


def layer_path(name_stack: str) -> str:
    """Returns the layers of a name stack of JAX: `jit(take)/jvp(net)/head` -> `net/head`."""
    previous, path = "", re.sub(r"\bp?jit\([^()]*\)", "", name_stack)
    while path != previous:  # from the inside out
        previous, path = path, re.sub(r"\b(?:jvp|transpose|vmap|remat)\(([^()]*)\)", r"\1", path)
    return "/".join(part for part in path.split("/") if part)


def describe(step: Step, machine: TpuMachine, num_devices: int) -> str:
    """Returns the report of a step: several lines, without a line break at the end.

    Args:
        step: what was compiled.
        machine: for which machine.
        num_devices: how many of its devices take part.
    """
    if isinstance(step, FailedStep):
        return _describe_failure(step, machine)
    return _describe_compiled(step, machine, num_devices)


def _describe_compiled(step: CompiledStep, machine: TpuMachine, num_devices: int) -> str:
    line, free = roofline(step, machine), machine.memory_bytes - step.memory_bytes
    fits = f"{free / GIB:.2f} GiB free" if free >= 0 else f"{-free / GIB:.2f} GiB too much"
    estimate = sane_estimate(step, machine)
    own = f"not usable ({sum(step.cycles.values())} cycles)"
    if estimate:
        own = f"{estimate * 1e3:.1f} ms, {step.batch_size / estimate:.0f} images/s: "
        own += _shares(step.cycles)
    per_second = step.batch_size / line.bound
    needed = (step.batch_size / estimate if estimate else per_second) / machine.num_hosts
    rows = [
        ("compiles", f"yes, in {step.compile_seconds:.0f} s"),
        ("memory per device", f"{step.memory_bytes / GIB:.2f} of "
         f"{machine.memory_bytes / GIB:.2f} GiB ({fits}): temporaries "
         f"{_mib(step.temporary_bytes)}, state and batch "
         f"{_mib(step.argument_bytes)}, program {_mib(step.code_bytes)}, waiting batches "
         f"{_mib(step.waiting_bytes)}"),
        ("work per device", f"{step.flops / 1e12:.3f} TFLOP, {step.moved_bytes / 1e9:.2f} GB"
         " from and to its memory"),
        ("at least", f"{line.bound * 1e3:.1f} ms per step, bound by {line.binds}: arithmetic "
         f"{line.arithmetic * 1e3:.1f} ms at {machine.peak_flops / 1e12:g} TFLOP/s, memory "
         f"{line.memory * 1e3:.1f} ms at {machine.bandwidth / 1e9:g} GB/s"),
        ("at most", f"{per_second:.0f} images/s on {num_devices} device(s)"),
        ("XLA's estimate", own),
        ("the input must", f"prepare {needed:.0f} images/s on each of {machine.num_hosts} host(s)"),
    ]  # fmt: skip
    return "\n".join(f"  {name:18}{text}" for name, text in rows)


def _shares(cycles: Mapping[str, int]) -> str:
    """Returns `backbone 53 %, head 29 %, ...`, without what is less than a hundredth."""
    total = sum(cycles.values())
    shares = {part: 100 * number / total for part, number in cycles.items()}
    return ", ".join(f"{part} {share:.0f} %" for part, share in shares.items() if share >= 1)


def _describe_failure(step: FailedStep, machine: TpuMachine) -> str:
    if step.kind == "compiler":
        return f"  the compiler failed: {step.message}"
    lines = []
    if step.kind == "memory":
        need = ""
        if step.needed_bytes:
            over = step.needed_bytes - machine.memory_bytes
            need = f": it needs {step.needed_bytes / GIB:.2f} GiB per device, {over / GIB:.2f} " \
                "GiB more than there are"  # fmt: skip
        lines.append(f"  does not fit into {machine.memory_bytes / GIB:.2f} GiB{need}")
    else:
        place = f", in {step.layer}" if step.layer else ""
        lines.append(f"  does not compile{place}")
    return "\n".join([*lines, *(f"    {text}" for text in step.message.splitlines())])


def exit_code(steps: Sequence[Step], machine: TpuMachine) -> int:
    """Returns the exit code that the worst of the steps stands for."""
    codes = [0]
    for step in steps:
        if isinstance(step, CompiledStep):
            codes.append(0 if step.memory_bytes <= machine.memory_bytes else EXIT_DOES_NOT_FIT)
        else:
            kinds = {"memory": EXIT_DOES_NOT_FIT, "unsupported": EXIT_UNSUPPORTED}
            codes.append(kinds.get(step.kind, EXIT_NO_COMPILER))
    return max(codes)


def _mib(size: int) -> str:
    return f"{size / (1 << 20):,.0f} MiB"
