"""Claim files: keep two runs from writing the same output at the same time."""

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
_STALE_SECONDS = 120  # without a refresh, for runs on other machines


class Claim:
    """Context manager for a file that names the process that is writing an output.

    A claim of a killed process is detected and taken over: by its process id on the same machine,
    by the time of its last refresh on another. Object stores have no exclusive creation, so two
    runs that start at the same instant can both get in; `verify` detects that before anything is
    published.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        self.token = f"{socket.gethostname()}-{os.getpid()}-{time.time_ns():x}"
        self._refreshed = 0.0

    def __enter__(self) -> "Claim":
        other = self._read()
        if other is not None and _is_alive(other):
            raise UserError(
                f"Another run, process {other['process']} on {other['host']}, is writing this "
                f"output. Wait until it ends; if there is no such process, remove {self.path}."
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
        """Renews the time stamp if it is due. Cheap, so call it often."""
        if time.time() - self._refreshed > _REFRESH_SECONDS:
            self._write()

    def verify(self) -> None:
        """Raises UserError if another run has taken over the claim."""
        other = self._read()
        if other is None or other["token"] != self.token:
            raise UserError(
                f"Another run has started to write this output ({self.path}); nothing was "
                "published."
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
    """Removes the claim of a run that was killed; returns False if the run is still alive.

    For outputs that are complete: a run killed just before it removed its claim leaves one behind,
    and no later run would claim the output again.
    """
    other = Claim(path)._read()
    if other is not None and _is_alive(other):
        return False
    remove_if_there(path)
    return True


def _is_alive(fields: dict[str, Any]) -> bool:
    if fields["host"] != socket.gethostname():
        return time.time() - fields["time"] < _STALE_SECONDS
    if fields["process"] == os.getpid():  # the id of a killed process was reused for this one
        return False
    try:
        os.kill(fields["process"], 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
