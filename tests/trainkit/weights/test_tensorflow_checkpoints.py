"""Checkpoints of TF1 (by name), of TF2 (objects) and tpudet's own, by prefix and by folder."""

import shutil
from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf

from tpudet.trainkit.training.checkpoints import Checkpoints
from tpudet.trainkit.weights.read import read_weights
from tpudet.trainkit.weights.stored_weights import WeightsError
from tpudet.trainkit.weights.tensorflow_checkpoints import find_checkpoint

KERNEL = np.arange(6, dtype="float32").reshape(1, 1, 2, 3)


def write_tf1(prefix: str, *, version: int = tf.compat.v1.train.SaverDef.V2) -> np.ndarray:
    """Trains one step of momentum with moving averages as TF1 programs did; returns the average."""
    v1 = tf.compat.v1
    with tf.Graph().as_default(), v1.Session() as session:
        step = v1.train.get_or_create_global_step()
        with v1.variable_scope("resnet50"):
            kernel = v1.get_variable("conv2d/kernel", initializer=KERNEL)
            v1.get_variable("batch_normalization/moving_mean", initializer=[1.0, 2.0, 3.0])
        loss = tf.reduce_sum(kernel)
        train = v1.train.MomentumOptimizer(1.0, 0.9).minimize(
            loss, global_step=step, var_list=[kernel]
        )
        v1.train.AdamOptimizer().minimize(loss, var_list=[kernel])
        average = tf.train.ExponentialMovingAverage(0.5)
        with tf.control_dependencies([train]):
            update = average.apply([kernel])
        session.run(v1.global_variables_initializer())
        session.run(update)
        v1.train.Saver(write_version=version).save(session, prefix, write_meta_graph=False)
        return session.run(average.average(kernel))


def test_tf1_gives_variables_without_slots_and_prefers_the_averages(tmp_path: Path) -> None:
    write_tf1(f"{tmp_path}/model.ckpt-1")
    averaged = read_weights(f"{tmp_path}/model.ckpt-1")
    trained = read_weights(f"{tmp_path}/model.ckpt-1", prefer_averages=False)
    names = {"resnet50/conv2d/kernel", "resnet50/batch_normalization/moving_mean"}
    assert averaged.format == trained.format == "TensorFlow, by name"
    assert set(averaged.tensors) == set(trained.tensors) == names
    # One step of size 1 down a gradient of 1; half of the average is still the initial kernel.
    np.testing.assert_array_equal(trained.tensors["resnet50/conv2d/kernel"], KERNEL - 1)
    np.testing.assert_array_equal(averaged.tensors["resnet50/conv2d/kernel"], KERNEL - 0.5)
    assert averaged.tensors["resnet50/batch_normalization/moving_mean"].tolist() == [1, 2, 3]
    # Momentum, Adam's two slots and two powers, and the step.
    assert averaged.notes == (
        "moving averages taken for 1 of 2 tensors",
        "6 tensors left out: optimizer, counters or second copies",
    )


@pytest.mark.parametrize(
    "named", ["model.ckpt-1", "model.ckpt-1.index", "model.ckpt-1.data-00000-of-00001", ""]
)
def test_the_prefix_each_of_its_files_and_the_folder_mean_the_same(
    named: str, tmp_path: Path
) -> None:
    write_tf1(f"{tmp_path}/model.ckpt-1")
    tensors = read_weights(f"{tmp_path}/{named}").tensors
    np.testing.assert_array_equal(tensors["resnet50/conv2d/kernel"], KERNEL - 0.5)


def test_one_file_of_the_time_before_tensorflow_1(tmp_path: Path) -> None:
    write_tf1(f"{tmp_path}/vgg.ckpt", version=tf.compat.v1.train.SaverDef.V1)
    assert (tmp_path / "vgg.ckpt").is_file()
    tensors = read_weights(f"{tmp_path}/vgg.ckpt").tensors
    np.testing.assert_array_equal(tensors["resnet50/conv2d/kernel"], KERNEL - 0.5)


def test_a_folder_that_was_moved_gives_its_newest_checkpoint(tmp_path: Path) -> None:
    for number in (1, 2):
        tf.train.Checkpoint(w=tf.Variable(tf.constant(float(number)))).write(
            f"{tmp_path}/model.ckpt-{number}"
        )
    with pytest.raises(WeightsError, match="holds 2 checkpoints.*model.ckpt-1, model.ckpt-2"):
        read_weights(str(tmp_path))
    pointer = 'model_checkpoint_path: "/where/it/was/written/model.ckpt-2"\n'
    (tmp_path / "checkpoint").write_text(pointer)
    assert read_weights(str(tmp_path)).tensors["w"] == 2


@pytest.fixture(scope="module")
def network() -> keras.Model:
    inputs = keras.Input((4, 4, 3))
    x = keras.layers.Conv2D(2, 3, name="conv1_conv")(inputs)
    return keras.Model(inputs, keras.layers.BatchNormalization(name="conv1_bn")(x))


