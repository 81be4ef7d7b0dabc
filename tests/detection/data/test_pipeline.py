import json
from functools import partial

import cv2
import numpy as np
import pytest
import tensorflow as tf

from tpudet.detection.data.augmentations.autoaugment import apply_autoaugment
from tpudet.detection.data.augmentations.build import on_image
from tpudet.detection.data.augmentations.mixing import mosaic
from tpudet.detection.data.boxes import boxes_to_canvas, flip_boxes, has_area
from tpudet.detection.data.config import (
    CopyPasteConfig,
    DataConfig,
    FitConfig,
    MosaicConfig,
    StretchConfig,
)
from tpudet.detection.data.pipeline import eval_dataset, train_dataset
from tpudet.detection.data.sample import describe_left_out, select_instances
from tpudet.detection.data.tfrecord import EncodedImage, encode_example, parse_example
from tpudet.trainkit import records
from tpudet.trainkit.images.canvas import decode_to_canvas, place_on_canvas, stretch
from tpudet.trainkit.images.seeds import draw_placement, record_seed
from tpudet.trainkit.shuffled_records import ShuffledRecords

CANVAS = (64, 64)
COUNTS = [4, 3, 4]
TOTAL = sum(COUNTS)
OPTIONS = {"canvas_size": CANVAS, "max_instances": 3}


def encode(number: int, encoded: bytes, height: int, width: int, count: int = 0) -> bytes:
    corners = np.sort(np.random.default_rng(number).uniform(0, 1, (count, 2, 2)), axis=1)
    return encode_example(
        EncodedImage(
            source_id=f"image {number}",
            filename=f"{number}.jpg",
            encoded=encoded,
            format="jpeg",
            height=height,
            width=width,
        ),
        boxes_normalized=corners.reshape(-1, 4),
        labels=list(range(1, count + 1)),
        texts=["thing"] * count,
        is_crowd=[k == 0 for k in range(count)],
        areas=[1.0] * count,
    )


@pytest.fixture(scope="module")
def shards() -> list[str]:
    """Eleven JPEGs of different sizes, number k with k % 6 objects, in three shards."""
    tf.io.gfile.makedirs("ram://pipeline_test")
    random = np.random.default_rng(0)
    serialized = []
    for number in range(TOTAL):
        height, width = (int(side) for side in random.integers(40, 200, 2))
        image = random.integers(0, 256, (height, width, 3), np.uint8)
        encoded = cv2.imencode(".jpg", image)[1].tobytes()
        serialized.append(encode(number, encoded, height, width, number % 6))
    begin = 0
    for index, count in enumerate(COUNTS):
        path = records.shard_path("ram://pipeline_test/train_a", index, len(COUNTS))
        records.write_shard(path, serialized[begin : begin + count])
        begin += count
    return records.find_shards("ram://pipeline_test/train_a")


def training(shards, batch_size, **changes):
    settings = {**OPTIONS, "scale_range": (0.1, 2.0), "resize": FitConfig()}
    settings |= {name: changes.pop(name) for name in tuple(changes) if name in settings}
    order = {name: changes.pop(name) for name in tuple(changes) if name in ShuffledRecords._fields}
    records = ShuffledRecords(shards, COUNTS, **{"seed": 3, **order})
    return train_dataset(DataConfig(**settings), records, batch_size=batch_size, **changes)


def rows(dataset, number: int) -> list[list[np.ndarray]]:
    """The first `number` images of a dataset of batches, each a list of its fields but masks."""
    images: list[list[np.ndarray]] = []
    for batch in dataset:
        images += [list(row) for row in zip(*(field.numpy() for field in batch[:-1]), strict=True)]
        if len(images) >= number:
            return images[:number]
    return images


def assert_equal_rows(first, second):
    assert len(first) == len(second)
    for one, other in zip(first, second, strict=True):
        for a, b in zip(one, other, strict=True):
            np.testing.assert_array_equal(a, b)


