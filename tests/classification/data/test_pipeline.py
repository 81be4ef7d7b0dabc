"""The input: restarts, processes, the naive pipeline, fillers, both schemas, faults."""

from dataclasses import replace
from pathlib import Path

import cv2
import numpy as np
import pytest
import tensorflow as tf

from tpudet.classification.data.config import (
    AffineConfig,
    DataConfig,
    MixupConfig,
    RandomCropConfig,
)
from tpudet.classification.data.pipeline import eval_dataset, train_dataset
from tpudet.classification.data.record import find_schema
from tpudet.classification.types import Batch
from tpudet.trainkit.errors import UserError
from tpudet.trainkit.record_splits import Split, find_split
from tpudet.trainkit.records import write_shard
from tpudet.trainkit.shuffled_records import ShuffledRecords

NAMES = ["blue", "green", "red"]
DATA = DataConfig(image_size=(24, 32))


@pytest.fixture(scope="module")
def split(colors_part: Path) -> Split:
    return find_split(str(colors_part), "train", NAMES, per_class="images_per_class")


def batches(split: Split, count: int, data: DataConfig = DATA, **options) -> list[Batch]:
    order = {name: options.pop(name) for name in tuple(options) if name in ShuffledRecords._fields}
    records = ShuffledRecords(split.shards, split.records_per_shard, **{"seed": 5, **order})
    dataset = train_dataset(data, records, **{"num_classes": 3, "batch_size": 4, **options})
    return [Batch(*map(np.asarray, batch)) for batch in dataset.take(count)]


def assert_equal(found: list[Batch], expected: list[Batch]) -> None:
    assert len(found) == len(expected)
    for one, other in zip(found, expected, strict=True):
        for values, wanted in zip(one, other, strict=True):
            np.testing.assert_array_equal(values, wanted)


def test_an_epoch_has_every_image_once_with_its_class(split: Split) -> None:
    found = batches(split, 9, batch_size=2)
    assert found[0].images.shape == (2, 24, 32, 3)
    assert found[0].images.dtype == np.uint8
    records = np.concatenate([batch.records for batch in found])
    assert len(set(records.tolist())) == 18
    for batch in found:
        channels = batch.images.mean(axis=(1, 2)).argmax(axis=1)  # red is 0, class 3
        np.testing.assert_array_equal(batch.targets.argmax(axis=1), 2 - channels)
        np.testing.assert_array_equal(batch.targets.sum(axis=1), 1)


@pytest.mark.parametrize("augmentations", [(), (MixupConfig(probability=1.0),)])
def test_a_restart_continues_and_the_naive_pipeline_is_the_same(
    split: Split, augmentations: tuple
) -> None:
    data = DataConfig(image_size=(24, 32), augmentations=augmentations)
    whole = batches(split, 7, data)
    assert_equal(batches(split, 4, data, start_record=12), whole[3:])
    basic = DataConfig(image_size=(24, 32), augmentations=augmentations, pipeline="basic")
    assert_equal(batches(split, 7, basic), whole)
    assert not np.array_equal(batches(split, 1, data, seed=6)[0].images, whole[0].images)


def test_processes_share_the_records_of_one(split: Split) -> None:
    whole = np.concatenate([batch.records for batch in batches(split, 4)])
    for index in (0, 1):
        found = batches(split, 4, batch_size=2, process_index=index, process_count=2)
        np.testing.assert_array_equal(
            np.concatenate([batch.records for batch in found]), whole[index::2]
        )


def test_mixup_blends_images_and_targets_alike(split: Split) -> None:
    crop = RandomCropConfig(area_range=(0.9, 1.0))
    mix = MixupConfig(probability=1.0, alpha=1.0)
    data = DataConfig(image_size=(24, 32), random_crop=crop, augmentations=(mix,))
    batch = batches(split, 1, data, batch_size=16)[0]
    np.testing.assert_allclose(batch.targets.sum(axis=1), 1, rtol=1e-6)
    assert ((batch.targets > 0.05) & (batch.targets < 0.95)).any()
    # The means of the unmixed images by class, blue, green, red, are their colours.
    colors = np.array([[0, 40, 255], [40, 220, 30], [250, 30, 0]])
    means = batch.images.mean(axis=(1, 2))
    assert np.abs(means - batch.targets @ colors).max() < 12


