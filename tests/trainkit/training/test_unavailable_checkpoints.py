"""What cannot be read now is not taken for torn: an outage costs no checkpoint and no record."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from tpudet.trainkit.files import storage
from tpudet.trainkit.training.best_checkpoint import BestCheckpoint, BestRecord
from tpudet.trainkit.training.checkpoints import Checkpoint, Checkpoints, list_checkpoints
from tpudet.trainkit.training.engine import Signature
from tpudet.trainkit.training.evaluator import Evaluation, EvaluationSettings, Evaluator
from tpudet.trainkit.training.model_dir import config_to_resume
from tpudet.trainkit.training.preemption import Preemption
from tpudet.trainkit.training.run_log import DiscardingWriter
from tpudet.trainkit.weights import bundle_index, tensor_bundle
from tpudet.trainkit.weights.tensor_bundle import (
    UnavailableCheckpointError,
    UnreadableCheckpointError,
)

SIGNATURE: Signature = {"weight": ((3,), "float32"), "global_step": ((), "int64")}
ABORTED, REFUSED = tf.errors.AbortedError, tf.errors.PermissionDeniedError
LOST, TORN = tf.errors.NotFoundError, tf.errors.DataLossError


def make_arrays(step: int) -> dict[str, np.ndarray]:
    return {"weight": np.full([3], step, np.float32), "global_step": np.asarray(step, np.int64)}


def save_steps(directory: str, *steps: int) -> list[Checkpoint]:
    writer = Checkpoints(directory, keep=5)
    writer.prepare()
    for step in steps:
        writer.save(make_arrays(step))
    return writer.published


def restored_step(directory: str) -> int:
    arrays = Checkpoints(directory, keep=5).load_newest(SIGNATURE)
    assert arrays is not None
    return int(arrays["global_step"])


@contextmanager
def _errors_of_tensorflow() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise error.__cause__ or error from None


class Store:
    """Fails to read one part of the checkpoints with a name, a number of times."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.left = 0
        self._name = self._part = ""
        self._error: type[tf.errors.OpError] = ABORTED
        open_bytes, open_reader = storage.open_bytes, tensor_bundle._open_reader
        restore = tf.raw_ops.RestoreV2

        def open_index(path: str) -> Any:
            if path.endswith(".index"):
                self._read("index", path)
            return open_bytes(path)

        class Reader:
            def __init__(self, prefix: str) -> None:
                self._prefix, self._reader = prefix, open_reader(prefix)

            def __getattr__(self, name: str) -> Any:
                return getattr(self._reader, name)

            def get_tensor(self, key: str) -> Any:
                try:
                    store._read("data", self._prefix)
                except OSError as error:  # TensorFlow's reader has one kind of error for all
                    raise tf.errors.OpError(None, None, str(error), 2) from None
                return self._reader.get_tensor(key)

        def restore_tensor(*, prefix: str, **arguments: Any) -> Any:
            with _errors_of_tensorflow():
                self._read("data", prefix)
            return restore(prefix=prefix, **arguments)

        store = self
        monkeypatch.setattr(bundle_index.storage, "open_bytes", open_index)
        monkeypatch.setattr(tensor_bundle, "_open_reader", Reader)
        monkeypatch.setattr(tf.raw_ops, "RestoreV2", restore_tensor)

    def fail(
        self, name: str, part: str, error: type[tf.errors.OpError] = ABORTED, times: int = 99
    ) -> None:
        self.left, self._name, self._part, self._error = times, name, part, error

    def _read(self, part: str, path: str) -> None:
        if self.left and part == self._part and self._name in path:
            self.left -= 1
            error = self._error(None, None, "HTTP response code 503")
            kind = PermissionError if self._error is REFUSED else OSError
            raise (FileNotFoundError if self._error is LOST else kind)(error.message) from error


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> Store:
    return Store(monkeypatch)


@pytest.mark.parametrize("part", ["index", "data"])
@pytest.mark.parametrize(
    ("error", "expected", "words"),
    [
        (ABORTED, UnavailableCheckpointError, "cannot be read now: HTTP .* 503. Nothing was disc"),
        (tf.errors.UnknownError, UnavailableCheckpointError, "cannot be read now"),
        (
            REFUSED,
            PermissionError,
            "may not be read: HTTP .* 503. Nothing was discarded; give this",
        ),
    ],
)
def test_an_outage_is_an_error_and_no_fallback(
    tmp_path: Path,
    store: Store,
    part: str,
    error: type[tf.errors.OpError],
    expected: type[OSError],
    words: str,
) -> None:
    """Nothing is written or removed meanwhile, and afterwards the newest one is there."""
    save_steps(str(tmp_path), 10, 20)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    store.fail("model.ckpt-20", part, error)
    with pytest.raises(expected, match=rf"model\.ckpt-20\.{part}.* {words}") as found:
        restored_step(str(tmp_path))
    assert isinstance(found.value, OSError)
    assert not isinstance(found.value, UnreadableCheckpointError)
    store.left = 0
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before
    assert restored_step(str(tmp_path)) == 20


