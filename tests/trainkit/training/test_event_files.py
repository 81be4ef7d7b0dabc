"""TensorBoard's own reader on the events of a restarted run."""

import time
from pathlib import Path

import tensorflow as tf
from tensorboard.backend.event_processing.plugin_event_accumulator import EventAccumulator

from tpudet.trainkit.training.run_log import open_tensorboard


def test_a_restart_makes_tensorboard_forget_what_lies_beyond(tmp_path: Path) -> None:
    def write(restored_step: int | None, losses: dict[int, float]) -> None:
        writer = open_tensorboard(str(tmp_path), restored_step=restored_step)
        for step, loss in losses.items():
            writer.write("train", step, {"loss": loss})
        writer.close()

    write(None, {1: 1.0, 2: 2.0, 3: 3.0})
    time.sleep(1.1)  # the names of event files tell seconds apart
    write(2, {3: 30.0, 4: 40.0})
    found = EventAccumulator(str(tmp_path), size_guidance={"tensors": 0}).Reload()
    events = [
        (event.step, float(tf.make_ndarray(event.tensor_proto)))
        for event in found.Tensors("train/loss")
    ]
    assert events == [(1, 1.0), (2, 2.0), (3, 30.0), (4, 40.0)]
