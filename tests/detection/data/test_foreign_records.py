"""Records of other programs with the keys of the TF Object Detection API, and damaged ones."""

import tracemalloc
from pathlib import Path
from typing import Any, Literal

import cv2
import numpy as np
import pytest
import tensorflow as tf

from tpudet.detection.commands import train
from tpudet.detection.data.config import DataConfig
from tpudet.detection.data.foreign_records import check_foreign_records
from tpudet.detection.data.pipeline import train_dataset
from tpudet.detection.data.sample import describe_lacks, require_boxes
from tpudet.detection.evaluation.ground_truth import load_ground_truth
from tpudet.trainkit.class_list import ClassEntry, read_label_map
from tpudet.trainkit.config.yaml_tree import ConfigError
from tpudet.trainkit.errors import UserError
from tpudet.trainkit.input_errors import explain_input_error, input_errors_in_words
from tpudet.trainkit.record_splits import find_split
from tpudet.trainkit.records import write_shard
from tpudet.trainkit.shuffled_records import ShuffledRecords
from tpudet.trainkit.training.model_dir import load_classes

LABEL_MAP = """
# of a detector
item { name: "/m/1" id: 1 display_name: "cat" }
item {
  id: 3
  name: 'dog'
}
"""
TINY = {
    "data.canvas_size": "[128, 128]",
    "train.batch_size": "2",
    "train.total_steps": "1",
    "evaluation.schedule.batch_size": "2",
    "evaluation.schedule.num_images": "2",
}


def photo(seed: int) -> bytes:
    pixels = np.random.default_rng(seed).integers(0, 256, (48, 64, 3), np.uint8)
    return cv2.imencode(".jpg", pixels)[1].tobytes()


def record(number: int, encoded: bytes, **objects: list) -> bytes:
    """As dataset_tools of the API write it: no key that a list of objects does not need."""
    values: dict[str, Any] = {
        "image/encoded": [encoded],
        "image/format": [b"jpeg"],
        "image/filename": [f"{number}.jpg".encode()],
        "image/height": [48],
        "image/width": [64],
        "image/object/bbox/ymin": [0.25],
        "image/object/bbox/xmin": [0.25],
        "image/object/bbox/ymax": [0.75],
        "image/object/bbox/xmax": [0.5],
    } | {f"image/object/{name.replace('__', '/')}": column for name, column in objects.items()}
    features = {}
    for name, column in values.items():
        if not column:
            features[name] = tf.train.Feature()
        elif isinstance(column[0], bytes):
            features[name] = tf.train.Feature(bytes_list=tf.train.BytesList(value=column))
        elif isinstance(column[0], float):
            features[name] = tf.train.Feature(float_list=tf.train.FloatList(value=column))
        else:
            features[name] = tf.train.Feature(int64_list=tf.train.Int64List(value=column))
    return tf.train.Example(features=tf.train.Features(feature=features)).SerializeToString()


@pytest.fixture
def foreign_set(tmp_path: Path) -> str:
    """Names, not labels, as create_coco_tf_record writes; labels and group_of, as others do."""
    train_records = [
        record(0, photo(0), class__text=[b"dog"], is_crowd=[0], area=[100.0]),
        record(1, photo(1), class__label=[1], group_of=[1]),
    ]
    for part, one in enumerate(train_records):
        write_shard(str(tmp_path / f"coco_train.record-0000{part}-of-00002"), [one])
    write_shard(str(tmp_path / "coco_val.record-00000-of-00001"), [train_records[0]])
    (tmp_path / "label_map.pbtxt").write_text(LABEL_MAP)
    return str(tmp_path)


def test_classes_come_from_labels_or_names(foreign_set: str) -> None:
    text, classes = load_classes(foreign_set)
    assert text == "/m/1,cat\nunused_2,unused 2\ndog,dog\n"
    names = [entry.name for entry in classes]
    split = find_split(foreign_set, "train", names)
    assert split.records_per_shard == [1, 1]
    dataset = train_dataset(
        DataConfig(canvas_size=(64, 64), max_instances=2),
        ShuffledRecords(split.shards, split.records_per_shard, seed=0),
        batch_size=2,
        num_classes=3,
        class_names=names,
    )
    batch = next(iter(dataset))
    found = {(int(c[0]), bool(k[0])) for c, k in zip(batch.classes, batch.is_crowd, strict=True)}
    assert found == {(3, False), (1, True)}
    truth = load_ground_truth(split.shards, names)
    assert truth.classes.tolist() == [3, 1]
    np.testing.assert_allclose(truth.boxes[0], [12, 16, 36, 32])
    assert truth.areas.tolist() == [100, 24 * 16]  # without areas: those of the boxes


