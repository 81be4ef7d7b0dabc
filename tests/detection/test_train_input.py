"""The training input of an experiment: part of the data, no mosaic at the end, turned images."""

import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from tpudet.detection.build_detector import build_train_dataset
from tpudet.detection.config import ExperimentConfig
from tpudet.detection.types import Batch
from tpudet.trainkit.config.decode import load_config
from tpudet.trainkit.record_splits import Split, find_split, first_records
from tpudet.trainkit.records import RECORDS_PER_SHARD_LIMIT
from tpudet.trainkit.shuffled_records import ShuffledRecords, read_shuffled

SMALL = ["data.canvas_size=[64, 96]", "train.total_steps=4", "train.batch_size=4"]
MOSAIC = "data.augmentations=[{kind: mosaic, probability: 1.0}]"


def split_of(part: str) -> Split:
    names = (Path(part) / "classes.csv").read_text().split()
    return find_split(part, "train", [name.split(",")[1] for name in names])


def batches(part: str, *change: str, start: int = 0, count: int = 4) -> list[Batch]:
    config = load_config(
        ExperimentConfig, "quickstart", overrides=[f"data.directory={part}", *SMALL, *change]
    )
    dataset: Any = build_train_dataset(config, split_of(part), start)
    return list(dataset.take(count).as_numpy_iterator())


@pytest.fixture(scope="module")
def plain(sample_part: str) -> list[Batch]:
    return batches(sample_part)


def test_the_last_steps_are_without_mosaic_also_after_a_restart(
    sample_part: str, plain: list[Batch]
) -> None:
    change = (MOSAIC, "data.close_mosaic_steps=2")
    closed = batches(sample_part, *change)
    for step, (batch, unmixed) in enumerate(zip(closed, plain, strict=True)):
        np.testing.assert_array_equal(batch.records, unmixed.records)
        assert np.array_equal(batch.images, unmixed.images) == (step >= 2)
    resumed = batches(sample_part, *change, start=4, count=3)
    for batch, expected in zip(resumed, closed[1:], strict=True):
        np.testing.assert_array_equal(batch.images, expected.images)
        np.testing.assert_array_equal(batch.boxes, expected.boxes)


def test_a_fraction_reads_the_first_records_of_each_file_over_and_over(sample_part: str) -> None:
    whole = split_of(sample_part)
    assert first_records(whole, 0.01).records_per_shard == [1, 1]
    part = first_records(whole, 0.5)
    assert part.records_per_shard == [4, 4]  # of 8 and 8
    records = read_shuffled(
        ShuffledRecords(part.shards, part.records_per_shard, seed=0, whole_files=False)
    )
    seen = [int(record) for _, record, _ in records.take(16)]
    expected = [shard * RECORDS_PER_SHARD_LIMIT + k for shard in range(2) for k in range(4)]
    assert sorted(seen[:8]) == sorted(seen[8:]) == expected


def test_turned_images_stay_on_a_canvas_that_is_not_square(
    sample_part: str, plain: list[Batch]
) -> None:
    turned = batches(sample_part, "data.quarter_turns=true", "data.vertical_flip=true")
    for before, after in zip(plain, turned, strict=True):
        assert after.images.shape == (4, 64, 96, 3)
        np.testing.assert_array_equal(after.records, before.records)
        assert (after.boxes[..., 2] <= 64).all()
        assert (after.boxes[..., 3] <= 96).all()
        assert not np.array_equal(after.images, before.images)


def test_autograph_converts_no_function_of_the_input(
    sample_part: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))  # where it writes what it converted
    converted: Any = tf.data.Dataset.range(2).map(lambda number: number if number > 0 else -number)
    assert list(converted.as_numpy_iterator()) == [0, 1]
    (before,) = tmp_path.glob("__autograph_generated_file*.py")
    batches(sample_part, MOSAIC, count=1)
    assert list(tmp_path.glob("__autograph_generated_file*.py")) == [before]
