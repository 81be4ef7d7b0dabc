"""Files that a command writes into a folder which may hold others: it replaces its own only."""

import json
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

from tpudet.trainkit.errors import UserError
from tpudet.trainkit.files import storage
from tpudet.trainkit.files.claims import Claim
from tpudet.trainkit.files.json_text import parse_json

LIST_NAME = "written_images.json"
_CLAIM_NAME = "written_images.claim.json"


@contextmanager
def listed_files(
    directory: str, names: Iterable[str], *, argument: str
) -> Iterator[Callable[[str, bytes], None]]:
    """Writes files into a folder under a claim, and lists them there in `written_images.json`.

    The listed files of an earlier run are removed first, so that a run that is killed leaves no
    mixture of two. Other files are left alone.

    Args:
        directory: made if it does not exist.
        names: of all files that the block may write.
        argument: that named the folder, for messages.

    Yields:
        A function that writes one of them, whole or not at all, from its name and content.

    Raises:
        ClaimError: another process writes into the folder, or has taken it over.
        UserError: as `refuse_unlisted`.
        OSError: the folder cannot be written.
    """
    wanted = sorted(set(names))
    with Claim(os.path.join(directory, _CLAIM_NAME), output=directory) as claim:
        refuse_unlisted(directory, wanted, argument=argument)
        for name in _read_list(directory):
            storage.remove_if_there(os.path.join(directory, name))
        # Before the first file, so that those of a killed run are known as its own.
        text = json.dumps(wanted, indent=0, ensure_ascii=False) + "\n"
        storage.write_text(os.path.join(directory, LIST_NAME), text)

        def write(name: str, content: bytes) -> None:
            claim.verify()
            with storage.whole_file(os.path.join(directory, name), "wb") as file:
                file.write(content)

        yield write


def refuse_unlisted(directory: str, names: Iterable[str], *, argument: str) -> None:
    """Refuses a folder where `listed_files` would replace files that it did not write.

    Raises:
        UserError: it holds some of `names` that its list lacks, or a list of another origin.
    """
    foreign = sorted(set(names) - _read_list(directory))
    present = [name for name in foreign if storage.exists(os.path.join(directory, name))]
    if present:
        raise UserError(
            f"{argument} {directory} holds {len(present)} files that this command did not make and "
            f"would replace, such as {present[0]}: name another folder."
        )


def _read_list(directory: str) -> set[str]:
    path = os.path.join(directory, LIST_NAME)
    text = storage.read_text(path)
    if not text:
        return set()
    try:
        names = parse_json(text)
    except ValueError:
        names = None
    if not isinstance(names, list) or not all(map(is_plain_name, names)):
        raise UserError(
            f"{path} is not the list of images that this command keeps: move it away, or name "
            "another folder."
        )
    return set(names)


def is_plain_name(name: object) -> bool:
    """Whether a name, of a file to write or to remove, stays in the folder."""
    return isinstance(name, str) and name not in ("", ".", "..") and not {os.sep, "\0"} & {*name}