def test_boxes_that_overhang_their_image_end_at_it(tmp_path: Path) -> None:
    overhanging = record(0, photo(0), class__label=[1])
    example = tf.train.Example.FromString(overhanging)
    corners = example.features.feature["image/object/bbox/ymax"].float_list.value
    corners[:] = [1.25]  # from a quarter of 48 rows
    path = str(tmp_path / "train.record")
    write_shard(path, [example.SerializeToString()])
    dataset = train_dataset(
        DataConfig(canvas_size=(64, 64), vertical_flip=True, horizontal_flip=False),
        ShuffledRecords([path], [1], seed=0),
        batch_size=16,
    )
    boxes = next(iter(dataset)).boxes[:, 0].numpy()
    assert {tuple(box) for box in boxes} == {(12, 16, 48, 32), (0, 16, 36, 32)}
    assert load_ground_truth([path], ["cat"]).boxes.tolist() == [[12, 16, 48, 32]]


def command(directory: str, model_dir: Path) -> list[str]:
    values = TINY | {"data.directory": directory}
    sets = [text for key, value in values.items() for text in ("--set", f"{key}={value}")]
    return ["--config", "quickstart", "--model_dir", str(model_dir), *sets]


def test_the_command_says_which_files_it_takes(foreign_set: str, tmp_path: Path, capsys) -> None:
    assert train.main([*command(foreign_set, tmp_path / "run"), "--dry_run"]) == 0
    said = capsys.readouterr().out
    assert f"split train: files of records: {foreign_set}/coco_train.record-00000-of-00002" in said
    assert "2 training images" in said


@pytest.mark.slow
def test_they_are_trained_on_through_the_command(foreign_set: str, tmp_path: Path) -> None:
    assert train.main(command(foreign_set, tmp_path / "run")) == 0
    assert (tmp_path / "run/classes.csv").read_text().startswith("/m/1,cat\n")
    assert '"eval"' in (tmp_path / "run/metrics.jsonl").read_text()


@pytest.mark.parametrize(
    ("names", "count"),
    [
        (["train.record"], 1),
        (["train.tfrecord", "val.tfrecord"], 1),
        (["pascal-train.record-00000-of-00002", "pascal-train.record-00001-of-00002"], 2),
        (["cells_train-00000-of-00001.tfrecord", "strain.record"], 1),
        (["2017_train_all.tfrecords"], 1),
    ],
)
def test_the_one_set_with_the_split_in_its_name_is_found(tmp_path, names, count) -> None:
    for name in names:
        write_shard(str(tmp_path / name), [b"x"])
    assert len(find_split(str(tmp_path), "train", ["a"]).shards) == count


