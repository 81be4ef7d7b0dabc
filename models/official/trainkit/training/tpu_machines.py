"""Cloud TPUs of up to 32 chips: their devices, memory and peaks.

A chip has one or two cores. On v2 and v3 each core is a device of JAX with half of the chip's
memory. On v4 and v5p both cores of a chip are one device, and on v5e and v6e a chip has one core.
The number in a name counts cores up to v5p, chips on v5e and v6e.
"""

import difflib
import math
from typing import NamedTuple

from tpudet.trainkit.errors import UserError

GIB = 1 << 30
_RESERVED_BYTES = GIB // 4  # by the system; what libtpu says for v5e


class TpuGeneration(NamedTuple):
    """One generation; figures are per chip, from Google's pages on each ("TPU v5e", ...)."""

    name: str
    topology_prefix: str  # as libtpu spells it
    accelerator_prefix: str  # as Cloud TPU spells it
    device_kind: str  # as JAX spells it
    cores_per_chip: int
    devices_per_chip: int
    name_counts_cores: bool
    memory_gib: int
    peak_tflops: float  # bfloat16
    bandwidth_gb_per_second: float  # of the memory
    clock_ghz: float
    layouts: tuple[tuple[int, ...], ...]  # chips along each axis of the network

    @property
    def device_peak_flops(self) -> float:
        """Operations per second of a device, in bfloat16."""
        return self.peak_tflops * 1e12 / self.devices_per_chip


class TpuMachine(NamedTuple):
    """A TPU that can be selected by name."""

    name: str
    generation: TpuGeneration
    layout: tuple[int, ...]  # chips along each axis of the network

    @property
    def num_chips(self) -> int:
        """Chips over all hosts."""
        return math.prod(self.layout)

    @property
    def num_cores(self) -> int:
        """Cores over all hosts."""
        return self.num_chips * self.generation.cores_per_chip

    @property
    def num_devices(self) -> int:
        """Devices of JAX over all hosts, each with its part of the batch."""
        return self.num_chips * self.generation.devices_per_chip

    @property
    def host_layout(self) -> tuple[int, int, int]:
        """The chips of one host along each axis: 4, but 8 where those are all, and 1 of 1."""
        if self.layout == (1, 1):
            return 1, 1, 1
        return (2, 4, 1) if self.layout == (2, 4) else (2, 2, 1)

    @property
    def num_hosts(self) -> int:
        """Hosts that read the data."""
        return self.num_chips // math.prod(self.host_layout)

    @property
    def memory_bytes(self) -> int:
        """Memory of a device that a program can have."""
        whole = self.generation.memory_gib * GIB // self.generation.devices_per_chip
        return whole - _RESERVED_BYTES

    @property
    def peak_flops(self) -> float:
        """Operations per second of a device, in bfloat16."""
        return self.generation.device_peak_flops

    @property
    def bandwidth(self) -> float:
        """Bytes per second between a device and its memory."""
        return self.generation.bandwidth_gb_per_second * 1e9 / self.generation.devices_per_chip

    @property
    def clock_hz(self) -> float:
        """Cycles of a core in a second."""
        return self.generation.clock_ghz * 1e9

    @property
    def accelerator_type(self) -> str:
        """The name in Google's commands, e.g. v5litepod-8."""
        return f"{self.generation.accelerator_prefix}-{self.name.partition('-')[2]}"

    @property
    def topology_name(self) -> str:
        """The name in libtpu, e.g. v5e:2x4."""
        layout = "x".join(str(side) for side in self.layout)
        return f"{self.generation.topology_prefix}:{layout}"


_SQUARES = ((2, 2), (4, 4), (4, 8))
_CUBES = ((2, 2, 1), (2, 2, 2), (2, 2, 4), (2, 4, 4))
_SMALL = ((1, 1), (2, 2), (2, 4), (4, 4), (4, 8))
GENERATIONS = (
    TpuGeneration("v2", "v2", "v2", "TPU v2", 2, 2, True, 16, 45.0, 700.0, 0.7, _SQUARES[:2]),
    TpuGeneration("v3", "v3", "v3", "TPU v3", 2, 2, True, 32, 123.0, 900.0, 0.94, _SQUARES),
    TpuGeneration("v4", "v4", "v4", "TPU v4", 2, 1, True, 32, 275.0, 1228.0, 1.05, _CUBES),
    TpuGeneration(
        "v5e", "v5e", "v5litepod", "TPU v5 lite", 1, 1, False, 16, 197.0, 819.0, 1.5, _SMALL
    ),
    TpuGeneration("v5p", "v5", "v5p", "TPU v5", 2, 1, True, 95, 459.0, 2765.0, 1.75, _CUBES),
    TpuGeneration("v6e", "v6e", "v6e", "TPU v6 lite", 1, 1, False, 32, 918.0, 1638.0, 1.75, _SMALL),
)


def _machine(generation: TpuGeneration, layout: tuple[int, ...]) -> TpuMachine:
    counted = math.prod(layout) * (generation.cores_per_chip if generation.name_counts_cores else 1)
    return TpuMachine(f"{generation.name}-{counted}", generation, layout)


MACHINES = {
    machine.name: machine
    for generation in GENERATIONS
    for machine in (_machine(generation, layout) for layout in generation.layouts)
}


def find_machine(name: str) -> TpuMachine:
    """Returns the TPU of that name; v5litepod-8 means v5e-8.

    Raises:
        UserError: there is none, or it has more than 32 chips; lists all.
    """
    spelled = name.lower().replace("v5litepod", "v5e").replace("v5lite", "v5e")
    if spelled in MACHINES:
        return MACHINES[spelled]
    near = difflib.get_close_matches(spelled, MACHINES, n=1)
    hint = f" Did you mean {near[0]}?" if near else ""
    raise UserError(
        f"there is no TPU named `{name}` of up to 32 chips.{hint} Known are\n{table_of_machines()}"
    )


def table_of_machines() -> str:
    """Returns one line per TPU: chips, cores, devices, and the memory of a device."""
    lines = [
        f"  {'name':8}{'chips':>6}{'cores':>6}{'devices':>9}{'GiB per device':>16}{'hosts':>7}"
    ]
    lines += [
        f"  {machine.name:8}{machine.num_chips:6}{machine.num_cores:6}{machine.num_devices:9}"
        f"{machine.memory_bytes / GIB:16.2f}{machine.num_hosts:7}"
        for machine in MACHINES.values()
    ]
    return "\n".join(lines)