def test_tf2_objects_go_by_their_path_or_where_that_is_numbers_by_name(
    network: keras.Model, tmp_path: Path
) -> None:
    optimizer = keras.optimizers.Adam()
    optimizer.build(network.trainable_variables)
    extra = {"fpn/l3.bias": tf.Variable(tf.constant([1.0, 2.0]), name="anything")}
    checkpoint = tf.train.Checkpoint(model=network, optimizer=optimizer, neck=extra)
    stored = read_weights(checkpoint.save(f"{tmp_path}/ckpt"))
    assert stored.format == "TensorFlow, objects"
    paths = {variable.path for variable in network.variables}
    assert len(paths) == 6
    assert set(stored.tensors) == paths | {"neck/fpn/l3.bias"}
    for variable in network.variables:
        np.testing.assert_array_equal(stored.tensors[variable.path], variable.numpy())


def test_an_exported_model_is_read_once(network: keras.Model, tmp_path: Path) -> None:
    network.export(str(tmp_path / "exported"), verbose=False)
    stored = read_weights(str(tmp_path / "exported"))
    assert set(stored.tensors) == {variable.path for variable in network.variables}


@pytest.mark.parametrize("folder", ["", "ram://"])
def test_our_own_checkpoint_gives_averages_and_no_optimizer(folder: str, tmp_path: Path) -> None:
    state = {
        "backbone/stem/conv/kernel": KERNEL,
        "ema/backbone/stem/conv/kernel": KERNEL + 1,
        "backbone/drop_connect_seed": np.array([1, 2], np.int32),
        "optimizer/momentum/backbone/stem/conv/kernel": KERNEL,
        "global_step": np.array(500),
        "records_consumed": np.array(4000),
    }
    directory = f"{folder}{tmp_path}"
    checkpoints = Checkpoints(directory, keep=1)
    checkpoints.prepare()
    saved = checkpoints.save(state)
    checkpoints.wait()
    for path in (directory, saved.prefix):
        stored = read_weights(path)
        assert stored.format == "TensorFlow, of tpudet"
        assert set(stored.tensors) == {"backbone/stem/conv/kernel", "backbone/drop_connect_seed"}
        np.testing.assert_array_equal(stored.tensors["backbone/stem/conv/kernel"], KERNEL + 1)
        assert stored.notes[0] == "moving averages taken for 1 of 2 tensors"
    trained = read_weights(saved.prefix, prefer_averages=False).tensors
    np.testing.assert_array_equal(trained["backbone/stem/conv/kernel"], KERNEL)


@pytest.mark.parametrize("suffix", [".index", ".data-00000-of-00001"])
@pytest.mark.parametrize("damage", ["cut", "remove"])
def test_a_torn_checkpoint_is_an_error_in_words(suffix: str, damage: str, tmp_path: Path) -> None:
    write_tf1(f"{tmp_path}/model.ckpt-1")
    file = tmp_path / f"model.ckpt-1{suffix}"
    if damage == "cut":
        file.write_bytes(file.read_bytes()[:20])
    else:
        file.unlink()
    with pytest.raises(WeightsError, match="model.ckpt-1"):
        list(read_weights(f"{tmp_path}/model.ckpt-1").tensors.values())


def test_missing_and_unknown_files_are_errors_with_the_names_nearby(tmp_path: Path) -> None:
    shutil.copy(__file__, tmp_path / "resnet50.h5")
    (tmp_path / "empty.pth").touch()
    with pytest.raises(
        WeightsError, match=r"no such file or checkpoint; in .* there is resnet50.h5"
    ):
        read_weights(str(tmp_path / "resnet5.h5"))
    with pytest.raises(WeightsError, match=r"resnet50.h5 is not a known file.*\.safetensors"):
        read_weights(str(tmp_path / "resnet50.h5"))
    with pytest.raises(WeightsError, match="it is empty"):
        read_weights(str(tmp_path / "empty.pth"))
    with pytest.raises(WeightsError, match="without a checkpoint.*empty.pth, resnet50.h5"):
        read_weights(str(tmp_path))
    with pytest.raises(WeightsError, match="the folder is missing or empty"):
        read_weights(str(tmp_path / "nowhere/resnet50.h5"))


def test_the_newest_of_a_run_is_found_beside_a_pointer_one_save_old(tmp_path: Path) -> None:
    """As a kill leaves it between the checkpoint and the file that names it."""
    checkpoints = Checkpoints(str(tmp_path), keep=2)
    for step in (90, 100):
        pointer = tmp_path / "checkpoint"
        before = pointer.read_text() if pointer.exists() else ""
        counters = {"global_step": np.asarray(step), "records_consumed": np.asarray(step)}
        checkpoints.save({"weight": np.full(2, float(step))} | counters)
        checkpoints.wait()
    pointer.write_text(before)
    assert find_checkpoint(str(tmp_path)) == str(tmp_path / "model.ckpt-100")
    (tmp_path / "model.ckpt-100.index").write_bytes(b"torn")
    assert find_checkpoint(str(tmp_path)) == str(tmp_path / "model.ckpt-90")
