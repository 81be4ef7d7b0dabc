"""Compiles small tasks for a v5e-1 and prints the events; needs libtpu, runs on its own."""

import json
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import keras
import numpy as np

from tpudet.trainkit.training.config import MomentumConfig, TrainConfig
from tpudet.trainkit.training.tpu_machines import find_machine
from tpudet.trainkit.training.tpu_topology import (
    compile_traced,
    lower_prediction,
    lower_training,
    topology_devices,
    without_values,
)


class Batch(NamedTuple):
    images: Any


class Eigenvalues(keras.layers.Layer):
    """An operation that no TPU has."""

    def call(self, inputs: Any) -> Any:
        matrix = jnp.ones([3, 3]) * jax.lax.stop_gradient(jnp.mean(inputs))
        return inputs + jnp.real(jnp.linalg.eig(matrix)[0][0])


class Task:
    """The mean square of a convolution's means, times a matrix of `width` columns."""

    def __init__(self, *, width: int, unsupported: bool) -> None:
        inputs = keras.Input((32, 32, 3))
        features = keras.layers.Conv2D(8, 3, name="stem")(inputs)
        if unsupported:
            features = Eigenvalues(name="spectrum")(features)
        features = keras.layers.GlobalAveragePooling2D()(features)
        outputs = keras.layers.Dense(width, name="dense")(features)
        self.model = keras.Model(inputs, outputs, name="net")

    def losses(self, batch: Batch) -> dict[str, Any]:
        return {"loss": jnp.mean(jnp.square(self.predict(batch)))}

    def predict(self, batch: Batch) -> Any:
        return self.model(jnp.asarray(batch.images, "float32") / 255.0)


def main() -> None:
    devices = topology_devices(find_machine("v5e-1"))
    train = TrainConfig(batch_size=8, optimizer=MomentumConfig(), ema_decay=0.9)
    batch = Batch(np.zeros([8, 32, 32, 3], np.uint8))
    for width, unsupported in ((8, False), (1 << 28, False), (8, True)):
        with without_values():
            task = Task(width=width, unsupported=unsupported)
        event = compile_traced(
            "train",
            lambda task=task: lower_training(task, train, devices, batch),
            batch,
            devices,
        )
        print(json.dumps(event), flush=True)
    with without_values():
        task = Task(width=8, unsupported=False)
    event = compile_traced(
        "evaluate", lambda: lower_prediction(task, devices, batch), batch, devices
    )
    print(json.dumps(event), flush=True)


if __name__ == "__main__":
    main()
