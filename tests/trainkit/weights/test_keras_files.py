"""Every layout of Keras' files gives the same names: those of the layers and their variables."""

import io
import shutil
import zipfile
from collections.abc import Callable
from pathlib import Path

import h5py
import keras
import numpy as np
import pytest
import tensorflow as tf

from tpudet.trainkit.weights.read import read_weights
from tpudet.trainkit.weights.stored_weights import WeightsError

# Keras' own saving calls np.array on TensorFlow's tensors.
pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")

LAYOUTS = {
    "net.weights.h5": "Keras, .weights.h5",
    "net.keras": "Keras, .keras",
    "net.h5": "Keras, legacy .h5",
}


@pytest.fixture(scope="module")
def network() -> keras.Model:
    """A network with an optimizer and with a part inside it; every number random."""
    images = keras.Input((8, 8, 3))
    x = keras.layers.Normalization(name="scale")(images)
    x = keras.layers.Conv2D(4, 3, name="conv1_conv")(x)
    x = keras.layers.BatchNormalization(name="conv1_bn")(x)
    x = keras.layers.DepthwiseConv2D(3, use_bias=False, name="dwconv")(x)
    x = keras.Sequential([keras.layers.Dense(3, name=n) for n in ("d1", "d2")], name="top")(x)
    model = keras.Model(images, x)
    model.compile("adam", "mse")
    model.optimizer.build(model.trainable_variables)
    generator = np.random.default_rng(0)
    for variable in model.variables:
        if variable.dtype == "float32":
            variable.assign(generator.normal(size=variable.shape))
    return model


@pytest.fixture(scope="module")
def saved(network: keras.Model, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("keras")
    network.save_weights(folder / "net.weights.h5")
    network.save(folder / "net.keras")
    network.save(folder / "net.h5")
    return folder


@pytest.mark.parametrize("name", LAYOUTS)
def test_names_are_the_variables_paths_and_values_are_theirs(
    name: str, saved: Path, network: keras.Model
) -> None:
    stored = read_weights(str(saved / name))
    assert stored.format == LAYOUTS[name]
    assert stored.notes == ("the optimizer's variables left out",)
    assert set(stored.tensors) == {variable.path for variable in network.variables}
    assert len(stored.tensors) == 14
    for variable in network.variables:
        np.testing.assert_array_equal(stored.tensors[variable.path], variable.numpy())


@pytest.mark.parametrize("name", LAYOUTS)
def test_a_bucket_path_reads_like_a_local_one(name: str, saved: Path) -> None:
    tf.io.gfile.copy(str(saved / name), f"ram://keras/{name}", overwrite=True)
    kernel = read_weights(f"ram://keras/{name}").tensors["top/d2/kernel"]
    np.testing.assert_array_equal(kernel, read_weights(str(saved / name)).tensors["top/d2/kernel"])


def test_layers_of_one_name_in_two_parts_stay_apart(tmp_path: Path) -> None:
    inputs = keras.Input((2,))
    parts = [keras.Sequential([keras.layers.Dense(2, name="fc")], name=n) for n in ("a", "b")]
    model = keras.Model(inputs, parts[1](parts[0](inputs)))
    for layout in LAYOUTS:
        if layout.endswith(".weights.h5"):
            model.save_weights(tmp_path / layout)
        else:
            model.save(tmp_path / layout)
        names = set(read_weights(str(tmp_path / layout)).tensors)
        assert names == {"a/fc/kernel", "a/fc/bias", "b/fc/kernel", "b/fc/bias"}


def test_bfloat16_is_read_as_such(tmp_path: Path) -> None:
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1, dtype="bfloat16", name="d")])
    model.layers[0].kernel.assign([[1.5], [-3.140625]])
    model.save_weights(tmp_path / "a.weights.h5")
    kernel = read_weights(str(tmp_path / "a.weights.h5")).tensors["d/kernel"]
    assert kernel.dtype.name == "bfloat16"
    assert kernel.astype("float32").tolist() == [[1.5], [-3.140625]]


def write_as_tf_keras(path: Path) -> None:
    """As tf.keras 2 wrote the published files: bytes, `:0`, and names split over attributes."""
    with h5py.File(path, "w") as file:
        file.attrs["layer_names0"] = [b"input_1", b"conv1"]
        file.attrs["layer_names1"] = [b"bn", b"bn_1"]
        file.create_group("input_1").attrs["weight_names"] = np.zeros(0)
        for layer, weight in (("conv1", b"conv1/kernel:0"), ("bn", b"x:0"), ("bn_1", b"x:0")):
            group = file.create_group(layer)
            group.attrs["weight_names"] = [weight]
            group[weight.decode()] = np.full(2, len(layer), "float32")


