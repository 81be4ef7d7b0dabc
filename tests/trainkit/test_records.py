import os
import struct
import time

import numpy as np
import pytest
import tensorflow as tf

from tpudet.trainkit import records
from tpudet.trainkit.errors import UserError

COUNTS = [5, 0, 7, 3, 4]
TOTAL = sum(COUNTS)


@pytest.fixture(scope="module")
def shards() -> list[str]:
    tf.io.gfile.makedirs("ram://records_test")
    for index, count in enumerate(COUNTS):
        path = records.shard_path("ram://records_test/train_a", index, len(COUNTS))
        assert records.write_shard(path, (f"{index}/{k}".encode() for k in range(count))) == count
    return records.find_shards("ram://records_test/train_a")


def take(shards, number, **options):
    dataset = records.read_shuffled(shards, COUNTS, **{"seed": 7, **options}).take(number)
    return [(int(epoch), int(record), text.numpy()) for epoch, record, text in dataset]


def test_shards_in_memory_are_found_and_counted(shards):
    assert shards[4] == "ram://records_test/train_a-00004-of-00005.tfrecord"
    assert records.count_records(shards) == COUNTS


def test_read_records_gives_file_order_and_numbers(shards):
    read = [(int(number), text.numpy()) for number, text in records.read_records(shards)]
    expected = [
        (shard * 2**32 + k, f"{shard}/{k}".encode())
        for shard, count in enumerate(COUNTS)
        for k in range(count)
    ]
    assert read == expected


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


def test_every_epoch_has_every_record_once_in_another_order(shards):
    stream = take(shards, 3 * TOTAL)
    epochs = [stream[start : start + TOTAL] for start in range(0, 3 * TOTAL, TOTAL)]
    everything = {
        (s * 2**32 + k, f"{s}/{k}".encode()) for s, c in enumerate(COUNTS) for k in range(c)
    }
    for number, epoch in enumerate(epochs):
        assert {e for e, _, _ in epoch} == {number}
        assert {(record, text) for _, record, text in epoch} == everything
        assert len(epoch) == TOTAL
    orders = [[record for _, record, _ in epoch] for epoch in epochs]
    assert orders[0] != orders[1] != orders[2] != orders[0]


def test_start_record_gives_the_tail_over_epoch_borders(shards):
    stream = take(shards, 45)
    # Inside an epoch, at its end and begin, and in the third epoch.
    for start in (1, 4, 8, TOTAL - 1, TOTAL, TOTAL + 3, 2 * TOTAL + 2):
        assert take(shards, 45 - start, start_record=start) == stream[start:]


def test_order_depends_on_the_seed_and_not_on_the_process(shards):
    expected = take(shards, TOTAL)
    assert take(shards, TOTAL, seed=8) != expected
    try:
        tf.random.set_seed(123)
        assert take(shards, TOTAL) == expected
    finally:
        tf.random.set_seed(0)


@pytest.mark.parametrize("process_count", [2, 32])
def test_processes_take_turns_in_the_order_of_one(shards, process_count):
    """The k-th process reads the places k, k + count, k + 2 count, ... of the whole stream."""
    start, number = 5, 2
    stream = take(shards, process_count * number, start_record=start)
    for process in range(process_count):
        own = take(
            shards,
            number,
            start_record=start,
            process_index=process,
            process_count=process_count,
        )
        assert own == stream[process::process_count]


@pytest.mark.parametrize(
    ("wanted", "places"), [(1, [TOTAL - 1]), (TOTAL - 1, [*range(1, TOTAL)]), (TOTAL + 1, None)]
)
def test_some_records_are_spread_over_the_split(shards, wanted, places):
    read = records.read_records(shards)
    chosen, count = records.spread_records(read, num_records=TOTAL, max_records=wanted)
    every = [int(number) for number, _ in read]
    assert [int(number) for number, _ in chosen] == [every[k] for k in places or range(TOTAL)]
    assert count == min(wanted, TOTAL)


