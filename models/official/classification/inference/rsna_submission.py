"""Writes the submission of the RSNA haemorrhage challenge: `ID,Label`, six rows per image."""

from collections.abc import Mapping, Sequence

import numpy as np

from tpudet.classification.preparation.rsna_labels import CLASSES, read_rows, split_row_id
from tpudet.trainkit.errors import UserError, listing
from tpudet.trainkit.files.claimed_file import claimed_file


def read_sample(path: str) -> list[str]:
    """Returns the row ids of a sample submission, in its order.

    Raises:
        UserError: it is no such CSV, repeats a row, or has rows that are of no class.
    """
    table = read_rows(path, "--sample_submission")
    names = {entry.name for entry in CLASSES}
    wrong = [text for text in table["ID"] if split_row_id(text)[1] not in names]
    wrong += table["ID"][table["ID"].duplicated()].tolist()
    if wrong or table.empty:
        raise UserError(f"{path} has rows that are of no class, or twice: {listing(wrong)}")
    return table["ID"].tolist()


def write_submission(
    output: str,
    probabilities: Mapping[str, np.ndarray],
    *,
    sample: Sequence[str],
    force: bool,
) -> str:
    """Writes a row for each row of the sample submission, in its order.

    Images that have no prediction, because they cannot be decoded, get the mean of all others.

    Args:
        output: CSV file to write.
        probabilities: [6] by image id, in the order of `CLASSES`.
        sample: row ids of the sample submission of the challenge.
        force: replace an existing file.

    Returns:
        A summary.

    Raises:
        UserError: no image of the sample was predicted, or the file exists.
    """
    rows = [(text, *split_row_id(text)) for text in sample]
    images = {image for _, image, _ in rows}
    predicted = images & probabilities.keys()
    if not predicted:
        raise UserError(
            "no image of the sample submission was predicted: it has "
            f"{listing(sorted(images), 3)}; predicted were {listing(sorted(probabilities), 3)}"
        )
    mean = np.mean([probabilities[image] for image in sorted(predicted)], axis=0)
    places = {entry.name: place for place, entry in enumerate(CLASSES)}
    with claimed_file(output, "w", force=force) as file:
        file.write("ID,Label\n")
        for text, image, name in rows:
            file.write(f"{text},{probabilities.get(image, mean)[places[name]]:.9g}\n")
    missing = sorted(images - predicted)
    note = (
        f"; {len(missing)} have the mean, not predicted: {listing(missing, 5)}" if missing else ""
    )
    return f"{output}: {len(rows)} rows, {len(images)} images{note}"
