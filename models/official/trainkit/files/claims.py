"""Claims on outputs: at most one process writes to each, and a second is told who does."""

import contextlib
import errno
import os
import platform
import stat
import threading
import time
from pathlib import Path
from types import TracebackType
from typing import NamedTuple

from tpudet.trainkit.errors import UserError
from tpudet.trainkit.files import storage
from tpudet.trainkit.files.claim_owners import ClaimOwner
from tpudet.trainkit.files.exclusive import NO_LINKS, is_at, lock_file
from tpudet.trainkit.files.processes import this_process
from tpudet.trainkit.files.remote import STALL_SECONDS

REFRESH_SECONDS = 20
# Longer than two stalls and a sign, as is the limit of jax_hosts.
STALE_SECONDS = 3 * STALL_SECONDS  # without a sign of life from another machine
_SIZE = 1024  # bytes of the file, so that a rewrite in place needs no new block of a full disk
_START = '{"host": "'  # of every claim: tells a torn one from a user's own file


class ClaimError(UserError):
    """Another process writes to the same output, or has taken it over."""


def claim_beside(output: str) -> str:
    """Path of the claim on a file or folder, beside it.

    It is the same through a link and with a `/` at the end, so that one output has one claim.

    Raises:
        UserError: the output is a whole bucket, beside which there is nothing.
    """
    refuse_whole_bucket(output)
    real = output if storage.is_remote(output) else os.path.realpath(output)
    return f"{real.rstrip('/')}.claim.json"


def refuse_whole_bucket(output: str) -> None:
    """Refuses an output that is a bucket itself, not a name in it.

    Raises:
        UserError: it is one.
    """
    scheme, _, path = output.partition("://")
    if storage.is_remote(output) and "/" not in path.strip("/"):
        raise UserError(
            f"{output} is a whole bucket, which no output can replace: give it a name in the "
            f"bucket, such as {scheme}://{path.strip('/') or 'BUCKET'}/NAME"
        )


class Claim:
    """A file beside an output that names the process that writes to it; a context manager.

    On a disk the file is locked with `flock`, which the kernel releases however its owner ends. A
    dead process's claim is therefore taken over at once, a paused one's is not, and process ids
    that repeat in other containers do not matter. Across machines, and in buckets, which have no
    locks, the owner writes a sign of life every 20 s and counts as dead after 180 s without one;
    if its clock is far ahead of this one, entering waits for them. Such an owner may only have been
    paused, so call `verify` before every write that matters.

    A dead process of another user is replaced where its file may be read and removed; otherwise the
    message names the user.

    Args:
        path: of the claim, such as `claim_beside` returns; removed when the block ends.
        output: what is claimed, for messages.

    Raises:
        ClaimError: on entry, a living process holds the claim, or the path holds another file, or
            that of another user which this one may not remove.
        UserError: on entry, the claim cannot be written, and is not left behind.
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
        try:
            storage.make_folder(os.path.dirname(self.path) or ".")
            if not storage.is_remote(self.path):
                self._lock()
            self._refuse_living()
            self._begin()
            # Two processes may have read a bucket at the same instant; the last to write has won.
            self.verify()
        except OSError as error:
            self._unlock()
            reason = storage.reason(error)
            raise UserError(f"{self.ticket.output} cannot be written: {reason}") from error
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
            descriptor, is_writable = self._open()
            try:
                locked = lock_file(descriptor)
                if locked is False:
                    raise self._refusal(self.ticket.read_owner())
                if is_at(descriptor, self.path):
                    self._is_locked = locked is True
                    if is_writable:
                        self._descriptor = descriptor
                    else:
                        self._remove_foreign()  # and make one's own
            finally:
                if self._descriptor is None:
                    os.close(descriptor)

    def _open(self) -> tuple[int, bool]:
        """The open file, and whether it can be written: not that of another user."""
        is_writable = True
        try:
            descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT | NO_LINKS, 0o666)
        except PermissionError as error:
            descriptor, is_writable = self._open_foreign(error), False
        except OSError as error:
            if error.errno in (errno.ELOOP, errno.EISDIR):
                raise self.ticket.not_a_claim() from None
            raise
        if stat.S_ISREG(os.fstat(descriptor).st_mode):
            return descriptor, is_writable
        os.close(descriptor)
        raise self.ticket.not_a_claim()

    def _open_foreign(self, error: PermissionError) -> int:
        try:
            return os.open(self.path, os.O_RDONLY | NO_LINKS)
        except FileNotFoundError:  # it is the folder that cannot be written
            raise error from None
        except PermissionError:
            raise ClaimError(
                f"{self.ticket.output} is claimed by {_user_of(self.path)}; you have no permission "
                f"to read the claim {self.path}, so it is not known whether that process is still "
                "running. Choose another output, or let that user remove it."
            ) from error

    def _remove_foreign(self) -> None:
        """Removes the claim of a dead process of another user, which only that user may write."""
        self._refuse_living()
        owner = self.ticket.read_owner()
        try:
            storage.remove_if_there(self.path)
        except PermissionError as error:
            left_by = owner.describe() if owner else "a process that has ended"
            raise ClaimError(
                f"{self.ticket.output} is still claimed by {left_by}, which has ended, and only "
                f"{_user_of(self.path)} may remove {self.path}. Choose another output, or let that "
                "user remove it."
            ) from error

    def _unlock(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def _refuse_living(self) -> None:
        other = self.ticket.read_owner()
        if other is not None and self._may_live(other):
            raise self._refusal(other)

    def _may_live(self, other: ClaimOwner) -> bool:
        """Whether the owner named in the file may be alive; its lock, if any, is not held."""
        if self._is_locked and other.identity.boot == this_process().boot:
            return False  # the kernel that both run on would have kept its lock
        is_alive = other.identity.is_alive()
        if is_alive is not None:
            return is_alive
        age = time.time() - other.alive
        # Clocks that are so far apart tell nothing: only a new sign of life does.
        return age < STALE_SECONDS if age > -STALE_SECONDS else self._gives_sign(other)

    def _gives_sign(self, other: ClaimOwner) -> bool:
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

    def _begin(self) -> None:
        """Writes the claim, or leaves none: an empty one looks like that of an unfinished run."""
        try:
            self._write()
        except BaseException:
            with contextlib.suppress(ClaimError, OSError):
                if self.ticket.read_owner() is None:
                    storage.remove(self.path)
            raise

    def _write(self) -> None:
        owner = ClaimOwner(this_process(), self.ticket.token, self._since, time.time())
        if self._descriptor is None:
            storage.write_text(self.path, owner.to_json())
            return
        # In place: a renamed file would be another one than the locked one.
        os.pwrite(self._descriptor, owner.to_json().encode().ljust(_SIZE), 0)
        os.ftruncate(self._descriptor, _SIZE)

    def _refusal(self, other: ClaimOwner | None) -> ClaimError:
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

    def read_owner(self) -> ClaimOwner | None:
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
        return ClaimOwner.from_json(text)

    def not_a_claim(self) -> ClaimError:
        """The error of a path that holds another file."""
        return ClaimError(
            f"{self.path} is not a claim file of tpudet, and would be overwritten. It must name "
            f"the process that writes {self.output}; move it away or choose another output."
        )


def _user_of(path: str) -> str:
    """Names the user of a file, for a message."""
    try:
        return f"the user {Path(path).owner()}"
    except (KeyError, NotImplementedError, OSError):  # a container, say, knows numbers only
        return "another user"


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
