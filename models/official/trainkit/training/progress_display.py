"""Shows the step that a run is at while the engine is busy with the next ones."""

import logging
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from tqdm import tqdm

_SECONDS_BETWEEN_LINES = 30.0
_SECONDS_BETWEEN_LOOKS = 0.5

logger = logging.getLogger(__name__)


class ProgressDisplay:
    """A bar where errors go to a terminal; elsewhere a log line now and then.

    Args:
        read_step: returns the present step; called in a thread of its own.
        total_steps: of the run.
    """

    def __init__(self, read_step: Callable[[], int], total_steps: int) -> None:
        self._read_step = read_step
        self._total_steps = total_steps
        self._last_line = time.monotonic()

    def note_line(self) -> None:
        """Says that a line of the log has just told the step."""
        self._last_line = time.monotonic()

    @contextmanager
    def shown(self) -> Iterator[None]:
        """Shows the step while the block runs, and clears the bar after it."""
        over = threading.Event()
        show = self._show_bar if sys.stderr.isatty() else self._show_lines
        thread = threading.Thread(target=show, args=(over,), name="progress", daemon=True)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()

    def _show_bar(self, over: threading.Event) -> None:
        if over.wait(_SECONDS_BETWEEN_LOOKS):
            return  # short calls would make it flicker
        first = self._read_step()
        with tqdm(total=self._total_steps, initial=first, unit="step", leave=False) as bar:
            while not over.wait(_SECONDS_BETWEEN_LOOKS):
                bar.update(self._read_step() - bar.n)

    def _show_lines(self, over: threading.Event) -> None:
        while not over.wait(_SECONDS_BETWEEN_LOOKS):
            if time.monotonic() - self._last_line >= _SECONDS_BETWEEN_LINES:
                logger.info("step %d/%d", self._read_step(), self._total_steps)
                self.note_line()
