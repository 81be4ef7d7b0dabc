"""Mixing over blocks: who is mixed with whom, restarts, processes, and the order of the list."""

import functools
import json
from pathlib import Path

import cv2
import numpy as np
import pytest
import tensorflow as tf

from tpudet.detection.data.augmentations.build import on_image
from tpudet.detection.data.augmentations.mixing import mixup, mosaic, paste
from tpudet.detection.data.config import CopyPasteConfig, DataConfig
from tpudet.detection.data.pipeline import train_dataset
from tpudet.detection.data.sample import (
    AnnotatedImage,
    Sample,
    pack_sample,
    unpack_sample,
)
from tpudet.detection.data.tfrecord import EncodedImage, encode_example
from tpudet.detection.preparation.sources.masks import mask_png
from tpudet.trainkit import records
from tpudet.trainkit.images.mixed_stream import (
    BLOCK_SIZE,
    MixingAugmentation,
    augmented_stream,
    surplus_records,
)
from tpudet.trainkit.shuffled_records import ShuffledRecords

CANVAS = (48, 64)
MOSAIC = MixingAugmentation(functools.partial(mosaic, canvas_size=CANVAS), 3, probability=0.7)
MIXUP = MixingAugmentation(functools.partial(mixup, alpha=1.5), 1, probability=0.5)
TOTAL = 21


