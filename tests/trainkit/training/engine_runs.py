"""Trains a small network with the engine of Keras' backend and prints what happened, as JSON.

A process has one backend, so JAX needs one of its own: `engine_runs.py FOLDER`. The initial weights
are `FOLDER/initial.npz`; they are written there where they are missing.
"""

import dataclasses
import json
import os
import sys
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import keras
import numpy as np
import tensorflow as tf

from tpudet.trainkit.backbones.batch_norm import BatchNorm
from tpudet.trainkit.backbones.drop_block import DropBlock
from tpudet.trainkit.keras_ops import ops
from tpudet.trainkit.records import without_tuning
from tpudet.trainkit.training.build_engine import build_engine, choose_devices
from tpudet.trainkit.training.config import MomentumConfig, StepScheduleConfig, TrainConfig
from tpudet.trainkit.training.engine import Engine

BATCH_SIZE = 8
NUM_RECORDS = 40
OTHER = "other.npz"  # the other engine's snapshot, where there is one
TRAIN = TrainConfig(
    batch_size=BATCH_SIZE,
    optimizer=MomentumConfig(weight_decay=1e-3),
    learning_rate=StepScheduleConfig(
        peak=0.02, drop_steps=(12,), drop_rates=(0.005,), warmup_steps=4
    ),
    gradient_clip_norm=1.5,
    ema_decay=0.9,
)


class Batch(NamedTuple):
    inputs: Any
    targets: Any
    records: Any
    unused: Any = None  # batches may have optional fields


class Regression:
    """The squared error of a small convolutional network.

    Its mean with BatchNorm; without, its sum over the number of positive targets plus 1.
    """

    def __init__(self, sum_over_replicas: Any, *, with_norm: bool) -> None:
        images = keras.Input((6, 6, 2))
        features: Any = keras.layers.Conv2D(4, 3, name="conv")(images)
        if with_norm:
            norm = BatchNorm(momentum=0.9, epsilon=1e-3, synchronized=True, name="norm")
            features = norm(features)
        # Draws random numbers, which advances its seed, but practically never drops anything.
        features = DropBlock(keep_prob=1 - 1e-9, size=1, schedule_steps=0, seed=3, name="drop")(
            features, training=True
        )
        features = keras.layers.GlobalAveragePooling2D()(keras.layers.Activation("relu")(features))
        self.model = keras.Model(images, keras.layers.Dense(1, name="dense")(features))
        self.sum_over_replicas = sum_over_replicas
        self.with_norm = with_norm

    def losses(self, batch: Batch) -> dict[str, Any]:
        outputs: Any = self.model(batch.inputs, training=True)
        errors: Any = ops.square(outputs[:, 0] - batch.targets)
        number = self.sum_over_replicas(ops.sum(ops.cast(batch.targets > 0, "float32")))
        loss = ops.sum(errors) / (BATCH_SIZE if self.with_norm else number + 1.0)
        return {"loss_square": loss, "loss": loss}

    def predict(self, batch: Batch) -> Batch:
        outputs: Any = self.model(batch.inputs)
        return Batch(outputs[:, 0], batch.targets, batch.records)


class Shares:
    """The share of each part of a batch in a count that the draws before it raise."""

    def __init__(self, sum_over_replicas: Any) -> None:
        images = keras.Input((6, 6, 2))
        self.drop = DropBlock(keep_prob=1 - 1e-9, size=1, schedule_steps=9, seed=3, name="drop")
        features: Any = keras.layers.GlobalAveragePooling2D()(self.drop(images, training=True))
        self.model = keras.Model(images, keras.layers.Dense(1, name="dense")(features))
        self.sum_over_replicas = sum_over_replicas

    def losses(self, batch: Batch) -> dict[str, Any]:
        count = ops.cast(self.drop.seed_generator.state[1] + 1, "float32")
        share = count / self.sum_over_replicas(count)
        return {"loss": share + 0.0 * ops.sum(self.model(batch.inputs, training=True))}

    def predict(self, batch: Batch) -> Batch:
        return batch


