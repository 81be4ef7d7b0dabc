"""images_to_tfrecords: what records hold, repairs, resuming, ImageNet's flat split, refusals."""

import json
import shutil
from pathlib import Path

import cv2
import numpy as np
import pytest
import tensorflow as tf

from tpudet.classification.commands.images_to_tfrecords import main
from tpudet.classification.preparation import build_shard
from tpudet.classification.preparation.class_folders import list_split
from tpudet.trainkit.errors import UserError
from tpudet.trainkit.record_splits import find_split

RED = (0, 30, 250)  # of OpenCV: blue, green, red


def write(path: Path, *, height: int = 20, width: int = 30) -> bytes:
    path.parent.mkdir(parents=True, exist_ok=True)
    assert cv2.imwrite(str(path), np.full((height, width, 3), RED, np.uint8))
    return path.read_bytes()


def read(part: Path, split: str) -> list[tf.train.Example]:
    paths = sorted(str(path) for path in part.glob(f"{split}_*.tfrecord"))
    records = tf.data.TFRecordDataset(paths).as_numpy_iterator()
    return [tf.train.Example.FromString(text) for text in records]


def values(example: tf.train.Example, key: str) -> list:
    feature = example.features.feature[key]
    return list(getattr(feature, feature.WhichOneof("kind")).value)


def test_a_record_has_imagenets_keys(colors_part: Path) -> None:
    assert (colors_part / "classes.csv").read_text() == "blue,blue\ngreen,green\nred,red\n"
    for split, count in (("train", 18), ("val", 6), ("test", 6)):
        examples = read(colors_part, split)
        assert len(examples) == count
        for example in examples:
            (label,), (name,) = (
                values(example, "image/class/label"),
                values(example, "image/filename"),
            )
            color = ["blue", "green", "red"][label - 1]
            assert name.decode().startswith(f"{color}/{color}_")
            assert values(example, "image/class/text") == [color.encode()]
            assert values(example, "image/class/synset") == [color.encode()]
            assert values(example, "image/height") + values(example, "image/width") == [40, 48]
            assert values(example, "image/colorspace") == [b"RGB"]
            pixels = tf.io.decode_image(values(example, "image/encoded")[0]).numpy()
            channel = {"red": 0, "green": 1, "blue": 2}[color]
            assert pixels.mean(axis=(0, 1)).argmax() == channel
    manifest = json.loads((colors_part / "train_colors.manifest.json").read_text())
    assert manifest["images_per_class"] == {"blue": 6, "green": 6, "red": 6}
    assert [entry["records"] for entry in manifest["shards"]] == [9, 9]
    converted = "BMP converted"
    assert 0 < manifest["repaired_counts"][converted] < 9  # two of ten images of each class
    split = find_split(
        str(colors_part), "train", ["blue", "green", "red"], per_class="images_per_class"
    )
    assert split.records_per_shard == [9, 9]
    with pytest.raises(UserError, match="class 1 was blue, in classes.csv it is cyan"):
        find_split(
            str(colors_part), "train", ["cyan", "green", "red"], per_class="images_per_class"
        )


