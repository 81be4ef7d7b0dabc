"""No reader of a set gives the objects of one record to another."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import tensorflow as tf

from tpudet.detection.commands import describe_dataset
from tpudet.detection.evaluation.coco_json import export_annotations
from tpudet.detection.inspection.ground_truth_objects import read_split_objects
from tpudet.detection.inspection.objects import InspectionError
from tpudet.detection.preparation.records.prepared_set import read_prepared_set
from tpudet.detection.preparation.report.set_statistics import read_numbers
from tpudet.trainkit.class_list import ClassEntry
from tpudet.trainkit.errors import UserError
from tpudet.trainkit.records import write_shard

BOX = (1, 10, 10, 40, 40)
UNEVEN = "numbers of boxes, class ids, .* of a record differ"


def rewrite(folder: Path, change: Callable[[int, tf.train.Features], None]) -> None:
    """Changes the records of the only shard, and tells its manifest their bytes."""
    (path,) = map(str, folder.glob("*.tfrecord"))
    examples = [
        tf.train.Example.FromString(text.numpy()) for text in tf.data.TFRecordDataset([path])
    ]
    for row, example in enumerate(examples):
        change(row, example.features)
    write_shard(path, [example.SerializeToString() for example in examples])
    (manifest,) = folder.glob("*.manifest.json")
    content = json.loads(manifest.read_text())
    content["shards"][0]["bytes"] = Path(path).stat().st_size
    manifest.write_text(json.dumps(content))


def move_a_label(row: int, features: tf.train.Features) -> None:
    """The first record gets two labels for one box, the second one for two."""
    labels = features.feature["image/object/class/label"].int64_list
    del labels.value[:]
    labels.value.extend([1] * (2 - row))


def add_a_label(row: int, features: tf.train.Features) -> None:
    if row == 1:
        features.feature["image/object/class/label"].int64_list.value.append(1)


def put_nan(row: int, features: tf.train.Features) -> None:
    if row == 1:
        features.feature["image/object/bbox/xmin"].float_list.value[0] = float("nan")


def put_height(row: int, features: tf.train.Features) -> None:
    if row == 1:
        features.feature["image/height"].int64_list.value[0] = 2**32 + 100


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (move_a_label, UNEVEN),
        (add_a_label, UNEVEN),
        (put_nan, "NaN or"),
        (put_height, "height or width of this record is not within 1"),
    ],
)
def test_unusable_columns_are_refused_by_every_reader(
    write_part, drawn_image, tmp_path: Path, change: Callable, message: str
) -> None:
    images = [drawn_image("a", [BOX]), drawn_image("b", [BOX, BOX])]
    folder = write_part({"val": images}, (ClassEntry("/m/1", "cat"),))
    rewrite(folder, change)
    with pytest.raises(UserError, match=message):
        read_numbers(str(folder))
    target = tmp_path / "val.json"
    with pytest.raises(UserError, match=message):
        export_annotations(str(folder), str(target), split="val", include_masks=False, force=False)
    assert not target.exists()
    if change is not put_height:  # of no use there
        with pytest.raises(InspectionError, match=message):
            read_split_objects(read_prepared_set(str(folder)), "val")


def test_the_command_ends_with_exit_code_2(write_part, drawn_image, tmp_path, capsys) -> None:
    folder = write_part({"val": [drawn_image("a", [BOX])]}, (ClassEntry("/m/1", "cat"),))
    rewrite(folder, lambda _, features: add_a_label(1, features))
    page = str(tmp_path / "page.html")
    assert describe_dataset.main([str(folder), "--output", page]) == 2
    assert "of a record differ" in capsys.readouterr().err
