"""Checkpoints: what is written, what survives torn files and kills, what is refused."""

import contextlib
import itertools
import logging
import re
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from tpudet.trainkit.training.checkpoint_match import CheckpointMismatchError
from tpudet.trainkit.training.checkpoints import (
    Checkpoint,
    Checkpoints,
    UnreadableCheckpointError,
    list_checkpoints,
    load_checkpoint,
    read_checkpoint,
)
from tpudet.trainkit.training.engine import Signature

DATA, INDEX = ".data-00000-of-00001", ".index"


SIGNATURE: Signature = {
    "backbone/stem/conv/kernel": ((3, 2), "float32"),
    "optimizer/backbone/stem/conv/kernel/momentum": ((3, 2), "float32"),
    "global_step": ((), "int64"),
}


def make_arrays(step: int) -> dict[str, np.ndarray]:
    return {
        "backbone/stem/conv/kernel": np.full([3, 2], step, np.float32),
        "optimizer/backbone/stem/conv/kernel/momentum": np.full([3, 2], 0.5 * step, np.float32),
        "global_step": np.asarray(step, np.int64),
    }


def save_steps(directory: str, *steps: int, keep: int = 5) -> Checkpoints:
    writer = Checkpoints(directory, keep=keep)
    writer.prepare()
    writer.load_newest(SIGNATURE)
    for step in steps:
        writer.save(make_arrays(step))
    writer.wait()
    return writer


def restored_step(directory: str) -> int | None:
    """Restores as a new process would; the tensors must be those of the step."""
    reader = Checkpoints(directory, keep=5)
    reader.prepare()
    arrays = reader.load_newest(SIGNATURE)
    if arrays is None:
        return None
    step = int(arrays["global_step"])
    assert_arrays_equal(arrays, make_arrays(step))
    return step


def assert_arrays_equal(
    found: Mapping[str, np.ndarray], expected: Mapping[str, np.ndarray]
) -> None:
    """Equal keys, dtypes, shapes and bytes."""
    assert found.keys() == expected.keys()
    for key, array in expected.items():
        assert (found[key].dtype, found[key].shape) == (array.dtype, array.shape), key
        assert found[key].tobytes() == array.tobytes(), key


def contents(directory: str) -> dict[str, bytes]:
    found = {}
    for name in sorted(tf.io.gfile.listdir(directory)):
        with tf.io.gfile.GFile(f"{directory}/{name}", "rb") as file:
            found[name] = file.read()
    return found


def test_tensorflow_itself_reads_what_was_saved(tmp_path: Path) -> None:
    save_steps(str(tmp_path), 10, 20)
    newest = tf.train.latest_checkpoint(str(tmp_path))
    assert newest == str(tmp_path / "model.ckpt-20")
    assert dict(tf.train.list_variables(newest)) == {
        "backbone/stem/conv/kernel": [3, 2],
        "optimizer/backbone/stem/conv/kernel/momentum": [3, 2],
        "global_step": [],
    }
    pointer = tf.train.get_checkpoint_state(str(tmp_path))
    assert [Path(path).name for path in pointer.all_model_checkpoint_paths] == [
        "model.ckpt-10",
        "model.ckpt-20",
    ]


def test_the_last_ones_are_kept_and_nothing_else(ram_dir: str) -> None:
    save_steps(ram_dir, 1, 2, 9, 10, keep=2)
    assert sorted(contents(ram_dir)) == [
        "checkpoint",
        *(f"model.ckpt-{step}{suffix}" for step in (10, 9) for suffix in (DATA, INDEX)),
    ]
    assert restored_step(ram_dir) == 10


def test_the_step_is_the_stored_one_whatever_the_name(tmp_path: Path) -> None:
    save_steps(str(tmp_path), 10, 20)
    for suffix in (DATA, INDEX):
        (tmp_path / f"model.ckpt-10{suffix}").rename(tmp_path / f"model.ckpt-99{suffix}")
    assert [found.step for found in list_checkpoints(str(tmp_path))] == [10, 20]
    assert restored_step(str(tmp_path)) == 20


def test_nothing_to_restore_is_step_none(ram_dir: str) -> None:
    assert restored_step(ram_dir) is None


