"""File names and settings of the Open Images challenge.

The challenge's own files are in $DATA. The tables made from them are in $STORAGE/prepared, the
TFRecords in $STORAGE/converted. Imports nothing heavy, because commands show these names in --help.
"""

import os

from tpudet.detection.submission.hierarchy import HIERARCHY as HIERARCHY
from tpudet.trainkit.files import storage
from tpudet.trainkit.files.locations import data_path

# Names under $DATA.
TRAIN_BOXES = "challenge-2019-train-detection-bbox.csv"
VALIDATION_BOXES = "challenge-2019-validation-detection-bbox.csv"
CLASSES = "challenge-2019-classes-description-500.csv"
HUMAN_PARTS = "class-ids-human-body-parts-and-mammal.txt"  # optional: tpudet ships it
HUMAN_IMAGES = "train-image-ids-with-human-parts-and-mammal-boxes.txt"  # optional
BLACKLIST = "blacklist.txt"  # optional
# Of the segmentation track; {} is train or validation.
SEGMENTATION_BOXES = "challenge-2019-{}-segmentation-bbox.csv"
SEGMENTATION_MASKS = "challenge-2019-{}-segmentation-masks.csv"
SEGMENTATION_CLASSES = "challenge-2019-classes-description-segmentable.csv"
SEGMENTATION_HIERARCHY = "challenge-2019-label300-segmentable-hierarchy.json"

# Ranks, by ascending number of images, where the groups of classes begin and the last one ends.
BOUNDARIES = (0, 100, 200, 300, 400, 450)
FOLD_SEED = 777

# Sources that the outputs of every step depend on; a change makes the step run again.
STEP_CODE = (
    "tpudet.detection.preparation",
    "tpudet.detection.submission",
    "tpudet.trainkit.class_list",
    "tpudet.trainkit.images",
)


def human_parts_path() -> str:
    """The list of human parts in $DATA if it exists, else the 13 that tpudet ships."""
    path = data_path(HUMAN_PARTS)
    return path if storage.exists(path) else os.path.join(os.path.dirname(__file__), HUMAN_PARTS)
