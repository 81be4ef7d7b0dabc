"""File names and settings of the Open Images challenge.

The challenge's own files are in $DATA. The tables made from them are in $STORAGE/prepared, the
TFRecords in $STORAGE/converted. Imports nothing heavy, because commands show these names in --help.
"""

from tpudet.detection.submission.hierarchy import HIERARCHY as HIERARCHY

# Names under $DATA.
TRAIN_BOXES = "challenge-2019-train-detection-bbox.csv"
VALIDATION_BOXES = "challenge-2019-validation-detection-bbox.csv"
CLASSES = "challenge-2019-classes-description-500.csv"
HUMAN_PARTS = "class-ids-human-body-parts-and-mammal.txt"
HUMAN_IMAGES = "train-image-ids-with-human-parts-and-mammal-boxes.txt"  # optional
BLACKLIST = "blacklist.txt"  # optional

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