@pytest.mark.parametrize("suffix", [DATA, INDEX])
@pytest.mark.parametrize("damage", ["empty", "half", "flipped", "missing"])
def test_a_torn_newest_one_falls_back_by_name(
    tmp_path: Path, suffix: str, damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    save_steps(str(tmp_path), 10, 20)
    victim = tmp_path / f"model.ckpt-20{suffix}"
    whole = victim.read_bytes()
    flipped = bytes([whole[0] ^ 1]) + whole[1:]
    torn = {"empty": b"", "half": whole[: len(whole) // 2], "flipped": flipped}
    victim.unlink()
    if damage != "missing":
        victim.write_bytes(torn[damage])
    assert restored_step(str(tmp_path)) == 10
    # Without an index there is no checkpoint, only a data file to clean up.
    if (damage, suffix) != ("missing", INDEX):
        warnings = [r.getMessage() for r in caplog.records if r.levelno == logging.WARNING]
        assert any(str(victim) in text and "model.ckpt-10" in text for text in warnings)


def test_a_broken_one_goes_once_a_newer_one_is_whole(tmp_path: Path) -> None:
    save_steps(str(tmp_path), 10, 20)
    (tmp_path / f"model.ckpt-20{INDEX}").write_bytes(b"")
    writer = Checkpoints(str(tmp_path), keep=5)
    writer.prepare()
    arrays = writer.load_newest(SIGNATURE)
    assert arrays is not None
    assert arrays["global_step"] == 10
    assert (tmp_path / f"model.ckpt-20{DATA}").exists()
    writer.save(make_arrays(15))
    writer.wait()
    assert not list(tmp_path.glob("model.ckpt-20*"))
    assert [found.step for found in writer.published] == [10, 15]


def test_when_none_can_be_read_the_run_does_not_start_from_nothing(tmp_path: Path) -> None:
    save_steps(str(tmp_path), 10, 20)
    for path in tmp_path.glob("*.index"):
        path.write_bytes(b"")
    with pytest.raises(UnreadableCheckpointError, match="model.ckpt-10.index(.|\n)*model.ckpt-20"):
        restored_step(str(tmp_path))


@pytest.mark.parametrize("text", ["", 'model_checkpoint_path: "model.ck'])
def test_a_torn_pointer_is_named_and_replaced(
    tmp_path: Path, text: str, caplog: pytest.LogCaptureFixture
) -> None:
    save_steps(str(tmp_path), 10)
    (tmp_path / "checkpoint").write_text(text)
    assert restored_step(str(tmp_path)) == 10
    assert str(tmp_path / "checkpoint") in caplog.text
    assert tf.train.latest_checkpoint(str(tmp_path)) == str(tmp_path / "model.ckpt-10")


def test_a_kill_at_any_change_of_a_file_leaves_the_old_or_the_new(
    ram_dir: str, file_changes
) -> None:
    undisturbed = f"{ram_dir}/undisturbed"
    save_steps(undisturbed, 10, 20, 30, keep=2)
    outcomes = []
    for kill in itertools.count(1):
        directory = f"{ram_dir}/{kill}"
        writer = save_steps(directory, 10, 20, keep=2)
        file_changes.count, file_changes.killed_at = 0, kill
        with contextlib.suppress(file_changes.Killed):
            writer.save(make_arrays(30))
            writer.wait()
            break
        file_changes.killed_at = None
        outcomes.append(restored_step(directory))
        save_steps(directory, 30, keep=2)
        assert contents(directory) == contents(undisturbed)
    # Every file operation of a save was hit: before publication the old one is found, then the new.
    assert set(outcomes) == {20, 30}
    assert outcomes == sorted(outcomes)
    assert len(outcomes) == 9


def test_a_foreign_checkpoint_is_refused_with_every_difference(ram_dir: str) -> None:
    save_steps(ram_dir, 10)
    signature: Signature = {
        "backbone/stem/conv/kernel": ((3, 7), "float32"),
        "head/class/bias": ((4,), "float32"),
        "global_step": ((), "int32"),
    }
    with pytest.raises(CheckpointMismatchError) as caught:
        load_checkpoint(f"{ram_dir}/model.ckpt-10", signature)
    message = str(caught.value)
    assert "missing from the checkpoint (1):\n    head/class/bias" in message
    assert "only in the checkpoint (1):\n    optimizer/backbone/stem/conv/kernel/mom" in message
    assert "kernel: float32 [3, 2] in the checkpoint, float32 [3, 7] here" in message
    assert "global_step: int64 [] in the checkpoint, int32 [] here" in message


def test_loss_scaling_may_come_and_go(ram_dir: str) -> None:
    """A run that began in float16 on a GPU continues in another precision, and in reverse."""
    scale = {"optimizer/loss_scale/dynamic_scale": np.asarray(512.0, np.float32)}
    writer = Checkpoints(ram_dir, keep=2)
    writer.save(make_arrays(10) | scale)
    writer.save(make_arrays(20))
    writer.wait()
    with_scale = load_checkpoint(f"{ram_dir}/model.ckpt-10", SIGNATURE)
    assert_arrays_equal(with_scale, make_arrays(10) | scale)
    signature: Signature = {**SIGNATURE, "optimizer/loss_scale/dynamic_scale": ((), "float32")}
    assert_arrays_equal(load_checkpoint(f"{ram_dir}/model.ckpt-20", signature), make_arrays(20))


def test_any_shape_and_dtype_comes_back_bit_for_bit(ram_dir: str) -> None:
    arrays = {
        "global_step": np.asarray(7, np.int64),
        "not_a_number": np.array([np.nan, -0.0, np.inf], np.float32),
        "double": np.array([[0.1], [1e300]]),
        "half": np.array([1.5], np.float16),
        "flags": np.array([True, False]),
        "empty": np.zeros([0, 3], np.int32),
    }
    writer = Checkpoints(ram_dir, keep=1)
    writer.save(arrays)
    writer.wait()
    signature = {key: (array.shape, array.dtype.name) for key, array in arrays.items()}
    assert_arrays_equal(load_checkpoint(f"{ram_dir}/model.ckpt-7", signature), arrays)


def test_what_reads_back_differently_is_not_published(
    ram_dir: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = save_steps(ram_dir, 10)
    save = tf.raw_ops.SaveV2

    def save_wrongly(*, tensors: list, **keywords: Any) -> Any:
        return save(tensors=[tensors[0] + 1, *tensors[1:]], **keywords)

    monkeypatch.setattr(tf.raw_ops, "SaveV2", save_wrongly)
    writer.save(make_arrays(20))
    with pytest.raises(UnreadableCheckpointError, match="stem/conv/kernel was read back different"):
        writer.wait()
    assert restored_step(ram_dir) == 10


def test_a_process_that_does_not_write_keeps_count_and_touches_nothing(ram_dir: str) -> None:
    save_steps(ram_dir, 10, 20, 30)
    before = contents(ram_dir)
    reader = Checkpoints(ram_dir, keep=2, writes=False)
    reader.prepare()
    arrays = reader.load_newest(SIGNATURE)
    assert arrays is not None
    assert_arrays_equal(arrays, make_arrays(30))
    assert [found.step for found in reader.published] == [20, 30]
    assert reader.save(make_arrays(40)) == Checkpoint(40, f"{ram_dir}/model.ckpt-40")
    assert [found.step for found in reader.published] == [30, 40]
    assert contents(ram_dir) == before


def test_reading_without_variables(ram_dir: str) -> None:
    save_steps(ram_dir, 10, 20)
    both = read_checkpoint(ram_dir)
    assert sorted(both) == sorted(SIGNATURE)
    only = read_checkpoint(f"{ram_dir}/model.ckpt-10", ["backbone/stem/conv/kernel"])
    np.testing.assert_array_equal(only["backbone/stem/conv/kernel"], np.full([3, 2], 10.0))
    hint = re.escape("backbone/stem/conv/kernels (did you mean backbone/stem/conv/kernel?)")
    with pytest.raises(CheckpointMismatchError, match=hint):
        read_checkpoint(ram_dir, ["backbone/stem/conv/kernels", "global_step"])
    tf.io.gfile.makedirs(f"{ram_dir}/nowhere")
    with pytest.raises(FileNotFoundError, match="nowhere"):
        read_checkpoint(f"{ram_dir}/nowhere")


def test_a_save_goes_on_beside_the_caller_and_its_error_comes_at_the_next(
    ram_dir: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    save, goes_on = tf.raw_ops.SaveV2, threading.Event()

    def save_late(**keywords: Any) -> Any:
        assert goes_on.wait(20)
        return save(**keywords)

    writer = save_steps(ram_dir, 10)
    monkeypatch.setattr(tf.raw_ops, "SaveV2", save_late)
    writer.save(make_arrays(20))  # returns although nothing can be written yet
    assert restored_step(ram_dir) == 10
    goes_on.set()
    assert [found.step for found in writer.published] == [10, 20]

    def fail(**keywords: Any) -> Any:
        raise OSError("disk full")

    monkeypatch.setattr(tf.raw_ops, "SaveV2", fail)
    writer.save(make_arrays(30))
    with pytest.raises(OSError, match="disk full"):
        writer.save(make_arrays(40))
    monkeypatch.setattr(tf.raw_ops, "SaveV2", save)
    writer.save(make_arrays(40))
    assert [found.step for found in writer.published] == [10, 20, 40]