def test_evaluation_sees_each_centre_once_in_file_order_and_fillers(split: Split) -> None:
    dataset = eval_dataset(DATA, shards=split.shards, num_records=18, num_classes=3, batch_size=4)
    found = [Batch(*map(np.asarray, batch)) for batch in dataset]
    assert [len(batch.records) for batch in found] == [4] * 5
    records = np.concatenate([batch.records for batch in found])
    assert list(records[18:]) == [-1, -1]
    assert (np.diff(records[:18]) > 0).all()
    assert found[-1].images[2:].max() == 0


def test_some_images_of_an_evaluation_are_spread_over_the_split(colors_part: Path) -> None:
    """The six images of val stand by class, two of each; three are one of each."""
    val = find_split(str(colors_part), "val", NAMES, per_class="images_per_class")
    dataset = eval_dataset(
        DATA, shards=val.shards, num_records=6, num_classes=3, batch_size=3, max_images=3
    )
    (batch,) = [Batch(*map(np.asarray, batch)) for batch in dataset]
    assert (batch.records >= 0).all()
    np.testing.assert_array_equal(batch.targets, np.eye(3))


def test_an_affine_before_the_crop_leaves_no_black_that_one_after_it_leaves(split: Split) -> None:
    """The centre is half of each side: shifts by up to a tenth do not reach the border."""
    move = AffineConfig(rotation=0.0, shift=0.1, scale=0.0)
    centre = DataConfig(image_size=(20, 24), random_crop=None, center_crop=0.5)
    before = batches(split, 4, replace(centre, random_affine=move))
    after = batches(split, 4, replace(centre, augmentations=(move,)))
    still = batches(split, 4, centre)
    for one, other in zip(before, still, strict=True):
        assert one.images.max(axis=-1).min() > 150
        assert (one.images != other.images).any(axis=(1, 2, 3)).all()
    assert min(batch.images.max(axis=-1).min() for batch in after) == 0


def kaggle_record(label: int | None, image_id: str) -> bytes:
    image = cv2.imencode(".jpg", np.full((20, 20, 3), 100, np.uint8))[1].tobytes()
    features = {
        "image": tf.train.Feature(bytes_list=tf.train.BytesList(value=[image])),
        "id": tf.train.Feature(bytes_list=tf.train.BytesList(value=[image_id.encode()])),
    }
    if label is not None:
        features["class"] = tf.train.Feature(int64_list=tf.train.Int64List(value=[label]))
    example = tf.train.Example(features=tf.train.Features(feature=features))
    return example.SerializeToString()


def test_kaggles_flowers_count_classes_from_0_and_their_test_images_have_none(
    tmp_path: Path,
) -> None:
    path = str(tmp_path / "flowers.tfrec")
    write_shard(path, [kaggle_record(0, "a"), kaggle_record(103, "b"), kaggle_record(None, "c")])
    data = DataConfig(image_size=(16, 16))
    (batch,) = eval_dataset(data, shards=[path], num_records=3, num_classes=104, batch_size=3)
    np.testing.assert_array_equal(np.asarray(batch.targets).argmax(axis=1), [0, 103, 0])
    np.testing.assert_array_equal(np.asarray(batch.targets).sum(axis=1), [1, 1, 0])


@pytest.mark.parametrize(
    ("label", "message"),
    [(3, "A label of this record is not among the 3 rows"), (None, "not exactly one label")],
)
def test_a_wrong_label_names_its_record(label: int | None, message: str, tmp_path: Path) -> None:
    path = str(tmp_path / "one.tfrec")
    write_shard(path, [kaggle_record(label, "x17")])
    split = Split([path], [1], 3)
    with pytest.raises(tf.errors.InvalidArgumentError, match=message) as error:
        batches(split, 1, DataConfig(image_size=(16, 16)), batch_size=1)
    assert "x17" in str(error.value)


def test_records_of_something_else_are_named_by_their_keys() -> None:
    feature = {"text": tf.train.Feature(bytes_list=tf.train.BytesList(value=[b"a"]))}
    example = tf.train.Example(features=tf.train.Features(feature=feature))
    with pytest.raises(UserError, match="x.tfrec holds no images to classify.*keys text; there"):
        find_schema(example.SerializeToString(), "x.tfrec")