def test_several_sets_or_missing_shards_are_refused(tmp_path: Path) -> None:
    write_shard(str(tmp_path / "a_train.record"), [b"x"])
    write_shard(str(tmp_path / "b_train.record-00000-of-00002"), [b"x"])
    with pytest.raises(ConfigError, match=r"several sets .*: a_train.record, b_train.record"):
        find_split(str(tmp_path), "train", ["a"])
    (tmp_path / "a_train.record").unlink()
    with pytest.raises(ConfigError, match="1 of 2 shards"):
        find_split(str(tmp_path), "train", ["a"])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "has no item"),
        ("item { id: 0 name: 'a' }", "item 1 needs an id from 1 and a name"),
        ("item { id: 1 }", "item 1 needs an id"),
        (f"item {{ id: {'9' * 5000} name: 'a' }}", "item 1 needs an id"),
        ("item { id: 1 name: 'a' } item { id: 1 name: 'b' }", "id 1 occurs twice"),
    ],
)
def test_label_maps_that_are_refused(text: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        read_label_map(text)


def test_a_damaged_image_is_named(tmp_path: Path) -> None:
    """Its end marker is in place, so that only decoding finds it."""
    good = photo(0)
    damaged = good[:700] + b"\xff\xc4\x00\x03\xff" * 40 + good[900:]
    path = str(tmp_path / "train_a-00000-of-00001.tfrecord")
    write_shard(path, [record(k, e, class__label=[1]) for k, e in enumerate((good, damaged))])
    dataset = train_dataset(
        DataConfig(canvas_size=(64, 64), max_instances=2),
        ShuffledRecords([path], [2], seed=0),
        batch_size=2,
    )
    with pytest.raises(tf.errors.InvalidArgumentError) as caught:
        next(iter(dataset))
    explained = explain_input_error(caught.value, [path])
    expected = "1.jpg (record 1 of train_a-00000-of-00001.tfrecord). Look for all damaged"
    assert expected in str(explained)
    write_shard(path, [record(k, good, class__label=[1, 2]) for k in range(2)])
    with pytest.raises(tf.errors.InvalidArgumentError) as caught:
        next(iter(dataset))
    said = str(explain_input_error(caught.value, [path]))
    assert said.startswith("[The numbers of boxes, class ids, crowd flags, mask flags and areas")
    assert "[1] [2] [1] [1] [1]" in said


def test_the_damaged_one_of_several_files_is_named(tmp_path: Path) -> None:
    paths = [str(tmp_path / f"train_a-0000{n}-of-00002.tfrecord") for n in range(2)]
    for path in paths:
        write_shard(path, [record(k, photo(0), class__label=[1]) for k in range(2)])
    data = bytearray(Path(paths[1]).read_bytes())
    data[40] ^= 1
    Path(paths[1]).write_bytes(data)
    with (
        pytest.raises(UserError, match=r"damaged: .*00001-of-00002.tfrecord\. Write"),
        input_errors_in_words(lambda: paths),
    ):
        list(tf.data.TFRecordDataset(paths))


def test_a_record_that_is_no_example_is_named(tmp_path: Path) -> None:
    path = str(tmp_path / "train_a-00000-of-00001.tfrecord")
    write_shard(path, [record(0, photo(0), class__label=[1]), b"\x86\xff" * 200])
    damaged = tf.data.TFRecordDataset(path).map(
        lambda serialized: tf.io.parse_single_example(
            serialized, {"a": tf.io.VarLenFeature("int64")}
        )
    )
    expected = "record 1 of train_a-00000-of-00001.tfrecord is not a tf.train.Example"
    with pytest.raises(UserError, match=expected), input_errors_in_words(lambda: [path]):
        list(damaged)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"class__label": [1], "class__text": [b"cat"]}, None),
        ({"class__label": [1], "class__text": [b" /M/1"]}, None),
        ({"class__label": [1]}, None),
        ({"class__text": [b"dog"]}, None),
        ({"class__label": [1], "class__text": [b"dog"]}, "class id 1 is `dog` in the records and"),
        ({"class__label": [3], "class__text": [b"fox"]}, "class id 3 is `fox` in the records and"),
        ({"class__label": [4]}, r"class id 4 \(no name\) is not within 1..3"),
        ({"class__text": [b"fox"]}, "`fox` is not listed"),
        ({"class__label": [0]}, r"class id 0 \(no name\) is not within 1..3"),
        ({"class__label": [1.0]}, "image/object/class/label of another type. Expected type: int64"),
        ({"class__label": []}, "record 0 of train.record does not have as many .* classes 0"),
        ({"class__label": [1], "bbox__ymin": [0.1, 0.2]}, "ymin 2, xmin 1, ymax 1, xmax 1"),
        ({"class__label": [1], "bbox__ymax": [36.0]}, "1 of the first 1 boxes end beyond 1.5"),
        ({"class__label": [1], "bbox__ymax": [0.25]}, "no area .* ymax xmax 0.25 0.25 0.25 0.5"),
        ({"class__label": [1], "bbox__ymax": [0.1]}, "no area within the image"),
        ({"class__label": [1], "bbox__xmin": [1.2], "bbox__xmax": [1.4]}, "no area within"),
        ({"class__label": [1], "bbox__xmin": [float("nan")]}, "are no numbers, such as"),
    ],
)
def test_other_classes_than_those_of_the_records_are_refused(
    tmp_path: Path, values: dict[str, Any], message: str | None
) -> None:
    write_shard(str(tmp_path / "train.record"), [record(0, photo(0), **values)])
    (tmp_path / "label_map.pbtxt").write_text(LABEL_MAP)
    _, classes = load_classes(str(tmp_path))
    split = find_split(str(tmp_path), "train", [entry.name for entry in classes])
    if message is None:
        assert check_foreign_records(split, classes, "train") == []
    else:
        with pytest.raises(UserError, match=message):
            check_foreign_records(split, classes, "train")


