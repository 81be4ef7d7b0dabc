"""Reports, pages and drawings, which every run rewrites: they replace their own kind only.

Results that cost hours are replaced with -f. These cost little, so the command just runs again; but
a name given by mistake must not cost the file that has it.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Literal, NamedTuple

from tpudet.trainkit.errors import UserError
from tpudet.trainkit.files import storage
from tpudet.trainkit.files.claimed_file import claimed_file
from tpudet.trainkit.files.json_text import json_text

_HEAD = 1 << 16  # bytes in which a mark is looked for


class FileKind(NamedTuple):
    """Files that one command writes, known by their content."""

    name: str  # for messages
    start: bytes  # the first bytes of each
    mark: bytes  # near the start: tells them from other files that begin so


PAGE = FileKind("a page of tpudet", b"<!DOCTYPE html>", b'<meta name="generator" content="tpudet">')
DRAWING = FileKind("a drawing of tpudet", b"\x89PNG\r\n\x1a\n", b"Software\0tpudet")
PLAN = FileKind("a plan of tpudet", b"[", b'"moved_bytes": ')
STEP_TIMES = FileKind("a report of step times by tpudet", b"[", b'"seconds_per_batch": ')
INPUT_TIMES = FileKind("a report of input times by tpudet", b"[", b'"processor_milliseconds": ')
FINDINGS = FileKind("a report of findings by tpudet", b'{\n  "images": ', b'"boxes_per_class": ')
RATE_TABLE = FileKind("a table of rates by tpudet", b"learning_rate,loss,smoothed\n", b"")
MODEL_DESCRIPTION = FileKind("a description of a model by tpudet", b"{", b'"box_order": ')
PNG_METADATA = {"Software": "tpudet"}  # makes a PNG of Matplotlib a `DRAWING`


@contextmanager
def file_of_kind(path: str, mode: Literal["w", "wb"], kind: FileKind) -> Iterator[Any]:
    """Opens a file as `claimed_file` does; an existing one is replaced if it is of the same kind.

    Raises:
        ClaimError: another process writes the file, or has taken it over.
        UserError: as `refuse_other_kind`, or it cannot be written.
    """
    try:
        with claimed_file(path, mode, force=True) as file:
            refuse_other_kind(path, kind)
            yield file
    except OSError as error:
        raise UserError(f"{path} cannot be written: {storage.reason(error)}") from error


def write_json(path: str, content: Any, kind: FileKind) -> None:
    """Writes indented JSON as `file_of_kind` does, and raises what it raises."""
    with file_of_kind(path, "w", kind) as file:
        file.write(json_text(content))


def refuse_other_kind(path: str, kind: FileKind) -> None:
    """Refuses a path where another file would be replaced; called before the work, too.

    Raises:
        UserError: the file there is neither empty nor of the kind.
    """
    if not storage.is_file(path):
        return
    with storage.open_bytes(path) as file:
        head = file.read(_HEAD)
    if head and not (head.startswith(kind.start) and kind.mark in head):
        raise UserError(
            f"{path} exists and is not {kind.name}, so it is not replaced: name another file, or "
            "remove it"
        )
