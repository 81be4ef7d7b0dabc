"""The ids and sizes of the images of predictions: from the images, or from COCO ground truth."""

import os
from collections.abc import Iterable, Mapping, Sequence

from tqdm import tqdm

from tpudet.detection.inference.predictions import PredictionsError
from tpudet.detection.preparation.sources.annotation_values import as_integers, read_id, read_size
from tpudet.detection.preparation.sources.coco_layout import load_coco
from tpudet.detection.submission.results import ImageIdentity
from tpudet.trainkit.class_list import ClassEntry
from tpudet.trainkit.errors import listing
from tpudet.trainkit.files.inputs import read_input
from tpudet.trainkit.image_folder import list_images
from tpudet.trainkit.images.standardize import ImageError, inspect


def own_identities(image_ids: Iterable[str]) -> dict[str, ImageIdentity]:
    """Identities without sizes."""
    return {image_id: ImageIdentity(image_id, 0, 0) for image_id in image_ids}


def identities_of_files(folder: str, image_ids: Sequence[str]) -> dict[str, ImageIdentity]:
    """Reads the sizes of images from their files, turned upright as predictions are.

    Ids that are all numbers become numbers, as COCO has them.

    Raises:
        UserError: an image is missing or cannot be read.
    """
    numbers = dict(zip(image_ids, as_integers(image_ids) or image_ids, strict=True))
    found = {}
    for image in tqdm(list_images(folder, image_ids), desc="sizes", unit="image", delay=3):
        try:
            header = inspect(read_input(image.path, "image"), check_pixels=False)
        except ImageError as error:
            raise PredictionsError(f"the size of {image.path} is not known: {error}") from error
        is_turned = header.orientation.value >= 5
        size = (header.width, header.height) if is_turned else (header.height, header.width)
        found[image.image_id] = ImageIdentity(numbers[image.image_id], *size)
    return found


def identities_of_coco(path: str, image_ids: Sequence[str]) -> dict[str, ImageIdentity]:
    """Finds ids and sizes of images in COCO ground truth, by file name without extension.

    Raises:
        UserError: it is not COCO JSON, lacks images or their sizes, or has two of one name.
    """
    entries: dict[str, list[Mapping]] = {}
    for entry in load_coco(path, "--ground_truth")["images"]:
        name = os.path.splitext(os.path.basename(entry["file_name"]))[0]
        entries.setdefault(name, []).append(entry)
    missing = [name for name in image_ids if name not in entries]
    several = [name for name in image_ids if len(entries.get(name, ())) > 1]
    if missing or several:
        what = "are not in it" if missing else "are in it several times"
        raise PredictionsError(
            f"--ground_truth {path}: {len(missing or several)} predicted images {what}: "
            f"{listing(missing or several)}"
        )
    found = {}
    for name in image_ids:
        (entry,) = entries[name]
        height, width = (read_size(entry.get(side)) for side in ("height", "width"))
        if not (height and width and height > 0 and width > 0):
            raise PredictionsError(f"--ground_truth {path} has no size of {entry['file_name']}")
        found[name] = ImageIdentity(_number(entry["id"]), round(height), round(width))
    return found


def category_ids(classes: Sequence[ClassEntry], ground_truth: str | None) -> list[int]:
    """Returns the COCO category of each class.

    With ground truth it is the category with the class's identifier as id, or else of its name;
    without, the identifiers themselves if they are all numbers, else class ids, from 1.

    Raises:
        UserError: the ground truth lacks classes.
    """
    if ground_truth is None:
        numbers = as_integers([entry.identifier for entry in classes])
        return numbers or [*range(1, len(classes) + 1)]
    categories = load_coco(ground_truth, "--ground_truth")["categories"]
    by_name = {str(category["name"]).strip(): category["id"] for category in categories}
    by_id = {read_id(category["id"]): category for category in categories}
    found, missing = [], []
    for entry in classes:
        own = by_id.get(entry.identifier)
        is_same = own is not None and str(own["name"]).strip() == entry.name
        number = own["id"] if own is not None and is_same else by_name.get(entry.name)
        if number is None:
            missing.append(entry.name)
        found.append(_number(number))
    if missing:
        raise PredictionsError(
            f"--ground_truth {ground_truth} has no category named {listing(missing)}; it has "
            f"{listing(by_name)}"
        )
    return found


def _number(value: object) -> int | str:
    text = read_id(value) or ""
    return int(text) if text.isdecimal() and not isinstance(value, str) else text
