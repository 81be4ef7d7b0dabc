"""Masks as one PNG per object: those of Open Images, and folders with one image each."""

import os
from collections import Counter
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from tpudet.detection.preparation.sources.annotations import (
    Annotations,
    Finding,
    build_annotations,
)
from tpudet.detection.preparation.sources.input_files import (
    list_directory,
    select_listed,
    stem,
)
from tpudet.detection.preparation.sources.required_images import require_inside
from tpudet.trainkit.class_list import ClassEntry, read_classes
from tpudet.trainkit.errors import UserError, listing
from tpudet.trainkit.files import storage
from tpudet.trainkit.files.inputs import open_input
from tpudet.trainkit.files.storage import open_bytes
from tpudet.trainkit.image_folder import is_image_name
from tpudet.trainkit.images.headers import ImageError
from tpudet.trainkit.images.opencv_decode import decode_mask_image

_MASK_COLUMNS = ("MaskPath", "ImageID", "LabelName", "BoxXMin", "BoxXMax", "BoxYMin", "BoxYMax")
_CORNERS = {"y1": "BoxYMin", "x1": "BoxXMin", "y2": "BoxYMax", "x2": "BoxXMax"}
_NO_NUMBER = ["", "NA", "N/A", "NaN", "nan", "None", "NULL", "null"]
_DECIMALS = 5  # in which the box of a mask and that of the box CSV agree
_ONLY_CLASS = "object"
_PNG_END = 64  # bytes; the last chunk takes 12, and some programs append a line


class MaskFiles(NamedTuple):
    """The masks of Open Images."""

    # CSV; of its columns MaskPath, ImageID, LabelName, BoxXMin, BoxXMax, BoxYMin and BoxYMax are
    # read.
    table: str
    # Of the PNG files, or of folders with them named by the first character of the files, as the
    # published archives are (train-masks-0 to train-masks-f).
    directory: str


def choose_mask_files(
    include_masks: bool, mask_csv: str | None, mask_dir: str | None
) -> MaskFiles | None:
    """Returns the files that the options name, None if masks are not wanted.

    Raises:
        UserError: some of the options are given, but not all.
    """
    if include_masks and mask_csv is not None and mask_dir is not None:
        return MaskFiles(mask_csv, mask_dir)
    if include_masks or mask_csv is not None or mask_dir is not None:
        raise UserError(
            "Masks of Open Images need --include_masks, --mask_csv FILE and --mask_dir DIR "
            "together."
        )
    return None


def add_open_images_masks(annotations: Annotations, masks: MaskFiles) -> Annotations:
    """Joins the masks of Open Images to their boxes by image, label and corners.

    A box without a mask is an object whose shape nobody drew. Where masks are trained it is a
    region to ignore, as a group-of box is, since as an object it would have no shape and left out
    it would be background. Detectors of boxes and evaluation tell the two apart, so the flag is its
    own.

    Args:
        annotations: of the box CSV, corners in 0..1.
        masks: table and folder of the masks.

    Raises:
        UserError: a file is missing or malformed, a mask is outside the folder, or no mask belongs
            to any box.
    """
    table = _read_mask_csv(masks.table)
    boxes = annotations.boxes
    names = annotations.images["source_id"].map(stem)
    places = pd.Series(np.arange(len(names)), index=names)
    places = places[~places.index.duplicated()]
    keys = pd.DataFrame(
        {"image": boxes["image"], "label": boxes["label"].astype(str)}
        | {side: boxes[side].round(_DECIMALS) for side in _CORNERS}
    )
    joined = pd.DataFrame(
        {"image": table["ImageID"].map(places), "label": table["LabelName"]}
        | {side: table[column].round(_DECIMALS) for side, column in _CORNERS.items()}
        | {"path": _paths(table["MaskPath"], masks.directory)}
    ).dropna(subset=["image"])
    joined["image"] = joined["image"].astype("int64")
    on = ["image", "label", *_CORNERS]
    paths = keys.merge(joined.drop_duplicates(on), how="left", on=on)["path"]
    lacking = paths.isna().to_numpy()
    if lacking.all():
        raise UserError(
            f"{masks.table}: none of its {len(table)} masks has the image, label and corners of a "
            "box: masks and boxes are of different sets."
        )
    ignored = int((lacking & ~boxes["is_crowd"].to_numpy()).sum())
    findings = annotations.findings
    if ignored:
        reason = "boxes without a mask: regions to ignore"
        findings += (Finding(masks.table, reason, f"{ignored} boxes", repaired=True),)
    return annotations._replace(
        boxes=boxes.assign(
            # An array of text would become a column of text, with NaN for None.
            segmentation=pd.Series(
                [None if absent else path for path, absent in zip(paths, lacking, strict=True)],
                boxes.index,
                dtype=object,
            ),
            lacks_mask=lacking,
        ),
        findings=findings,
    )


