"""Folders, image files and image lists that the user named; errors say what is missing."""

import os
import re
import unicodedata
from collections.abc import Sequence

import pandas as pd

from tpudet.detection.preparation.sources.annotations import Finding
from tpudet.trainkit.errors import UserError, listing, require_utf8
from tpudet.trainkit.files import storage
from tpudet.trainkit.files.inputs import read_input_text
from tpudet.trainkit.files.storage import list_names
from tpudet.trainkit.image_folder import IMAGE_FORMATS, is_image_name

_MISSING_SHOWN = 10
_VOC_FLAG = re.compile(r"(?<=\S) (-1| 0| 1)$")


def list_directory(path: str, name: str) -> list[str]:
    """Lists the names in a directory, sorted.

    Args:
        path: the directory, local or in a bucket.
        name: the argument that named it, for messages.

    Raises:
        UserError: it is not a directory, or names in it are not UTF-8.
    """
    if not storage.is_folder(path):
        found = "is not a directory" if storage.exists(path) else "does not exist"
        raise UserError(f"{name} {path} {found}.")
    names = storage.list_folder(path)
    require_utf8(names, f"file names in {path}")
    return names


def read_image_list(path: str) -> list[str]:
    """Reads the names of an image list, one per line, with or without extension.

    The -1, 0 or 1 in two columns that ends every line of the per-class lists of Pascal VOC is
    ignored; in other lists such an ending is part of the name.

    Raises:
        UserError: the file is missing or names nothing.
    """
    lines = [line.strip() for line in read_input_text(path, "--image_list").splitlines()]
    names = [line for line in lines if line]
    if not names:
        raise UserError(f"--image_list {path} names no image.")
    if all(_VOC_FLAG.search(line) for line in names):
        return [_VOC_FLAG.sub("", line) for line in names]
    return names


def stem(name: str) -> str:
    """Returns a file's name without its directory and its image or XML extension."""
    base = os.path.basename(name.replace("\\", "/"))
    root, extension = os.path.splitext(base)
    return root if extension.lower() in (*IMAGE_FORMATS, ".xml") else base


def plain_path(name: str) -> str:
    """Returns a path of annotations with `/` for the separators of Windows and without `./`."""
    path = name.replace("\\", "/")
    return os.path.normpath(path) if path and not storage.is_remote(path) else path


def match_image_list(listed: Sequence[str], files: Sequence[str], directory: str) -> list[int]:
    """Finds the file that each entry of an image list names.

    An entry may lack folders or the extension, or have more folders than the file: `0001`,
    `cam1/0001.jpg` and `/data/cam1/0001.jpg` name the file `cam1/0001.jpg`, `cam2/0001` does not.

    Args:
        listed: as `read_image_list` returns them.
        files: paths relative to the directory.
        directory: the folder of the files.

    Returns:
        For each entry the row number of its file, -1 for none.

    Raises:
        UserError: an entry could name several files, or entries of several folders one file.
    """
    listed, files = list(map(composed, listed)), list(map(composed, files))
    candidates = _fitting_files(listed, files)
    directory = composed(directory if "://" in directory else os.path.abspath(directory))
    home = _folders(f"{directory}/")
    found, unclear = [], []
    choices: dict[str, tuple[tuple[bool, ...], list[int]]] = {}
    owners: dict[int, tuple[tuple[bool, ...], str]] = {}  # the entry that fits a file best
    for entry in listed:
        if entry not in choices:
            fits = {row: _fit(entry, files[row], home) for row in candidates[entry]}
            best = max(fits.values(), default=())
            choices[entry] = best, [row for row, fit in fits.items() if fit == best]
        best, chosen = choices[entry]
        if len(chosen) > 1:
            unclear.append(f"{entry}: {' or '.join(files[row] for row in chosen[:3])}")
        row = chosen[0] if chosen else -1
        found.append((row, best))
        owner = owners.get(row, (best, entry))
        if owner[0] == best and _folders(owner[1]) != _folders(entry) and row >= 0:
            unclear.append(f"{owner[1]} and {entry}: both {files[row]}")
        owners[row] = max(owner, (best, entry), key=lambda pair: pair[0])
    if unclear:
        raise UserError(
            f"{len(unclear)} names of --image_list do not tell which image they mean; write them "
            f"with their folders: {listing(unclear, 5)}."
        )
    return [row if row >= 0 and owners[row][0] == fit else -1 for row, fit in found]


