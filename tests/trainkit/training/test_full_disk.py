"""No room for what TensorFlow writes: a sentence that names the file, and nothing half-written."""

import resource
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf

from tpudet.trainkit.command_line import new_parser, run_command
from tpudet.trainkit.saved_model import publish_saved_model
from tpudet.trainkit.training.checkpoint_files import write_checkpoint
from tpudet.trainkit.training.run_log import Ledger, TensorBoardWriter, open_tensorboard

LARGE = np.random.default_rng(0).normal(size=10_000)  # 80 KB


@contextmanager
def largest_file(size: int) -> Iterator[None]:
    """The system lets no file grow beyond so many bytes, as where there is no room."""
    former = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, former[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, former)


def save_checkpoint(folder: Path) -> Path:
    write_checkpoint(f"{folder}/model.ckpt-5", {"large": LARGE, "global_step": np.array(5)})
    return folder / "model.ckpt-5"


def write_events(folder: Path) -> Path:
    writer = TensorBoardWriter(str(folder))
    try:
        for step in range(200):
            writer.write("train", step, {"loss": 0.5, "loss_box": 0.25})
    finally:
        writer.close()
    return folder


def begin_events(folder: Path) -> Path:
    with largest_file(16):
        open_tensorboard(str(folder), restored_step=None)
    return folder


def append_to_ledger(folder: Path) -> Path:
    Ledger(str(folder)).append("train", 5, {f"loss_{number}": 0.5 for number in range(2000)})
    return folder / "metrics.jsonl"


def save_model(folder: Path) -> Path:
    model = keras.Sequential([keras.Input((100,)), keras.layers.Dense(100)])
    apply = tf.function(model.call, input_signature=[tf.TensorSpec([None, 100], tf.float32)])
    publish_saved_model(
        model,
        {"serving_default": apply},
        directory=str(folder / "model"),
        class_list_text="/m/01,cat\n",
        metadata={},
        facts=dict,
        overwrite=False,
    )
    return folder / "model"


@pytest.mark.parametrize(
    "write", [save_checkpoint, write_events, begin_events, append_to_ledger, save_model]
)
def test_what_has_no_room_is_named_in_words(
    write: Callable[[Path], Path], tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    sound, full = tmp_path / "sound", tmp_path / "full"
    sound.mkdir()
    full.mkdir()
    if write is not begin_events:
        named = write(sound)  # what is written where there is room
        expected = full / named.relative_to(sound)
    else:
        expected = full
    capsys.readouterr()
    with largest_file(16_000):
        code = run_command(new_parser("train", None), [], lambda arguments: str(write(full)))
    assert code == 2
    assert capsys.readouterr().err == f"train: {expected} cannot be written: File too large\n"
    left = [path for path in full.rglob("*") if path.is_file()]
    assert all("tfevents" in path.name or path.name == "metrics.jsonl" for path in left)
