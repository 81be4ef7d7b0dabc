"""TensorBoard event files of a run that may be restarted."""

import os
import time
from collections.abc import Mapping

import tensorflow as tf


def open_writer(model_dir: str, *, restored_step: int | None) -> tf.summary.SummaryWriter:
    """Opens a writer; after a restart TensorBoard forgets what lies beyond `restored_step`.

    TensorFlow 2 has no `purge_step` for its writer, so the event that asks for it, a session
    start, goes into a small file of its own. The first start needs one too: TensorBoard takes the
    first that it sees for the beginning. It reads files in the order of their names: seconds, then
    the host, and "0." sorts before the names of hosts.
    """
    first_step = 0 if restored_step is None else restored_step + 1
    path = os.path.join(model_dir, f"events.out.tfevents.{int(time.time())}.0.start")
    start = tf.compat.v1.SessionLog(status=tf.compat.v1.SessionLog.START)
    with tf.io.TFRecordWriter(path) as records:
        for event in (
            tf.compat.v1.Event(wall_time=time.time(), file_version="brain.Event:2"),
            tf.compat.v1.Event(wall_time=time.time(), step=first_step, session_log=start),
        ):
            records.write(event.SerializeToString())
    return tf.summary.create_file_writer(model_dir)


def write_scalars(
    writer: tf.summary.SummaryWriter, group: str, step: int, values: Mapping[str, float]
) -> None:
    """Writes `group/name` scalars and flushes, so that a killed run shows all it has logged."""
    with writer.as_default(step=step):
        for name, value in values.items():
            tf.summary.scalar(f"{group}/{name}", value)
    writer.flush()
