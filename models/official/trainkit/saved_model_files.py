"""The files of a SavedModel: which an export writes, and the list by which they are checked.

`assets/files.json` holds the size of every other file in bytes and, of all but the variables, whose
index has a checksum for each, the SHA-256. Older SavedModels have no such list.
"""

import hashlib
import json
import os
import re

from tpudet.trainkit.errors import UserError, listing
from tpudet.trainkit.files import storage
from tpudet.trainkit.files.json_text import parse_json

_LIST = "assets/files.json"
_VARIABLES = "variables/variables.data-"
# The names of what an export writes, by folder: in a bucket a broken one has some of them.
_PARTS = {
    "": re.compile(r"saved_model\.pb|fingerprint\.pb|assets|variables"),
    "assets": re.compile(r"classes\.csv|metadata\.json|files\.json"),
    "variables": re.compile(r"variables\..*"),
}


class SavedModelError(UserError):
    """There is no SavedModel, or it is not one of this toolkit."""


def find_other(directory: str) -> str:
    """Says what is in the place of a SavedModel, where none is; empty if nothing is.

    In a bucket a publication that broke off leaves parts of a SavedModel, which do not count.
    """
    if not storage.is_remote(directory):
        if storage.exists(directory) and not storage.is_folder(directory):
            return "It is a file"
        names = storage.list_names(directory)
        return f"It holds {listing(names, 3)}" if names else ""
    for folder, own in _PARTS.items():
        names = storage.list_names(os.path.join(directory, folder))
        others = [os.path.join(folder, name) for name in names if not own.fullmatch(name)]
        if others:
            return f"It holds {listing(others, 3)}"
    return ""


def write_file_list(directory: str) -> None:
    """Adds the list to a SavedModel that is whole."""
    names = [
        os.path.relpath(os.path.join(folder, name), directory)
        for folder, _, names in storage.walk(directory)
        for name in names
    ]
    files = {name: _describe(directory, name) for name in sorted(names)}
    storage.write_text(os.path.join(directory, _LIST), json.dumps(files, indent=2) + "\n")


def check_files(directory: str) -> None:
    """Compares a SavedModel with its list, if it has one.

    Raises:
        SavedModelError: a file is missing, cut off or of another export; names all such files.
    """
    text = storage.read_text(os.path.join(directory, _LIST))
    if text is None:
        return
    try:
        wanted = {os.path.normpath(name): dict(entry) for name, entry in parse_json(text).items()}
        if not all(type(entry.get("size")) is int for entry in wanted.values()):
            raise ValueError("a file has no size")
    except (ValueError, AttributeError, TypeError) as error:
        raise SavedModelError(f"{directory}/{_LIST} is damaged: {error}") from error
    wrong = []
    for name, entry in wanted.items():
        if os.path.isabs(name) or name.startswith(".."):
            raise SavedModelError(f"{directory}/{_LIST} names {name}, which is elsewhere")
        try:
            found = _describe(directory, name)
        except FileNotFoundError:
            wrong.append(f"{name} is missing")
            continue
        if found["size"] != entry["size"]:
            wrong.append(f"{name} has {found['size']:,} bytes instead of {entry['size']:,}")
        elif found != entry:
            wrong.append(f"{name} is of another export")
    if wrong:
        raise SavedModelError(
            f"{directory} is incomplete: {'; '.join(wrong)}. A copy may still be in progress; "
            "otherwise copy it again, or run tpudet export --overwrite"
        )


def _describe(directory: str, name: str) -> dict[str, object]:
    path = os.path.join(directory, name)
    size = storage.stat(path).size
    if name.startswith(_VARIABLES):
        return {"size": size}
    with storage.open_file(path, "rb") as file:
        return {"size": size, "sha256": hashlib.sha256(file.read()).hexdigest()}