@pytest.mark.parametrize("error", [LOST, TORN, tf.errors.OutOfRangeError])
@pytest.mark.parametrize("part", ["index", "data"])
def test_what_the_store_says_is_torn_or_gone_falls_back(
    tmp_path: Path, store: Store, part: str, error: type[tf.errors.OpError]
) -> None:
    save_steps(str(tmp_path), 10, 20)
    store.fail("model.ckpt-20", part, error)
    assert restored_step(str(tmp_path)) == 10


@pytest.mark.parametrize("error", [ABORTED, REFUSED, TORN])
def test_one_failed_read_of_a_tensor_is_tried_again(
    tmp_path: Path, store: Store, error: type[tf.errors.OpError]
) -> None:
    save_steps(str(tmp_path), 10, 20)
    store.fail("model.ckpt-20", "data", error, times=1)
    assert restored_step(str(tmp_path)) == 20


def test_nothing_takes_an_outage_for_a_folder_without_checkpoints(
    tmp_path: Path, store: Store
) -> None:
    """A run whose only checkpoint seemed not to be there would begin anew, with other settings."""
    save_steps(str(tmp_path), 10)
    (tmp_path / "config.yaml").touch()
    store.fail("model.ckpt-10", "index")
    for look in (list_checkpoints, config_to_resume):
        with pytest.raises(UnavailableCheckpointError, match=r"model\.ckpt-10"):
            look(str(tmp_path))


@pytest.mark.parametrize("part", ["index", "data"])
def test_the_record_of_the_best_checkpoint_outlives_an_outage(
    tmp_path: Path, store: Store, part: str
) -> None:
    (found,) = save_steps(str(tmp_path), 10)
    best = BestCheckpoint(str(tmp_path), metric="AP50")
    best.prepare()
    best.keep(found, 0.5)
    store.fail("best/model.ckpt-10", part)
    again = BestCheckpoint(str(tmp_path), metric="AP50")
    with pytest.raises(UnavailableCheckpointError, match=r"best/model\.ckpt-10"):
        again.prepare()
    store.left = 0
    again.prepare()
    assert again.record == BestRecord("AP50", 0.5, 10)


class Engine:
    """What an evaluation wants of one."""

    batch_size, is_chief, num_processes, step = 2, True, 1, 10

    def signature(self) -> Signature:
        return SIGNATURE

    def snapshot(self) -> dict[str, np.ndarray]:
        return make_arrays(10)

    def load(self, arrays: Any) -> None:
        self.loaded = arrays

    def any_process(self, flag: bool) -> bool:
        return flag

    def averaged_weights(self) -> Any:
        return tf.name_scope("averages")


def test_mode_eval_leaves_no_checkpoint_out_because_of_an_outage(
    tmp_path: Path, store: Store
) -> None:
    published = save_steps(str(tmp_path), 10)
    settings = EvaluationSettings(
        evaluate=lambda step: Evaluation({"AP50": 0.5}, {}),
        every_steps=10,
        best_metric="AP50",
        headline=["AP50"],
    )
    engine: Any = Engine()
    evaluator = Evaluator(engine, str(tmp_path), settings)
    store.fail("model.ckpt-10", "data")
    preemption = Preemption(lambda: None)
    with pytest.raises(UnavailableCheckpointError):
        evaluator.restore_and_evaluate(published[0], preemption, DiscardingWriter())
    store.left = 0
    assert evaluator.pending(published, 20) == published
    evaluator.restore_and_evaluate(published[0], preemption, DiscardingWriter())
    assert evaluator.evaluated_steps == {10}


def test_an_unreadable_one_is_read_once_more_before_it_is_removed(
    tmp_path: Path, store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    """Step 30 is read in full, step 20 cannot be read for a while, step 40 stays torn."""
    save_steps(str(tmp_path), 10, 20, 30, 40)
    whole = {}
    for step in (20, 30, 40):
        path = tmp_path / f"model.ckpt-{step}.data-00000-of-00001"
        whole[step] = path.read_bytes()
        path.write_bytes(bytes([whole[step][0] ^ 1]) + whole[step][1:])
    run = Checkpoints(str(tmp_path), keep=9)
    arrays = run.load_newest(SIGNATURE)
    assert arrays is not None
    assert arrays["global_step"] == 10
    (tmp_path / "model.ckpt-30.data-00000-of-00001").write_bytes(whole[30])
    store.fail("model.ckpt-20", "data")
    with caplog.at_level(logging.WARNING):
        run.save(make_arrays(15))
        run.wait()
    assert "model.ckpt-30, which was unreadable before, is whole and stays" in caplog.text
    assert "Not removed before it is known to be torn: " in caplog.text
    assert "Removing the unreadable checkpoint" in caplog.text
    there = {path.name for path in tmp_path.glob("*.index")}
    assert there == {f"model.ckpt-{step}.index" for step in (10, 15, 20, 30)}
    store.left = 0
    run.save(make_arrays(18))
    run.wait()
    assert not (tmp_path / "model.ckpt-20.index").exists()
    assert restored_step(str(tmp_path)) == 30