def brighten(annotated: AnnotatedImage, seed) -> AnnotatedImage:
    level = tf.random.stateless_uniform([], seed, maxval=100, dtype=tf.int32)
    return annotated._replace(image=annotated.image // 2 + tf.cast(level, tf.uint8))


BRIGHTEN = on_image(brighten)


@pytest.fixture(scope="module")
def shard() -> str:
    """21 small images with 0..3 boxes; more than one block, and no multiple of it."""
    random = np.random.default_rng(0)
    serialized = []
    for number in range(TOTAL):
        height, width = (int(side) for side in random.integers(30, 90, 2))
        image = random.integers(0, 256, (height, width, 3), np.uint8)
        count = number % 4
        serialized.append(
            encode_example(
                EncodedImage(
                    source_id=str(number),
                    filename=f"{number}.png",
                    encoded=cv2.imencode(".png", image)[1].tobytes(),
                    format="png",
                    height=height,
                    width=width,
                ),
                boxes_normalized=np.tile([0.1, 0.2, 0.8, 0.9], (count, 1)),
                labels=[number + 1] * count,
                texts=["thing"] * count,
                is_crowd=[False] * count,
                areas=[1.0] * count,
            )
        )
    path = "ram://augmented_stream_test-00000-of-00001.tfrecord"
    records.write_shard(path, serialized)
    return path


def training(shard: str, augmentations, **changes) -> tf.data.Dataset:
    order = {name: changes.pop(name) for name in tuple(changes) if name in ShuffledRecords._fields}
    return train_dataset(
        DataConfig(canvas_size=CANVAS, max_instances=12, scale_range=(0.5, 1.5)),
        ShuffledRecords([shard], [TOTAL], **{"seed": 5, **order}),
        augmentations=augmentations,
        **{"batch_size": 1, **changes},
    )


def rows(dataset: tf.data.Dataset, number: int) -> list[list[np.ndarray]]:
    """The fields of each batch of one image but the masks, which are None."""
    return [[field[0].numpy() for field in batch[:-1]] for batch in dataset.take(number)]


def assert_equal_rows(first, second) -> None:
    assert len(first) == len(second)
    for one, other in zip(first, second, strict=True):
        for a, b in zip(one, other, strict=True):
            np.testing.assert_array_equal(a, b)


def partner_stream(probability: float, count: int) -> np.ndarray:
    """For each of `count` images that are nothing but a number: its own, and its partners'."""

    def prepare(number) -> Sample:
        return Sample(
            image=tf.zeros([2, 2, 3], tf.uint8),
            boxes=tf.zeros([0, 4]),
            classes=tf.fill([4], -1),
            is_crowd=tf.zeros([0], tf.bool),
            masks=None,
            seed=tf.stack([tf.constant(7, tf.int64), number]),
            record=number,
            original_size=tf.ones([2]),
            scale=tf.ones([2]),
            offset=tf.zeros([2]),
        )._replace(boxes=tf.zeros([4, 4]), is_crowd=tf.zeros([4], tf.bool))

    def note(samples, seed) -> Sample:
        numbers = [tf.cast(sample.record, tf.int32) for sample in samples]
        return samples[0]._replace(classes=tf.stack(numbers))

    stream = augmented_stream(
        lambda start: tf.data.Dataset.range(start, count),
        [MixingAugmentation(note, 3, probability)],
        start_record=0,
        process_count=1,
        prepare=prepare,
        pack=pack_sample,
        unpack=unpack_sample,
        finish=lambda sample: sample.classes,
        canvas_size=(2, 2),
        num_parallel_calls=2,
    )
    return np.array(list(stream.as_numpy_iterator()))


def test_partners_are_three_others_of_the_block_evenly_drawn() -> None:
    count = 64 * BLOCK_SIZE
    drawn = partner_stream(1.0, count)
    np.testing.assert_array_equal(drawn[:, 0], np.arange(count))
    assert (drawn // BLOCK_SIZE == drawn[:, :1] // BLOCK_SIZE).all()
    assert all(len(set(row)) == 4 for row in drawn.tolist())
    distances = (drawn[:, 1:] - drawn[:, :1]) % BLOCK_SIZE
    expected = 3 * count / 15
    np.testing.assert_allclose(
        np.bincount(distances.ravel(), minlength=16)[1:], expected, atol=5 * expected**0.5
    )


def test_probability_is_the_share_of_images_that_are_mixed() -> None:
    drawn = partner_stream(0.3, 64 * BLOCK_SIZE)
    share = (drawn[:, 0] >= 0).mean()
    assert share == pytest.approx(0.3, abs=5 * (0.3 * 0.7 / 1024) ** 0.5)


@pytest.mark.parametrize("augmentations", [[BRIGHTEN, MOSAIC, BRIGHTEN], [MOSAIC, MIXUP]])
def test_a_restart_anywhere_gives_the_same_images(shard, augmentations) -> None:
    whole = rows(training(shard, augmentations), 40)
    for start in (5, 27):
        restarted = training(shard, augmentations, start_record=start)
        assert_equal_rows(rows(restarted, 10), whole[start : start + 10])
    batches = list(training(shard, augmentations, batch_size=5).take(4))
    np.testing.assert_array_equal(
        np.concatenate([batch.images for batch in batches]), [row[0] for row in whole[:20]]
    )


def test_processes_share_the_records_and_restart(shard) -> None:
    options = {"process_index": 1, "process_count": 2}
    plain = rows(training(shard, []), 40)
    part = rows(training(shard, [MOSAIC], **options), 20)
    assert [row[4] for row in part] == [row[4] for row in plain[1::2]]
    restarted = rows(training(shard, [MOSAIC], start_record=10, **options), 15)
    assert_equal_rows(restarted, part[5:])


def test_what_never_happens_changes_nothing(shard) -> None:
    never = [MOSAIC._replace(probability=0.0), MIXUP._replace(probability=0.0)]
    assert_equal_rows(rows(training(shard, never), 20), rows(training(shard, []), 20))


def test_mixed_images_are_new_every_epoch(shard) -> None:
    stream = rows(training(shard, [MOSAIC._replace(probability=1.0)]), 2 * TOTAL)
    by_record: dict[int, list] = {}
    for row in stream:
        by_record.setdefault(int(row[4]), []).append(row[0])
    assert [len(images) for images in by_record.values()] == [2] * TOTAL
    assert not any(np.array_equal(*images) for images in by_record.values())


def test_each_place_in_the_list_has_its_own_seed(shard) -> None:
    once, twice = (rows(training(shard, [BRIGHTEN] * count), 20) for count in (1, 2))
    by_hand = []
    for before, after in zip(once, twice, strict=True):
        inside = before[0].any(axis=-1)  # not the padding
        levels = np.unique(after[0][inside].astype(int) - before[0][inside] // 2)
        assert len(levels) == 1
        plain_level = before[0][inside].min()  # noise has a 0 in an image of so many pixels
        by_hand.append(levels[0] == plain_level)
    assert sum(by_hand) <= 2


def test_boxes_stay_on_the_canvas_and_images_full(shard) -> None:
    for row in rows(training(shard, [MOSAIC, MIXUP, MOSAIC]), 40):
        boxes = row[1][row[2] > 0]
        assert (boxes >= 0).all()
        assert (boxes <= [48, 64, 48, 64]).all()
        assert (boxes[:, 2:] - boxes[:, :2] >= 1).all()


def test_surplus_is_the_way_back_to_a_block() -> None:
    assert [surplus_records([MOSAIC], start) for start in (0, 5, 16, 33)] == [0, 5, 0, 1]
    assert surplus_records([BRIGHTEN], 5) == 0


def test_copy_paste_without_masks_is_refused(shard) -> None:
    data = DataConfig(canvas_size=CANVAS, augmentations=(CopyPasteConfig(),))
    order = ShuffledRecords([shard], [TOTAL], seed=5)
    with pytest.raises(ValueError, match=r"copy_paste needs masks.*--include_masks"):
        train_dataset(data, order, batch_size=1)
    with pytest.raises(ValueError, match=r"the model needs masks"):
        train_dataset(DataConfig(canvas_size=CANVAS), order, batch_size=1, with_masks=True)


def test_masks_are_looked_for_in_every_shard(shard) -> None:
    """The first shard's 21 images have none, and the second's only one has."""
    mask = cv2.imencode(".png", np.ones((40, 50), np.uint8))[1].tobytes()
    image = cv2.imencode(".png", np.ones((40, 50, 3), np.uint8))[1].tobytes()
    record = encode_example(
        EncodedImage(
            source_id="1",
            filename="1.png",
            encoded=image,
            format="png",
            height=40,
            width=50,
        ),
        boxes_normalized=np.array([[0, 0, 1, 1]]),
        labels=[1],
        texts=["thing"],
        is_crowd=[False],
        areas=[1.0],
        masks=[mask],
    )
    other = "ram://augmented_masks-00000-of-00001.tfrecord"
    records.write_shard(other, [record])
    data = DataConfig(canvas_size=CANVAS, max_instances=3, augmentations=(CopyPasteConfig(),))
    order = ShuffledRecords([shard, other], [TOTAL, 1], seed=1)
    dataset = train_dataset(data, order, batch_size=1)
    batches = list(dataset.take(2))
    assert [batch.masks for batch in batches] == [None, None]


def coco_shard(folder: Path, count: int) -> str:
    """The first images of the real set with their masks."""
    annotations = json.loads(next((folder / "annotations").glob("*val*.json")).read_text())
    serialized = []
    for image in annotations["images"][:count]:
        height, width = image["height"], image["width"]
        objects = [a for a in annotations["annotations"] if a["image_id"] == image["id"]]
        masks = [mask_png(a["segmentation"], height=height, width=width) for a in objects]
        kept = [(a, mask) for a, mask in zip(objects, masks, strict=True) if mask]
        corners = [[y, x, y + h, x + w] for x, y, w, h in (a["bbox"] for a, _ in kept)]
        serialized.append(
            encode_example(
                EncodedImage(
                    source_id=str(image["id"]),
                    filename=image["file_name"],
                    encoded=(folder / "val2017" / image["file_name"]).read_bytes(),
                    format="jpeg",
                    height=height,
                    width=width,
                ),
                boxes_normalized=np.clip(
                    np.reshape(corners, (-1, 4)) / [height, width, height, width], 0, 1
                ),
                labels=[a["category_id"] for a, _ in kept],
                texts=["thing"] * len(kept),
                is_crowd=[bool(a["iscrowd"]) for a, _ in kept],
                areas=[a["area"] for a, _ in kept],
                masks=[mask.encoded for _, mask in kept],
            )
        )
    path = "ram://augmented_coco-00000-of-00001.tfrecord"
    records.write_shard(path, serialized)
    return path


def test_large_scale_jitter_with_copy_paste_on_real_photos(data_dir: Path) -> None:
    """With scales 0.1 to 2: masks fit their boxes, and what is pasted is the other image."""
    seen: list[tuple[int, int]] = []

    def check(samples, seed) -> Sample:
        mixed = paste(samples, tf.fill(tf.shape(samples[1].boxes)[:1], True))
        images = [*(sample.image for sample in samples), mixed.image]
        masks = [*(sample.masks for sample in samples), mixed.masks]
        with tf.control_dependencies(
            [tf.numpy_function(compare, [mixed.boxes, *images, *masks], [])]
        ):
            return mixed._replace(image=tf.identity(mixed.image))

    def compare(boxes, target, source, image, target_masks, source_masks, masks) -> None:
        _, height, width = source_masks.shape
        pasted = source_masks.any(axis=0)
        np.testing.assert_array_equal(image[:height, :width][pasted], source[pasted])
        kept = np.ones(image.shape[:2], bool)
        kept[:height, :width] = ~pasted
        _, height, width = target_masks.shape
        kept[height:] = kept[:, width:] = False
        shown = kept[:height, :width]
        np.testing.assert_array_equal(image[kept], target[shown])
        for row, (y1, x1, y2, x2) in enumerate(boxes):
            places = np.argwhere(masks[row])
            if (y2 - y1) * (x2 - x1) > 0 and len(places):
                low, high = places.min(axis=0), places.max(axis=0) + 1
                # COCO's boxes are rounded to 0.01 and its polygons drawn to whole pixels.
                assert (low >= np.array([y1, x1]) - 3).all()
                assert (high <= np.array([y2, x2]) + 3).all()
        seen.append((int(pasted.sum()), len(boxes)))

    dataset = train_dataset(
        DataConfig(canvas_size=(256, 256), max_instances=100, scale_range=(0.1, 2.0)),
        ShuffledRecords([coco_shard(data_dir / "coco_tiny", 12)], [12], seed=1),
        batch_size=1,
        with_masks=True,
        augmentations=[MixingAugmentation(check, 1, 1.0)],
    )
    scales = [float(batch.scales[0, 0]) for batch in dataset.take(BLOCK_SIZE)]
    assert len(seen) >= BLOCK_SIZE
    assert sum(pixels > 0 for pixels, _ in seen) > BLOCK_SIZE // 2
    assert max(scales) > 4 * min(scales)
