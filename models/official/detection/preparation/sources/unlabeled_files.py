"""Image files of a folder that the annotations do not name: images without objects, or not."""

import os
from collections.abc import Sequence
from typing import NamedTuple

from tpudet.detection.preparation.sources.annotations import Finding
from tpudet.detection.preparation.sources.input_files import (
    composed,
    missing_files,
    spelled_as_in_folder,
    stem,
)
from tpudet.trainkit.image_folder import is_image_name, list_image_names

_OTHER_NAME = "file with another ending or capitals than expected"
_UNCLEAR = "file without annotations, named as an annotated image whose own file is missing"


class UnlabeledFiles(NamedTuple):
    """The image files of a folder, those of the annotated images and the others."""

    files: list[str]  # of the annotated images, some of them found under another name
    others: list[str]  # images without objects
    findings: tuple[Finding, ...]


def find_unlabeled(directory: str, names: Sequence[str], files: Sequence[str]) -> UnlabeledFiles:
    """Finds the image files of a folder that belong to no annotated image.

    A file that differs from the expected one in its extension, or in capitals, is no image without
    objects if the expected one is missing: it is the image itself, if the annotations name that
    without an extension and no other file or image has this name. Otherwise the file is left out,
    with a finding.

    Args:
        directory: the folder; its subfolders are not searched.
        names: the annotated images as the annotations have them.
        files: the file that is expected of each, relative to the folder.

    Raises:
        UserError: there is no such folder, or names in it are not UTF-8.
    """
    files = spelled_as_in_folder(directory, files)
    known = {composed(file) for file in files}
    unnamed: dict[str, list[str]] = {}
    for file in list_image_names(directory):
        if composed(file) not in known:
            unnamed.setdefault(_key(file), []).append(file)
    alike = {row: key for row, file in enumerate(files) if (key := _key(file)) in unnamed}
    missing = set(missing_files([directory], [files[row] for row in alike]))
    rows: dict[str, list[int]] = {}
    for row, key in alike.items():
        if files[row] in missing:
            rows.setdefault(key, []).append(row)
    findings = []
    for key in unnamed.keys() & rows.keys():
        found, lacking = unnamed.pop(key), rows[key]
        row, expected = lacking[0], files[lacking[0]]
        is_in_folder = not os.path.dirname(expected) and not is_image_name(names[row])
        if len(found) == len(lacking) == 1 and is_in_folder:
            files[row] = found[0]
            findings.append(Finding(found[0], _OTHER_NAME, expected, repaired=True))
        else:
            findings += [Finding(file, _UNCLEAR, expected, repaired=False) for file in found]
    others = sorted(file for same in unnamed.values() for file in same)
    return UnlabeledFiles(files, others, tuple(sorted(findings)))


def _key(file: str) -> str:
    return composed(stem(file)).casefold()
