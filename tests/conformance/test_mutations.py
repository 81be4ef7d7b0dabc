"""Damage is a function of the seed alone, and each way of it changes something."""

import runpy
from pathlib import Path
from random import Random

import pytest
import tensorflow as tf

MUTATIONS = runpy.run_path(str(Path(__file__).with_name("mutations.py")))
SAMPLES = {
    "BINARY": bytes(range(256)) * 4,
    "TEXT": b"image,label,x\na,/m/01,0.5\nb,/m/02,0.25\n" * 5,
    "JSON": b'{"images": [{"id": 1, "size": [3, 4]},\n {"id": 2, "size": [5, 6]}], "name": "x"}',
}


@pytest.mark.parametrize(
    ("kind", "mutation"),
    [(kind, mutation) for kind in SAMPLES for mutation in dict.fromkeys(MUTATIONS[kind])],
    ids=lambda value: getattr(value, "__name__", value),
)
def test_a_mutation_changes_the_bytes_and_can_be_repeated(kind: str, mutation) -> None:
    data = SAMPLES[kind]
    found = [mutation(data, Random(seed)) for seed in range(20)]
    assert found == [mutation(data, Random(seed)) for seed in range(20)]
    assert sum(damaged != data for damaged in found) >= 10
    assert len(set(found)) >= 4


def test_a_damaged_record_still_has_its_check_sums(tmp_path: Path) -> None:
    path = tmp_path / "a.tfrecord"
    records = [Random(number).randbytes(50) for number in range(5)]
    with tf.io.TFRecordWriter(str(path)) as writer:
        for record in records:
            writer.write(record)
    data = path.read_bytes()
    changed = 0
    for seed in range(30):
        path.write_bytes(MUTATIONS["_change_payload"](data, Random(seed)))
        found = [item.numpy() for item in tf.data.TFRecordDataset(str(path))]
        changed += found != records
    assert changed >= 25  # a block that is swapped with nothing leaves the record as it was
