"""The index of a bundle: read as TensorFlow reads it, and refused where TensorFlow would abort."""

import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import crc32c
import numpy as np
import pytest
import tensorflow as tf
from tensorflow.core.framework import types_pb2
from tensorflow.core.framework.tensor_slice_pb2 import TensorSliceProto
from tensorflow.core.protobuf.tensor_bundle_pb2 import BundleEntryProto, BundleHeaderProto
from tensorflow.core.util.saved_tensor_slice_pb2 import SavedTensorSlices

from tpudet.trainkit.weights.bundle_index import check_index, read_entries
from tpudet.trainkit.weights.tensor_bundle import UnreadableCheckpointError, open_bundle


def test_every_key_that_tensorflow_writes_is_read(tmp_path: Path) -> None:
    """20,000 keys, of several blocks, and every kind of tensor; a part of a tensor, too."""
    many = {f"layer_{i}/block_{i % 7}/a_long_name_{i}": np.float32(i) for i in range(20_000)}
    kinds = {
        "texts": np.array(["a", "", "bc" * 200]),
        "text": np.array("a"),
        "none": np.zeros((0, 3), np.float32),
        "bfloat16": tf.zeros((2, 3), tf.bfloat16),
        "complex": np.zeros(3, np.complex64),
        "flags": np.array([True]),
    }
    for name, tensors in (("many", many), ("kinds", kinds)):
        prefix = str(tmp_path / name)
        tf.raw_ops.SaveV2(
            prefix=prefix,
            tensor_names=list(tensors),
            shape_and_slices=[""] * len(tensors),
            tensors=list(tensors.values()),
        )
        check_index(prefix, f"{prefix}.index")
        keys = [key.decode() for key, _ in read_entries(Path(f"{prefix}.index").read_bytes())]
        assert keys == ["", *sorted(tensors)]
    prefix = str(tmp_path / "parts")
    parts = ["4 3 0,2:-", "4 3 2,2:-"]
    halves = [np.ones((2, 3), np.float32)] * 2
    tf.raw_ops.SaveV2(prefix=prefix, tensor_names=["x"] * 2, shape_and_slices=parts, tensors=halves)
    np.testing.assert_array_equal(open_bundle(prefix).get_tensor("x"), np.ones((4, 3)))


def varint(number: int) -> bytes:
    low = bytes([number & 127 | (128 if number > 127 else 0)])
    return low if number < 128 else low + varint(number >> 7)


def block(pairs: list[tuple[bytes, bytes]], restarts: list[int] | None = None) -> bytes:
    """A block in which each key stands whole, as LevelDB's description has it."""
    content, starts = b"", []
    for key, value in pairs:
        starts.append(len(content))
        content += b"\0" + varint(len(key)) + varint(len(value)) + key + value
    starts = restarts or starts or [0]
    return content + struct.pack(f"<{len(starts) + 1}I", *starts, len(starts))


def table_of(pairs: list[tuple[bytes, bytes]], restarts: list[int] | None = None) -> bytes:
    """A table of one block, with right checksums."""
    table = b""

    def add(content: bytes) -> bytes:
        nonlocal table
        handle = varint(len(table)) + varint(len(content))
        checksum = crc32c.crc32c(content + b"\0")
        masked = ((checksum >> 15 | checksum << 17) + 0xA282EAD8) % (1 << 32)
        table += content + b"\0" + struct.pack("<I", masked)
        return handle

    first = add(block(pairs, restarts))
    properties = add(block([]))
    footer = properties + add(block([(pairs[-1][0] + b"\xff", first)]))
    return table + footer.ljust(40, b"\0") + bytes.fromhex("57fb808b247547db")


def write_bundle(
    prefix: Path, entries: dict[str, BundleEntryProto], restarts: list[int] | None = None
) -> str:
    """Writes a bundle of 64 zeros."""
    header = BundleHeaderProto(num_shards=1)
    header.version.producer = 1
    values = sorted((key.encode(), entry.SerializeToString()) for key, entry in entries.items())
    pairs = [(b"", header.SerializeToString()), *values]
    Path(f"{prefix}.index").write_bytes(table_of(pairs, restarts))
    Path(f"{prefix}.data-00000-of-00001").write_bytes(bytes(64))
    return str(prefix)


def entry(*shape: int, size: int, kind: Any = types_pb2.DT_FLOAT) -> BundleEntryProto:
    made = BundleEntryProto(dtype=kind, size=size)
    for side in shape:
        made.shape.dim.add(size=side)
    return made


