"""The output of a command: its messages, its bars, and none of TensorFlow's notes.

TensorFlow and XLA write to the process's standard error themselves, partly before any setting of
theirs is read. A small process reads what they write there and leaves out the notes; it outlives a
crash, so the last output still reaches the screen. Python's own `sys.stderr` goes around it.
"""

import io
import logging
import os
import sys
from collections.abc import Sequence
from contextlib import nullcontext
from types import ModuleType
from typing import BinaryIO

_SECONDS_BETWEEN_LINES = 30  # of a bar that goes to a file or pipe
_YELLOW, _PLAIN = "\033[33m", "\033[0m"
# Of absl's format; errors are shown but for those that mean nothing, and fatal ones always.
_NOTES = (
    r"[IW]\d{4} [\d:.]+ +\d+ \S+:\d+\] .*"
    r"|E\d{4} [\d:.]+ +\d+ \S+:\d+\] "
    r"(oneDNN supports|Unable to register cu|failed call to cuInit|NodeDef mentions attribute).*"
    r"|WARNING: All log messages before absl::InitializeLog.*"
    r"|\d{4}-\d\d-\d\d [\d:.]+: [IW] .*"
    r"|To enable the following instructions: .*"
)
_FILTER = f"""
import re, signal, sys
for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
    signal.signal(number, signal.SIG_IGN)  # they are for the command, whose end ends this
notes = re.compile({_NOTES!r}.encode())
for line in iter(sys.stdin.buffer.readline, b""):
    if not notes.match(line):
        sys.stdout.buffer.write(line)
        sys.stdout.buffer.flush()
"""


def prepare_screen() -> None:
    """Makes this process's output readable; for a command of its own, once.

    With TF_CPP_MIN_LOG_LEVEL below 2 TensorFlow's notes are shown.
    """
    if sys.stderr is None:
        return  # it is closed
    if not sys.stderr.isatty():
        # Read when tqdm is imported in a process that this one starts, too.
        os.environ.setdefault("TQDM_MININTERVAL", str(_SECONDS_BETWEEN_LINES))
        sys.stderr = BarLines(sys.stderr.buffer)
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    if not _shows_notes():
        sys.meta_path.insert(0, _BeforeTensorFlow())


def _shows_notes() -> bool:
    return os.environ.get("TF_CPP_MIN_LOG_LEVEL") in ("0", "1")


class _Stream(io.TextIOWrapper):
    """A standard stream that loses what it is given once its reader has left, as `head` does.

    The work that writes to it continues.
    """

    title: str
    has_reader = True  # as far as is known

    def write(self, text: str) -> int:
        """Writes text."""
        try:
            return super().write(text)
        except OSError as error:
            self._lose_reader(error)
        return len(text)

    def flush(self) -> None:
        """Hands on what was written."""
        try:
            super().flush()
        except OSError as error:
            self._lose_reader(error)

    def _lose_reader(self, error: OSError) -> None:
        if not isinstance(error, BrokenPipeError):
            error.filename = self.title
            raise error
        self.has_reader = False
        with open(os.devnull, "wb") as nowhere:
            os.dup2(nowhere.fileno(), self.fileno())


class StandardOutput(_Stream):
    """Standard output, see `_Stream`."""

    title = "standard output"

    @classmethod
    def in_place_of(cls, stream: io.TextIOWrapper) -> "StandardOutput":
        """Writes to the buffer of a stream, which must live on, in the same way."""
        stream.flush()
        return cls(
            stream.buffer,
            stream.encoding,
            stream.errors,
            line_buffering=stream.line_buffering,
            write_through=stream.write_through,
        )


def is_output_read() -> bool:
    """Whether standard output still has a reader, as far as the last attempt to write tells."""
    return getattr(sys.stdout, "has_reader", True)


class _Text(_Stream):
    """Standard error as Python opens it by itself."""

    title = "standard error"

    def __init__(self, buffer: BinaryIO) -> None:
        super().__init__(buffer, "utf-8", "backslashreplace", line_buffering=True)


class BarLines(_Text):
    """Text in which each state of a bar is a line of its own, where there is no terminal."""

    def __init__(self, buffer: BinaryIO) -> None:
        super().__init__(buffer)
        self._after_bar = False

    def write(self, text: str) -> int:
        """Writes text; a bar returns to the start of its line, and its end is a line break."""
        if text.startswith("\r"):
            state = text.strip("\r\n ")
            self._after_bar = True
            super().write(f"{state}\n" if state else "")
        elif not (self._after_bar and text == "\n"):
            self._after_bar = self._after_bar and not text
            super().write(text)
        return len(text)


class _BeforeTensorFlow:
    """Hides the notes as soon as TensorFlow is imported, and finds no module.

    An `importlib.abc.MetaPathFinder` but in name: that module takes 9 ms to import.
    """

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> None:
        if fullname in ("tensorflow", "jax"):
            sys.meta_path.remove(self)
            hide_notes()


def hide_notes() -> None:
    """Sends what C++ code writes to standard error through a filter; Python's stays as it is."""
    import subprocess  # late: most commands have no notes to hide

    shown = os.dup(2)
    sys.stderr.flush()
    if sys.stderr.fileno() == 2:
        kind = BarLines if isinstance(sys.stderr, BarLines) else _Text
        sys.stderr = kind(os.fdopen(os.dup(shown), "wb"))
    command = [sys.executable, "-I", "-S", "-c", _FILTER]
    reader = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=shown)
    assert reader.stdin is not None
    os.dup2(reader.stdin.fileno(), 2)
    reader.stdin.close()
    os.close(shown)
    reader.returncode = 0  # it ends by itself, after this process


class LogHandler(logging.StreamHandler):
    """Writes the log to standard output, above the bars of the terminal.

    Of TensorFlow's Python code it has the errors only, unless TensorFlow's notes are shown.
    """

    def __init__(self) -> None:
        super().__init__(sys.stdout)
        if not _shows_notes():
            self.addFilter(_is_no_note)
        self.setFormatter(LogFormatter(is_coloured=sys.stdout.isatty()))

    def emit(self, record: logging.LogRecord) -> None:
        """Clears the bars, writes, and draws them again."""
        from tqdm import tqdm  # reads its settings when it is imported, so after prepare_screen

        on_terminal = sys.stderr is not None and sys.stderr.isatty()
        with tqdm.external_write_mode(file=self.stream) if on_terminal else nullcontext():
            super().emit(record)


def _is_no_note(record: logging.LogRecord) -> bool:
    return record.name not in ("absl", "tensorflow") or record.levelno >= logging.ERROR


class LogFormatter(logging.Formatter):
    """Time and message; a warning says that it is one."""

    def __init__(self, *, is_coloured: bool = False) -> None:
        super().__init__("%(asctime)s %(message)s", "%Y-%m-%d %H:%M:%S")
        self._is_coloured = is_coloured

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802
        """The line of a record."""
        if record.levelno < logging.WARNING:
            return super().formatMessage(record)
        text = f"{record.asctime} {record.levelname}: {record.message}"
        return f"{_YELLOW}{text}{_PLAIN}" if self._is_coloured else text
