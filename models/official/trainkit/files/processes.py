"""Identifies processes across machines and containers, where process ids repeat."""

import functools
import os
import platform
from typing import NamedTuple


class ProcessIdentity(NamedTuple):
    """Tells a process from every other one, on this machine or elsewhere."""

    host: str
    process: int  # its id
    boot: str  # names one start of one machine, whatever its containers are called
    namespace: str  # of process ids
    started: str  # since that boot, in clock ticks; empty where unknown

    def is_alive(self) -> bool | None:
        """Whether the process still runs; None where this process cannot see it."""
        here = this_process()
        if (self.boot, self.namespace) != (here.boot, here.namespace) or not here.started:
            return None
        return _start_time(self.process) == self.started


def this_process() -> ProcessIdentity:
    """Identifies the calling process."""
    process = os.getpid()
    return ProcessIdentity(platform.node(), process, boot_id(), _namespace(), _start_time(process))


@functools.cache
def boot_id() -> str:
    """Names this start of this machine."""
    try:
        with open("/proc/sys/kernel/random/boot_id") as file:
            return file.read().strip()
    except OSError:
        return platform.node()


def _namespace() -> str:
    try:
        return os.readlink("/proc/self/ns/pid")
    except OSError:
        return ""


def _start_time(process: int) -> str:
    """When a process started; empty where there is none, it is a zombie, or there is no /proc."""
    try:
        with open(f"/proc/{process}/stat") as file:
            fields = file.read().rsplit(")", 1)[1].split()
    except (OSError, IndexError):
        return ""
    return "" if fields[0] in "ZX" else fields[19]