def test_batches_have_static_shapes(shards):
    spec = training(shards, 4).element_spec
    assert spec.images == tf.TensorSpec([4, 64, 64, 3], tf.uint8)
    assert spec.boxes == tf.TensorSpec([4, 3, 4], tf.float32)
    assert spec.classes == tf.TensorSpec([4, 3], tf.int32)
    assert spec.is_crowd == tf.TensorSpec([4, 3], tf.bool)
    assert spec.records == tf.TensorSpec([4], tf.int64)
    evaluation = eval_dataset(shards=shards, batch_size=4, **OPTIONS)
    assert evaluation.element_spec == spec
    assert spec.masks == tf.NoneTensorSpec()


def test_resumed_stream_is_the_tail_whatever_the_batch_size(shards):
    stream = rows(training(shards, 4), 28)  # two and a half epochs
    assert_equal_rows(rows(training(shards, 4, start_record=8), 20), stream[8:])
    assert_equal_rows(rows(training(shards, 3, start_record=15), 13), stream[15:])
    numbers = [int(row[4]) for row in stream]
    assert len(set(numbers[:TOTAL])) == TOTAL
    assert sorted(numbers[:TOTAL]) == sorted(numbers[TOTAL : 2 * TOTAL])
    assert numbers[:TOTAL] != numbers[TOTAL : 2 * TOTAL]


def test_an_image_is_augmented_anew_every_epoch(shards):
    stream = rows(training(shards, 1, canvas_size=(32, 32)), 2 * TOTAL)
    by_record: dict[int, list] = {}
    for row in stream:
        by_record.setdefault(int(row[4]), []).append(row)
    assert all(not np.array_equal(one[6], two[6]) for one, two in by_record.values())


def test_a_box_that_the_crop_removed_stays_away_when_the_image_is_turned(shards):
    """The cropped boxes are turned, sheared and moved; nothing comes back from outside."""
    autoaugment = on_image(partial(apply_autoaugment, policy="v3"))

    def objects(augmentations):
        stream = rows(training(shards, 1, max_instances=9, augmentations=augmentations), 40 * TOTAL)
        return [(int(row[4]), set(row[2][row[2] > 0].tolist())) for row in stream]

    plain, turned = objects([]), objects([autoaugment])
    assert [record for record, _ in plain] == [record for record, _ in turned]
    ghosts = [(a, b) for (_, a), (_, b) in zip(plain, turned, strict=True) if not b <= a]
    assert not ghosts
    assert sum(len(classes) for _, classes in turned) > 400


def test_processes_share_the_records_of_the_whole(shards):
    whole = rows(training(shards, 4), 24)
    parts = [training(shards, 2, process_index=index, process_count=2) for index in (0, 1)]
    assert_equal_rows(rows(parts[0], 12), whole[0::2])
    assert_equal_rows(rows(parts[1], 12), whole[1::2])


def test_training_is_what_its_parts_say_eagerly(shards):
    serialized = {int(number): text for number, text in records.read_records(shards)}
    for row in rows(training(shards, 4, max_instances=9), TOTAL):
        image, boxes, classes, is_crowd, number, size, scale, offset = row
        example = parse_example(serialized[int(number)])
        drawn = draw_placement(
            record_seed(3, 0, number), horizontal_flip=True, scale_range=(0.1, 2.0)
        )
        placed = place_on_canvas(example.encoded, *CANVAS, **drawn._asdict())
        height, width, _ = placed.image.shape
        np.testing.assert_array_equal(image[:height, :width], placed.image)
        assert image.sum(dtype=int) == placed.image.numpy().sum(dtype=int)
        np.testing.assert_array_equal([*size, *scale, *offset], np.concatenate(placed[1:]))
        expected = example.boxes_normalized * np.tile(size, 2)
        expected = flip_boxes(expected, size[1]) if drawn.flip else expected
        expected = boxes_to_canvas(expected, scale, offset, *CANVAS)
        kept = has_area(expected)
        # Row 0 is the crowd, which comes last.
        order = [k for k in [*range(1, len(kept)), *range(min(1, len(kept)))] if kept[k]]
        np.testing.assert_array_equal(boxes[: len(order)], expected.numpy()[order])
        assert classes.tolist() == [k + 1 for k in order] + [0] * (9 - len(order))
        assert is_crowd.tolist() == [k == 0 for k in order] + [False] * (9 - len(order))
        assert not boxes[len(order) :].any()


