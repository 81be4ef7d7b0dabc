"""The labels of the RSNA haemorrhage challenge, and folds that keep each patient together."""

import io
import os
import warnings
from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd

from tpudet.trainkit.class_list import ClassEntry
from tpudet.trainkit.errors import UserError, listing
from tpudet.trainkit.files.csv_columns import too_many_columns
from tpudet.trainkit.files.inputs import read_input

CLASSES = tuple(
    ClassEntry(name, name)
    for name in (
        "any",
        "epidural",
        "intraparenchymal",
        "intraventricular",
        "subarachnoid",
        "subdural",
    )
)
_NAMES = [entry.name for entry in CLASSES]
DICOM_ENDING = ".dcm"  # of the image files, in any case


def image_id_of(filename: str) -> str:
    """Returns the id of an image from the name of its file, which ends in .dcm or .DCM."""
    stem, ending = os.path.splitext(filename)
    return stem if ending.lower() == DICOM_ENDING else filename


def split_row_id(text: str) -> tuple[str, str]:
    """Divides `ID_12cadc6af_epidural` into the image's id and the class."""
    image_id, _, name = text.rpartition("_")
    return image_id, name


def read_rows(path: str, argument: str) -> pd.DataFrame:
    """Reads the columns ID and Label of a CSV of the challenge, as text.

    Args:
        path: the file.
        argument: that names it, for messages.

    Raises:
        UserError: it cannot be read, is not a CSV, or has no rows, not these columns or more than
            1,000.
    """
    content = read_input(path, argument)
    if fault := too_many_columns(content):
        raise UserError(f"{argument} {path} {fault}")
    try:
        with warnings.catch_warnings():  # pandas only warns of rows longer than the header
            warnings.simplefilter("error", pd.errors.ParserWarning)
            table = pd.read_csv(
                io.BytesIO(content), dtype=str, keep_default_na=False, index_col=False
            )
    except (ValueError, pd.errors.ParserWarning) as error:  # empty, not UTF-8, an open quote
        raise UserError(f"{argument} {path} is not a CSV: {str(error).strip()}") from None
    if not {"ID", "Label"} <= set(table.columns):
        raise UserError(
            f"{argument} {path} has the columns {listing(table.columns)}; ID,Label needed"
        )
    if table.empty:
        raise UserError(f"{argument} {path} has a header and no rows")
    return table.fillna("")


def read_labels(path: str) -> dict[str, tuple[int, ...]]:
    """Reads `stage_1_train.csv` or `stage_2_train.csv`: class ids, from 1, by image id.

    Args:
        path: CSV with rows `ID,Label`, six an image, such as `ID_12cadc6af_epidural,0`. Repeated
            rows may not differ.

    Raises:
        UserError: lists missing columns, unknown classes, labels other than 0 and 1, images
            without all six rows and rows that contradict each other.
    """
    table = read_rows(path, "--labels")
    rows = pd.DataFrame(map(split_row_id, table["ID"]), columns=["image", "name"])
    rows["label"] = table["Label"]
    known = rows["name"].isin(_NAMES)
    strange = rows[~rows["label"].isin(["0", "1"])]
    rows = rows.drop_duplicates()
    twice = rows[rows.duplicated(["image", "name"])]
    mistakes = [
        *(f"unknown class in {text}" for text in table["ID"][~known]),
        *(
            f"label {label!r} of {image}"
            for image, label in zip(strange["image"], strange["label"], strict=True)
        ),
        *(
            f"{image}_{name} is both 0 and 1"
            for image, name in zip(twice["image"], twice["name"], strict=True)
        ),
    ]
    if not mistakes:
        counts = rows.groupby("image").size()
        mistakes = [
            f"{image} has {count} of 6 rows" for image, count in counts[counts != 6].items()
        ]
    if mistakes:
        raise UserError(f"--labels {path} cannot be used: {listing(mistakes)}")
    found: dict[str, tuple[int, ...]] = dict.fromkeys(rows["image"], ())
    positive = rows[rows["label"] == "1"]
    for image, name in zip(positive["image"], positive["name"], strict=True):
        found[image] += (_NAMES.index(name) + 1,)
    return {image: tuple(sorted(ids)) for image, ids in found.items()}


def assign_folds(patients: Mapping[str, str], num_folds: int, seed: int) -> dict[str, int]:
    """Returns the fold of each image, from 0: all images of a patient are in one.

    Patients are drawn in an order of the seed, and each goes to the fold with the fewest images.

    Args:
        patients: patient by image id; an image without one is a patient of its own.
        num_folds: 2 or more.
        seed: of the order.

    Raises:
        UserError: there are fewer than two folds, or fewer patients than folds.
    """
    if num_folds < 2:
        raise UserError(f"--folds {num_folds}: 2 or more, since each is evaluated on in turn")
    groups: dict[str, list[str]] = {}
    for image in sorted(patients):
        groups.setdefault(patients[image] or f"image {image}", []).append(image)
    if len(groups) < num_folds:
        raise UserError(f"--folds {num_folds}: there are only {len(groups)} patients")
    names: Sequence[str] = sorted(groups)
    sizes = np.zeros(num_folds, int)
    folds = {}
    for index in np.random.default_rng(seed).permutation(len(names)):
        images = groups[names[index]]
        fold = int(sizes.argmin())
        sizes[fold] += len(images)
        folds |= dict.fromkeys(images, fold)
    return folds
