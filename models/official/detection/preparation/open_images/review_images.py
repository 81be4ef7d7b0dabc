"""Draws the boxes of a validation set on its images, for manual review."""

import os
import re
from collections.abc import Sequence

import cv2
import numpy as np
import pandas as pd
import pyarrow as pa
from tqdm import tqdm

from tpudet.detection.ops.drawing import draw_boxes
from tpudet.detection.preparation.sources.annotations import COORDINATES
from tpudet.detection.preparation.sources.box_csv import CORNER_COLUMNS
from tpudet.detection.preparation.sources.checks import label_class_ids
from tpudet.detection.preparation.sources.input_files import require_images
from tpudet.detection.preparation.sources.open_images import image_file
from tpudet.trainkit.class_list import ClassEntry, class_ids
from tpudet.trainkit.errors import UserError
from tpudet.trainkit.files.listed_files import listed_files
from tpudet.trainkit.files.storage import open_bytes
from tpudet.trainkit.images.standardize import ImageError, decode_rgb
from tpudet.trainkit.pages.drawing import class_colour

_JPEG_QUALITY = 90


def write_review_images(
    directory: str,
    image_directory: str,
    *,
    rows: pa.Table,
    picks: pd.DataFrame,
    classes: Sequence[ClassEntry],
) -> int:
    """Writes `<class name>_<image id>.jpg` for every pick, with all boxes of `rows` drawn.

    Characters that are unsafe in file names become `_`. Group boxes are labelled as such. Drawings
    of an earlier run are removed; other files are left alone.

    Args:
        directory: folder for the drawings; made if it does not exist.
        image_directory: folder of the images.
        rows: a box CSV as text.
        picks: class_id (from 1) and image, one row per drawing.
        classes: C classes.

    Returns:
        The number of drawings.

    Raises:
        UserError: image files are missing or cannot be decoded, or a drawing would replace a file
            that this function did not make.
        ClaimError: another process draws into the directory, or has taken it over.
        OSError: the directory is not writable.
    """
    names = [
        f"{_safe(classes[class_id - 1].name)}_{_safe(image)}.jpg"
        for class_id, image in zip(picks["class_id"], picks["image"], strict=True)
    ]
    files = [image_file(image) for image in picks["image"]]
    advice = "Fetch them, or leave --viz_directory out."
    require_images((image_directory,), list(dict.fromkeys(files)), advice)
    with listed_files(directory, names, argument="--viz_directory") as write:
        boxes = _boxes_by_image(rows, classes)
        work = zip(names, files, picks["image"], strict=True)
        for name, file, image in tqdm(work, total=len(names), desc="drawing", unit="image"):
            write(name, _draw(os.path.join(image_directory, file), boxes[image], classes))
    return len(set(names))


def _safe(text: str) -> str:
    return re.sub(r"[^\w.-]+", "_", text).strip("_.") or "_"


def _boxes_by_image(rows: pa.Table, classes: Sequence[ClassEntry]) -> dict[str, pd.DataFrame]:
    text = rows.to_pandas()
    labels = text["LabelName"].str.strip().astype("category")
    corners = {
        key: pd.to_numeric(text[name], errors="coerce") for key, name in CORNER_COLUMNS.items()
    }
    boxes = pd.DataFrame(
        {
            "image": text["ImageID"].str.strip(),
            "class_id": label_class_ids(labels, class_ids(classes)),
            "is_group": text["IsGroupOf"].str.strip() == "1" if "IsGroupOf" in text else False,
            **corners,
        }
    ).replace([np.inf, -np.inf], np.nan)
    return {str(image): own for image, own in boxes.groupby("image", sort=False)}


def _draw(path: str, boxes: pd.DataFrame, classes: Sequence[ClassEntry]) -> bytes:
    try:
        with open_bytes(path) as file:
            image = decode_rgb(file.read())
    except ImageError as error:
        raise UserError(f"{path} cannot be drawn: {error}.") from error
    boxes = boxes.dropna(subset=list(COORDINATES))
    pixels = boxes[list(COORDINATES)].to_numpy() * np.tile(image.shape[:2], 2)
    texts = [
        classes[class_id - 1].name + (" (group)" if is_group else "")
        for class_id, is_group in zip(boxes["class_id"], boxes["is_group"], strict=True)
    ]
    colours = [class_colour(class_id) for class_id in boxes["class_id"].tolist()]
    drawn = cv2.cvtColor(draw_boxes(image, pixels, texts, colours), cv2.COLOR_RGB2BGR)
    options = [cv2.IMWRITE_JPEG_QUALITY, _JPEG_QUALITY]
    return cv2.imencode(".jpg", drawn, options)[1].tobytes()
