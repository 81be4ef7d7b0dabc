"""Claims on outputs: at most one process writes to each, and a second is told who does."""

import errno
import json
import os
import platform
import stat
import threading
import time
from datetime import UTC, datetime
from types import TracebackType
from typing import NamedTuple

from tpudet.trainkit.errors import UserError
from tpudet.trainkit.files import storage
from tpudet.trainkit.files.exclusive import NO_LINKS, is_at, lock_file
from tpudet.trainkit.files.json_text import parse_json
from tpudet.trainkit.files.processes import ProcessIdentity, this_process

REFRESH_SECONDS = 20
STALE_SECONDS = 120  # without a sign of life from another machine
_SIZE = 1024  # bytes of the file, so that a rewrite in place needs no new block of a full disk
_START = '{"host": "'  # of every claim: tells a torn one from a user's own file


class ClaimError(UserError):
    """Another process writes to the same output, or has taken it over."""


class Claim:
    """A file beside an output that names the process that writes to it; a context manager.

    On a disk the file is locked with `flock`, which the kernel releases however its owner ends. A
    dead process's claim is therefore taken over at once, a paused one's is not, and process ids
    that repeat in other containers do not matter. Across machines, and in buckets, which have no
    locks, the owner writes a sign of life every 20 s and counts as dead after 120 s without one;
    if its clock is far ahead of this one, entering waits for them. Such an owner may only have been
    paused, so call `verify` before every write that matters.

    Args:
        path: of the claim, such as `<output>.claim.json`; removed when the block ends.
        output: what is claimed, for messages.

    Raises:
        ClaimError: on entry, a living process holds the claim, or the path holds another file.
        OSError: on entry, the claim cannot be written.
    """

    def __init__(self, path: str, *, output: str) -> None:
        token = f"{platform.node()}-{os.getpid()}-{time.time_ns():x}"
        self.path = path
        self.ticket = ClaimTicket(path, output, token)
        self._since = time.time()
        self._descriptor: int | None = None  # of the file on a disk
        self._is_locked = False
        self._lost = False
        self._ended = threading.Event()
        self._signs_of_life: threading.Thread | None = None

    def __enter__(self) -> "Claim":
        self._lost = False
        self._ended.clear()
        storage.make_folder(os.path.dirname(self.path) or ".")
        if not storage.is_remote(self.path):
            self._lock()
        try:
            other = self.ticket.read_owner()
            if other is not None and self._may_live(other):
                raise self._refusal(other)
            self._write()
            # Two processes may have read a bucket at the same instant; the last to write has won.
            self.verify()
        except BaseException:
            self._unlock()
            raise
        self._signs_of_life = threading.Thread(target=self._keep_alive, daemon=True)
        self._signs_of_life.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._ended.set()
        if self._signs_of_life is not None:
            self._signs_of_life.join()
        try:
            if self.ticket.is_valid():
                storage.remove_if_there(self.path)
        except (ClaimError, OSError):
            if error is None:
                raise
        finally:
            self._unlock()

    def verify(self) -> None:
        """Call before publishing.

        Raises:
            ClaimError: another process has taken the output over, or the claim was removed.
        """
        if self._lost:
            raise self.ticket.loss()
        try:
            self.ticket.verify()
        except ClaimError:
            self._lost = True
            raise

    def _lock(self) -> None:
        """Opens and locks the file, which other owners may remove at any time."""
        while self._descriptor is None:
            descriptor = self._open()
            try:
                locked = lock_file(descriptor)
                if locked is False:
                    raise self._refusal(self.ticket.read_owner())
                if is_at(descriptor, self.path):
                    self._descriptor, self._is_locked = descriptor, locked is True
            finally:
                if self._descriptor is None:
                    os.close(descriptor)

    def _open(self) -> int:
        flags = os.O_RDWR | os.O_CREAT | NO_LINKS
        try:
            descriptor = os.open(self.path, flags, 0o666)
        except OSError as error:
            if error.errno in (errno.ELOOP, errno.EISDIR):
                raise self.ticket.not_a_claim() from None
            raise
        if stat.S_ISREG(os.fstat(descriptor).st_mode):
            return descriptor
        os.close(descriptor)
        raise self.ticket.not_a_claim()

    def _unlock(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def _may_live(self, other: "_Owner") -> bool:
        """Whether the owner named in the file may be alive; its lock, if any, is not held."""
        if self._is_locked and other.identity.boot == this_process().boot:
            return False  # the kernel that both run on would have kept its lock
        is_alive = other.identity.is_alive()
        if is_alive is not None:
            return is_alive
        age = time.time() - other.alive
        # Clocks that are so far apart tell nothing: only a new sign of life does.
        return age < STALE_SECONDS if age > -STALE_SECONDS else self._gives_sign(other)

    def _gives_sign(self, other: "_Owner") -> bool:
        """Whether the file changes while this waits for an owner, as long as one may be silent."""
        end = time.monotonic() + STALE_SECONDS
        while time.monotonic() < end:
            time.sleep(REFRESH_SECONDS / 4)
            found = self.ticket.read_owner()
            if found != other:
                return found is not None
        return False

    def _keep_alive(self) -> None:
        while not self._ended.wait(REFRESH_SECONDS):
            try:
                if not self.ticket.is_valid():
                    self._lost = True
                    return
                self._write()
            except ClaimError:
                self._lost = True
                return
            except OSError:
                continue  # a bucket that cannot be reached for a moment

    def _write(self) -> None:
        owner = _Owner(this_process(), self.ticket.token, self._since, time.time())
        if self._descriptor is None:
            storage.write_text(self.path, owner.to_json())
            return
        # In place: a renamed file would be another one than the locked one.
        os.pwrite(self._descriptor, owner.to_json().encode().ljust(_SIZE), 0)
        os.ftruncate(self._descriptor, _SIZE)

    def _refusal(self, other: "_Owner | None") -> ClaimError:
        owner = other.describe() if other else "another process"
        return ClaimError(
            f"{self.ticket.output} is being written by {owner}. Wait until it ends, or choose "
            f"another output; if there is no such process, remove {self.path}."
        )


class ClaimTicket(NamedTuple):
    """Lets the owner of a claim, and the worker processes that it starts, verify the claim."""

    path: str
    output: str
    token: str  # of one Claim

    def verify(self) -> None:
        """Raises as `Claim.verify` does."""
        if not self.is_valid():
            raise self.loss()

    def is_valid(self) -> bool:
        """Whether the claim is still held."""
        owner = self.read_owner()
        return owner is not None and owner.token == self.token

    def loss(self) -> ClaimError:
        """The error of an owner that lost the claim."""
        owner = self.read_owner()
        what = f"was taken over by {owner.describe()}" if owner else "is no longer claimed"
        return ClaimError(
            f"{self.output} {what}: {self.path} changed while this process was paused or cut off "
            "from the disk. It stops and writes nothing more there. Start it again when no other "
            "process writes to that output."
        )

    def read_owner(self) -> "_Owner | None":
        """The owner that the file names; None for a missing, empty or torn file.

        Raises:
            ClaimError: the file is not a claim.
        """
        try:
            with storage.open_file(self.path, "rb") as file:
                text = file.read(_SIZE + 1).decode("utf-8", errors="replace").strip(" \0\n")
        except FileNotFoundError:
            return None
        if not text.startswith(_START) and not _START.startswith(text):
            raise self.not_a_claim()
        return _Owner.from_json(text)

    def not_a_claim(self) -> ClaimError:
        """The error of a path that holds another file."""
        return ClaimError(
            f"{self.path} is not a claim file of tpudet, and would be overwritten. It must name "
            f"the process that writes {self.output}; move it away or choose another output."
        )


class _Owner(NamedTuple):
    identity: ProcessIdentity
    token: str  # of one Claim
    since: float  # seconds since 1970
    alive: float  # the last sign of life, seconds since 1970

    def describe(self) -> str:
        since = datetime.fromtimestamp(self.since, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
        return f"process {self.identity.process} on {self.identity.host} since {since}"

    def to_json(self) -> str:
        fields = self._asdict() | self.identity._asdict()
        del fields["identity"]
        return json.dumps({name: fields[name] for name in _FIELDS})

    @classmethod
    def from_json(cls, text: str) -> "_Owner | None":
        try:
            fields = parse_json(text)
            values = {name: kind(fields[name]) for name, kind in _FIELDS.items()}
            owner = cls(
                ProcessIdentity(**{name: values[name] for name in ProcessIdentity._fields}),
                values["token"],
                values["since"],
                values["alive"],
            )
            owner.describe()
        except (ValueError, TypeError, KeyError, OverflowError, OSError):
            return None
        return owner


_FIELDS = {
    "host": str,
    "process": int,
    "boot": str,
    "namespace": str,
    "started": str,
    "token": str,
    "since": float,
    "alive": float,
}


def remove_dead_claim(path: str) -> bool:
    """Removes the claim of a process that was killed; returns False if that process is alive.

    For outputs that are complete: a process killed just before it removed its claim leaves one
    behind, and no later run would claim the output again.
    """
    if not storage.exists(path):
        return True
    try:
        with Claim(path, output=path):
            return True
    except ClaimError:
        return False