def test_records_without_a_box_are_a_warning(tmp_path: Path) -> None:
    empty = {f"bbox__{side}": [] for side in ("ymin", "xmin", "ymax", "xmax")}
    write_shard(str(tmp_path / "train.record"), [record(0, photo(0), **empty)])
    split = find_split(str(tmp_path), "train", ["cat"])
    [warning] = check_foreign_records(split, [ClassEntry("cat", "cat")], "train")
    assert warning == f"the first records of {tmp_path}/train.record have no box"


def test_files_without_a_record_are_refused(tmp_path: Path) -> None:
    (tmp_path / "train.record").touch()
    with pytest.raises(UserError, match="split `train` of .*: no record is in .*train.record"):
        find_split(str(tmp_path), "train", ["cat"])


def test_what_a_split_has_nothing_of_is_said() -> None:
    manifest = {"images": 3, "boxes": 5, "boxes_per_class": {"a": 3, "b": 2, "c": 0}}
    manifest["crowds_per_class"] = {"b": 2, "a": 1}
    assert describe_lacks(manifest) == [
        "1 of 3 classes have no box: c",
        "1 of 3 classes have only crowd regions, from which nothing is learned: b",
    ]
    assert describe_lacks(None) == []
    require_boxes(manifest, "train")
    require_boxes(None, "train")
    with pytest.raises(UserError, match="split train: no image of the 3 has a box, so nothing can"):
        require_boxes(manifest | {"boxes": 0}, "train")


def test_boxes_and_crowds_that_training_leaves_out_are_a_warning(tmp_path: Path) -> None:
    good, zero = (
        record(n, photo(n), class__label=[1], bbox__ymax=[y]) for n, y in ((0, 0.5), (1, 0.25))
    )
    write_shard(str(tmp_path / "train.record"), [good, zero])
    classes = [ClassEntry("cat", "cat")]
    split = find_split(str(tmp_path), "train", ["cat"])
    [warning] = check_foreign_records(split, classes, "train")
    assert warning.startswith("1 of the first 2 boxes of the records have no area within the image")
    for key in ("is_crowd", "group_of"):
        write_shard(
            str(tmp_path / "train.record"), [record(0, photo(0), class__label=[1], **{key: [1]})]
        )
        [warning] = check_foreign_records(split, classes, "train")
        assert warning.startswith("all 1 objects of the first records are crowd regions")


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"bbox__ymin": [0.1, 0.2]}, "lists of different lengths for the corners"),
        ({"class__label": [1.0]}, "image/object/class/label of another type"),
    ],
)
def test_lists_that_differ_stop_training_in_words(
    tmp_path: Path, values: dict[str, Any], message: str
) -> None:
    write_shard(str(tmp_path / "train.record"), [record(0, photo(0), **values)])
    split = find_split(str(tmp_path), "train", ["cat"])
    records = ShuffledRecords(split.shards, split.records_per_shard, seed=0)
    config = DataConfig(canvas_size=(64, 64), max_instances=2)
    dataset = train_dataset(config, records, batch_size=1, num_classes=1, class_names=["cat"])
    with pytest.raises(UserError, match=message), input_errors_in_words(lambda: split.shards):
        next(iter(dataset))


@pytest.mark.parametrize("kind", ["GZIP", "ZLIB"])
def test_compressed_files_are_refused_as_such(
    tmp_path: Path, kind: Literal["GZIP", "ZLIB"]
) -> None:
    with tf.io.TFRecordWriter(str(tmp_path / "train.record"), kind) as writer:
        writer.write(record(0, photo(0)))
    with pytest.raises(UserError, match="seems to be compressed by GZIP or ZLIB"):
        find_split(str(tmp_path), "train", ["cat"])


def test_a_million_labels_without_a_box_are_counted_not_collected(tmp_path: Path) -> None:
    path = str(tmp_path / "train.record")
    write_shard(path, [record(0, b"", class__label=[1] * 1_000_000, is_crowd=[0])])
    split = find_split(str(tmp_path), "train", ["cat"])
    tracemalloc.start()
    with pytest.raises(UserError, match="ymin 1, xmin 1, ymax 1, xmax 1, classes 1000000"):
        check_foreign_records(split, [ClassEntry("/m/1", "cat")], "train")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 20_000_000  # a pair for each label took 73 MB
