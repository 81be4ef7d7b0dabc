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


@pytest.fixture
def yolo_command(encoded_image, tmp_path) -> list[str]:
    """The command for a data.yaml with 10 images of train, 5 of val and 5 of test."""
    for name in NAMES:
        split = "train" if name < "10" else "val" if name < "15" else "test"
        for kind, content in (("images", encoded_image()), ("labels", b"0 0.5 0.5 0.2 0.2")):
            folder = tmp_path / split / kind
            folder.mkdir(parents=True, exist_ok=True)
            ending = ".jpg" if kind == "images" else ".txt"
            (folder / name).with_suffix(ending).write_bytes(content)
    folders = "".join(f"{split}: {split}/images\n" for split in ("train", "val", "test"))
    (tmp_path / "data.yaml").write_text(folders + "names: [cup]\n")
    arguments = ["--format", "yolo", "--annotations", tmp_path / "data.yaml", "--workers", 1]
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


def require_refused(
    command: list[str], option: str, part: Path, message: str, capsys: pytest.CaptureFixture
) -> None:
    """With --overwrite or without, it is refused in these words, and nothing changes."""
    before = {path: path.read_bytes() for path in part.iterdir()}
    for more in ([], ["--overwrite"]):
        capsys.readouterr()
        assert make_tfrecords.main([*command, *option.split(), *more]) == 2
        assert message in capsys.readouterr().err
        assert {path: path.read_bytes() for path in part.iterdir()} == before


@pytest.mark.parametrize(
    ("first", "second", "message"),
    [
        ("--split val", "--split train=0.8,test=0.2", "val_part.manifest.json is of an earlier "),
        ("--split train=0.8,test=0.2", "--split val", "train=0.8,test=0.2, so some of its images"),
        ("--split test", "--split train=0.8,val=0.2", "--split test, so some of its images would"),
        ("--split train=0.8,val=0.2", "--split test", "--split train=0.8,val=0.2, so some of its"),
    ],
)
def test_a_set_of_all_images_is_refused_beside_a_division(
    command, tmp_path, capsys, first, second, message
) -> None:
    assert make_tfrecords.main([*command, *first.split()]) == 0
    require_refused(command, second, tmp_path / "part", message, capsys)


def test_own_splits_of_a_data_yaml_are_refused_beside_a_division_of_them(
    yolo_command, tmp_path, capsys
) -> None:
    """A division takes what train and val of the file hold, whatever it calls its own splits."""
    part = tmp_path / "part"
    for split in ("train", "val"):
        assert make_tfrecords.main([*yolo_command, "--split", split]) == 0
    message = "val_part.manifest.json is of an earlier --split val, so some of its images would be"
    division = "--split train=0.9,test=0.1"
    require_refused(yolo_command, division, part, message, capsys)
    for path in part.glob("val_part*"):
        path.unlink()
    assert make_tfrecords.main([*yolo_command, *division.split(), "--overwrite"]) == 0
    require_refused(yolo_command, "--split val", part, "earlier --split train=0.9,test=0.1", capsys)


def test_folds_are_refused_beside_a_set_of_all_images(command, tmp_path, capsys) -> None:
    for output, first, second, message in (
        ("a", "--split test", "--folds 2", "earlier --split test"),
        ("b", "--folds 2", "--split test", "earlier division into 2 folds"),
    ):
        folder = tmp_path / f"{output}_fold_1"
        both = {"--folds 2": str(tmp_path / output), "--split test": str(folder)}
        assert make_tfrecords.main([*command, *first.split(), "--output", both[first]]) == 0
        require_refused([*command, "--output", both[second]], second, folder, message, capsys)


def test_a_division_of_a_data_yaml_leaves_its_test_split(yolo_command, tmp_path, read_back) -> None:
    part = tmp_path / "part"
    for option in (
        ("--split", "train"),
        ("--split", "val"),
        ("--split", "test"),
        ("--split", "train=0.8,val=0.2", "--overwrite"),
        ("--split", "test"),
    ):
        assert make_tfrecords.main([*yolo_command, *option]) == 0
    sets = [ids(read_back, part, split) for split in ("train", "val", "test")]
    assert [len(found) for found in sets] == [12, 3, 5]
    assert len(set.union(*sets)) == 20
    # Of another division, whose test is not that of the file.
    other = ["--output", str(tmp_path / "other")]
    for option in ("train=0.8,test=0.2", "train=0.9,test=0.1", "test"):
        assert make_tfrecords.main([*yolo_command, *other, "--split", option, "--overwrite"]) == 0
    sets = [ids(read_back, tmp_path / "other", split) for split in ("train", "test")]
    assert sets[1] == {name.removesuffix(".jpg") for name in NAMES[15:]}
    assert sets[0].isdisjoint(sets[1])


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


def test_folds_of_other_images_are_refused_beside_folds_of_the_same_numbers(
    command, tmp_path, read_back, capsys
) -> None:
    """As when files that were missing are fetched between two folds."""
    photo = tmp_path / "photos" / NAMES[3]
    content = photo.read_bytes()
    photo.unlink()
    fold = [*command, "--folds", "3", "--fold"]
    assert make_tfrecords.main([*fold, "0"]) == 0
    photo.write_bytes(content)
    capsys.readouterr()
    for more in (["1"], ["1", "--dry_run"]):
        assert make_tfrecords.main([*fold, *more]) == 2
        message = capsys.readouterr().err
        assert f"{tmp_path}/part_fold_0: of another division, into 3 folds with seed 0" in message
        assert "of other images or labels" in message
    assert not (tmp_path / "part_fold_1").exists()
    assert make_tfrecords.main([*fold, "0", "--overwrite"]) == 0
    for number in "12":
        assert make_tfrecords.main([*fold, number]) == 0
    validated = [ids(read_back, tmp_path / f"part_fold_{n}", "val") for n in range(3)]
    assert sum(map(len, validated)) == len(set.union(*validated)) == 20


@pytest.mark.parametrize("division", [None, "of an earlier version, or of other folds"])
def test_a_fold_that_stays_is_named_of_the_division_that_it_fits(
    command, tmp_path, capsys, division
) -> None:
    fold = [*command, "--folds", "2", "--fold"]
    assert make_tfrecords.main([*fold, "0"]) == 0
    written = {}
    for split in ("train", "val"):
        path = tmp_path / f"part_fold_0/{split}_part_fold_0.manifest.json"
        written[path] = json.loads(path.read_text())
        manifest = json.loads(path.read_text())
        del manifest["options"]["division"]
        if division:
            manifest["options"]["division"] = division
        path.write_text(json.dumps(manifest))
    # Without a name in its manifest, a fold of these numbers is taken to be of this division.
    assert make_tfrecords.main([*fold, "1"]) == (2 if division else 0)
    assert make_tfrecords.main([*fold, "0", "--overwrite"]) == 0
    assert capsys.readouterr().out.count("up to date, nothing was written") == 2
    assert {path: json.loads(path.read_text()) for path in written} == written
    assert make_tfrecords.main([*fold, "1"]) == 0