def test_records_before_the_start_and_of_other_processes_are_not_read(shards, tmp_path):
    """Every byte of the records that are not asked for is overwritten, lengths included."""
    copies = copy_shards(shards, tmp_path)
    stream = take(copies, TOTAL)
    wanted = stream[TOTAL - 5 :: 2]
    offsets = [records.record_offsets(path) for path in copies]
    for _, record, _ in set(stream) - set(wanted):
        shard, place = divmod(record, records.RECORDS_PER_SHARD_LIMIT)
        begin, end = offsets[shard][place : place + 2]
        with open(copies[shard], "r+b") as file:
            file.seek(begin)
            file.write(b"\xff" * (end - begin))
    assert take(copies, 3, start_record=TOTAL - 5, process_count=2) == wanted


def test_any_place_in_a_large_set_is_its_own_record(tmp_path):
    """One file of 50,000 records: places far into the fourth epoch are read within a second."""
    count = 50_000
    path = records.shard_path(str(tmp_path / "large"), 0, 1)
    records.write_shard(path, (b"%d" % k for k in range(count)))
    started = time.monotonic()
    dataset = records.read_shuffled([path], [count], seed=1, start_record=4 * count - 50)
    read = [tuple(map(int, row)) for row in dataset.take(100)]
    assert time.monotonic() - started < 5
    assert [epoch for epoch, _, _ in read] == [3] * 50 + [4] * 50
    assert all(record == content for _, record, content in read)
    assert len({record for _, record, _ in read[:50]}) == 50
    # Of 50 numbers drawn from 0..49,999 the mean is 25,000 with a deviation of 2,041.
    assert abs(np.mean([record for _, record, _ in read[:50]]) - 25_000) < 4 * 2_041


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


@pytest.mark.parametrize(
    "stored",
    [b"", b"\0" * 7, np.array([0, 20], "<i8").tobytes(), np.array([0, 90, 52], "<i8").tobytes()],
    ids=["empty", "cut", "of a shorter file", "not rising"],
)
def test_an_index_that_is_not_of_its_file_is_named_and_not_used(tmp_path, stored, caplog):
    path = str(tmp_path / "train_x-00000-of-00001.tfrecord")
    records.write_shard(path, [b"four", b"x" * 16])
    with open(path + records.INDEX_ENDING, "wb") as file:
        file.write(stored)
    assert records.record_offsets(path).tolist() == [0, 20, 52]
    assert f"{path}.offsets is not the index of {path}" in caplog.text
    assert [text for _, _, text in take_all([path], [2])] == [b"four", b"x" * 16]


def test_an_index_that_points_between_records_ends_the_reading(tmp_path):
    path = str(tmp_path / "train_x-00000-of-00001.tfrecord")
    records.write_shard(path, [b"x" * 20, b"y" * 20])
    with open(path + records.INDEX_ENDING, "wb") as file:
        file.write(np.array([0, 35, 72], "<i8").tobytes())
    with pytest.raises(tf.errors.DataLossError, match="corrupted record at 35"):
        take_all([path], [2])


def test_shards_of_another_length_are_refused(shards):
    with pytest.raises(UserError, match="00004-of-00005.tfrecord has 4 records, not 5"):
        records.read_shuffled(shards, [5, 0, 7, 3, 5], seed=7)
    with pytest.raises(UserError, match="00002-of-00005.tfrecord has 7 records, not 6"):
        records.read_shuffled(shards, [5, 0, 6, 3, 4], seed=7)
    with pytest.raises(ValueError, match="one count per file"):
        records.read_shuffled(shards, COUNTS[:-1], seed=7)
    with pytest.raises(ValueError, match="from record -1"):
        records.read_shuffled(shards, COUNTS, seed=7, start_record=-1)


def take_all(shards, counts):
    """The records of one epoch, by their numbers."""
    dataset = records.read_shuffled(shards, counts, seed=7).take(sum(counts))
    return sorted((int(record), int(epoch), text.numpy()) for epoch, record, text in dataset)


def copy_shards(shards, folder):
    """The shards and their indices on a disk."""
    copies = []
    for index, shard in enumerate(shards):
        copies.append(records.shard_path(str(folder / "c"), index, len(shards)))
        for ending in ("", records.INDEX_ENDING):
            tf.io.gfile.copy(shard + ending, copies[-1] + ending)
    return copies
