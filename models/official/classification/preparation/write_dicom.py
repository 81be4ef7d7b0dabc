"""Plans the records of DICOM files: the folds of labelled ones, or a test split without labels."""

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from tpudet.classification.preparation.dicom import DicomError, read_patient
from tpudet.classification.preparation.rsna_labels import CLASSES, assign_folds, read_labels
from tpudet.classification.preparation.write_records import Plan, default_shards
from tpudet.trainkit.errors import UserError, listing
from tpudet.trainkit.files import storage
from tpudet.trainkit.files.storage import open_bytes

_ENDING = ".dcm"
_HEADER_BYTES = 1 << 16  # patient and study stand at the beginning of a file
_READERS = 16


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
        The plans, and sentences on labels without a file and files without labels.

    Raises:
        UserError: no DICOM file, or as `read_labels` and `assign_folds`.
    """
    directory, output = directory.rstrip("/"), output.rstrip("/")
    if not storage.is_folder(directory):
        raise UserError(f"no directory {directory}")
    names = [n for n in storage.list_folder(directory) if n.lower().endswith(_ENDING)]
    if not names:
        raise UserError(f"no file *{_ENDING} in {directory}")
    by_id = {os.path.splitext(name)[0]: name for name in names}
    if labels_file is None:
        files = [(name, ()) for name in sorted(names)]
        return [_plan("test", directory, files, output, num_shards, None)], []
    labels = read_labels(labels_file)
    notes = [
        f"{len(ids)} {what}: {listing(sorted(ids), 5)}"
        for what, ids in (
            ("labelled images have no file", labels.keys() - by_id.keys()),
            ("files have no label and are left out", by_id.keys() - labels.keys()),
        )
        if ids
    ]
    images = sorted(labels.keys() & by_id.keys())
    if not images:
        raise UserError(f"no labelled image is in {directory}: {'; '.join(notes)}")
    patients = dict(zip(images, _patients(directory, [by_id[i] for i in images]), strict=True))
    folds = assign_folds(patients, num_folds, seed)
    plans = []
    for fold in range(num_folds):
        files = [(by_id[image], labels[image]) for image in images if folds[image] == fold]
        split = f"fold_{fold}"
        plans.append(_plan(split, directory, files, output, num_shards, (fold, num_folds)))
    return plans, notes


def _plan(
    split: str,
    directory: str,
    files: Sequence[tuple[str, tuple[int, ...]]],
    output: str,
    num_shards: int | None,
    fold: tuple[int, int] | None,
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
        fold=fold,
    )


def _patients(directory: str, names: Sequence[str]) -> list[str]:
    """Returns the patient of each file; empty where it cannot be read, which writing reports."""

    def read(name: str) -> str:
        try:
            with open_bytes(os.path.join(directory, name)) as file:
                return read_patient(file.read(_HEADER_BYTES))
        except (DicomError, OSError):
            return ""

    with ThreadPoolExecutor(_READERS) as pool:
        return list(pool.map(read, names))