_TEXT = types_pb2.DT_STRING
_REFUSED = {
    "negative": (entry(-5, -7, size=8), r"a tensor of shape \[-5, -7\]"),
    "huge": (entry(1 << 40, size=1 << 42), "4,398,046,511,104 bytes, of 64 stored"),
    "unlike": (entry(3, size=8), r"float32 of shape \[3\] in 8 bytes"),
    "texts": (entry(300_000_000, size=8, kind=_TEXT), "300,000,000 texts in 8 bytes"),
    "letters": (entry(size=8, kind=_TEXT), "strings of 0 letters in 8 bytes"),
    "kind": (entry(2, size=8, kind=9999), "damaged: TypeError"),
}


@pytest.mark.parametrize("name", _REFUSED)
def test_an_index_that_lies_is_refused_before_tensorflow_reads_it(
    name: str, tmp_path: Path
) -> None:
    """TensorFlow aborts the process at a negative size, and reserves what the index says."""
    made, message = _REFUSED[name]
    prefix = write_bundle(tmp_path / "a", {"x": made})
    with pytest.raises(UnreadableCheckpointError, match=rf"a\.index: it.*{message}"):
        open_bundle(prefix)


def test_a_sound_index_of_the_same_writer_is_read(tmp_path: Path) -> None:
    prefix = write_bundle(tmp_path / "a", {"x": entry(2, size=8), "y": entry(size=4)})
    assert open_bundle(prefix).get_variable_to_shape_map() == {"x": [2], "y": []}


def test_searches_find_what_reading_in_sequence_finds(tmp_path: Path) -> None:
    """A search begins at a restart: one inside a value would find another entry there."""
    prefix = write_bundle(tmp_path / "a", {"x": entry(2, size=8)}, [0, 5])
    with pytest.raises(UnreadableCheckpointError, match="can be read in two ways|is damaged"):
        open_bundle(prefix)


def test_every_bit_of_an_index_may_be_wrong(tmp_path: Path) -> None:
    prefix = write_bundle(tmp_path / "a", {"x": entry(2, size=8), "y": entry(size=4)})
    path = Path(f"{prefix}.index")
    sound, refused = path.read_bytes(), 0
    for number in range(0, 8 * len(sound), 3):
        data = bytearray(sound)
        data[number // 8] ^= 1 << number % 8
        path.write_bytes(bytes(data))
        try:
            open_bundle(prefix).get_variable_to_shape_map()
        except UnreadableCheckpointError:
            refused += 1
    assert refused > len(sound)


def single_file(path: Path, name: str, kind: int, *shape: int) -> None:
    """Writes a checkpoint of the time before TensorFlow 1, of one tensor without its values."""
    slices = SavedTensorSlices()
    slices.meta.versions.producer = 1
    tensor = slices.meta.tensor.add(name=name)
    tensor.MergeFromString(b"\x18" + bytes([kind]))  # past the setter, which checks it
    for side in shape:
        tensor.shape.dim.add(size=side)
    tensor.slice.add().extent.extend([TensorSliceProto.Extent()] * len(shape))
    path.write_bytes(table_of([(b"", slices.SerializeToString())]))


def test_a_single_file_with_a_type_that_does_not_exist(tmp_path: Path) -> None:
    single_file(tmp_path / "vgg.ckpt", "w", 1, 5)
    assert open_bundle(str(tmp_path / "vgg.ckpt")).get_variable_to_shape_map() == {"w": [5]}
    single_file(tmp_path / "vgg.ckpt", "w", 99, 5)
    with pytest.raises(UnreadableCheckpointError, match=r"vgg\.ckpt: 99 does not correspond"):
        open_bundle(str(tmp_path / "vgg.ckpt"))


@pytest.mark.parametrize("is_single", [False, True])
def test_the_object_graph_is_one_text(
    is_single: bool, tmp_path: Path, run_limited: Callable
) -> None:
    name, path = "_CHECKPOINTABLE_OBJECT_GRAPH", tmp_path / "a"
    if is_single:
        single_file(path, name, _TEXT, 300_000_000)
    else:
        write_bundle(path, {name: entry(40, size=44, kind=_TEXT)})
    said = run_limited("-m", "tpudet", "list_checkpoint", str(path))
    assert said.returncode == 2, said.stderr
    shape = "[300000000]" if is_single else "[40]"
    assert f"its list of objects is damaged: it has the shape {shape}" in said.stderr
