import os
import struct
import threading

import numpy as np
import pytest
import tensorflow as tf

from tpudet.trainkit import records
from tpudet.trainkit.files import storage
from tpudet.trainkit.shuffled_records import ShuffledRecords, read_shuffled

COUNTS = [5, 0, 7, 3, 4]
TOTAL = sum(COUNTS)


@pytest.fixture(scope="module")
def shards() -> list[str]:
    tf.io.gfile.makedirs("ram://records_test")
    for index, count in enumerate(COUNTS):
        path = records.shard_path("ram://records_test/train_a", index, len(COUNTS))
        assert records.write_shard(path, (f"{index}/{k}".encode() for k in range(count))) == count
    return records.find_shards("ram://records_test/train_a")


def test_shards_in_memory_are_found_and_counted(shards):
    assert shards[4] == "ram://records_test/train_a-00004-of-00005.tfrecord"
    assert records.count_records(shards) == COUNTS


def test_shards_in_a_bucket_are_counted_many_at_once_by_two_requests_each(shards, monkeypatch):
    meeting = threading.Barrier(len(shards), timeout=10)  # so that one after the other never ends
    requests = []

    def stat(path, own=storage.stat):
        meeting.wait()
        requests.append(path)
        return own(path)

    def open_file(path, mode, own=storage.open_file):
        requests.append(path)
        return own(path, mode)

    monkeypatch.setattr(storage, "stat", stat)
    monkeypatch.setattr(storage, "open_file", open_file)
    monkeypatch.setattr(storage, "is_file", lambda path: requests.append(path))
    assert records.count_records(shards) == COUNTS
    read_shuffled(ShuffledRecords(shards, COUNTS, seed=1))
    assert sorted(requests) == sorted(2 * [*shards, *(f"{path}.offsets" for path in shards)])


def test_read_records_gives_file_order_and_numbers(shards):
    read = [(int(number), text.numpy()) for number, text in records.read_records(shards)]
    expected = [
        (shard * 2**32 + k, f"{shard}/{k}".encode())
        for shard, count in enumerate(COUNTS)
        for k in range(count)
    ]
    assert read == expected


def test_no_iterator_has_a_thread_that_holds_up_its_end(shards):
    """`autotune` is TensorFlow's tuner; what is made from a dataset without it has none either."""
    dataset = records.read_records(shards).map(lambda number, _: number).batch(2).prefetch(1)
    assert dataset.options().autotune.enabled is False
    assert tf.data.Dataset.range(3).options().autotune.enabled is not False


def test_find_shards_takes_its_own_set_only(tmp_path):
    names = ["train_part_1-00000-of-00001", "train_part_1_fold_0-00000-of-00001"]
    for name in names:
        records.write_shard(str(tmp_path / f"{name}.tfrecord"), [b"x"])
    # What a killed writer leaves, and what only looks alike.
    (tmp_path / "train_part_1-00000-of-00001.tfrecord.tmp").write_bytes(b"torn")
    (tmp_path / "train_part_1-0000x-of-00001.tfrecord").write_bytes(b"")
    found = records.find_shards(str(tmp_path / "train_part_1"))
    assert found == [str(tmp_path / "train_part_1-00000-of-00001.tfrecord")]


def test_find_shards_says_what_is_missing_mixed_or_not_there(tmp_path):
    prefix = str(tmp_path / "val_x")
    with pytest.raises(FileNotFoundError, match="No directory"):
        records.find_shards(str(tmp_path / "nowhere" / "val_x"))
    with pytest.raises(FileNotFoundError, match="no .tfrecord file"):
        records.find_shards(prefix)
    records.write_shard(records.shard_path(prefix, 0, 3), [])
    with pytest.raises(FileNotFoundError, match=r"1 of 3 .*val_x-00001-of-00003"):
        records.find_shards(prefix)
    records.write_shard(records.shard_path(prefix, 0, 2), [])
    with pytest.raises(ValueError, match="2 and 3 shards"):
        records.find_shards(prefix)


def test_a_shard_whose_records_fail_leaves_nothing(tmp_path):
    def failing():
        yield b"first"
        raise RuntimeError("source broke")

    path = records.shard_path(str(tmp_path / "t"), 0, 1)
    with pytest.raises(RuntimeError, match="source broke"):
        records.write_shard(path, failing())
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("size", [0, 1, 300_000])
def test_records_in_pieces_are_those_of_tensorflow_s_writer(tmp_path, size):
    record = np.random.default_rng(0).bytes(size)
    pieces = (record[:5], record[5 : size // 2], b"", record[max(5, size // 2) :])
    path = str(tmp_path / "ours")
    assert records.write_shard(path, [record, pieces, [record]]) == 3
    with tf.io.TFRecordWriter(str(tmp_path / "theirs")) as writer:
        for _ in range(3):
            writer.write(record)
    assert (tmp_path / "ours").read_bytes() == (tmp_path / "theirs").read_bytes()


def test_two_writers_of_one_shard_do_not_meet(tmp_path):
    path = str(tmp_path / "t")

    def disturbed():
        yield b"first"
        assert records.write_shard(path, [b"first", b"second"]) == 2
        yield b"second"

    assert records.write_shard(path, disturbed()) == 2
    assert sorted(path.name for path in tmp_path.iterdir()) == ["t", "t.offsets"]
    assert list(tf.data.TFRecordDataset(path).as_numpy_iterator()) == [b"first", b"second"]


def test_a_file_cut_off_is_no_shard(tmp_path):
    path = tmp_path / "cut.tfrecord"
    path.write_bytes(struct.pack("<QI", 100, 0) + b"too short")
    with pytest.raises(ValueError, match="middle of a record"):
        records.count_records([str(path)])


@pytest.mark.parametrize(
    ("wanted", "places"), [(1, [TOTAL - 1]), (TOTAL - 1, [*range(1, TOTAL)]), (TOTAL + 1, None)]
)
def test_some_records_are_spread_over_the_split(shards, wanted, places):
    read = records.read_records(shards)
    chosen, count = records.spread_records(read, num_records=TOTAL, max_records=wanted)
    every = [int(number) for number, _ in read]
    assert [int(number) for number, _ in chosen] == [every[k] for k in places or range(TOTAL)]
    assert count == min(wanted, TOTAL)


def test_the_index_says_where_records_begin(tmp_path):
    path = str(tmp_path / "train_x-00000-of-00001.tfrecord")
    assert records.write_shard(path, [b"four", b"", [b"twelve", b" bytes"]]) == 3
    expected = [0, 16 + 4, 2 * 16 + 4, 3 * 16 + 4 + 12]
    assert np.fromfile(path + records.INDEX_ENDING, "<i8").tolist() == expected
    assert records.record_offsets(path).tolist() == expected
    # Written anew with other records, and without an index, as other programs leave it.
    records.write_shard(path, [b"x" * 40])
    assert records.record_offsets(path).tolist() == [0, 56]
    os.remove(path + records.INDEX_ENDING)
    assert records.record_offsets(path).tolist() == [0, 56]
