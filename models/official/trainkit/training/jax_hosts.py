"""Multi-host training with JAX: hosts join, agree, gather arrays, and notice the loss of one.

Each host runs the same command. `jax.distributed` introduces them to each other; from then on every
process sees the devices of all.
"""

import argparse
import atexit
import ctypes
import os
import pickle
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import numpy as np

from tpudet.trainkit.backend_arguments import require_jax
from tpudet.trainkit.command_line import EXIT_WRONG_USAGE
from tpudet.trainkit.errors import UserError
from tpudet.trainkit.files.remote import STALL_SECONDS
from tpudet.trainkit.tpu_machine import pod_size
from tpudet.trainkit.training.preemption import Interrupted
from tpudet.trainkit.training.stopping import EXIT_START_AGAIN
from tpudet.trainkit.training.watchdog import Watchdog, end_process, restart_sentence
from tpudet.trainkit.weights.tensor_bundle import UnavailableCheckpointError

Value = TypeVar("Value")

JOIN_SECONDS = 300  # for all hosts to appear
MEET_SECONDS = 3600  # for the slowest host to restore, to compile or to report
BEAT_SECONDS = 5.0
SILENT_SECONDS = 2.5 * STALL_SECONDS  # without a sign of life a host counts as lost

_LEAVING_SECONDS = 3.0  # for the others to say why they leave, too
_FIRST_HOST_GONE = "process 0 is gone"
_FLAGS = ("coordinator_address", "num_processes", "process_id")


class LostHostError(RuntimeError):
    """Another host or a TPU is gone; nothing since the last checkpoint is saved."""


@contextmanager
def several_hosts(arguments: argparse.Namespace) -> Iterator[None]:
    """Trains with the other hosts, if there are any, while a block runs.

    It ends the process, without a traceback, as `ending_if_lost`.

    Args:
        arguments: with `add_hosts_arguments` and `add_backend_argument`.

    Raises:
        UserError: as `join_hosts`.
    """
    has_others = join_hosts(arguments)
    try:
        with ending_if_lost():
            yield
    except BaseException as error:
        if has_others:
            _leave_at_once(error)
        raise
    if not has_others:
        return
    import jax

    try:
        wait_for_hosts("finished")
    except (RuntimeError, ValueError) as error:
        end_process(str(lost_host_error("The end of the run", error)))
    jax.distributed.shutdown()  # aborts all hosts where one comes five minutes after another
    for heartbeats in _heartbeats:
        heartbeats.end()


@contextmanager
def ending_if_lost() -> Iterator[None]:
    """Ends the process, without a traceback, if a host or a TPU is lost while a block runs.

    So does a checkpoint that cannot be read now: the same command may find it later.
    """
    try:
        yield
    except (LostHostError, UnavailableCheckpointError) as error:
        end_process(str(error))


def _leave_at_once(error: BaseException) -> None:
    """Makes the end of the process, with its message, not wait for the other hosts.

    They wait for this one, and learn that it is gone when their connections break. Process 0 goes a
    little later: its end aborts the others, who may be about to say the same error as it.
    """
    from jax._src import distributed

    is_first = distributed.global_state.process_id == 0
    code = EXIT_WRONG_USAGE if isinstance(error, UserError | OSError) else 1
    if isinstance(error, Interrupted):
        code = EXIT_START_AGAIN

    def leave() -> None:
        sys.stdout.flush()
        sys.stderr.flush()
        if is_first:
            time.sleep(_LEAVING_SECONDS)
        os._exit(code)

    atexit.register(leave)


def join_hosts(arguments: argparse.Namespace) -> bool:
    """Joins the hosts that the arguments or a TPU pod's own description name, if there are any.

    Call it before anything else of JAX.

    Args:
        arguments: with `add_hosts_arguments` and `add_backend_argument`.

    Returns:
        Whether there are several hosts.

    Raises:
        UserError: the arguments do not fit together, or the others did not join.
    """
    given = {name: getattr(arguments, name) for name in _FLAGS}
    missing = [name for name, value in given.items() if value is None]
    if len(missing) == len(_FLAGS):
        if arguments.backend == "tensorflow" or pod_size() < 2:
            return False
        given = {}  # JAX finds the hosts of a pod itself
    elif missing:
        raise UserError(
            f"--{' and --'.join(missing)} must be given too: several hosts are described by "
            "--coordinator_address HOST:PORT (of process 0), --num_processes and --process_id"
        )
    elif arguments.backend != "jax":
        raise UserError(
            f"--num_processes is {given['num_processes']}, and --backend is {arguments.backend}: "
            "several hosts train with --backend jax only"
        )
    elif given["process_id"] >= given["num_processes"]:
        raise UserError(
            f"--process_id is {given['process_id']}; with --num_processes "
            f"{given['num_processes']} it must be 0 to {given['num_processes'] - 1}"
        )
    require_jax()
    import jax

    if hasattr(jax.config, "jax_enable_preemption_service"):
        jax.config.update("jax_enable_preemption_service", False)  # it takes SIGTERM from us
    absence = f"the hosts did not come together within {JOIN_SECONDS} s"
    advice = "Each must run the same command, with the address of process 0"
    again = f"This process ends with exit code {EXIT_START_AGAIN}; start it again, with all hosts"
    _speak_before_abort(lambda: f"{absence}. {advice}. {again}.")
    try:
        jax.distributed.initialize(**given, initialization_timeout=JOIN_SECONDS)
    except (RuntimeError, ValueError) as error:
        raise UserError(f"{absence}: {_first_line(error)}. {advice}") from error
    _speak_before_abort(lambda: restart_sentence("The start", _FIRST_HOST_GONE))
    return True