def _fitting_files(listed: Sequence[str], files: Sequence[str]) -> dict[str, list[int]]:
    """Returns, of each entry, the rows of files of its stem whose folders end as its own do.

    The shorter of both paths counts. File names may repeat in thousands of folders, as those of
    the frames of videos do, so pairs that do not fit are not looked at.
    """
    keys = {entry: (_folders(entry), stem(entry)) for entry in listed}
    ends: dict[tuple[tuple[str, ...], str], list[int]] = {key: [] for key in keys.values()}
    whole: dict[tuple[tuple[str, ...], str], list[int]] = {}
    for row, file in enumerate(files):
        own, name = _folders(file), stem(file)
        whole.setdefault((own, name), []).append(row)
        for start in range(len(own) + 1):
            if (own[start:], name) in ends:
                ends[own[start:], name].append(row)
    found = {}
    for entry, (wanted, name) in keys.items():
        shorter = ((wanted[start:], name) for start in range(1, len(wanted) + 1))
        found[entry] = ends[wanted, name]
        if more := [row for key in shorter for row in whole.get(key, ())]:
            found[entry] = sorted(found[entry] + more)
    return found


def _fit(entry: str, file: str, home: tuple[str, ...]) -> tuple[bool, ...]:
    """Rank of an entry for a file that it fits, higher is better."""
    wanted, own = _folders(entry), _folders(file)
    same_name = os.path.basename(entry.replace("\\", "/")) == os.path.basename(file)
    return same_name, wanted == own, _is_end(wanted, home + own)


def _folders(path: str) -> tuple[str, ...]:
    return tuple(part for part in path.replace("\\", "/").split("/")[:-1] if part not in ("", "."))


def _is_end(some: tuple[str, ...], others: tuple[str, ...]) -> bool:
    """Whether the shorter of two paths is the end of the longer."""
    count = min(len(some), len(others))
    return some[len(some) - count :] == others[len(others) - count :]


def select_listed(
    images: pd.DataFrame, boxes: pd.DataFrame, image_list: str, directory: str
) -> tuple[pd.DataFrame, pd.DataFrame, list[Finding]]:
    """Returns the images of an image list in the order of `images`, their boxes, and the missing.

    Args:
        images: as in `Annotations`.
        boxes: as in `Annotations`.
        image_list: path.
        directory: folder of the images.

    Raises:
        UserError: none is listed, or as `read_image_list` and `match_image_list`.
    """
    listed = read_image_list(image_list)
    files = images["file"].tolist()
    rows = match_image_list(listed, files, directory)
    kept = sorted({row for row in rows if row >= 0})
    if not kept:
        raise UserError(
            f"--image_list {image_list} names none of the {len(files)} images of the annotations: "
            f"it has {listing(listed, 3)}, they are called {listing(files, 3)}."
        )
    numbers = pd.Series(range(len(kept)), index=kept)
    boxes = boxes[boxes["image"].isin(kept)]
    boxes = boxes.assign(image=numbers.loc[boxes["image"]].to_numpy())
    missing = sorted({entry for entry, row in zip(listed, rows, strict=True) if row < 0})
    findings = [
        Finding(entry, "in the image list, not in the annotations", "", False) for entry in missing
    ]
    return images.iloc[kept].reset_index(drop=True), boxes, findings


