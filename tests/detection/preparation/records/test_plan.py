"""Which image lies where in which shard."""

from pathlib import Path

import numpy as np
import pytest

from tpudet.detection.preparation.records.balance import BalancePlan
from tpudet.detection.preparation.records.plan import plan_shards
from tpudet.detection.preparation.sources.annotations import Annotations, take_images
from tpudet.detection.preparation.sources.coco import read_coco
from tpudet.trainkit.errors import UserError


@pytest.fixture
def annotations(write_coco) -> Annotations:
    """Seven images; image k has k % 3 boxes at x1 = k."""
    names = [f"{number}.jpg" for number in range(7)]
    boxes = {name: [(3, row, 0, 5, 5)] * (row % 3) for row, name in enumerate(names)}
    path, _ = write_coco(dict.fromkeys(names), boxes)
    return read_coco(str(path))


def files_with_own_boxes(piece: Annotations) -> list[int]:
    numbers = [int(Path(file).stem) for file in piece.images["file"]]
    for row, number in enumerate(numbers):
        own = piece.boxes[piece.boxes["image"] == row]
        assert own["x1"].tolist() == [number] * (number % 3)
    assert piece.boxes["image"].is_monotonic_increasing
    return numbers


def test_taken_images_bring_their_boxes_as_often_as_they_are_taken(annotations) -> None:
    rows = np.array([5, 0, 2, 5, 1, 5])
    assert files_with_own_boxes(take_images(annotations, rows)) == rows.tolist()
    assert len(take_images(annotations, np.array([], np.int64)).images) == 0


def plan(annotations: Annotations, split: str, **more):
    return plan_shards(
        annotations,
        image_directories=("a", "b"),
        output="converted/part/",
        split=split,
        seed=3,
        options={},
        **more,
    )


def test_shards_differ_by_one_record_and_hold_each_as_often_as_planned(annotations) -> None:
    copies = np.array([1, 3, 1, 2])
    balance = BalancePlan(copies, {1: 2}, np.array([9]), np.array([9]))
    rows = np.array([6, 1, 0, 4])
    for split in ("val", "train"):
        found = plan(annotations, split, num_shards=3, rows=rows, balance=balance)
        jobs = list(found.jobs(write=True))
        pieces = [files_with_own_boxes(job.annotations) for job in jobs]
        assert [len(piece) for piece in pieces] == [2, 2, 3]
        records = sum(pieces, [])
        assert sorted(records) == [0, 1, 1, 1, 4, 4, 6]
        assert (records == [6, 1, 1, 1, 0, 4, 4]) == (split == "val")
        assert {job.image_directories for job in jobs} == {("a", "b")}
        progress = f"converted/part/{split}_part.progress"
        assert jobs[2].path == f"{progress}/{split}_part-00002-of-00003.tfrecord"
        assert found.copies_by_file() == {"1.jpg": 3, "4.jpg": 2}
        assert found.options["copies"] == {
            "images": 4,
            "records": 7,
            "most_copies": 3,
            "shortfalls": {"dog": 2},
        }


def test_the_order_of_train_is_that_of_the_ids_and_the_seed(annotations) -> None:
    order = np.array([3, 6, 0, 2, 5, 1, 4])
    others = take_images(annotations, order)
    for split, same in (("train", True), ("val", False)):
        first, second = (plan(read, split, num_shards=1) for read in (annotations, others))
        names = [p.annotations.images["file"].iloc[p.order].tolist() for p in (first, second)]
        assert (names[0] == names[1]) == same


def test_more_shards_than_records_are_refused(annotations) -> None:
    with pytest.raises(UserError, match=r"--num_shards 3 must be in 1\.\.2"):
        plan(annotations, "val", num_shards=3, rows=np.array([0, 1]))