def test_evaluation_sees_each_image_once_and_fills_the_last_batch(shards):
    serialized = list(records.read_records(shards))
    for batch_size in (4, 11):
        seen = rows(eval_dataset(shards=shards, batch_size=batch_size, **OPTIONS), 99)
        assert len(seen) == -(-TOTAL // batch_size) * batch_size
        assert [int(row[4]) for row in seen[:TOTAL]] == [int(number) for number, _ in serialized]
        for row in seen[TOTAL:]:
            image, boxes, classes, is_crowd, number, size, scale, offset = row
            assert number == -1
            assert not any(field.any() for field in (image, boxes, classes, is_crowd, offset))
            assert [*size, *scale] == [1, 1, 1, 1]
    for row, (_, text) in zip(seen, serialized, strict=True):
        placed = decode_to_canvas(parse_example(text).encoded, *CANVAS)
        np.testing.assert_array_equal(row[0], placed.image)
        np.testing.assert_array_equal([*row[5], *row[6], *row[7]], np.concatenate(placed[1:]))


def test_stretched_images_fill_the_canvas_in_training_and_evaluation(shards):
    stretched = {"resize": StretchConfig(), "scale_range": (1.0, 1.0)}
    dataset = eval_dataset(shards=shards, batch_size=4, resize=stretch, **OPTIONS)
    for seen in (rows(dataset, TOTAL), rows(training(shards, 4, **stretched), TOTAL)):
        for row in seen:
            size, scale, offset = row[5:8]
            # A JPEG decoded at a half may end in half a pixel.
            np.testing.assert_allclose(size * scale, CANVAS, atol=1.0)
            np.testing.assert_allclose(offset, 0.0, atol=1.0)


def test_processes_share_the_images_of_an_evaluation_in_batches_of_equal_number(shards):
    """As many as the process with the most images needs; the others have fillers."""
    for batch_size in (1, 4):
        options = {"batch_size": batch_size, "process_count": 3, "num_records": TOTAL, **OPTIONS}
        parts = [
            [
                int(row[4])
                for row in rows(eval_dataset(shards=shards, process_index=i, **options), 99)
            ]
            for i in range(3)
        ]
        assert len({len(part) for part in parts}) == 1
        assert len(parts[0]) == -(-TOTAL // (3 * batch_size)) * batch_size
        found = sorted(number for part in parts for number in part if number >= 0)
        assert found == [int(number) for number, _ in records.read_records(shards)]


@pytest.fixture
def masked_shard(tmp_path) -> str:
    """Five images of 40x60 with 0..4 boxes, whose masks fill them."""
    path = records.shard_path(str(tmp_path / "val_masked"), 0, 1)
    serialized = []
    for count in range(5):
        boxes = np.array([[4 + 5 * k, 8 + 5 * k, 14 + 5 * k, 28 + 5 * k] for k in range(count)])
        masks = np.zeros((count, 40, 60), np.uint8)
        for mask, (y1, x1, y2, x2) in zip(masks, boxes, strict=True):
            mask[y1:y2, x1:x2] = 1
        serialized.append(
            encode_example(
                EncodedImage(
                    source_id=str(count),
                    filename=f"{count}.png",
                    encoded=cv2.imencode(".png", np.ones((40, 60, 3), np.uint8))[1].tobytes(),
                    format="png",
                    height=40,
                    width=60,
                ),
                boxes_normalized=boxes.reshape(-1, 4) / [40, 60, 40, 60],
                labels=[1] * count,
                texts=["thing"] * count,
                is_crowd=[False] * count,
                areas=[1.0] * count,
                masks=[cv2.imencode(".png", mask)[1].tobytes() for mask in masks],
            )
        )
    records.write_shard(path, serialized)
    return path


def assert_masks_fill_boxes(batch) -> None:
    assert batch.masks.dtype == tf.uint8
    unpacked = np.unpackbits(batch.masks.numpy(), axis=-1)
    for boxes, masks in zip(batch.boxes.numpy(), unpacked, strict=True):
        for (y1, x1, y2, x2), mask in zip(boxes, masks, strict=True):
            expected = np.zeros_like(mask)
            expected[round(y1) : round(y2), round(x1) : round(x2)] = 1
            np.testing.assert_array_equal(mask, expected)


def test_evaluation_carries_padded_masks_where_they_are_asked_for(masked_shard):
    options = {"canvas_size": (40, 64), "batch_size": 3, "max_instances": 3}
    dataset = eval_dataset(shards=[masked_shard], with_masks=True, **options)
    assert dataset.element_spec.masks == tf.TensorSpec([3, 3, 40, 8], tf.uint8)
    batches = list(dataset)
    counts = np.concatenate([batch.masks.numpy().any(axis=(2, 3)).sum(axis=1) for batch in batches])
    assert counts.tolist() == [0, 1, 2, 3, 3, 0]  # of four at most three stay; a filler has none
    for batch in batches:
        assert_masks_fill_boxes(batch)


def test_training_carries_masks_through_mixing_and_cropping(masked_shard):
    data = DataConfig(
        canvas_size=(40, 64), max_instances=3, augmentations=(MosaicConfig(probability=0.5),)
    )
    dataset = train_dataset(
        data, ShuffledRecords([masked_shard], [5], seed=1), batch_size=2, with_masks=True
    )
    assert dataset.element_spec.masks == tf.TensorSpec([2, 3, 40, 8], tf.uint8)
    for batch in dataset.take(8):
        assert_masks_fill_boxes(batch)


@pytest.mark.parametrize("with_masks", [False, True])
def test_objects_whose_masks_nobody_drew_are_objects_to_a_model_of_boxes(masked_shard, with_masks):
    """Also where copy_paste reads the masks of the others, which it pastes."""
    changed = []
    for _, text in records.read_records([masked_shard]):
        example = tf.train.Example.FromString(text.numpy())
        feature = example.features.feature
        count = len(feature["image/object/class/label"].int64_list.value)
        feature["image/object/lacks_mask"].int64_list.value.extend([1] * count)
        changed.append(example.SerializeToString())
    records.write_shard(masked_shard, changed)
    data = DataConfig(canvas_size=(40, 64), augmentations=(CopyPasteConfig(probability=1.0),))
    order = ShuffledRecords([masked_shard], [5], seed=1)
    options = {"canvas_size": (40, 64), "max_instances": 100, "with_masks": with_masks}
    for dataset in (
        train_dataset(data, order, batch_size=5, with_masks=with_masks),
        eval_dataset(shards=[masked_shard], batch_size=5, **options),
    ):
        for batch in dataset.take(3):
            is_object = batch.classes.numpy() > 0
            assert is_object.sum(axis=1).tolist() == batch.records.numpy().tolist()
            assert (batch.is_crowd.numpy()[is_object] == with_masks).all()


def test_objects_come_before_crowds_and_in_order():
    kept = tf.constant([True, True, False, True, True])
    is_crowd = tf.constant([True, False, False, True, False])
    seed = tf.constant([1, 2])
    assert select_instances(kept, is_crowd, 9, seed).numpy().tolist() == [1, 4, 0, 3]
    drawn = {
        tuple(select_instances(kept, is_crowd, 3, tf.constant([k, 0])).numpy()) for k in range(20)
    }
    assert drawn == {(1, 4, 0), (1, 4, 3)}


def test_too_many_objects_are_left_out_evenly(make_sample):
    """A mosaic of four images of 40 objects each: 25 of each stay, not 40, 40, 20 and 0."""
    boxes = [[4 * (k // 8), 4 * (k % 8), 4 * (k // 8) + 3, 4 * (k % 8) + 3] for k in range(40)]
    samples = [make_sample(np.zeros((20, 32, 3)), boxes) for _ in range(4)]
    mixed = mosaic(samples, tf.constant([0, 0]), canvas_size=(80, 128))
    counts = np.zeros(4)
    for index in range(100):
        rows = select_instances(
            has_area(mixed.boxes), mixed.is_crowd, 100, tf.constant([index, 0])
        ).numpy()
        assert len(rows) == 100
        assert (np.diff(rows) > 0).all()
        counts += np.bincount(rows // 40, minlength=4)
    np.testing.assert_allclose(counts / 100, 25, atol=1.6)  # five standard deviations


def test_boxes_without_room_are_counted():
    manifest = {"images_per_boxes": {"0": 7, "3": 2, "5": 1, "9": 2}}
    # Of 0 + 6 + 5 + 18 boxes 1 + 2 * 5 are beyond the fourth of their image.
    assert describe_left_out(manifest, 4) == (
        "data.max_instances 4: 3 images have more boxes, up to 9; 11 of all 29 boxes are left out, "
        "redrawn every epoch"
    )
    assert describe_left_out(manifest, 9) == describe_left_out(None, 4) == ""


def test_which_instances_are_left_out_is_drawn_anew_every_epoch_and_again_the_same(shards):
    options = {"max_instances": 1, "scale_range": (1.0, 1.0)}
    first, again = (rows(training(shards, 1, **options), n * TOTAL) for n in (12, 2))
    assert_equal_rows(first[: len(again)], again)
    classes: dict[int, set[int]] = {}
    for row in first:
        classes.setdefault(int(row[4]), set()).update(row[2].tolist())
    assert max(map(len, classes.values())) >= 3


def test_what_cannot_be_decoded_is_named(tmp_path):
    image = np.random.default_rng(0).integers(0, 256, (50, 60, 3), np.uint8)
    good = cv2.imencode(".jpg", image)[1].tobytes()
    contents = [good, b"GIF89a no image", good[: len(good) // 2]]
    path = records.shard_path(str(tmp_path / "val_a"), 0, 1)
    records.write_shard(path, [encode(k, data, 50, 60) for k, data in enumerate(contents)])
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"neither JPEG nor PNG.*") as caught:
        list(eval_dataset(shards=[path], batch_size=1, **OPTIONS))
    assert "[image 1]" in caught.value.message


@pytest.mark.parametrize("num_classes", [2, 3, None])
def test_a_label_beyond_the_classes_is_named_before_a_gpu_trains_on_it(tmp_path, num_classes):
    """The record in the middle has labels 1, 2 and 3."""
    image = np.random.default_rng(0).integers(0, 256, (50, 60, 3), np.uint8)
    encoded = cv2.imencode(".jpg", image)[1].tobytes()
    path = records.shard_path(str(tmp_path / "train_a"), 0, 1)
    contents = [encode(k, encoded, 50, 60, count=2 + (k == 1)) for k in range(3)]
    records.write_shard(path, contents)
    dataset = train_dataset(
        DataConfig(canvas_size=OPTIONS["canvas_size"], max_instances=OPTIONS["max_instances"]),
        ShuffledRecords([path], [3], seed=0),
        batch_size=3,
        num_classes=num_classes,
    )
    if num_classes != 2:
        assert next(iter(dataset)).classes.numpy().max() == 3
        return
    message = r"(?s)not within 1\.\.2, the rows of classes\.csv.*\[1 2 3\].*image 1"
    with pytest.raises(tf.errors.InvalidArgumentError, match=message):
        next(iter(dataset))


def test_real_photos_keep_their_boxes(data_dir, tmp_path):
    folder = data_dir / "coco_tiny"
    annotations = json.loads(next((folder / "annotations").glob("*val*.json")).read_text())
    images = annotations["images"][:6]
    expected = []
    serialized = []
    for image in images:
        height, width = image["height"], image["width"]
        boxes = [a["bbox"] for a in annotations["annotations"] if a["image_id"] == image["id"]]
        corners = np.array([[y, x, y + h, x + w] for x, y, w, h in boxes]).reshape(-1, 4)
        expected.append(corners)
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
                boxes_normalized=np.clip(corners / [height, width, height, width], 0, 1),
                labels=[1] * len(boxes),
                texts=["x"] * len(boxes),
                is_crowd=[False] * len(boxes),
                areas=[1.0] * len(boxes),
            )
        )
    path = records.shard_path(str(tmp_path / "val_coco"), 0, 1)
    records.write_shard(path, serialized)
    dataset = eval_dataset(shards=[path], canvas_size=(640, 640), batch_size=2, max_instances=100)
    for row, corners, image in zip(rows(dataset, 6), expected, images, strict=True):
        _, boxes, classes, _, _, size, scale, offset = row
        assert size.tolist() == [image["height"], image["width"]]
        back = (boxes[classes > 0] + np.tile(offset, 2)) / np.tile(scale, 2)
        large = (corners[:, 2:] - corners[:, :2]).min(axis=1) * scale.min() > 1.01
        np.testing.assert_allclose(back[: large.sum()], corners[large], atol=1e-2)
