"""A folder of images sorted into folders by class, for one split or for several."""

import os
from collections.abc import Sequence
from typing import NamedTuple

from tpudet.trainkit.class_list import ClassEntry, class_ids
from tpudet.trainkit.errors import UserError, listing
from tpudet.trainkit.files import storage
from tpudet.trainkit.files.inputs import read_input_text
from tpudet.trainkit.image_folder import list_image_names, list_others

# Names of the splits' folders.
SPLIT_FOLDERS = {"train": ("train",), "val": ("val", "validation", "valid"), "test": ("test",)}
_SYNSET_LABELS = "synset_labels.txt"  # ImageNet's labels of the flat folder validation/


class LabelledFile(NamedTuple):
    """An image file and its class."""

    filename: str  # below the folder of the split
    label: str  # identifier or name of the class; empty without one


def list_class_folders(directory: str) -> list[str]:
    """Returns the names of the folders in a directory, sorted."""
    return [name for name in storage.list_kinds(directory)[0] if not name.startswith(".")]


def list_labelled(directory: str) -> list[LabelledFile]:
    """Lists the images of all class folders in a directory, by class and name.

    Raises:
        UserError: a class folder has no image.
    """
    found, empty = [], []
    for label in list_class_folders(directory):
        names = list_image_names(os.path.join(directory, label))
        found += [LabelledFile(f"{label}/{name}", label) for name in names]
        empty += [] if names else [label]
    if empty:
        raise UserError(f"{directory} has class folders without any image: {listing(empty)}")
    return found


def find_splits(directory: str) -> dict[str, str]:
    """Returns the folders of the splits in a directory, train first.

    Raises:
        UserError: there is no directory `train`, or two folders of one split.
    """
    if not storage.is_folder(directory):
        raise UserError(f"no directory {directory}")
    folders = list_class_folders(directory)
    found = {}
    for split, names in SPLIT_FOLDERS.items():
        there = [name for name in names if name in folders]
        if len(there) > 1:
            raise UserError(
                f"{directory} has {' and '.join(there)}: which one is the split {split}?"
            )
        if there:
            found[split] = os.path.join(directory, there[0])
    if "train" not in found:
        raise UserError(
            f"{directory} has no folder train; it has {listing(folders) or 'no folder'}. Divide a "
            f"folder of class folders with: tpudet split_folders {directory} --output DIR"
        )
    return found


def list_split(directory: str) -> list[LabelledFile]:
    """Lists the images of a split: in class folders, or flat.

    Images of a flat folder have the labels of `synset_labels.txt`, one per line in the order of the
    sorted names, beside the images or, of ImageNet's val, beside their folder; without it, none.

    Raises:
        UserError: there is no image, images are both in class folders and beside them, or the
            number of labels is another than that of the images.
    """
    labelled = list_labelled(directory)
    flat = list_image_names(directory)
    if labelled and flat:
        raise UserError(
            f"{directory} has class folders, and beside them {len(flat)} images of no class: "
            f"{listing(flat, 3)}. Move them into class folders or away"
        )
    if not labelled and not flat:
        raise UserError(f"{directory} has no image, neither in class folders nor itself")
    return labelled or [
        LabelledFile(*pair) for pair in zip(flat, _flat_labels(directory, flat), strict=True)
    ]


def _flat_labels(directory: str, names: Sequence[str]) -> list[str]:
    parent, name = os.path.split(directory.rstrip("/"))
    for folder in (directory, parent) if name in SPLIT_FOLDERS["val"] else (directory,):
        path = os.path.join(folder, _SYNSET_LABELS)
        if storage.is_file(path):
            labels = read_input_text(path, "The file").split()
            if len(labels) != len(names):
                raise UserError(
                    f"{path} has {len(labels)} labels for the {len(names)} images of {directory}"
                )
            return labels
    return [""] * len(names)


def list_unread(directory: str) -> list[str]:
    """Lists the files and folders of a split, or of class folders, that are not read as images.

    Args:
        directory: of the split, with class folders or flat.
    """
    labels = list_class_folders(directory)
    inside = [
        f"{label}/{n}" for label in labels for n in list_others(os.path.join(directory, label))
    ]
    beside = [name for name in list_others(directory) if name.rstrip("/") not in labels]
    return sorted({*inside, *beside} - {_SYNSET_LABELS})


def list_classes(files: Sequence[LabelledFile]) -> tuple[ClassEntry, ...]:
    """Returns the class list of class folders: each is named by its folder, in sorted order."""
    labels = sorted({file.label for file in files if file.label})
    return tuple(ClassEntry(label, label) for label in labels)


def check_labels(split: str, files: Sequence[LabelledFile], classes: Sequence[ClassEntry]) -> None:
    """Raises UserError if images of a split are of classes that are not in the list."""
    known = class_ids(classes)
    unknown = sorted({file.label for file in files if file.label and file.label not in known})
    if unknown:
        raise UserError(
            f"the class list lacks classes of the split {split}: {listing(unknown)}. Give them "
            "training images, or remove them"
        )
