"""A command of the toolkit that is run as a step of another."""

import signal
import subprocess
from collections.abc import Mapping, Sequence
from types import FrameType

_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


def run_child(command: Sequence[str], *, environment: Mapping[str, str] | None = None) -> int:
    """Runs a command to its end and returns its exit code.

    A signal to end is passed on, and the end of the command awaited, so that a training saves its
    checkpoint and is not left running. The command is in a process group of its own: a signal to
    the whole group, as of Ctrl-C or `timeout`, reaches it once, and a second one would end a
    training without saving. To be called in the main thread.

    Args:
        command: program and arguments.
        environment: of the process; None for that of this one.

    Raises:
        SystemExit: this process was told to end, and the command has ended.
    """
    told: list[int] = []
    with subprocess.Popen(command, env=environment, process_group=0) as child:

        def pass_on(number: int, frame: FrameType | None) -> None:
            told.append(number)
            child.send_signal(number)

        before = {
            number: signal.signal(number, pass_on)
            for number in _SIGNALS
            if signal.getsignal(number) != signal.SIG_IGN  # as under nohup
        }
        try:
            code = child.wait()
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
    if told:
        raise SystemExit(128 + told[0])
    return code
