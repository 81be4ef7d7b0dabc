"""Ends a process that is stuck waiting for devices or other hosts, and says what it waited for."""

import math
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from tpudet.trainkit.training.stopping import EXIT_START_AGAIN

_CHECK_SECONDS = 1.0


def end_process(sentence: str) -> None:
    """Prints the sentence and ends the process at once: its main thread may wait for ever."""
    sys.stdout.flush()
    print(sentence, file=sys.stderr, flush=True)
    os._exit(EXIT_START_AGAIN)


class Watchdog:
    """Limits how long a process waits for its devices.

    A device that hangs, or a host that is gone, leaves the others waiting in a call that no signal
    and no exception ends.

    Args:
        limit_seconds: of one watched block.
        find_fault: says what is wrong with the other hosts; empty if nothing. Called every second
            while a block is watched.
        end: called with a sentence from the watching thread; does not return.
    """

    def __init__(
        self,
        limit_seconds: float,
        *,
        find_fault: Callable[[], str] = lambda: "",
        end: Callable[[str], None] = end_process,
    ) -> None:
        self._limit = limit_seconds
        self._find_fault = find_fault
        self._end = end
        self._watched: tuple[str, float] | None = None  # what, and until when at most
        self._thread: threading.Thread | None = None

    @property
    def watched(self) -> str:
        """The step being waited for; empty if none."""
        return self._watched[0] if self._watched else ""

    @contextmanager
    def watch(self, what: str, *, is_timed: bool = True) -> Iterator[None]:
        """Ends the process if the block lasts too long.

        Args:
            what: begins the sentence.
            is_timed: whether the limit holds, or only the other hosts are watched.
        """
        if self._thread is None:
            self._thread = threading.Thread(target=self._check, name="watchdog", daemon=True)
            self._thread.start()
        self._watched = what, time.monotonic() + (self._limit if is_timed else math.inf)
        try:
            yield
        finally:
            self._watched = None

    def _check(self) -> None:
        while True:
            time.sleep(min(_CHECK_SECONDS, self._limit / 4))
            watched = self._watched
            if watched is None:
                continue
            what, end = watched
            fault = self._find_fault()
            if not fault and time.monotonic() > end:
                fault = (
                    f"it has not ended for {self._limit:g} s (train.step_timeout_seconds): a "
                    "device hangs, or another host is gone or slow"
                )
            if fault and self._watched is watched:
                self._end(restart_sentence(what, fault))
                return


def restart_sentence(what: str, fault: str) -> str:
    """Says what failed and that the same command resumes from the newest checkpoint."""
    return (
        f"{what} cannot be finished: {fault}. This process ends with exit code "
        f"{EXIT_START_AGAIN}; start it again, with all its hosts if there are several: the run "
        "resumes from the newest checkpoint."
    )