def test_what_tensorflow_misreads_is_repaired_and_what_is_damaged_is_left_out(
    tmp_path: Path, capsys
) -> None:
    source, part = tmp_path / "source", tmp_path / "part"
    jpeg = write(source / "train/a/plain.JPEG")
    cv2.imwrite(str(source / "train/a/transparent.png"), np.full((20, 30, 4), 128, np.uint8))
    # Orientation 6: the stored image is turned clockwise to be upright.
    exif = bytes.fromhex("ffe1002245786966000049492a0008000000010012010300010000000600000000000000")
    (source / "train/b").mkdir()
    (source / "train/b/turned.jpg").write_bytes(jpeg[:2] + exif + jpeg[2:])
    (source / "train/b/cut.jpg").write_bytes(jpeg[: len(jpeg) // 2])
    (source / "train/b/notes.txt").write_text("no image")
    assert main([str(source), "--output", str(part), "--workers", "1"]) == 0
    sizes = {
        values(e, "image/filename")[0].decode(): values(e, "image/height")
        + values(e, "image/width")
        for e in read(part, "train")
    }
    assert sizes["b/turned.jpg"] == [30, 20]
    assert sizes["a/plain.JPEG"] == [20, 30]
    assert "b/cut.jpg" not in sizes
    manifest = json.loads((part / "train_part.manifest.json").read_text())
    assert manifest["images"] == 3
    assert [entry["file"] for entry in manifest["left_out"]] == ["b/notes.txt", "b/cut.jpg"]
    assert manifest["repaired_counts"] == {
        "alpha channel dropped": 1,
        "turned upright by its EXIF orientation": 1,
    }
    assert "left out: 1" in capsys.readouterr().out


def test_a_class_without_a_usable_image_is_refused(tmp_path: Path, capsys) -> None:
    source, part = tmp_path / "source", tmp_path / "part"
    jpeg = write(source / "train/a/1.jpg")
    (source / "train/b").mkdir()
    for name in ("1.jpg", "2.jpg"):
        (source / "train/b" / name).write_bytes(jpeg[: len(jpeg) // 2])
    assert main([str(source), "--output", str(part), "--workers", "1"]) == 2
    error = capsys.readouterr().err
    assert "no image of b (2) in" in error
    assert "b/1.jpg" in error
    assert "b/2.jpg" in error
    assert list(part.iterdir()) == []


def test_what_is_no_image_by_its_name_is_listed(tmp_path: Path, capsys) -> None:
    """Roboflow's `valid` is val; a folder `extra` beside it is of no split."""
    source, part = tmp_path / "source", tmp_path / "part"
    png = write(source / "train/a/1.png")
    write(source / "train/a/2.ppm")
    (source / "train/a/no_extension").write_bytes(png)
    write(source / "train/a/deeper/3.png")
    (source / "train/labels.csv").write_text("1.png,a\n")
    (source / "train/a/.hidden").write_text("")
    write(source / "valid/a/4.pnm")
    write(source / "extra/a/5.png")
    assert main([str(source), "--output", str(part), "--workers", "1"]) == 0
    manifest = json.loads((part / "train_part.manifest.json").read_text())
    assert manifest["images"] == 2
    unread = ["a/deeper/", "a/no_extension", "labels.csv"]
    assert [entry["file"] for entry in manifest["left_out"]] == unread
    assert manifest["left_out_counts"] == {"is no image by its name": 3}
    assert [values(e, "image/filename")[0] for e in read(part, "val")] == [b"a/4.pnm"]
    said = capsys.readouterr().out
    assert "left out: 3 is no image by its name: a/deeper/, a/no_extension, labels.csv" in said
    assert "test) are not read: extra" in said


def test_presizing_reduces_the_shorter_side(tmp_path: Path) -> None:
    write(tmp_path / "source/train/a/large.jpg", height=60, width=90)
    write(tmp_path / "source/train/a/small.jpg", height=10, width=16)
    command = [str(tmp_path / "source"), "--output", str(tmp_path / "part"), "--presize", "20"]
    assert main([*command, "--workers", "1"]) == 0
    sizes = [
        values(e, "image/height") + values(e, "image/width")
        for e in read(tmp_path / "part", "train")
    ]
    assert sorted(sizes) == [[10, 16], [20, 30]]


def test_a_finished_shard_of_an_interrupted_run_is_kept(tmp_path: Path, capsys) -> None:
    source, part = tmp_path / "source", tmp_path / "part"
    for index in range(4):
        write(source / f"train/a/{index}.jpg")
    command = [str(source), "--output", str(part), "--num_shards", "2", "--workers", "1"]
    assert main(command) == 0
    whole = {path.name: path.read_bytes() for path in part.iterdir()}
    assert main(command) == 0
    assert "up to date" in capsys.readouterr().out
    # As a run leaves it that was killed after the first shard.
    manifest = json.loads(whole["train_part.manifest.json"])
    progress = part / "train_part.progress"
    progress.mkdir()
    entry = manifest["shards"][0]
    report = {**entry, "per_class": {"a": 2}, "findings": []}
    (progress / f"{entry['file']}.json").write_text(json.dumps(report))
    (part / "train_part.manifest.json").unlink()
    (part / manifest["shards"][1]["file"]).unlink()
    before = (part / entry["file"]).stat().st_ino
    assert main(command) == 0
    assert (part / entry["file"]).stat().st_ino == before
    assert {path.name: path.read_bytes() for path in part.iterdir()} == whole
    write(source / "train/a/new.jpg")
    assert main(command) == 2
    assert "--overwrite replaces it" in capsys.readouterr().err
    assert main([*command, "--overwrite"]) == 0
    assert json.loads((part / "train_part.manifest.json").read_text())["images"] == 5


def test_a_refused_overwrite_leaves_the_finished_split(tmp_path: Path, capsys) -> None:
    source, part = tmp_path / "source", tmp_path / "part"
    write(source / "train/a/0.jpg")
    command = [str(source), "--output", str(part), "--workers", "1"]
    assert main(command) == 0
    whole = {path.name: path.read_bytes() for path in part.iterdir()}
    (source / "train/a/0.jpg").write_bytes(b"no image")
    assert main([*command, "--overwrite"]) == 2
    assert "can be used" in capsys.readouterr().err
    assert {path.name: path.read_bytes() for path in part.iterdir()} == whole


def test_class_lists_are_compared_once_more_before_publishing(
    tmp_path: Path, capsys, monkeypatch
) -> None:
    """Another run writes another split of the part at the same time, with other classes."""
    source, part = tmp_path / "source", tmp_path / "part"
    for label in ("a", "b"):
        write(source / f"train/{label}/0.jpg")
    real = build_shard.write_shard

    def beside_another_run(path: str, records) -> int:
        (part / "classes.csv").write_text("b,b\na,a\n")
        return real(path, records)

    command = [str(source), "--output", str(part), "--num_shards", "1", "--workers", "1"]
    with monkeypatch.context() as patch:
        patch.setattr(build_shard, "write_shard", beside_another_run)
        for more in ([], ["--overwrite"]):
            assert main([*command, *more]) == 2
            message = capsys.readouterr().err
            assert "was written by another run meanwhile" in message
            assert "class 1 was b,b, now a,a" in message
            assert not (part / "train_part.manifest.json").exists()
            shutil.rmtree(part)
    assert main(command) == 0
    assert (part / "classes.csv").read_text() == "a,a\nb,b\n"
    (part / "classes.csv").write_text("b,b\na,a\n")  # of an earlier run: --overwrite replaces it
    assert main(command) == 2
    assert "Give another --output, or --overwrite replaces" in capsys.readouterr().err
    assert main([*command, "--overwrite"]) == 0


def test_imagenets_flat_validation_takes_the_labels_of_a_file(tmp_path: Path, capsys) -> None:
    source, part = tmp_path / "source", tmp_path / "part"
    for label in ("n01", "n02"):
        write(source / f"train/{label}/{label}_1.JPEG")
    for index in (1, 2, 3):
        write(source / f"validation/ILSVRC2012_val_0000000{index}.JPEG")
    (source / "synset_labels.txt").write_text("n02\nn01\nn02\n")
    (tmp_path / "classes.csv").write_text("n01,tench\nn02,goldfish\n")
    command = [str(source), "--output", str(part), "--workers", "1"]
    assert main([*command, "--classes", str(tmp_path / "classes.csv")]) == 0
    examples = read(part, "val")
    assert [values(e, "image/class/label") for e in examples] == [[2], [1], [2]]
    assert values(examples[0], "image/class/text") == [b"goldfish"]
    (source / "synset_labels.txt").write_text("n02\n")
    assert main(command) == 2
    assert "has 1 labels for the 3 images" in capsys.readouterr().err


def test_imagenets_labels_are_not_those_of_its_test_images(tmp_path: Path) -> None:
    """As many test images as of validation, which the labels beside the folders are of."""
    for folder in ("validation", "test"):
        for index in (1, 2):
            write(tmp_path / folder / f"{index}.JPEG")
    (tmp_path / "synset_labels.txt").write_text("n02\nn01\n")
    labels = {
        folder: [file.label for file in list_split(str(tmp_path / folder))]
        for folder in ("validation", "test")
    }
    assert labels == {"validation": ["n02", "n01"], "test": ["", ""]}
    (tmp_path / "test/synset_labels.txt").write_text("n01\nn01\n")
    assert [file.label for file in list_split(str(tmp_path / "test"))] == ["n01", "n01"]


@pytest.mark.parametrize(
    ("paths", "message"),
    [
        (["a/1.jpg"], "has no folder train; it has a. Divide a folder"),
        (["train/a/1.jpg", "train/2.jpg"], "beside them 1 images of no class: 2.jpg"),
        (["train/a/1.jpg", "val/b/1.jpg"], "the class list lacks classes of the split val: b"),
        (["train/a/1.jpg", "val/a/1.jpg", "validation/a/1.jpg"], "val and validation"),
        (["train/1.jpg"], "are in no class folders"),
    ],
)
def test_what_it_refuses(paths: list[str], message: str, tmp_path: Path, capsys) -> None:
    for path in paths:
        write(tmp_path / "source" / path)
    assert main([str(tmp_path / "source"), "--output", str(tmp_path / "part")]) == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "part").exists()


def test_the_real_signs_are_all_written(data_dir: Path, tmp_path: Path) -> None:
    """One image in 601 has an EXIF orientation; all have upper-case extensions."""
    (tmp_path / "source").mkdir()
    (tmp_path / "source/train").symlink_to(data_dir / "sign_digits/images")
    command = [str(tmp_path / "source"), "--output", str(tmp_path / "part"), "--workers", "1"]
    assert main([*command, "--presize", "100"]) == 0
    manifest = json.loads((tmp_path / "part/train_part.manifest.json").read_text())
    assert manifest["images"] == 601
    assert manifest["images_per_class"]["7"] == 61
    turned = "turned upright by its EXIF orientation"
    assert manifest["repaired_counts"][turned] == 1
    assert manifest["left_out"] == []
