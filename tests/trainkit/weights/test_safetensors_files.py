"""Safetensors files; samples/write_samples.py wrote one with the format's own package."""

import json
from pathlib import Path

import numpy as np
import pytest

from trainkit.weights.errors import WeightsError
from trainkit.weights.read import read_weights

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
    ],
)
def test_a_wrong_entry_is_named(entry: object, said: str, tmp_path: Path) -> None:
    path = write(tmp_path / "a.safetensors", {"w": entry}, bytes(8))
    with pytest.raises(WeightsError, match=said):
        read_weights(path)


@pytest.mark.parametrize("header", [["w"], {}])
def test_a_header_without_tensors_is_refused(header: object, tmp_path: Path) -> None:
    path = write(tmp_path / "a.safetensors", header, b"")
    with pytest.raises(WeightsError, match="a.safetensors"):
        read_weights(path)
