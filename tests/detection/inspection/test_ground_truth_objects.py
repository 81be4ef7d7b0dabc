"""Ground truth of TFRecords: joined by file name, copies taken once, crowds are regions."""

from pathlib import Path

import numpy as np
import pytest

from tpudet.detection.data.tfrecord import EncodedImage, encode_example
from tpudet.detection.inspection.ground_truth_objects import (
    read_box_csv_objects,
    read_split_objects,
)
from tpudet.detection.inspection.objects import InspectionError
from tpudet.detection.preparation.records.prepared_set import PreparedSet, PreparedSplit
from tpudet.trainkit.class_list import ClassEntry
from tpudet.trainkit.records import shard_path, write_shard

CLASSES = (ClassEntry("/m/01", "cat"), ClassEntry("/m/02", "dog"))


def record(filename: str, labels: list[int], left: float, *, crowd: bool = False) -> bytes:
    count = len(labels)
    return encode_example(
        EncodedImage(
            source_id="42",
            filename=filename,
            encoded=b"",
            format="jpeg",
            height=10,
            width=20,
        ),
        boxes_normalized=np.array([[0.25, left, 0.5, 0.75]] * count).reshape(-1, 4),
        labels=labels,
        texts=[""] * count,
        is_crowd=[crowd] * count,
        areas=[1.0] * count,
    )


def prepared(folder: Path, *records: bytes) -> PreparedSet:
    path = shard_path(str(folder / "val_a"), 0, 1)
    write_shard(path, records)
    split = PreparedSplit("val", str(folder / "val.json"), {"images": len(records)}, (path,))
    return PreparedSet(str(folder), "a", CLASSES, (split,), ())


def test_images_have_the_names_of_their_files(tmp_path: Path) -> None:
    part = prepared(
        tmp_path,
        record("folder/000000000042.jpg", [2, 1], 0.5),
        record("0007.v2.png", [1], 0.125, crowd=True),
        record("folder/000000000042.jpg", [2, 1], 0.5),  # a copy
        record("empty.jpg", [], 0),
    )
    truth = read_split_objects(part, "val").objects
    assert truth.image_ids.tolist() == ["000000000042", "0007.v2", "empty"]
    assert truth.images.tolist() == [0, 0, 1]
    assert truth.class_ids.tolist() == [2, 1, 1]
    assert truth.is_group.tolist() == [False, False, True]
    assert truth.boxes[1:].tolist() == [[0.25, 0.5, 0.5, 0.75], [0.25, 0.125, 0.5, 0.75]]


def test_two_images_of_one_name_are_refused(tmp_path: Path) -> None:
    part = prepared(tmp_path, record("x/1.jpg", [1], 0.5), record("y/1.jpg", [1], 0.25))
    with pytest.raises(InspectionError, match="two images are called 1, with different objects"):
        read_split_objects(part, "val")


def test_open_images_validation_boxes(data_dir: Path) -> None:
    """Real boxes by class name, of two of the classes, and how many are left out."""
    path = data_dir / "openimages/val_annotations_names.csv"
    classes = (ClassEntry("/m/1", "Shellfish"), ClassEntry("/m/2", "Seafood"))
    truth = read_box_csv_objects(str(path), classes, "list")
    lines = path.read_text().splitlines()
    for class_id, name in enumerate(("Shellfish", "Seafood"), 1):
        expected = sum(f",{name}," in line for line in lines)
        assert (truth.objects.class_ids == class_id).sum() == expected > 0
    assert "boxes of" in truth.notes[-1]