def test_the_legacy_layout_of_tf_keras(tmp_path: Path) -> None:
    write_as_tf_keras(tmp_path / "notop.h5")
    tensors = read_weights(str(tmp_path / "notop.h5")).tensors
    values = {name: array.tolist() for name, array in tensors.items()}
    assert values == {"conv1/kernel": [5, 5], "bn/x": [2, 2], "bn_1/x": [4, 4]}


def cut_in_half(data: bytes) -> bytes:
    return data[: len(data) // 2]


def only_the_start(data: bytes) -> bytes:
    return data[:64]


@pytest.mark.parametrize("damage", [cut_in_half, only_the_start])
@pytest.mark.parametrize("name", LAYOUTS)
def test_a_cut_off_file_is_an_error_in_words(
    damage: Callable[[bytes], bytes], name: str, saved: Path, tmp_path: Path
) -> None:
    (tmp_path / name).write_bytes(damage((saved / name).read_bytes()))
    with pytest.raises(WeightsError, match=rf"{name} is (damaged|cut off).*Fetch it again"):
        read_weights(str(tmp_path / name))


@pytest.mark.parametrize("name", LAYOUTS)
def test_a_changed_byte_is_read_or_refused_but_never_a_crash(
    name: str, saved: Path, tmp_path: Path
) -> None:
    data, path = (saved / name).read_bytes(), tmp_path / name
    refused = 0
    for place in range(0, len(data), len(data) // 150):
        path.write_bytes(data[:place] + bytes([data[place] ^ 0x55]) + data[place + 1 :])
        try:
            assert all(a.dtype.kind in "fi" for a in read_weights(str(path)).tensors.values())
        except WeightsError:
            refused += 1
    assert refused > 5


def dataset_for_variables(file: h5py.File) -> None:
    file["layers/conv2d/vars"] = np.zeros(3)


def group_for_a_variable(file: h5py.File) -> None:
    file.create_group("layers/conv2d/vars/0")


def number_for_the_names(file: h5py.File) -> None:
    file.attrs["layer_names"] = 5


def name_of_no_layer(file: h5py.File) -> None:
    file.attrs["layer_names"] = ["a", "b"]
    file.create_group("a").attrs["weight_names"] = ["a/kernel"]


def group_for_a_weight(file: h5py.File) -> None:
    file.attrs["layer_names"] = ["a"]
    file.create_group("a/a/kernel/x")
    file["a"].attrs["weight_names"] = ["a/kernel"]


def text_for_a_weight(file: h5py.File) -> None:
    file.attrs["layer_names"] = ["a"]
    file["a/a/kernel"] = np.array([b"text"])
    file["a"].attrs["weight_names"] = ["a/kernel"]


def another_type_than_is_said(file: h5py.File) -> None:
    file["layers/conv2d/vars/0"] = np.float32(3)
    file["layers/conv2d/vars"].attrs["name"] = "conv1"
    file["layers/conv2d/vars/0"].attrs["dtype"] = "bfloat16"


def number_for_a_layers_name(file: h5py.File) -> None:
    file["layers/conv2d/vars/0"] = np.zeros(3)
    file["layers/conv2d/vars"].attrs["name"] = 5


@pytest.mark.parametrize(
    "damage",
    [
        dataset_for_variables,
        group_for_a_variable,
        number_for_the_names,
        name_of_no_layer,
        group_for_a_weight,
        text_for_a_weight,
        another_type_than_is_said,
        number_for_a_layers_name,
    ],
)
def test_a_file_built_otherwise_is_an_error_in_words(
    damage: Callable[[h5py.File], None], tmp_path: Path
) -> None:
    with h5py.File(tmp_path / "a.h5", "w") as file:
        damage(file)
    with pytest.raises(WeightsError, match="a.h5 is damaged or cut off"):
        list(read_weights(str(tmp_path / "a.h5")).tensors.values())


@pytest.mark.parametrize("name", ["net.weights.h5", "net.keras"])
def test_layers_without_names_are_refused_for_they_would_pass_for_tensorflow_1(
    name: str, saved: Path, tmp_path: Path
) -> None:
    """As Keras wrote them before it added names: `layers/conv2d_9`, numbered by kind."""
    shutil.copy(saved / name, tmp_path / name)
    content = io.BytesIO()
    if name.endswith(".keras"):
        content.write(zipfile.ZipFile(saved / name).read("model.weights.h5"))
    with h5py.File(content if name.endswith(".keras") else tmp_path / name, "r+") as file:
        file.visititems(lambda place, item: item.attrs.pop("name", None) and None)
    if name.endswith(".keras"):
        with zipfile.ZipFile(tmp_path / name, "w") as archive:
            archive.writestr("model.weights.h5", content.getvalue())
    with pytest.raises(WeightsError, match=rf"{name} does not store the names of its layers"):
        read_weights(str(tmp_path / name))


def test_an_hdf5_file_without_weights_says_what_it_holds(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["counts"] = [1, 2]
    with pytest.raises(WeightsError, match="without weights of Keras; it holds counts"):
        read_weights(str(tmp_path / "a.h5"))
