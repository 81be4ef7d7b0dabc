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
