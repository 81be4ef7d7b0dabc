"""Another division of the images, written into the same folder, leaves no image in two splits."""

import json
from pathlib import Path

import pytest

from tpudet.detection.commands import make_tfrecords
from tpudet.detection.preparation.records import build_shard

NAMES = [f"{number:02d}.jpg" for number in range(20)]


@pytest.fixture
def command(write_coco, encoded_image, tmp_path) -> list[str]:
    boxes = {name: [(3, 1, 1, 10, 10)] for name in NAMES}
    path, images = write_coco(dict.fromkeys(NAMES, encoded_image()), boxes)
    arguments = ["--format", "coco", "--annotations", path, "--images", images, "--workers", 1]
    return [str(argument) for argument in (*arguments, "--output", tmp_path / "part")]


def ids(read_back, directory: Path, split: str) -> set[str]:
    return {image.source_id for image in read_back(directory, split)}


def test_a_split_of_an_earlier_division_is_refused_by_name(
    command, tmp_path, read_back, capsys
) -> None:
    part = tmp_path / "part"
    first = [*command, "--split", "train=0.7,val=0.2,test=0.1"]
    assert make_tfrecords.main(first) == 0
    before = {path: path.read_bytes() for path in part.iterdir()}
    for split in ("train=0.8,val=0.2", "train"):
        assert make_tfrecords.main([*command, "--split", split, "--overwrite"]) == 2
        message = capsys.readouterr().err
        assert "test_part.manifest.json is of an earlier --split train=0.7,val=0.2" in message or (
            "val_part.manifest.json is of an earlier --split train=0.7,val=0.2" in message
        )
        assert {path: path.read_bytes() for path in part.iterdir()} == before
    for path in part.glob("test_part*"):
        path.unlink()
    second = [*command, "--split", "train=0.8,val=0.2", "--overwrite"]
    assert make_tfrecords.main(second) == 0
    train, val = (ids(read_back, part, split) for split in ("train", "val"))
    assert (len(train), len(val), len(train | val)) == (16, 4, 20)


def test_sets_of_other_annotations_stay_beside_a_division(
    command, write_coco, encoded_image, tmp_path
) -> None:
    assert make_tfrecords.main([*command, "--split", "train=0.8,val=0.2"]) == 0
    other = tmp_path / "other.json"
    content = json.loads((tmp_path / "instances.json").read_text())
    other.write_text(json.dumps(content))
    assert make_tfrecords.main([*command, "--split", "test"]) == 2  # all images, once more
    assert make_tfrecords.main([*command, "--split", "test", "--annotations", str(other)]) == 0
    assert make_tfrecords.main([*command, "--split", "train=0.8,val=0.2"]) == 0


def test_replacing_that_ends_between_two_sets_leaves_no_image_in_both(
    command, tmp_path, read_back, capsys, monkeypatch
) -> None:
    part = tmp_path / "part"
    assert make_tfrecords.main([*command, "--split", "train=0.5,val=0.5"]) == 0
    old = ids(read_back, part, "val")
    real = build_shard.write_shard

    def full_at_val(path: str, records) -> int:
        if "val_part" in path:
            raise OSError(28, "No space left on device")
        return real(path, records)

    second = [*command, "--split", "train=0.8,val=0.2", "--overwrite"]
    with monkeypatch.context() as patch:
        patch.setattr(build_shard, "write_shard", full_at_val)
        assert make_tfrecords.main(second) == 2
    train = ids(read_back, part, "train")
    assert len(train) == 16
    assert train & old  # so the old val must not be read beside the new train
    assert not list(part.glob("val_part*.tfrecord"))
    assert not (part / "val_part.manifest.json").exists()
    assert make_tfrecords.main(second) == 0
    assert ids(read_back, part, "train") == train
    assert not ids(read_back, part, "val") & train