def find_image_files(directory: str, names: Sequence[str]) -> list[str]:
    """Returns the file of each image, which may be named without its extension.

    Args:
        directory: the folder of the images.
        names: paths relative to it.

    Returns:
        Paths relative to the directory; `<name>.jpg` where there is no such file.

    Raises:
        UserError: a name could mean several files.
    """
    folders = sorted({os.path.dirname(name) for name in names if not is_image_name(name)})
    present: dict[str, list[str]] = {}
    for folder in sorted(set(spelled_as_in_folder(directory, folders))):
        for file in filter(is_image_name, list_names(os.path.join(directory, folder))):
            path = os.path.join(folder, file)
            present.setdefault(composed(os.path.splitext(path)[0]), []).append(path)
    found = {}
    for name in names:
        alike = [] if is_image_name(name) else present.get(composed(name), [])
        same = [file for file in alike if os.path.splitext(file)[0] == name]
        found[name] = same or alike
    unclear = [
        f"{name}: {' or '.join(map(os.path.basename, files))}"
        for name, files in found.items()
        if len(files) > 1
    ]
    if unclear:
        raise UserError(
            f"{len(unclear)} images of the annotations have several files in --images "
            f"{directory}: {listing(unclear, 5)}. Name them with their extension."
        )
    return [
        name
        if is_image_name(name)
        else next(iter(found[name]), os.path.join(os.path.dirname(name), f"{stem(name)}.jpg"))
        for name in names
    ]


def spelled_as_in_folder(directory: str, files: Sequence[str]) -> list[str]:
    """Returns paths with accents as the folder has them: one character, or two as macOS writes it.

    Paths that are not there stay as they are.

    Args:
        directory: the folder of the images.
        files: paths relative to it.
    """
    accented = {file for file in files if not file.isascii()}
    if not accented:
        return list(files)
    parents = sorted({os.path.dirname(file) for file in accented})
    folders = dict(zip(parents, spelled_as_in_folder(directory, parents), strict=True))
    names = {parent: _names(os.path.join(directory, folders[parent])) for parent in parents}
    spelled = {parent: {composed(name): name for name in names[parent]} for parent in parents}
    present = {parent: set(names[parent]) for parent in parents}
    found = {}
    for file in accented:
        parent, name = os.path.split(file)
        if name not in present[parent]:
            name = spelled[parent].get(composed(name), name)
        found[file] = os.path.join(folders[parent], name)
    return [found.get(file, file) for file in files]


def _names(folder: str) -> list[str]:
    try:
        return list_names(folder)
    except (NotADirectoryError, PermissionError):  # a folder above the data may not be readable
        return []


def composed(name: str) -> str:
    """Returns a name with each accented letter as one character, to compare names."""
    return unicodedata.normalize("NFC", name)


def missing_files(directories: Sequence[str], files: Sequence[str]) -> list[str]:
    """Returns the files, relative to the directories, that are in none of them; order is kept.

    Lists every folder once, which takes seconds for a million files. One request per file would
    take minutes, and hours in a bucket.
    """
    folders = sorted({os.path.dirname(file) for file in files})
    present: set[str] = set()
    for directory in directories:
        for folder in folders:
            names = list_names(os.path.join(directory, folder))
            present.update(os.path.join(folder, name) for name in names)
    return [file for file in files if file not in present]


def require_images(directories: Sequence[str], files: Sequence[str], advice: str) -> None:
    """Raises if image files are missing.

    Args:
        directories: folders to search.
        files: paths relative to the directories.
        advice: a sentence on what to do.

    Raises:
        UserError: gives the number of missing files and names the first ten.
    """
    missing = missing_files(directories, files)
    if missing:
        shown = "\n  ".join(missing[:_MISSING_SHOWN] + ["..."] * (len(missing) > _MISSING_SHOWN))
        raise UserError(
            f"{len(missing)} of {len(files)} image files are not in {' or '.join(directories)}:\n"
            f"  {shown}\n{advice}"
        )
