"""The files of a SavedModel, listed in one of its assets, so that half a copy is recognised.

`assets/files.json` holds the size of every other file in bytes and, of all but the variables, whose
index has a checksum for each, the SHA-256. SavedModels of before have no such list.
"""

import hashlib
import json
import os

from tpudet.trainkit.errors import UserError
from tpudet.trainkit.files import storage

SAVED_MODEL_FILE = "saved_model.pb"
_LIST = "assets/files.json"
_VARIABLES = "variables/variables.data-"


class SavedDetectorError(UserError):
    """There is no SavedModel, or it is not one of this toolkit."""


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
        SavedDetectorError: a file is missing, cut off or of another export; names all such files.
    """
    text = storage.read_text(os.path.join(directory, _LIST))
    if text is None:
        return
    try:
        wanted = {os.path.normpath(name): dict(entry) for name, entry in json.loads(text).items()}
    except (ValueError, AttributeError, TypeError) as error:
        raise SavedDetectorError(f"{directory}/{_LIST} is damaged: {error}") from error
    wrong = []
    for name, entry in wanted.items():
        if os.path.isabs(name) or name.startswith(".."):
            raise SavedDetectorError(f"{directory}/{_LIST} names {name}, which is elsewhere")
        try:
            found = _describe(directory, name)
        except FileNotFoundError:
            wrong.append(f"{name} is missing")
            continue
        if found["size"] != entry.get("size"):
            wrong.append(f"{name} has {found['size']:,} bytes instead of {entry.get('size'):,}")
        elif found != entry:
            wrong.append(f"{name} is of another export")
    if wrong:
        raise SavedDetectorError(
            f"{directory} is not whole: {'; '.join(wrong)}. It may still be copied; else copy it "
            "again, or run tpudet export --overwrite"
        )


def _describe(directory: str, name: str) -> dict[str, object]:
    path = os.path.join(directory, name)
    size = storage.stat(path).size
    if name.startswith(_VARIABLES):
        return {"size": size}
    with storage.open_file(path, "rb") as file:
        return {"size": size, "sha256": hashlib.sha256(file.read()).hexdigest()}
