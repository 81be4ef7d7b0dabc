"""Stops at the next step boundary on a signal or a deadline, whatever the main thread does.

Python runs signal handlers in the main thread between two bytecodes, so not while that thread is
inside a TensorFlow call of many steps. `signal.set_wakeup_fd` works below that: the C handler
writes the signal's number to a pipe at once, and a thread reads it and requests the stop. The
deadline is a signal too, SIGALRM, so that it interrupts what the others interrupt.
"""

import contextlib
import logging
import math
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from types import FrameType, TracebackType

from tpudet.trainkit.training.stopping import EXIT_START_AGAIN, EXIT_TIME_LIMIT

_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
_AT_STEP_BOUNDARY = "stopping at the next step boundary (a second signal ends at once)"
_GRACE_SECONDS = 5.0  # Spot machines give 30 to end, containers 10
_END_OF_WATCH = b"\0"  # no signal has the number 0
_LONGEST_TIMER = 1e8  # seconds, three years

logger = logging.getLogger(__name__)


class Interrupted(BaseException):
    """A signal came. A BaseException, so that no `except Exception` on the way swallows it.

    Args:
        signal_name: of the signal; SIGALRM stands for the deadline.
    """

    def __init__(self, signal_name: str) -> None:
        is_limit = signal_name == signal.SIGALRM.name
        super().__init__("the time limit" if is_limit else signal_name)
        self.exit_code = EXIT_TIME_LIMIT if is_limit else EXIT_START_AGAIN


class Preemption:
    """While entered, the first SIGTERM, SIGINT or SIGHUP requests a stop.

    A second ends the process at once; but not a second SIGHUP, for a terminal that closes sends
    one through its shell and one itself. Where SIGHUP is ignored, as under nohup, it stays so.

    The deadline requests a stop as well. Outside the main thread Python cannot install handlers; a
    warning says so, signals keep their former effect, and the deadline has none.

    Args:
        request_stop: stops the engine; thread-safe, quick, harmless when called twice.
        deadline: when to stop, by `time.monotonic`; infinity means never.
        notice: says after the signal's name what happens now.
    """

    def __init__(
        self,
        request_stop: Callable[[], None],
        *,
        deadline: float = math.inf,
        notice: str = _AT_STEP_BOUNDARY,
    ) -> None:
        self._request_stop = request_stop
        self._deadline = deadline
        self._notice = notice
        self._requested = threading.Event()
        self._is_interruptible = False
        self._former_handlers: dict[signal.Signals, object] = {}
        self._watcher: threading.Thread | None = None
        self.signal_name = ""

    @property
    def requested(self) -> bool:
        """Whether a signal has arrived, or the deadline has passed."""
        return self._requested.is_set()

    def wait(self, seconds: float) -> None:
        """Sleeps, but returns at once when a signal arrives."""
        self._requested.wait(seconds)

    @contextlib.contextmanager
    def interruptible(self) -> Iterator[None]:
        """Raises Interrupted on a signal: for work with nothing to save, such as evaluation.

        Also on entry, if the signal came earlier.
        """
        self._is_interruptible = True
        try:
            if self.requested:
                raise Interrupted(self.signal_name)
            yield
        finally:
            self._is_interruptible = False

    def __enter__(self) -> "Preemption":
        """Installs the handlers and starts the watching thread."""
        if threading.current_thread() is not threading.main_thread():
            logger.warning(
                "Not in the main thread: SIGTERM will not save before it ends the run, and a time "
                "limit has no effect"
            )
            return self
        self._read_end, self._write_end = os.pipe()
        os.set_blocking(self._write_end, False)
        self._former_wakeup = signal.set_wakeup_fd(self._write_end, warn_on_full_buffer=False)
        handled = list(_SIGNALS if math.isinf(self._deadline) else (*_SIGNALS, signal.SIGALRM))
        if signal.getsignal(signal.SIGHUP) == signal.SIG_IGN:
            handled.remove(signal.SIGHUP)
        self._former_handlers = {number: signal.getsignal(number) for number in handled}
        for number in handled:
            signal.signal(number, self._handle)
        self._watcher = threading.Thread(target=self._watch, name="preemption", daemon=True)
        self._watcher.start()
        if signal.SIGALRM in handled:
            seconds = self._deadline - time.monotonic()
            if seconds <= 0:
                signal.raise_signal(signal.SIGALRM)
            else:
                # At least a little: 0 would switch the timer off. Many would overflow.
                seconds = min(max(seconds, 1e-3), _LONGEST_TIMER)
                signal.setitimer(signal.ITIMER_REAL, seconds)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Restores the former handlers; after a SIGHUP its second one is ignored from here on."""
        if self._watcher is None:
            return
        if signal.SIGALRM in self._former_handlers:
            signal.setitimer(signal.ITIMER_REAL, 0.0)
        if signal.SIGHUP.name == self.signal_name:
            signal.signal(signal.SIGHUP, signal.SIG_IGN)
        for number, handler in self._former_handlers.items():
            if number == signal.SIGHUP and signal.getsignal(number) == signal.SIG_IGN:
                continue
            # None stands for a handler that was not installed from Python.
            signal.signal(number, handler if handler is not None else signal.SIG_DFL)  # pyright: ignore[reportArgumentType]
        signal.set_wakeup_fd(self._former_wakeup)
        os.write(self._write_end, _END_OF_WATCH)
        self._watcher.join()
        self._watcher = None
        os.close(self._read_end)
        os.close(self._write_end)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        """Runs in the main thread, possibly late; `_watch` may have acted by then."""
        self._note(number)
        if self._is_interruptible:
            self._is_interruptible = False  # once is enough
            raise Interrupted(self.signal_name)

    def _watch(self) -> None:
        arrived = 0
        while (received := os.read(self._read_end, 1)) != _END_OF_WATCH:
            number = received[0]
            if number not in self._former_handlers:
                continue
            is_repeated_hangup = number == signal.SIGHUP and arrived > 0
            arrived += number in _SIGNALS and not is_repeated_hangup
            self._note(number)
            if arrived > 1:
                # The main thread may be deep in a call; only this ends the process at once.
                _say(f"second signal ({self.signal_name}): ending at once")
                os._exit(128 + number)
            if is_repeated_hangup:
                continue
            self._request_stop()
            reason = "time limit" if number == signal.SIGALRM else self.signal_name
            _say(f"{reason}: {self._notice}")

    def _note(self, number: int) -> None:
        if number == signal.SIGALRM and self.requested:
            return  # a signal came before: that is why the run ends
        self.signal_name = signal.Signals(number).name
        self._requested.set()


@contextlib.contextmanager
def interrupted_by_signals() -> Iterator[None]:
    """Raises Interrupted on a signal while the block runs: around the start and end of a training.

    There is nothing to save then. A main thread that does not come to raise it, deep in a
    compilation or in a call that swallows it, is not waited for long. Outside the main thread
    signals keep their former effect.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    limit = threading.Timer(_GRACE_SECONDS, os._exit, (EXIT_START_AGAIN,))
    limit.daemon = True
    notice = f"ending with exit code {EXIT_START_AGAIN}; nothing is lost that was saved"
    try:
        with Preemption(limit.start, notice=notice) as preemption, preemption.interruptible():
            yield
    finally:
        limit.cancel()


def _say(message: str) -> None:
    with contextlib.suppress(OSError):  # the terminal may be the one that has closed
        print(message, file=sys.stderr, flush=True)
