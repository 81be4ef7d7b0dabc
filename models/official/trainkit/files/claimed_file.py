"""Files that one process at a time writes."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Literal

from tpudet.trainkit.errors import UserError
from tpudet.trainkit.files.claims import Claim, claim_beside
from tpudet.trainkit.files.storage import is_file, whole_file


@contextmanager
def claimed_file(path: str, mode: Literal["w", "wb"], *, force: bool) -> Iterator[Any]:
    """Opens a file as `storage.whole_file` does, under a claim.

    Args:
        path: the final name.
        mode: text (UTF-8, line ends as written) or bytes.
        force: whether an existing file is replaced. Callers refuse it before their work; here one
            is found that another process has finished since.

    Raises:
        ClaimError: another process writes the file, or has taken it over.
        UserError: it exists, and `force` is False; or it is a whole bucket.
        OSError: it cannot be written.
    """
    with Claim(claim_beside(path), output=path) as claim:
        if is_file(path) and not force:
            raise UserError(f"{path} exists: another process has written it meanwhile")
        with whole_file(path, mode) as file:
            yield file
            claim.verify()
