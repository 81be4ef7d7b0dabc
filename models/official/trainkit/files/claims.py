"""Keeps two runs from writing to the same output at once."""

import json
import os
import socket
import time
from types import TracebackType
from typing import Any

from tpudet.trainkit.errors import UserError
from tpudet.trainkit.files import storage
from tpudet.trainkit.files.storage import remove_if_there

_REFRESH_SECONDS = 20
_STALE_SECONDS = 120  # of a run on another machine, whose process cannot be asked for


class Claim:
    """A file that says which process writes; a context manager that removes it on leaving.

    The claim of a process that was killed is recognised and taken over: on the same machine by its
    process id, elsewhere by the time of its last sign of life. Object stores offer no exclusive
    creation, so two runs that start within the same instant can both pass; `verify` then finds out
    before anything is published, and shards have temporary names of their own.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        self.token = f"{socket.gethostname()}-{os.getpid()}-{time.time_ns():x}"
        self._refreshed = 0.0

    def __enter__(self) -> "Claim":
        other = self._read()
        if other is not None and _is_alive(other):
            raise UserError(
                f"Another run, process {other['process']} on {other['host']}, is writing there. "
                f"Wait for its end; should there be no such process, remove {self.path}."
            )
        self._write()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        other = self._read()
        if other is not None and other["token"] == self.token:
            storage.remove(self.path)

    def refresh(self) -> None:
        """Gives a sign of life now and then; call it often, it is cheap."""
        if time.time() - self._refreshed > _REFRESH_SECONDS:
            self._write()

    def verify(self) -> None:
        """Raises UserError where another run has taken the claim over."""
        other = self._read()
        if other is None or other["token"] != self.token:
            raise UserError(
                f"Another run has started to write there ({self.path}): nothing was published."
            )

    def _write(self) -> None:
        self._refreshed = time.time()
        fields = {
            "host": socket.gethostname(),
            "process": os.getpid(),
            "token": self.token,
            "time": self._refreshed,
        }
        with storage.open_file(self.path, "w") as file:
            file.write(json.dumps(fields))

    def _read(self) -> dict[str, Any] | None:
        try:
            with storage.open_file(self.path, "r") as file:
                fields = json.loads(file.read())
        except (FileNotFoundError, json.JSONDecodeError):
            return None
        return fields if {"host", "process", "token", "time"} <= set(fields) else None


def remove_dead_claim(path: str) -> bool:
    """Removes what a run that was killed at its very end left; returns whether no run is at work.

    Then all was finished but the claim's own removal, and no later run would claim again.
    """
    other = Claim(path)._read()
    if other is not None and _is_alive(other):
        return False
    remove_if_there(path)
    return True


def _is_alive(fields: dict[str, Any]) -> bool:
    if fields["host"] != socket.gethostname():
        return time.time() - fields["time"] < _STALE_SECONDS
    if fields["process"] == os.getpid():  # the number of a killed process, given to this one
        return False
    try:
        os.kill(fields["process"], 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