class Heartbeats:
    """Sends heartbeats to the other hosts and listens for theirs.

    Over the key-value store of process 0, which all hosts reach while they train.

    Args:
        index: of this process.
        count: of processes.
        silent_seconds: without a sign of life a host counts as lost.
        beat_seconds: between two heartbeats.
    """

    def __init__(
        self,
        index: int,
        count: int,
        *,
        silent_seconds: float = SILENT_SECONDS,
        beat_seconds: float = BEAT_SECONDS,
    ) -> None:
        self._store = _client()
        self._index = index
        self._silent_seconds = silent_seconds
        self._beat_seconds = beat_seconds
        now = time.monotonic()
        self._heard = {other: ("", now) for other in range(count) if other != index}
        self._unreachable_since: float | None = None
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._beat, name="heartbeats", daemon=True)
        self._thread.start()

    def end(self) -> None:
        """Ends the thread: one that Python ends at its own end, in C++, takes the process along."""
        self._ended.set()
        self._thread.join(timeout=self._beat_seconds)

    def find_fault(self) -> str:
        """Says which hosts are silent; empty if none is."""
        now = time.monotonic()
        if self._unreachable_since and now - self._unreachable_since > self._silent_seconds:
            return f"process 0 has not responded for {self._silent_seconds:g} s"
        silent = [
            str(other)
            for other, (_, since) in list(self._heard.items())
            if now - since > self._silent_seconds
        ]
        if not silent or self._unreachable_since:
            return ""
        names = f"process{'es' if len(silent) > 1 else ''} {', '.join(silent)}"
        return f"no sign of life from {names} for {self._silent_seconds:g} s"

    def _beat(self) -> None:
        count = 0
        while not self._ended.wait(self._beat_seconds if count else 0.0):
            count += 1
            try:
                key = f"tpudet/alive/{self._index}"
                self._store.key_value_set(key, str(count), allow_overwrite=True)
                self._listen(dict(self._store.key_value_dir_get("tpudet/alive/")))
                self._unreachable_since = None
            except Exception:  # the store's errors have no class of their own
                self._unreachable_since = self._unreachable_since or time.monotonic()

    def _listen(self, beats: dict[str, str]) -> None:
        for key, beat in beats.items():
            other = int(key.rpartition("/")[2])
            if other in self._heard and self._heard[other][0] != beat:
                self._heard[other] = beat, time.monotonic()


def watch_hosts(limit_seconds: float) -> Watchdog:
    """Returns a watchdog that knows of the other hosts, if there are any.

    Args:
        limit_seconds: of one watched block.
    """
    import jax

    if jax.process_count() == 1:
        return Watchdog(limit_seconds)
    heartbeats = Heartbeats(jax.process_index(), jax.process_count())
    _heartbeats.append(heartbeats)
    watchdog = Watchdog(limit_seconds, find_fault=heartbeats.find_fault)
    _speak_before_abort(
        lambda: restart_sentence(watchdog.watched or "the work of all hosts", _FIRST_HOST_GONE)
    )
    return watchdog


def lost_host_error(what: str, error: Exception) -> LostHostError:
    """Returns the error of a call that failed between the hosts."""
    fault = restart_sentence(what, f"another host is gone ({_first_line(error)})")
    return LostHostError(fault)


def lost_tpu_error(what: str, error: Exception) -> LostHostError:
    """Returns the error of a call that failed on the TPU of a single host."""
    return LostHostError(restart_sentence(what, f"the TPU has failed ({_first_line(error)})"))


def _speak_before_abort(find_sentence: Callable[[], str]) -> None:
    """Makes an abort by JAX end this process with a sentence.

    JAX's client aborts the process, with a stack trace, where a host does not come and as soon as
    process 0 is gone. It takes no function of Python to call instead (jaxlib 0.10: std::bad_cast),
    so this is the handler of the signal that `abort` raises. It runs in the thread of the client,
    or in the main thread while that joins the others, which does not hold Python's lock then.

    Args:
        find_sentence: returns what to say; a later call of this function replaces it.
    """

    def handle(number: int) -> None:
        end_process(find_sentence())

    callback = ctypes.CFUNCTYPE(None, ctypes.c_int)(handle)
    ctypes.CDLL(None).signal(signal.SIGABRT, callback)
    _speak_before_abort.callback = callback  # pyright: ignore[reportFunctionMemberAccess]


def wait_for_hosts(what: str) -> None:
    """Waits until every process has called it as often with `what`."""
    _meetings[what] += 1
    name = f"tpudet/{what}/{_meetings[what]}"
    _client().wait_at_barrier(name, MEET_SECONDS * 1000)


_meetings: Counter[str] = Counter()  # how often each was
_heartbeats: list[Heartbeats] = []  # of this process


def _client() -> Any:
    """Returns the connection to process 0, which has no public name yet."""
    from jax._src import distributed

    return distributed.global_state.client


def gather_objects(value: Value) -> list[Value]:
    """Returns the value of each process, in their order, on each. Collective.

    Args:
        value: that pickle knows; sizes may differ from host to host.
    """
    from jax.experimental import multihost_utils

    content = np.frombuffer(pickle.dumps(value), np.uint8)
    sizes = multihost_utils.process_allgather(np.array([len(content)], np.int32)).ravel()
    padded = np.pad(content, (0, int(sizes.max()) - len(content)))
    parts = multihost_utils.process_allgather(padded)
    return [
        pickle.loads(part[:size].tobytes())
        for part, size in zip(np.asarray(parts), sizes, strict=True)
    ]


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0][:300]
