"""Where things lie unless an argument says otherwise: under $DATA and $STORAGE.

What comes from Open Images is in $DATA. What is made of it is in $STORAGE/prepared, as tables, and
in $STORAGE/converted, as TFRecords.
"""

import os

from tpudet.detection.submission.labels import HIERARCHY as HIERARCHY

# Names under $DATA.
TRAIN_BOXES = "challenge-2019-train-detection-bbox.csv"
VALIDATION_BOXES = "challenge-2019-validation-detection-bbox.csv"
CLASSES = "challenge-2019-classes-description-500.csv"
HUMAN_PARTS = "class-ids-human-body-parts-and-mammal.txt"
HUMAN_IMAGES = "train-image-ids-with-human-parts-and-mammal-boxes.txt"  # optional
BLACKLIST = "blacklist.txt"  # optional


def data_path(*names: str) -> str:
    """A path under $DATA, a local folder or gs://bucket; by default `data`."""
    return _under("DATA", "data", names)


def storage_path(*names: str) -> str:
    """A path under $STORAGE, a local folder or gs://bucket; by default `output`."""
    return _under("STORAGE", "output", names)


def _under(variable: str, default: str, names: tuple[str, ...]) -> str:
    root = os.environ.get(variable) or default
    return os.path.join(root.rstrip("/") or "/", *names)
