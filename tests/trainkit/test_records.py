import struct

import numpy as np
import pytest
import tensorflow as tf

from tpudet.trainkit import records

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
    defaults = {"seed": 7, "cycle_length": 2, "shuffle_buffer": 4}
    dataset = records.read_shuffled(shards, COUNTS, **{**defaults, **options}).take(number)
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
    assert [path.name for path in tmp_path.iterdir()] == ["t"]
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
    # Window borders, inside windows, an epoch's end and begin, and in the third epoch.
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


def test_windows_before_the_start_are_not_read(shards, tmp_path):
    copies = []
    for index, shard in enumerate(shards):
        copies.append(records.shard_path(str(tmp_path / "c"), index, len(shards)))
        tf.io.gfile.copy(shard, copies[-1])
    stream = take(copies, TOTAL)
    last_shards = {record >> 32 for _, record, _ in stream[-1:]}
    first_shards = {record >> 32 for _, record, _ in stream} - {r >> 32 for _, r, _ in stream[8:]}
    assert first_shards
    assert not first_shards & last_shards
    for shard in first_shards:
        tf.io.gfile.remove(copies[shard])
    assert take(copies, 1, start_record=TOTAL - 1, shuffle_buffer=1) == stream[-1:]


def test_shards_of_another_length_stop_the_reading(shards):
    wrong = records.read_shuffled(shards, [5, 0, 7, 3, 5], seed=7)
    with pytest.raises(tf.errors.FailedPreconditionError, match="5 elements but contained only 4"):
        list(wrong.take(40))
    with pytest.raises(ValueError, match="one count per file"):
        records.read_shuffled(shards, COUNTS[:-1], seed=7)
    with pytest.raises(ValueError, match="from record -1"):
        records.read_shuffled(shards, COUNTS, seed=7, start_record=-1)


def test_default_buffer_is_bounded_in_bytes_and_mixes_widely(shards, monkeypatch):
    size = sum(tf.io.gfile.stat(path).length for path in shards)
    assert records.default_shuffle_buffer(shards, COUNTS) == 256 * 2**20 * TOTAL // size
    monkeypatch.setattr(records, "SHUFFLE_BUFFER_BYTES", size // 2)
    assert records.default_shuffle_buffer(shards, COUNTS) == TOTAL // 2


def test_windows_are_permuted_shards(shards):
    # A buffer of one record shows the interleaving: a record of each file of the window in turn.
    stream = [record for _, record, _ in take(shards, TOTAL, shuffle_buffer=1, cycle_length=5)]
    order = [shard for shard in dict.fromkeys(record >> 32 for record in stream)]
    expected = [
        shard * 2**32 + k for k in range(max(COUNTS)) for shard in order if k < COUNTS[shard]
    ]
    assert stream == expected
    assert np.bincount([record >> 32 for record in stream], minlength=5).tolist() == COUNTS
