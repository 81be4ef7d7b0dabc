"""Pickles of Detectron2's model zoo are read, and none is executed."""

import os
import pickle
from collections import OrderedDict

import numpy as np
import pytest

from tpudet.trainkit.weights.read import read_weights
from tpudet.trainkit.weights.stored_weights import WeightsError

KERNEL = np.arange(24, dtype=np.float32).reshape(2, 3, 2, 2)


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_arrays_under_model_are_read(protocol, tmp_path):
    path = tmp_path / "model_final.pkl"
    half = KERNEL.astype(np.float16).transpose(1, 0, 2, 3)  # in the order of Fortran or not
    content = {
        "model": OrderedDict({"conv.weight": KERNEL, "half": half, "step": 3}),
        "__author__": "Detectron2 Model Zoo",
    }
    path.write_bytes(pickle.dumps(content, protocol=protocol))
    stored = read_weights(str(path))
    assert list(stored.tensors) == ["conv.weight", "half"]
    np.testing.assert_array_equal(stored.tensors["conv.weight"], KERNEL)
    np.testing.assert_array_equal(stored.tensors["half"], half)
    assert stored.format == "Detectron2, .pkl"
    assert stored.notes == (
        "of 'model'; left out beside it: '__author__'",
        "1 entries that are no arrays left out",
    )


@pytest.mark.parametrize(
    ("author", "inputs_of_a_group", "variant"),
    [("torchvision", 64, "torchvision"), ("Caffe2", 64, ""), ("Caffe2", 8, "ResNeXt")],
)
def test_whose_network_it_is(author, inputs_of_a_group, variant, tmp_path):
    path, name = tmp_path / "R.pkl", "backbone.bottom_up.res2.0.conv2.weight"
    kernel = np.zeros((64, inputs_of_a_group, 3, 3), np.float32)
    path.write_bytes(pickle.dumps({"model": {name: kernel}, "__author__": author}))
    assert read_weights(str(path)).variant == variant


def test_a_dictionary_of_python_2_is_read(tmp_path):
    """Its arrays are text in Latin-1, as in the ResNets of Caffe2 that Detectron2 starts from."""
    path = tmp_path / "R-50.pkl"
    # Written by hand: `{'a': array([1, 2], dtype='<f4')}` of Python 2, protocol 2.
    values = np.array([1.0, 2.0], np.float32).tobytes()
    path.write_bytes(
        b"\x80\x02}U\x01acnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85U\x01b\x87R"
        b"(K\x01K\x02\x85cnumpy\ndtype\nU\x02f4K\x00K\x01\x87R(K\x03U\x01<NNNJ\xff\xff\xff\xff"
        b"J\xff\xff\xff\xffK\x00tb\x89U" + bytes([len(values)]) + values + b"tbs."
    )
    np.testing.assert_array_equal(read_weights(str(path)).tensors["a"], [1.0, 2.0])


class Command:
    """Pickled as a call."""

    def __init__(self, command):
        self.command = command

    def __reduce__(self):
        return os.system, (self.command,)


def test_a_call_is_refused_and_not_made(tmp_path):
    path, made = tmp_path / "model.pkl", tmp_path / "made"
    content = {"model": {"conv.weight": KERNEL, "other": Command(f"touch {made}")}}
    path.write_bytes(pickle.dumps(content))
    with pytest.raises(WeightsError, match=r"model.pkl: refused, because it needs posix.system"):
        read_weights(str(path))
    assert not made.exists()


def test_damaged_and_other_pickles(tmp_path):
    path = tmp_path / "model.pkl"
    whole = pickle.dumps({"model": {"conv.weight": KERNEL}})
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(WeightsError, match="is cut off or damaged"):
        read_weights(str(path))
    for content in ({"model": {"epoch": 3}}, [1, 2], {"model": {}}):
        path.write_bytes(pickle.dumps(content))
        with pytest.raises(WeightsError, match="is a pickle without weights"):
            read_weights(str(path))
