"""A split is read only if its files are those that its manifest describes."""

import json
import shutil
from pathlib import Path

import pytest

from tpudet.trainkit.errors import UserError
from tpudet.trainkit.record_manifest import check_manifest, read_manifest
from tpudet.trainkit.records import write_shard


@pytest.fixture
def part(sample_part: str, tmp_path: Path) -> Path:
    return Path(shutil.copytree(sample_part, tmp_path / "tiny"))


def refused(part: Path) -> str:
    with pytest.raises(UserError) as caught:
        check_manifest(str(part), "train")
    return str(caught.value)


def test_a_finished_split(part: Path) -> None:
    found = check_manifest(f"{part}/", "train")
    assert found
    assert [Path(path).name for path in found.shards] == [
        f"train_tiny-0000{index}-of-00002.tfrecord" for index in range(2)
    ]
    assert sum(found.records_per_shard) == found.manifest["images"] == 16
    rows = (part / "classes.csv").read_text().splitlines()
    assert found.class_names == [row.split(",")[1] for row in rows]


def test_records_of_other_programs_have_no_manifest(part: Path) -> None:
    (part / "train_tiny.manifest.json").unlink()
    assert check_manifest(str(part), "train") is None


def test_an_unfinished_split_is_refused(part: Path) -> None:
    (part / "train_tiny.progress").mkdir()
    message = refused(part)
    assert f"{part}/train_tiny.progress exists" in message
    assert "run the same command again" in message
    assert check_manifest(str(part), "val")


def test_a_shard_of_another_run(part: Path) -> None:
    """Half overwritten: of another size, or of the same size with other records."""
    shard = part / "train_tiny-00001-of-00002.tfrecord"
    size = shard.stat().st_size
    write_shard(str(shard), [b"x" * (size - 16)])
    message = refused(part)
    assert "train_tiny-00001-of-00002.tfrecord has 1 records, its manifest says" in message
    write_shard(str(shard), [b"x" * 100])
    assert f"has 116 bytes, its manifest says {size}" in refused(part)


def test_shards_of_another_count(part: Path) -> None:
    for index in range(2):
        shard = part / f"train_tiny-0000{index}-of-00002.tfrecord"
        shard.rename(part / f"train_tiny-0000{index}-of-00003.tfrecord")
    write_shard(f"{part}/train_tiny-00002-of-00003.tfrecord", [])
    message = refused(part)
    assert "train_tiny-00000-of-00002.tfrecord is missing" in message
    assert "train_tiny-00002-of-00003.tfrecord is not in the manifest" in message


@pytest.mark.parametrize("kind", ["cut", "empty", "other", "list", "deep", "shards", "types"])
def test_a_damaged_manifest(part: Path, kind: str) -> None:
    path = part / "train_tiny.manifest.json"
    text = path.read_text()
    fields = json.loads(text)
    shard = fields["shards"][0]
    path.write_text(
        {
            "cut": text[: len(text) // 2],
            "empty": "",
            "other": "{}",
            "list": "[]",
            "deep": "[" * 100_000,
            "shards": json.dumps(fields | {"shards": [{"file": "a"}]}),
            "types": json.dumps(fields | {"shards": [shard | {"bytes": "1"}]}),
        }[kind]
    )
    message = refused(part)
    assert str(path) in message
    assert "write the set again with --overwrite" in message
    with pytest.raises(UserError):
        read_manifest(str(path))


SHARD = {"file": "train_tiny-00000-of-00001.tfrecord", "records": 1, "bytes": 1}
NAMES = ("../other/a", "x/../a", "/a", "", ".", "..", "a\0")
COUNTS = ("boxes_per_class", "crowds_per_class", "images_per_boxes", "left_out_counts")


@pytest.mark.parametrize(
    ("key", "value"),
    [
        *((key, value) for key in COUNTS for value in ("x", [1], {"1": "2"}, {"1": None})),
        *(("images_per_class", value) for value in ("x", {"cat": 1.5})),
        *((key, {"1": number}) for key in COUNTS for number in (-1, True, 1 << 63)),
        *((key, number) for key in ("images", "boxes") for number in (-1, True, 10**400)),
        *(("images_per_boxes", {number: 1}) for number in ("many", "-1", "1" * 19, "1" * 5_000)),
        *(("shards", shards) for shards in ([], [SHARD, SHARD], [{}], ["x"])),
        *(("shards", [SHARD | {"file": name}]) for name in NAMES),
        *(
            ("shards", [SHARD | {key: number}])
            for key in ("records", "bytes")
            for number in (-1, True, 1 << 63)
        ),
        *((key, value) for key in ("repaired", "left_out") for value in ("x", {}, ["x"])),
    ],
)
def test_fields_of_other_types_are_named(part: Path, key: str, value: object) -> None:
    path = part / "train_tiny.manifest.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {key: value}))
    assert f"{path} is not a manifest of a prepared set: {key} missing or of" in refused(part)