def read_mask_folders(
    directory: str, *, image_list: str | None = None, classes: str | None = None
) -> Annotations:
    """Reads folders with one image each, as the Data Science Bowl 2018 has them.

    `<id>/images/` holds one image and `<id>/masks/` a PNG per object, any value above 0 being
    inside. A box is the extent of its mask. Files that are no masks are left out, with a finding.

    Args:
        directory: holds the folders.
        image_list: file of ids to take; None takes all.
        classes: a class list of one row; None names the class `object`.

    Raises:
        UserError: there is no such folder, a folder has no image or several, `classes` has not
            one row, or there are files of masks and none can be used.
    """
    entries = read_classes(classes) if classes else (ClassEntry(_ONLY_CLASS, _ONLY_CLASS),)
    if len(entries) != 1:
        raise UserError(
            f"--classes {classes} has {len(entries)} rows; masks in folders are of one class."
        )
    names = sorted(list_directory(directory, "--annotations"))
    ids = [name for name in names if storage.is_folder(os.path.join(directory, name, "images"))]
    if not ids:
        raise UserError(f"--annotations {directory} has no folder ID with ID/images and ID/masks.")
    files = [_only_image(directory, name) for name in ids]
    rows: list[tuple[Any, ...]] = []
    sizes, findings = [], []
    for image, (name, file) in enumerate(zip(ids, files, strict=True)):
        own, size, unusable = _read_folder(image, os.path.join(directory, name, "masks"))
        rows += own
        sizes.append(size)
        findings += [Finding(file, reason, path, repaired=False) for path, reason in unusable]
    if findings and not rows:
        first = findings[0]
        raise UserError(
            f"--annotations {directory}: none of the {len(findings)} files in the folders ID/masks "
            f"can be used; {first.detail} is a {first.reason}."
        )
    columns = ["image", "y1", "x1", "y2", "x2", "area", "segmentation"]
    boxes = pd.DataFrame(rows, columns=pd.Index(columns))
    boxes = boxes.assign(label=entries[0].identifier, is_crowd=False)
    images = pd.DataFrame({"source_id": ids, "file": files}).assign(
        height=[size[0] for size in sizes], width=[size[1] for size in sizes]
    )
    if image_list is not None:
        images, boxes, missing = select_listed(images, boxes, image_list, directory)
        listed = set(images["file"])
        findings = [finding for finding in findings if finding.file in listed] + missing
    return build_annotations(
        images=images, boxes=boxes, classes=entries, normalized=False, findings=tuple(findings)
    )


def _read_mask_csv(path: str) -> pd.DataFrame:
    numbers = dict.fromkeys(_CORNERS.values(), "float64")
    try:
        with open_input(path, "The mask CSV") as file:
            table = pd.read_csv(
                file,
                usecols=list(_MASK_COLUMNS),
                dtype={"MaskPath": "str", "ImageID": "str", "LabelName": "str", **numbers},
                keep_default_na=False,  # images and classes may be called NA, None or null
                na_values={"MaskPath": [""], **dict.fromkeys(numbers, _NO_NUMBER)},
            )
    except ValueError as error:  # pandas' parser errors are ValueErrors
        raise UserError(
            f"The mask CSV {path} is not a CSV with {', '.join(_MASK_COLUMNS)}: {error}."
        ) from error
    return table.assign(**{name: table[name].str.strip() for name in ("ImageID", "LabelName")})


def _paths(names: pd.Series, directory: str) -> pd.Series:
    """Returns the path of each mask, in `directory` or in its folder of the first character."""
    if not storage.is_folder(directory):
        raise UserError(f"{directory} is not a folder; it should hold the PNG files of the masks.")
    require_inside(directory, names.dropna().tolist(), "--mask_dir")
    folders: dict[object, str] = {
        name[-1].lower(): f"{name}/" for name in storage.list_kinds(directory)[0]
    }
    within = names.str[:1].str.lower().map(lambda letter: folders.get(letter, ""))
    return f"{directory.rstrip('/')}/" + within + names


def _only_image(directory: str, name: str) -> str:
    names = storage.list_folder(os.path.join(directory, name, "images"))
    found = [name for name in names if is_image_name(name)]
    if len(found) != 1:
        shown = f" ({listing(found or names)})" if names else ""
        raise UserError(
            f"{directory}/{name}/images has {len(found)} images{shown}; with --format mask_folders "
            "it holds one."
        )
    return f"{name}/images/{found[0]}"


def _read_folder(
    image: int, folder: str
) -> tuple[list[tuple[Any, ...]], tuple[float, float], list[tuple[str, str]]]:
    """Reads the masks of an image.

    Returns:
        The rows of its objects, its height and width, NaN without objects, and (path, reason) of
        the files that are no masks of it.
    """
    names = storage.list_folder(folder) if storage.is_folder(folder) else []
    paths = [f"{folder}/{name}" for name in sorted(names) if not name.startswith(".")]
    masks = {path: read_mask_file(path) for path in paths}
    counts = Counter(mask.shape for mask in masks.values() if mask is not None)
    if not counts:
        unreadable = [(path, "mask file that cannot be decoded") for path in paths]
        return [], (float("nan"), float("nan")), unreadable
    size = counts.most_common(1)[0][0]
    rows, unusable = [], []
    for path, mask in masks.items():
        if mask is None:
            unusable.append((path, "mask file that cannot be decoded"))
        elif mask.shape != size:
            unusable.append((path, "mask of another size than the others of its image"))
        elif not mask.any():
            unusable.append((path, "mask without a pixel inside"))
        else:
            lines, columns = (np.flatnonzero(mask.any(axis=axis)) for axis in (1, 0))
            corners = (lines[0], columns[0], lines[-1] + 1, columns[-1] + 1)
            rows.append((image, *map(float, corners), float(mask.sum()), path))
    return rows, size, unusable


def read_mask_file(path: str) -> np.ndarray | None:
    """Reads a mask, [h, w] bool, any value above 0 being inside; None if it is not a whole image.

    It may have 8 or 16 bits, and as many pixels as an image.

    Raises:
        OSError: it cannot be opened.
    """
    with open_bytes(path) as file:
        encoded = file.read()
    if _is_cut_png(encoded):  # OpenCV would show black where it ends
        return None
    try:
        return decode_mask_image(encoded)
    except ImageError:
        return None


def _is_cut_png(encoded: bytes) -> bool:
    return encoded.startswith(b"\x89PNG") and b"IEND" not in encoded[-_PNG_END:]