def data(
    start: int, spoiled: int | None = None, num_processes: int = 1, process_index: int = 0
) -> tf.data.Dataset:
    """Endless batches from record `start` on; the targets of one record may be NaN.

    With several processes each has its part of every batch.
    """
    generator = np.random.default_rng(0)
    inputs = generator.normal(size=(NUM_RECORDS, 6, 6, 2)).astype(np.float32)
    targets = generator.normal(size=NUM_RECORDS).astype(np.float32)
    if spoiled is not None:
        targets[spoiled] = np.nan
    columns = (inputs, targets, np.arange(NUM_RECORDS, dtype=np.int64) + (1 << 40))
    endless = tf.data.Dataset.from_tensor_slices(columns).map(Batch).repeat()
    own = endless.skip(start).shard(num_processes, process_index)
    return without_tuning(own.batch(BATCH_SIZE // num_processes, drop_remainder=True))


def build(
    weights: dict[str, np.ndarray] | None,
    spoiled: int | None = None,
    *,
    train: TrainConfig = TRAIN,
    with_norm: bool = True,
) -> tuple[Engine, Any]:
    devices = choose_devices(train)
    with devices.scope():
        keras.utils.set_random_seed(1)
        task = Regression(devices.sum_over_replicas, with_norm=with_norm)
        for variable in task.model.variables if weights else ():
            if weights and variable.path in weights:
                variable.assign(weights[variable.path])
    engine, _ = build_engine(
        task,
        train,
        devices=devices,
        make_dataset=lambda start: data(
            start, spoiled, devices.num_processes, devices.process_index
        ),
        record_numbers=lambda batch: batch.records,
    )
    return engine, task


def shares_of_parts() -> tuple[float, int]:
    """Returns the sum of the shares, and how often a drop's schedule advanced in two steps.

    There are as many parts as images on a device.
    """
    devices = choose_devices(TRAIN)
    engine, _ = build_engine(
        Shares(devices.sum_over_replicas),
        TrainConfig(
            batch_size=BATCH_SIZE,
            optimizer=MomentumConfig(weight_decay=0.0),
            accumulate_steps=BATCH_SIZE // devices.num_replicas,
        ),
        devices=devices,
        make_dataset=data,
        record_numbers=lambda batch: batch.records,
    )
    loss = engine.train(2).losses["loss"]
    return loss, int(engine.snapshot()["drop/calls"])


def compiled_for_snapshots() -> list[int]:
    """Returns how many programs each of two snapshots compiles where several hosts share a state.

    There is one host, which is taken for several; four devices divide most of the state.
    """
    import jax

    from tpudet.trainkit.training.jax_devices import JaxDevices

    train = dataclasses.replace(TRAIN, shard_state=True, num_devices=min(4, jax.device_count()))
    engine, _ = build(None, train=train)
    events: list[str] = []
    jax.monitoring.register_event_duration_secs_listener(
        lambda event, duration_secs, **about: events.append(event)
    )
    counts = []
    with mock.patch.object(JaxDevices, "num_processes", 2):
        for _ in range(2):
            events.clear()
            engine.snapshot()
            counts.append(events.count("/jax/core/compile/backend_compile_duration"))
    return counts


def save(path: Path, arrays: dict[str, Any]) -> None:
    np.savez(path, **arrays)


def continued_losses(folder: Path) -> list[float]:
    """Of the five steps after the other engine's snapshot."""
    engine, _ = build(dict(np.load(folder / "initial.npz")))
    engine.load(dict(np.load(folder / OTHER)))
    engine.restart_input()
    return [engine.train(1).losses["loss"] for _ in range(5)]


def main(folder: Path) -> dict[str, Any]:
    initial = folder / "initial.npz"
    if not initial.exists():
        engine, _ = build(None)
        save(initial, engine.snapshot())
    weights = dict(np.load(initial))
    engine, task = build(weights)
    reports = [engine.train(1) for _ in range(20)]
    final = engine.snapshot()

    halted, _ = build(weights)
    halted.train(7)
    resumed, _ = build(weights)
    resumed.load(halted.snapshot())
    resumed.restart_input()
    resumed.train(13)
    same = all(np.array_equal(final[key], value) for key, value in resumed.snapshot().items())

    save(folder / f"{keras.backend.backend()}.npz", halted.snapshot())

    spoiled, _ = build(weights, spoiled=21)
    failed = spoiled.train(10)
    stopped, _ = build(weights)
    stopped.request_stop()
    with engine.averaged_weights():
        averaged = {v.path: np.asarray(v.value).ravel().tolist() for v in task.model.variables}
    devices = choose_devices(TRAIN)
    finite = data(0).unbatch().take(11).batch(4)
    predicted = [out.inputs.tolist() for _, out in devices.predict_batches(task.predict, finite)]
    return {
        "devices": devices.num_replicas,
        "losses": [report.losses for report in reports],
        "learning_rates": [report.learning_rate for report in reports],
        "signature": {
            key: [list(shape), dtype] for key, (shape, dtype) in engine.signature().items()
        },
        "resumed_is_the_same": same,
        "continued": continued_losses(folder) if (folder / OTHER).exists() else None,
        "nonfinite": failed.nonfinite,
        "steps_before": failed.steps_done,
        "stopped_steps": stopped.train(5).steps_done,
        "averaged_dense": averaged["dense/kernel"],
        "ema_dense": final["ema/dense/kernel"].ravel().tolist(),
        "predicted": sum(predicted, []),
        "compiled": compiled_for_snapshots() if keras.backend.backend() == "jax" else None,
        "shares": shares_of_parts() if keras.backend.backend() == "jax" else None,
    }


if __name__ == "__main__":
    print("RESULT", json.dumps(main(Path(sys.argv[1]))))
    sys.stdout.flush()
    os._exit(0)  # skips the teardown of two frameworks
