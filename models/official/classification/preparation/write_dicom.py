"""Plans the records of DICOM files: the folds of labelled ones, or a test split without labels."""

import os
import re
from collections.abc import Sequence, Set
from concurrent.futures import ThreadPoolExecutor

from tpudet.classification.preparation.dicom import DicomError, read_patient
from tpudet.classification.preparation.plan_splits import Plan, default_shards, splits_in
from tpudet.classification.preparation.rsna_labels import (
    CLASSES,
    DICOM_ENDING,
    assign_folds,
    image_id_of,
    read_labels,
)
from tpudet.trainkit.errors import UserError, listing
from tpudet.trainkit.files import storage
from tpudet.trainkit.files.digests import division_digest
from tpudet.trainkit.files.storage import open_bytes

_HEADER_BYTES = 1 << 16  # of most files, in which the patient stands
_READERS = 16
_FOLD = re.compile(r"fold_(\d+)")


def plan_dicom(
    directory: str,
    output: str,
    *,
    labels_file: str | None,
    num_folds: int,
    num_shards: int | None,
    seed: int,
) -> tuple[list[Plan], list[str]]:
    """Decides which slices go to which split, `fold_0` and so on, or `test` without labels.

    Args:
        directory: of the DICOM files, `<image id>.dcm`.
        output: converted/<part>.
        labels_file: as for `read_labels`; None: images without labels.
        num_folds: folds of the labelled images.
        num_shards: files per split; None: about 100 MB each.
        seed: of the folds and of the order in each.

    Returns:
        The plans, and sentences on labels without a file, files without labels and images without
        a patient.

    Raises:
        UserError: no DICOM file, or two of one image, the output has folds beyond these, or as
            `read_labels` and `assign_folds`.
    """
    directory, output = directory.rstrip("/"), output.rstrip("/")
    by_id = _list_dicom(directory)
    if labels_file is None:
        files = [(name, ()) for name in sorted(by_id.values())]
        return [_plan("test", directory, files, output, num_shards)], []
    _require_no_other_folds(output, num_folds)
    labels = read_labels(labels_file)
    notes = _unmatched(labels.keys(), by_id.keys())
    images = sorted(labels.keys() & by_id.keys())
    if not images:
        raise UserError(f"no labelled image is in {directory}: {'; '.join(notes)}")
    patients = dict(zip(images, _patients(directory, [by_id[i] for i in images]), strict=True))
    unknown = [image for image, patient in patients.items() if not patient]
    if unknown:
        notes.append(
            f"{len(unknown)} images have no patient in their header and count as a patient each, "
            f"so that a patient may be in several folds: {listing(unknown, 5)}"
        )
    folds = assign_folds(patients, num_folds, seed)
    division = division_digest(folds)
    plans = []
    for fold in range(num_folds):
        files = [(by_id[image], labels[image]) for image in images if folds[image] == fold]
        plan = _plan(f"fold_{fold}", directory, files, output, num_shards)
        plans.append(plan._replace(fold=(fold, num_folds), division=division))
    return plans, notes


def _list_dicom(directory: str) -> dict[str, str]:
    """Returns the names of the DICOM files in a folder by image id.

    Raises:
        UserError: there is no file, or two are of one image.
    """
    if not storage.is_folder(directory):
        raise UserError(f"no directory {directory}")
    names = [n for n in storage.list_folder(directory) if n.lower().endswith(DICOM_ENDING)]
    if not names:
        raise UserError(f"no file *{DICOM_ENDING} in {directory}")
    by_id = {image_id_of(name): name for name in names}
    if len(by_id) < len(names):
        twice = sorted(set(names) - set(by_id.values()))
        raise UserError(
            f"{directory} has images twice, as .dcm and .DCM: {listing(twice)}; keep one"
        )
    return by_id


def _unmatched(labelled: Set[str], there: Set[str]) -> list[str]:
    """Says which images have only a label or only a file."""
    pairs = (
        ("labelled images have no file", labelled - there),
        ("files have no label and are left out", there - labelled),
    )
    return [f"{len(ids)} {what}: {listing(sorted(ids), 5)}" for what, ids in pairs if ids]


def _require_no_other_folds(output: str, num_folds: int) -> None:
    """Refuses an output with folds of a division into more: their images are in these folds too.

    Raises:
        UserError: names the folds.
    """
    matches = [match for split in splits_in(output) if (match := _FOLD.fullmatch(split))]
    left = sorted({number for match in matches if (number := int(match[1])) >= num_folds})
    if left:
        raise UserError(
            f"{output} has {listing(f'fold_{number}' for number in left)} of an earlier division, "
            f"with images of the {num_folds} folds to write: remove the files of these folds, or "
            "give another --output"
        )


def _plan(
    split: str,
    directory: str,
    files: Sequence[tuple[str, tuple[int, ...]]],
    output: str,
    num_shards: int | None,
) -> Plan:
    shards = num_shards or default_shards(directory, [name for name, _ in files])
    return Plan(
        split=split,
        directory=directory,
        files=list(files),
        classes=CLASSES,
        output=output,
        num_shards=min(shards, len(files)),
        presize=None,
        dicom=True,
    )


def _patients(directory: str, names: Sequence[str]) -> list[str]:
    """Returns the patient of each file; empty where its header has none or cannot be read.

    A file whose beginning does not tell, for it is compressed or a long element comes first, is
    read whole.
    """

    def read(name: str) -> str:
        try:
            with open_bytes(os.path.join(directory, name)) as file:
                beginning = file.read(_HEADER_BYTES)
                return _patient_in(beginning) or _patient_in(beginning + file.read())
        except OSError:
            return ""

    with ThreadPoolExecutor(_READERS) as pool:
        return list(pool.map(read, names))


def _patient_in(content: bytes) -> str:
    try:
        return read_patient(content)
    except DicomError:
        return ""
