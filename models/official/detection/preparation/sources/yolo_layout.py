"""Finds the images, label files and classes that the data.yaml of a YOLO data set names."""

import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from tpudet.detection.preparation.sources.annotation_values import read_id, sorted_classes
from tpudet.detection.preparation.sources.input_files import spelled_as_in_folder
from tpudet.trainkit.class_list import ClassEntry
from tpudet.trainkit.config.yaml_tree import parse_tree, plain_values
from tpudet.trainkit.errors import UserError, listing, require_utf8, shorten
from tpudet.trainkit.files import storage
from tpudet.trainkit.files.inputs import read_input_text
from tpudet.trainkit.image_folder import is_image_name

YOLO_SPLITS = ("train", "val", "test")


class YoloSet(NamedTuple):
    """The images of some splits and the classes."""

    path: str  # of data.yaml
    folder: str  # holds all images
    files: list[str]  # relative to the folder
    is_listed: bool  # some come from lists, so folders may hold others
    classes: tuple[ClassEntry, ...]  # identifiers are class numbers, from 0
    numbers_of_keypoints: int  # that follow the box in a label line; 0 without keypoints


def find_yolo_set(path: str, splits: Sequence[str], base: str | None = None) -> YoloSet:
    """Reads a data.yaml and lists the images of splits.

    `path`, `train`, `val`, `test`, `names`, `nc` and `kpt_shape` mean what Ultralytics gives
    them: a split is a folder that is searched with its subfolders, a file that lists images, or
    several of these, relative to `path`.

    Args:
        path: the data.yaml.
        splits: those to take; a name that data.yaml lacks is an error unless there are several.
        base: folder that replaces `path`, which often is that of another machine.

    Raises:
        UserError: not a data.yaml, or a split or its images are not found.
    """
    content = _load(path)
    present = [split for split in splits if content.get(split)]
    if not present or (len(splits) == 1 and present != list(splits)):
        known = ", ".join(split for split in YOLO_SPLITS if content.get(split)) or "none"
        raise UserError(
            f"--annotations {path} has no split {' or '.join(splits)}; it has: {known}."
        )
    home = os.path.dirname(path) or "."
    own = _slashed(content.get("path") or "", f"{path}: `path`")
    roots = [base] if base else [os.path.join(home, own), home]
    images: dict[str, None] = {}
    is_listed = False
    for split in present:
        entries = content[split] if isinstance(content[split], list) else [content[split]]
        for entry in entries:
            where = f"{path}: `{split}`"
            found, from_list = _find_images(_slashed(entry, where), roots, where)
            images |= dict.fromkeys(found)
            is_listed |= from_list
    require_utf8(images, f"image files of {path}")
    folder = os.path.dirname(os.path.commonprefix(list(images)))
    files = [image[len(folder) :].lstrip("/") for image in images]
    keypoints = _numbers_of_keypoints(content, path)
    return YoloSet(path, folder, files, is_listed, _classes(content, path), keypoints)


def label_paths(image: str) -> list[str]:
    """Returns where the label file of an image may be: in `labels` for `images`, or beside it.

    Programs on Windows write .TXT too.
    """
    beside = os.path.splitext(image)[0]
    places = [beside]
    folders, name = os.path.split(beside)
    parts = folders.split("/")
    if "images" in parts:
        last = len(parts) - 1 - parts[::-1].index("images")
        labels = "/".join([*parts[:last], "labels", *parts[last + 1 :]])
        places.insert(0, os.path.join(labels, name))
    return [place + ending for place in places for ending in (".txt", ".TXT")]


def _load(path: str) -> Mapping[str, Any]:
    text = read_input_text(path, "--annotations")
    name = f"--annotations {path}"
    content = plain_values(parse_tree(text, name, repeated=[]))
    if "names" not in content:
        raise UserError(
            f"{name} is not the data.yaml of a YOLO data set: it has no `names`, the list of "
            "classes."
        )
    # Every name is text: no is not false, and 007 is not 7.
    as_text = plain_values(parse_tree(text, name, repeated=[], as_text=True))
    return content | {"names": as_text["names"]}


