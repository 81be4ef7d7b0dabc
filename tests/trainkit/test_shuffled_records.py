import time
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from tpudet.trainkit import records
from tpudet.trainkit.errors import UserError
from tpudet.trainkit.input_errors import input_errors_in_words
from tpudet.trainkit.records import INDEX_ENDING, record_offsets, write_shard
from tpudet.trainkit.shuffled_records import ShuffledRecords, read_shuffled

COUNTS = [5, 0, 7, 3, 4]
TOTAL = sum(COUNTS)


@pytest.fixture(scope="module")
def shards() -> list[str]:
    tf.io.gfile.makedirs("ram://shuffled_records_test")
    for index, count in enumerate(COUNTS):
        path = records.shard_path("ram://shuffled_records_test/train_a", index, len(COUNTS))
        assert records.write_shard(path, (f"{index}/{k}".encode() for k in range(count))) == count
    return records.find_shards("ram://shuffled_records_test/train_a")


def take(shards, number, start_record=0, **options):
    order = ShuffledRecords(shards, COUNTS, **{"seed": 7, **options})
    dataset = read_shuffled(order, start_record).take(number)
    return [(int(epoch), int(record), text.numpy()) for epoch, record, text in dataset]


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
    dataset = read_shuffled(ShuffledRecords([path], [count], seed=1), 4 * count - 50)
    read = [tuple(map(int, row)) for row in dataset.take(100)]
    assert time.monotonic() - started < 5
    assert [epoch for epoch, _, _ in read] == [3] * 50 + [4] * 50
    assert all(record == content for _, record, content in read)
    assert len({record for _, record, _ in read[:50]}) == 50
    # Of 50 numbers drawn from 0..49,999 the mean is 25,000 with a deviation of 2,041.
    assert abs(np.mean([record for _, record, _ in read[:50]]) - 25_000) < 4 * 2_041


def test_shards_of_another_length_are_refused(shards):
    with pytest.raises(UserError, match="00004-of-00005.tfrecord has 4 records, not 5"):
        read_shuffled(ShuffledRecords(shards, [5, 0, 7, 3, 5], seed=7))
    with pytest.raises(UserError, match="00002-of-00005.tfrecord has 7 records, not 6"):
        read_shuffled(ShuffledRecords(shards, [5, 0, 6, 3, 4], seed=7))
    with pytest.raises(ValueError, match="one count per file"):
        read_shuffled(ShuffledRecords(shards, COUNTS[:-1], seed=7))
    with pytest.raises(ValueError, match="from record -1"):
        read_shuffled(ShuffledRecords(shards, COUNTS, seed=7), -1)


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


def take_all(shards, counts):
    """The records of one epoch, by their numbers."""
    dataset = read_shuffled(ShuffledRecords(shards, counts, seed=7)).take(sum(counts))
    return sorted((int(record), int(epoch), text.numpy()) for epoch, record, text in dataset)


def copy_shards(shards, folder):
    """The shards and their indices on a disk."""
    copies = []
    for index, shard in enumerate(shards):
        copies.append(records.shard_path(str(folder / "c"), index, len(shards)))
        for ending in ("", records.INDEX_ENDING):
            tf.io.gfile.copy(shard + ending, copies[-1] + ending)
    return copies


def read_once(path: str) -> list[bytes]:
    count = len(record_offsets(path)) - 1
    read = read_shuffled(ShuffledRecords([path], [count], seed=0)).take(count)
    return sorted(text.numpy() for *_, text in read)


def test_an_index_that_points_between_records_is_named(tmp_path: Path) -> None:
    path = str(tmp_path / "train.record")
    write_shard(path, [b"%04d" % place for place in range(1000)])
    offsets = np.fromfile(path + INDEX_ENDING, "<i8")
    offsets[501] += 1
    offsets.tofile(path + INDEX_ENDING)
    with (
        pytest.raises(UserError, match=r"index does not belong.*train.record.offsets"),
        input_errors_in_words(lambda: [path]),
    ):
        read_once(path)
