"""Safetensors files; samples/write_samples.py wrote one with the format's own package."""

import json
import os
from pathlib import Path

import numpy as np
import pytest

from tpudet.trainkit.weights.read import read_weights
from tpudet.trainkit.weights.stored_weights import ByteReader, WeightsError

SAMPLE = Path(__file__).parent / "samples/weights.safetensors"


def write(path: Path, header: object, data: bytes) -> str:
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + data)
    return str(path)


def test_the_same_tensors_as_in_the_pytorch_file() -> None:
    stored = read_weights(str(SAMPLE))
    torch = read_weights(str(SAMPLE.with_name("zip_format.pt"))).tensors
    assert stored.format == "safetensors"
    assert set(stored.tensors) == set(torch)
    for name, array in stored.tensors.items():
        assert array.dtype == torch[name].dtype
        np.testing.assert_array_equal(array, torch[name])


def test_a_file_written_by_hand(tmp_path: Path) -> None:
    header = {
        "__metadata__": {"format": "pt"},
        "b": {"dtype": "I16", "shape": [2, 1], "data_offsets": [4, 8]},
        "a": {"dtype": "F32", "shape": [], "data_offsets": [0, 4]},
    }
    path = write(tmp_path / "a.bin", header, np.float32(1.5).tobytes() + b"\x01\x00\xff\xff")
    tensors = read_weights(path).tensors
    assert {k: v.tolist() for k, v in tensors.items()} == {"b": [[1], [-1]], "a": 1.5}


def test_a_file_cut_off_after_its_header_was_read_is_an_error_in_words(tmp_path: Path) -> None:
    count = 1 << 20
    header = {"w": {"dtype": "U8", "shape": [count], "data_offsets": [0, count]}}
    path = write(tmp_path / "a.safetensors", header, bytes(count))
    tensors = read_weights(path).tensors
    os.truncate(path, 1000)
    with pytest.raises(WeightsError, match="a.safetensors was cut off while it was read"):
        tensors["w"]


def test_a_file_that_can_no_longer_be_read_is_an_error_in_words(tmp_path: Path) -> None:
    """As in a bucket that fails; a folder fails likewise."""
    with pytest.raises(WeightsError, match=f"{tmp_path} cannot be read"):
        ByteReader(str(tmp_path)).read(0, 1)


@pytest.mark.parametrize(
    ("entry", "said"),
    [
        ({"dtype": "F8_E4M3", "shape": [8], "data_offsets": [0, 8]}, "w is of type F8_E4M3"),
        ({"dtype": "F32", "shape": [3], "data_offsets": [0, 8]}, r"w, F32 of shape \[3\]"),
        ({"dtype": "F32", "shape": [-2], "data_offsets": [8, 0]}, r"w, F32 of shape \[-2\]"),
        ({"dtype": "F32", "shape": [4], "data_offsets": [0, 16]}, "is cut off"),
        ({"dtype": "F32", "shape": [2], "data_offsets": [0, "8"]}, "is damaged: w"),
        ({"dtype": ["F32"], "shape": [2], "data_offsets": [0, 8]}, "is damaged: w"),
        ({"dtype": "F32", "shape": [2]}, "is damaged: w"),
        (7, "is damaged: w"),
        ({"dtype": "F32", "shape": [0, 2**70], "data_offsets": [0, 0]}, "is damaged: w"),
        ({"dtype": "U8", "shape": [1] * 70 + [8], "data_offsets": [0, 8]}, "is damaged: w"),
    ],
)
def test_a_wrong_entry_is_named(entry: object, said: str, tmp_path: Path) -> None:
    path = write(tmp_path / "a.safetensors", {"w": entry}, bytes(8))
    with pytest.raises(WeightsError, match=said):
        read_weights(path)


@pytest.mark.parametrize(
    ("places", "said"),
    [
        ([(0, 4), (4, 8)], ""),
        ([(4, 8), (0, 4)], ""),
        ([(0, 8), (8, 8)], ""),
        ([(0, 8), (0, 0)], ""),
        ([(0, 8), (4, 8)], "t1 begins at byte 4, where the tensor before it ends at 8"),
        ([(0, 8), (0, 8)], "t1 begins at byte 0, where the tensor before it ends at 8"),
        ([(0, 2), (4, 8)], "t1 begins at byte 4, where the tensor before it ends at 2"),
        ([(2, 4), (4, 8)], "t0 begins at byte 2, where the tensor before it ends at 0"),
        ([(0, 4), (4, 6)], "2 of its bytes are no tensor's"),
    ],
)
def test_every_byte_is_of_one_tensor(places: list, said: str, tmp_path: Path) -> None:
    header = {
        f"t{number}": {"dtype": "U8", "shape": [end - first], "data_offsets": [first, end]}
        for number, (first, end) in enumerate(places)
    }
    path = write(tmp_path / "a.safetensors", header, bytes(range(8)))
    if said:
        with pytest.raises(WeightsError, match=f"a.safetensors is damaged: {said}"):
            read_weights(path)
    else:
        found = {name: array.tolist() for name, array in read_weights(path).tensors.items()}
        assert found == {f"t{number}": list(range(*place)) for number, place in enumerate(places)}


def test_a_header_nested_without_end_is_an_error_in_words(tmp_path: Path) -> None:
    text = b'{"a":' * 20_000
    path = tmp_path / "a.safetensors"
    path.write_bytes(len(text).to_bytes(8, "little") + text)
    with pytest.raises(WeightsError, match="its header is not a JSON object"):
        read_weights(str(path))


@pytest.mark.parametrize("header", [["w"], {}, 7])
def test_a_header_without_tensors_is_refused(header: object, tmp_path: Path) -> None:
    path = write(tmp_path / "a.safetensors", header, b"")
    with pytest.raises(WeightsError, match="a.safetensors"):
        read_weights(path)