def _find_images(entry: str, roots: Sequence[str], where: str) -> tuple[list[str], bool]:
    """Lists the images of a folder or a list file, and whether it is a list."""
    # Roboflow writes ../train/images where it means train/images.
    names = [entry, entry.removeprefix("../")]
    places = [_place(root, name) for name in names for root in roots]
    place = next((p for p in places if storage.is_file(p) or storage.is_folder(p)), None)
    if place is None:
        raise UserError(
            f"{where} is {entry}, and there is no {' nor '.join(dict.fromkeys(places))}. --images "
            "names the folder that paths are relative to."
        )
    if storage.is_folder(place):
        images = sorted(_walk(place))
        if not images:
            raise UserError(f"{where}: there is no image in {place}.")
        return images, False
    lines = [line.strip().replace("\\", "/") for line in read_input_text(place, where).splitlines()]
    images = _listed_images([line for line in lines if line], os.path.dirname(place), roots)
    if not images:
        raise UserError(f"{where}: {place} lists no image.")
    return images, True


def _slashed(path: Any, where: str) -> str:
    if isinstance(path, list | dict):
        raise UserError(f"{where} must be a path, got a list or a mapping.")
    return str(path).replace("\\", "/")


def _place(root: str, name: str) -> str:
    path = os.path.join(root, name)
    return path if storage.is_remote(path) else os.path.abspath(path)


def _walk(folder: str) -> Iterator[str]:
    for directory, _, names in storage.walk(folder):
        yield from (os.path.join(directory, name) for name in names if is_image_name(name))


def _listed_images(lines: Sequence[str], folder: str, roots: Sequence[str]) -> list[str]:
    """Returns the paths of the images in a list, relative to the list (./) or to the data set.

    Accents are as on the disk, so that label files are looked for in the same spelling.
    """
    places = []
    for line in lines:
        folders = [folder] if line.startswith("./") else [*roots, folder]
        places.append([_place(root, line) for root in folders])
    found = [next(filter(storage.exists, own), "") for own in places]
    absent = [own for own, image in zip(places, found, strict=True) if not image]
    accented = [place for own in absent for place in own if not place.isascii()]
    spelled = dict(zip(accented, spelled_as_in_folder("", accented), strict=True))
    for row, own in enumerate(places):
        if not found[row]:
            others = [spelled[place] for place in own if spelled.get(place, place) != place]
            found[row] = next(filter(storage.exists, others), own[0])
    return found


def _classes(content: Mapping[str, Any], path: str) -> tuple[ClassEntry, ...]:
    names = content["names"]
    if not isinstance(names, list | dict) or not names:
        shown = shorten(repr(names), 80)
        raise UserError(f"--annotations {path}: `names` is {shown}; it must list the classes.")
    pairs = list(names.items()) if isinstance(names, dict) else list(enumerate(names))
    odd = [key for key, name in pairs if not isinstance(name, str)]
    if odd:
        raise UserError(
            f"--annotations {path}: the name of class {listing(odd)} is a list or a mapping; it "
            "must be text."
        )
    wrong = [key for key, _ in pairs if not (read_id(key) or "").isdecimal()]
    if wrong:
        raise UserError(f"--annotations {path}: `names` has no class numbers: {listing(wrong)}.")
    count = content.get("nc")
    if count is not None and read_id(count) != str(len(pairs)):
        raise UserError(f"--annotations {path}: nc is {count}, and there are {len(pairs)} names.")
    return sorted_classes(ClassEntry(read_id(key) or "", name.strip()) for key, name in pairs)


def _numbers_of_keypoints(content: Mapping[str, Any], path: str) -> int:
    shape = content.get("kpt_shape") or (0, 0)
    if not isinstance(shape, Sequence) or [type(n) for n in shape] != [int, int]:
        raise UserError(
            f"--annotations {path}: `kpt_shape` is {shorten(repr(shape), 80)}; it must be the "
            "number of keypoints and the numbers of each, such as [17, 3]."
        )
    return shape[0] * shape[1]
