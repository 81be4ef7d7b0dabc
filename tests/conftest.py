"""One TensorFlow import a process, two logical CPU devices, and the real data when it is there."""

import os
from collections.abc import Iterator
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("KERAS_BACKEND", "tensorflow")

import pytest
import tensorflow as tf

tf.config.set_logical_device_configuration(
    tf.config.list_physical_devices("CPU")[0], [tf.config.LogicalDeviceConfiguration()] * 2
)


@pytest.fixture(scope="session")
def data_dir() -> Path:
    """The real data sets, where TPUDET_TEST_DATA says; skips the test where it is unset."""
    folder = os.environ.get("TPUDET_TEST_DATA")
    if not folder:
        pytest.skip("TPUDET_TEST_DATA is not set: real-data test")
    return Path(folder)


@pytest.fixture(autouse=True)
def _no_leftover_precision() -> Iterator[None]:
    """A test that sets a global Keras precision must not change the ones after it."""
    yield
    import keras

    keras.config.set_dtype_policy("float32")


@pytest.fixture(scope="session")
def sample_part(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A converted part of 16 training and 4 validation images, drawn by the project itself."""
    from detection.preparation.make_tfrecords import main as make_tfrecords
    from detection.preparation.sample_set import write_sample_set

    folder = tmp_path_factory.mktemp("sample")
    write_sample_set(str(folder), num_images=20, seed=1)
    part = folder / "converted/tiny"
    for split in ("train", "val"):
        source = ["--annotations", f"{folder}/{split}_boxes.csv", "--images", f"{folder}/{split}"]
        source += ["--format", "open_images", "--include_unlabeled", "--workers", "1"]
        source += ["--classes", f"{folder}/classes.csv", "--split", split, "--output", str(part)]
        assert make_tfrecords([*source, "--num_shards", "2"]) == 0
    return str(part)
