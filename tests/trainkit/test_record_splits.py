"""Splits that other programs wrote: names, aliases, counts in names, incomplete sets."""

import shutil
from pathlib import Path

import pytest

from tpudet.trainkit.config.yaml_tree import ConfigError
from tpudet.trainkit.record_splits import Split, find_split, watch_files
from tpudet.trainkit.records import write_shard
from tpudet.trainkit.training.model_dir import load_classes


def write(folder: Path, names: dict[str, int]) -> None:
    for name, count in names.items():
        (folder / name).parent.mkdir(exist_ok=True)
        write_shard(str(folder / name), [b"x"] * count)


def find(folder: Path, split: str) -> Split:
    found = find_split(f"{folder}/", split, ["a", "b"])
    return found._replace(shards=[path.removeprefix(f"{folder}/") for path in found.shards])


def test_imagenets_names_have_no_ending_and_val_is_called_validation(tmp_path: Path) -> None:
    write(tmp_path, {f"train-0000{k}-of-00002": k + 1 for k in range(2)})
    write(tmp_path, {"validation-00000-of-00001": 3})
    assert find(tmp_path, "train")[:3] == (
        ["train-00000-of-00002", "train-00001-of-00002"],
        [1, 2],
        2,
    )
    assert find(tmp_path, "val").shards == ["validation-00000-of-00001"]
    (tmp_path / "train-00000-of-00002").unlink()
    with pytest.raises(ConfigError, match="1 of 2 shards .* missing: .*train-00000-of-00002"):
        find(tmp_path, "train")


def test_roboflows_val_is_called_valid(tmp_path: Path) -> None:
    write(tmp_path, {"train/signs.tfrecord": 4, "valid/signs.tfrecord": 2})
    found = find(tmp_path, "val")
    assert (found.shards, found.records_per_shard) == (["valid/signs.tfrecord"], [2])


def test_kaggles_names_tell_how_many_records_a_bucket_has() -> None:
    """If that of the first is true, the others are believed: counting would read every file."""
    folder = "ram://kaggle"
    for name in ("train/01-224x224-7.tfrec", "train/00-224x224-3.tfrec", "val-3.tfrec"):
        write_shard(f"{folder}/{name}", [b"x"] * 3)
    assert find_split(folder, "train", ["a", "b"])[:3] == (
        [f"{folder}/train/00-224x224-3.tfrec", f"{folder}/train/01-224x224-7.tfrec"],
        [3, 7],
        2,
    )


def test_numbers_that_only_order_the_files_are_not_counts(tmp_path: Path) -> None:
    names = {f"train/part-{number:05d}.tfrec": 100 for number in range(3)}
    write(tmp_path, names)
    assert find(tmp_path, "train").records_per_shard == [100, 100, 100]
    for name, count in names.items():
        write_shard(f"ram://numbered/{name}", [b"x"] * count)
    found = find_split("ram://numbered", "train", ["a", "b"])
    assert found.records_per_shard == [100, 100, 100]


def test_records_without_a_number_are_counted(tmp_path: Path) -> None:
    write(tmp_path, {"test/one.tfrec": 2, "test/two.tfrecord": 5})
    assert find(tmp_path, "test").records_per_shard == [2, 5]
    with pytest.raises(ConfigError, match=r"split `val` of .*: No file .*/val_"):
        find(tmp_path, "val")


def test_the_digest_is_of_the_files_and_not_of_their_folder(sample_part: str) -> None:
    copy = f"{sample_part}_moved/tiny"
    shutil.copytree(sample_part, copy)
    names = [entry.name for entry in load_classes(copy)[1]]
    digests = [find_split(folder, "train", names).digest for folder in (sample_part, copy)]
    assert digests[0] == digests[1]
    assert find_split(copy, "val", names).digest != digests[0]


def test_what_is_missing_where_there_is_no_class_list_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=rf"^data.directory: there is no folder {tmp_path}/x;"):
        load_classes(f"{tmp_path}/x/")
    for name in ("part_1", "part_0", "notes"):
        (tmp_path / name).mkdir()
    with pytest.raises(ConfigError, match="`identifier,name` per row$"):
        load_classes(str(tmp_path))
    for name in ("part_1", "part_0"):
        (tmp_path / name / "classes.csv").write_text("/m/1,cat\n")
    with pytest.raises(ConfigError, match=rf"sets below {tmp_path}: part_0, part_1$"):
        load_classes(f"{tmp_path}/")


def test_other_numbers_of_records_are_another_digest(tmp_path: Path) -> None:
    write(tmp_path, {"train-00000-of-00001": 2})
    before = find(tmp_path, "train").digest
    write(tmp_path, {"train-00000-of-00001": 3})
    assert find(tmp_path, "train").digest != before


def test_files_that_are_written_anew_with_the_same_bytes_are_noticed(tmp_path: Path) -> None:
    names = {f"train-0000{k}-of-00002": 2 for k in range(2)}
    write(tmp_path, names)
    are_replaced = watch_files(find_split(str(tmp_path), "train", ["a"]))
    assert not are_replaced()
    write(tmp_path, names)
    assert are_replaced()


def test_files_that_are_gone_count_as_replaced(tmp_path: Path) -> None:
    write(tmp_path, {"train-00000-of-00001": 2})
    are_replaced = watch_files(find_split(str(tmp_path), "train", ["a"]))
    (tmp_path / "train-00000-of-00001").unlink()
    assert are_replaced()
