"""The loop of training and evaluation over kills, signals and restarts.

The counting engine is a real state machine with real checkpoints, small enough to be killed at
every single change of a file. test_loop_with_tensorflow_engine.py has the real one.
"""

import contextlib
import dataclasses
import itertools
import json
import logging
import math
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from tpudet.trainkit.errors import UserError
from tpudet.trainkit.files import storage
from tpudet.trainkit.files.claims import ClaimError
from tpudet.trainkit.training import loop, run
from tpudet.trainkit.training.best_checkpoint import BestRecord, read_best_record
from tpudet.trainkit.training.checkpoint_files import remove_checkpoint
from tpudet.trainkit.training.checkpoints import (
    Checkpoint,
    Checkpoints,
    list_checkpoints,
    read_checkpoint,
)
from tpudet.trainkit.training.engine import NonfiniteStep, Signature, StepReport
from tpudet.trainkit.training.evaluator import Evaluation, Evaluator
from tpudet.trainkit.training.jax_hosts import LostHostError
from tpudet.trainkit.training.modes import claim_model_dir
from tpudet.trainkit.training.preemption import Preemption
from tpudet.trainkit.training.run_log import DiscardingWriter, Ledger
from tpudet.trainkit.weights.tensor_bundle import UnavailableCheckpointError

SETTINGS = loop.RunSettings(
    total_steps=10,
    iterations_per_loop=3,
    log_every_steps=2,
    checkpoint_every_steps=3,
    keep_checkpoints=2,
)
AP50 = {4: 0.2, 8: 0.6, 10: 0.5}


class CountingEngine:
    """A step takes the next number off the input, and its sine into the weight."""

    batch_size = 2
    num_processes = 1

    def __init__(
        self,
        *,
        nonfinite_at: int | None = None,
        stop_at: int | None = None,
        is_chief: bool = True,
    ) -> None:
        self.is_chief = is_chief
        self.step = 0
        self._weight = self._average = 1.0
        self._position = 0
        self._input = itertools.count(0)
        self._nonfinite_at = nonfinite_at
        self.stop_at = stop_at
        self.averaged = False
        self.call_lengths: list[int] = []

    def train(self, num_steps: int) -> StepReport:
        self.call_lengths.append(num_steps)
        total = 0.0
        for done in range(num_steps):
            number = next(self._input)
            if self.step + 1 == self._nonfinite_at:
                failed = NonfiniteStep(self.step + 1, {"loss": math.nan, "loss_box": 0.5}, [7])
                return StepReport({}, done, 0.0, 0.1, 0.1, failed)
            self._position += 1
            self.step += 1
            self._weight = self._weight * 0.9 + math.sin(number)
            self._average = 0.5 * (self._average + self._weight)
            total += self._weight
            if self.step == self.stop_at:
                os.kill(os.getpid(), signal.SIGTERM)
                return StepReport({"loss": total / (done + 1)}, done + 1, 0.25, 0.1, 0.5, None)
        return StepReport({"loss": total / num_steps}, num_steps, 0.25, 0.1, 0.5, None)

    def any_process(self, flag: bool) -> bool:
        return flag

    def agree_on_step(self) -> None:
        pass

    def request_stop(self) -> None:
        pass

    def signature(self) -> Signature:
        return {key: (array.shape, array.dtype.name) for key, array in self.snapshot().items()}

    def snapshot(self) -> dict[str, np.ndarray]:
        return {
            "weight": np.asarray(self._weight),
            "ema/weight": np.asarray(self._average),
            "global_step": np.asarray(self.step, np.int64),
            "records_consumed": np.asarray(self._position, np.int64),
        }

    def load(self, arrays: Mapping[str, np.ndarray]) -> None:
        self._weight = float(arrays["weight"])
        self._average = float(arrays["ema/weight"])
        self.step = int(arrays["global_step"])
        self._position = int(arrays["records_consumed"])

    def restart_input(self) -> None:
        self._input = itertools.count(self._position)

    @contextlib.contextmanager
    def averaged_weights(self) -> Iterator[None]:
        self.averaged = True
        try:
            yield
        finally:
            self.averaged = False


def evaluating(evaluations: list[int]) -> Callable[[int], Evaluation]:
    def evaluate(step: int) -> Evaluation:
        evaluations.append(step)
        return Evaluation({"AP50": AP50.get(step, 0.1)}, {})

    return evaluate


def evaluation_settings(
    evaluate: Callable[[int], Evaluation], headline: Sequence[str] = ("AP50",)
) -> loop.EvaluationSettings:
    return loop.EvaluationSettings(
        evaluate=evaluate, every_steps=4, best_metric="AP50", headline=headline
    )


def run_once(
    model_dir: str,
    evaluations: list[int],
    engine: CountingEngine | None = None,
    *,
    headline: Sequence[str] = ("AP50",),
    **changes: Any,
) -> int:
    """One process of train_and_eval, from nothing but the files."""
    engine = engine or CountingEngine()

    def evaluate(step: int) -> Evaluation:
        assert engine.averaged
        assert engine.step == step
        evaluations.append(step)
        metrics = {"AP50": AP50.get(step, 0.1), "AP": 0.05}
        return Evaluation(metrics, {"grid": np.full([2, 3, 3], step, np.uint8)})

    return loop.train_and_eval(
        engine=engine,
        model_dir=model_dir,
        settings=dataclasses.replace(SETTINGS, **changes),
        evaluation=evaluation_settings(evaluate, headline),
    )


def outcome(model_dir: str) -> dict[str, Any]:
    """All that a run leaves, except times of day, event files and the history of its states."""
    lines = [line for line in Ledger(model_dir).lines() if line["kind"] != "state"]
    for line in lines:
        for varying in ("time", "seconds", "eta_seconds", "wall_seconds"):
            line.pop(varying, None)
    files = {}
    for folder, _, names in tf.io.gfile.walk(model_dir):
        for name in names:
            if "tfevents" not in name and name != "metrics.jsonl":
                with tf.io.gfile.GFile(f"{folder}/{name}", "rb") as file:
                    files[f"{folder.removeprefix(model_dir)}/{name}"] = file.read()
    return {"lines": lines, "files": files}


def states(model_dir: str) -> list[str]:
    return [line["state"] for line in Ledger(model_dir).lines() if line["kind"] == "state"]


def steps(model_dir: str, kind: str) -> list[int]:
    return [line["step"] for line in Ledger(model_dir).lines() if line["kind"] == kind]


def test_an_undisturbed_run(ram_dir: str, caplog: pytest.LogCaptureFixture) -> None:
    evaluations: list[int] = []
    engine = CountingEngine()
    with caplog.at_level(logging.INFO):
        assert run_once(ram_dir, evaluations, engine) == loop.EXIT_FINISHED
    assert evaluations == [4, 8, 10]  # the last is not a multiple of 4
    assert steps(ram_dir, "train") == [2, 4, 6, 8, 10]
    # Cut at multiples of 3 (loop, checkpoint), 2 (log) and 4 (evaluation), and after step 1.
    assert np.cumsum(engine.call_lengths).tolist() == [1, 2, 3, 4, 6, 8, 9, 10]
    assert [found.step for found in list_checkpoints(ram_dir)] == [9, 10]
    assert int(read_checkpoint(f"{ram_dir}/best")["global_step"]) == 8
    assert states(ram_dir) == ["running", "finished"]
    assert "AP50: 0.6000" in [record.getMessage() for record in caplog.records]
    line = next(line for line in Ledger(ram_dir).lines() if line["kind"] == "train")
    assert line["images_per_second"] == 4.0  # 2 calls of 1 step of 2 images in half a second
    assert line["input_wait_share"] == 0.25
    assert line["eta_seconds"] == 4.0  # 8 steps more at half a second


def test_a_kill_at_every_change_of_a_file(ram_dir: str, file_changes: Any) -> None:
    run_once(f"{ram_dir}/undisturbed", [])
    undisturbed = outcome(f"{ram_dir}/undisturbed")
    kill = 0
    for kill in itertools.count(1):
        model_dir, evaluations = f"{ram_dir}/{kill}", []
        file_changes.count, file_changes.killed_at = 0, kill
        with contextlib.suppress(file_changes.Killed):
            run_once(model_dir, evaluations)
            break
        file_changes.killed_at = None
        before = list(evaluations)
        was_recorded = steps(model_dir, "eval")
        assert run_once(model_dir, evaluations) == loop.EXIT_FINISHED
        assert outcome(model_dir) == undisturbed, f"killed at change {kill}"
        # What was on record is not done again, and only what was under way can be.
        assert evaluations == before + [step for step in (4, 8, 10) if step not in was_recorded]
    assert kill > 80


def test_two_kills_and_a_torn_newest_checkpoint(tmp_path: Path) -> None:
    run_once(f"{tmp_path}/undisturbed", [])
    model_dir, evaluations = f"{tmp_path}/run", []
    engine = CountingEngine(nonfinite_at=10)
    with pytest.raises(loop.NonfiniteLossError):
        run_once(model_dir, evaluations, engine)
    assert [found.step for found in list_checkpoints(model_dir)] == [8, 9]
    Path(f"{model_dir}/model.ckpt-9.data-00000-of-00001").write_bytes(b"torn")
    with open(f"{model_dir}/metrics.jsonl", "ab") as file:
        file.write(b'{"kind": "train", "st')
    assert run_once(model_dir, evaluations) == loop.EXIT_FINISHED
    assert evaluations == [4, 8, 10]
    assert outcome(model_dir) == outcome(f"{tmp_path}/undisturbed")


def test_a_run_whose_newest_checkpoint_was_cut_short_goes_on_from_the_one_before(
    tmp_path: Path,
) -> None:
    evaluations: list[int] = []
    run_once(str(tmp_path), evaluations)
    data = tmp_path / "model.ckpt-10.data-00000-of-00001"
    whole = data.read_bytes()
    for length in range(0, len(whole), 4):
        data.write_bytes(whole[:length])
        assert [found.step for found in list_checkpoints(str(tmp_path))] == [9]
    assert run_once(str(tmp_path), evaluations) == loop.EXIT_FINISHED
    assert data.read_bytes() == whole


@pytest.mark.parametrize("damage", ["no record", "torn record", "odd record"])
def test_without_its_record_the_best_checkpoint_is_that_of_the_ledger(
    damage: str, ram_dir: str
) -> None:
    run_once(ram_dir, [])  # the best is step 8, of which only best/ has a copy
    path = f"{ram_dir}/best/best.json"
    if damage == "no record":
        tf.io.gfile.remove(path)
    else:
        odd = '{"metric": "AP50", "value": 1e999, "step": 1e400}'
        storage.write_text(path, odd if damage == "odd record" else '{"metric"')
    run_once(ram_dir, [], total_steps=12)
    assert read_best_record(f"{ram_dir}/best") == BestRecord("AP50", 0.6, 8)
    assert int(read_checkpoint(f"{ram_dir}/best")["global_step"]) == 8


@pytest.mark.parametrize("suffix", ["index", "data-00000-of-00001"])
def test_a_record_without_its_checkpoint_does_not_keep_others_out(
    suffix: str, ram_dir: str, caplog: pytest.LogCaptureFixture
) -> None:
    run_once(ram_dir, [])
    tf.io.gfile.remove(f"{ram_dir}/best/model.ckpt-8.{suffix}")
    run_once(ram_dir, [], total_steps=12)
    assert caplog.text.count("names step 8, whose checkpoint is gone") == 1
    assert read_best_record(f"{ram_dir}/best") == BestRecord("AP50", 0.5, 10)


def test_a_run_that_resumes_on_other_records_says_so_once(
    ram_dir: str, caplog: pytest.LogCaptureFixture
) -> None:
    warnings = []
    attempts = ((4, "first"), (6, "first"), (6, "second"), (8, "second"), (10, "second"))
    for last, records in attempts:  # the third trains nothing
        caplog.clear()
        run_once(ram_dir, [], total_steps=last, training_records=records)
        warnings.append(caplog.text.count("The training records are not those"))
    assert warnings == [0, 0, 1, 1, 0]


def test_records_that_are_replaced_while_they_are_read_are_warned_of_once(
    ram_dir: str, caplog: pytest.LogCaptureFixture
) -> None:
    run_once(ram_dir, [], records_replaced=lambda: True)
    assert caplog.text.count("rewritten while they were being read") == 1


def test_a_run_that_went_back_to_its_last_step_is_finished_there(ram_dir: str) -> None:
    run_once(ram_dir, [])
    remove_checkpoint(f"{ram_dir}/model.ckpt-10")
    run_once(ram_dir, [], total_steps=9)
    run_once(ram_dir, [], total_steps=9)
    lines = [line for line in Ledger(ram_dir).lines() if line["kind"] == "state"]
    ends = [(line["step"], line["total_steps"]) for line in lines if line["state"] == "finished"]
    assert ends == [(10, 10), (9, 9)]


def test_a_finished_run_that_was_never_evaluated_still_is(ram_dir: str) -> None:
    assert loop.train(engine=CountingEngine(), model_dir=ram_dir, settings=SETTINGS) == 0
    assert steps(ram_dir, "eval") == []
    evaluations: list[int] = []
    run_once(ram_dir, evaluations)
    assert evaluations == [10]
    run_once(ram_dir, evaluations)
    assert evaluations == [10]
    assert states(ram_dir) == ["running", "finished"]


def test_training_goes_on_to_a_later_total(ram_dir: str) -> None:
    evaluations: list[int] = []
    engine = CountingEngine()
    run_once(ram_dir, evaluations, total_steps=5)
    run_once(ram_dir, evaluations, engine)
    assert evaluations == [4, 5, 8, 10]  # back on the grid of 4
    assert engine.step == 10
    run_once(ram_dir, evaluations, total_steps=6)  # nothing is overrun, nothing undone
    assert evaluations == [4, 5, 8, 10]


def test_a_later_worse_evaluation_leaves_the_best_over_a_restart(ram_dir: str) -> None:
    evaluations: list[int] = []
    with pytest.raises(loop.NonfiniteLossError):
        run_once(ram_dir, evaluations, CountingEngine(nonfinite_at=9))
    run_once(ram_dir, evaluations)
    assert evaluations == [4, 8, 10]
    assert int(read_checkpoint(f"{ram_dir}/best")["global_step"]) == 8


def test_a_loss_that_is_not_finite_stops_with_its_parts(ram_dir: str) -> None:
    with pytest.raises(loop.NonfiniteLossError) as caught:
        run_once(ram_dir, [], CountingEngine(nonfinite_at=6))
    assert (caught.value.step, caught.value.records) == (6, [7])
    message = str(caught.value)
    assert "step 6: loss = nan, loss_box = 0.5" in message
    assert "shard:index: 0:7" in message
    assert [found.step for found in list_checkpoints(ram_dir)] == [3, 4]
    newest = Ledger(ram_dir).lines()[-1]
    assert newest["state"] == "failed"
    assert newest["reason"].startswith("NonfiniteLossError: The loss is not finite at step 6")


def test_a_signal_saves_at_the_step_boundary(
    ram_dir: str, caplog: pytest.LogCaptureFixture
) -> None:
    former = signal.getsignal(signal.SIGTERM)
    engine, evaluations = CountingEngine(), []
    engine.stop_at = 5
    with caplog.at_level(logging.INFO):
        assert run_once(ram_dir, evaluations, engine) == loop.EXIT_START_AGAIN == 75
    assert signal.getsignal(signal.SIGTERM) is former
    assert signal.set_wakeup_fd(-1) == -1
    assert [found.step for found in list_checkpoints(ram_dir)] == [4, 5]
    assert states(ram_dir) == ["running", "stopped"]
    assert "Stopped by SIGTERM at step 5" in caplog.text
    assert run_once(ram_dir, evaluations) == loop.EXIT_FINISHED
    assert evaluations == [4, 8, 10]
    undisturbed = CountingEngine()
    run_once(f"{ram_dir}/undisturbed", [], undisturbed)
    assert read_checkpoint(ram_dir) == undisturbed.snapshot()


def test_a_signal_during_evaluation_ends_it_and_it_is_made_up_for(ram_dir: str) -> None:
    engine, evaluations = CountingEngine(), []

    def evaluate(step: int) -> Evaluation:
        os.kill(os.getpid(), signal.SIGINT)
        while True:  # only the signal can end this
            threading.Event().wait(0.01)

    code = loop.train_and_eval(
        engine=engine,
        model_dir=ram_dir,
        settings=SETTINGS,
        evaluation=evaluation_settings(evaluate),
    )
    assert code == loop.EXIT_START_AGAIN
    assert not engine.averaged
    assert Ledger(ram_dir).lines()[-1]["reason"] == "SIGINT"
    run_once(ram_dir, evaluations)
    assert evaluations == [4, 8, 10]


class LonelyEngine(CountingEngine):
    """Loses another host after five steps."""

    error: Exception = LostHostError("Step 6 cannot be finished")

    def train(self, num_steps: int) -> StepReport:
        if self.step >= 5:
            raise self.error
        return super().train(min(num_steps, 5 - self.step))


class DistantEngine(LonelyEngine):
    """Its bucket does not answer after five steps."""

    error = UnavailableCheckpointError("model.ckpt-5.index cannot be read now")


class Closing(DiscardingWriter):
    """Remembers how it was closed."""

    failed: bool | None = None

    def close(self, *, failed: bool = False) -> None:
        self.failed = failed


@pytest.mark.parametrize(
    ("engine", "error", "state"),
    [
        (LonelyEngine(), LostHostError, "stopped"),
        (DistantEngine(), UnavailableCheckpointError, "stopped"),
        (CountingEngine(nonfinite_at=6), loop.NonfiniteLossError, "failed"),
        (CountingEngine(), None, "finished"),
    ],
)
def test_a_lost_host_stops_a_run_and_only_a_fault_fails_it(
    ram_dir: str,
    monkeypatch: pytest.MonkeyPatch,
    engine: CountingEngine,
    error: type[Exception] | None,
    state: str,
) -> None:
    """Mode eval waits for one that was stopped, and loggers show what failed."""
    writer = Closing()
    monkeypatch.setattr(run, "open_loggers", lambda *names, restored_step: writer)
    with pytest.raises(error) if error else contextlib.nullcontext():
        run_once(ram_dir, [], engine)
    assert states(ram_dir)[-1] == state
    assert writer.failed == (state == "failed")


class GoneServer:
    """A client of MLflow whose server is gone once the run has begun."""

    def get_experiment_by_name(self, name: str) -> Any:
        return SimpleNamespace(experiment_id="0")

    def create_run(self, experiment_id: str, *, run_name: str) -> Any:
        return SimpleNamespace(info=SimpleNamespace(run_id="7"))

    def __getattr__(self, name: str) -> Any:
        raise ConnectionError("the server is gone")


@pytest.mark.parametrize(
    ("engine", "max_seconds", "end", "saved"),
    [
        (CountingEngine(), math.inf, loop.EXIT_FINISHED, [9, 10]),
        (CountingEngine(), -1.0, loop.EXIT_TIME_LIMIT, []),
        (CountingEngine(stop_at=5), math.inf, loop.EXIT_START_AGAIN, [4, 5]),
        (CountingEngine(nonfinite_at=6), math.inf, "The loss is not finite at step 6", [3, 4]),
    ],
)
def test_a_logger_that_fails_costs_no_checkpoint_and_hides_no_end(
    ram_dir: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    engine: CountingEngine,
    max_seconds: float,
    end: int | str,
    saved: list[int],
) -> None:
    monkeypatch.setitem(sys.modules, "mlflow", SimpleNamespace(MlflowClient=GoneServer))
    entities = SimpleNamespace(Metric=lambda *values: values)
    monkeypatch.setitem(sys.modules, "mlflow.entities", entities)
    changes = {"loggers": ("mlflow",), "deadline": time.monotonic() + max_seconds}
    if isinstance(end, str):
        with pytest.raises(loop.NonfiniteLossError, match=end):
            run_once(ram_dir, [], engine, **changes)
    else:
        assert run_once(ram_dir, [], engine, **changes) == end
    assert [found.step for found in list_checkpoints(ram_dir)] == saved
    warnings = [line.getMessage() for line in caplog.records if "MLflow" in line.getMessage()]
    assert len(warnings) == len(set(warnings)) <= 3  # of values, of an image, of the end


def test_a_metric_that_evaluation_lacks_is_named(ram_dir: str) -> None:
    with pytest.raises(ValueError, match="no metric AR9; it has AP50, AP"):
        run_once(ram_dir, [], headline=["AP50", "AR9"])
    assert steps(ram_dir, "eval") == []


def test_intervals_below_one_are_all_named() -> None:
    words = "total_steps must be above 0, got 0; log_every_steps must be above 0, got -1"
    with pytest.raises(ValueError, match=words):
        dataclasses.replace(SETTINGS, total_steps=0, log_every_steps=-1)
    with pytest.raises(ValueError, match="every_steps must be above 0, got 0"):
        dataclasses.replace(evaluation_settings(lambda step: Evaluation({}, {})), every_steps=0)


def evaluate_beside(
    model_dir: str,
    evaluations: list[int],
    timeout_seconds: float | None = None,
    engine: CountingEngine | None = None,
) -> int:
    """One process of mode eval."""
    engine = engine or CountingEngine()

    def evaluate(step: int) -> Evaluation:
        assert engine.step == step
        evaluations.append(step)
        return Evaluation({"AP50": AP50.get(step, 0.1)}, {})

    return loop.evaluate_checkpoints(
        engine=engine,
        model_dir=model_dir,
        total_steps=10,
        evaluation=evaluation_settings(evaluate),
        poll_seconds=0.02,
        timeout_seconds=timeout_seconds,
    )


def test_mode_eval_finds_every_checkpoint_that_training_and_evaluating_in_turn_would(
    ram_dir: str,
) -> None:
    """Though it is saved every 3 steps and evaluated every 4; 12 would be the first in common."""
    code = loop.train(
        engine=CountingEngine(),
        model_dir=ram_dir,
        settings=dataclasses.replace(SETTINGS, keep_checkpoints=9),
        evaluate_every_steps=4,
    )
    assert code == loop.EXIT_FINISHED
    assert [found.step for found in list_checkpoints(ram_dir)] == [3, 4, 6, 8, 9, 10]
    evaluations: list[int] = []
    assert evaluate_beside(ram_dir, evaluations) == loop.EXIT_FINISHED
    assert evaluations == [4, 8, 10]


def test_mode_eval_waits_for_checkpoints_and_ends_with_the_last(ram_dir: str) -> None:
    evaluations: list[int] = []
    saved, evaluated = threading.Event(), threading.Event()

    def write_slowly() -> None:
        writer, engine = Checkpoints(ram_dir, keep=1), CountingEngine()
        for step in (4, 6, 8, 10):  # 6 is not a multiple of 4
            engine.train(step - engine.step)
            writer.save(engine.snapshot())
            writer.wait()
            while step != 6 and step not in steps(ram_dir, "eval"):
                if evaluated.wait(0.01):
                    return
        saved.set()

    trainer = threading.Thread(target=write_slowly)
    trainer.start()
    assert evaluate_beside(ram_dir, evaluations, timeout_seconds=20.0) == loop.EXIT_FINISHED
    evaluated.set()
    trainer.join()
    assert evaluations == [4, 8, 10]
    assert int(read_checkpoint(f"{ram_dir}/best")["global_step"]) == 8
    evaluate_beside(ram_dir, evaluations)
    assert evaluations == [4, 8, 10]


def test_mode_eval_skips_a_torn_or_vanished_one_and_gives_up_in_time(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    writer, engine = Checkpoints(str(tmp_path), keep=3), CountingEngine()
    for step in (4, 8):
        engine.train(step - engine.step)
        writer.save(engine.snapshot())
    writer.wait()
    # An intact step beside a torn tensor is found only later.
    data = tmp_path / "model.ckpt-4.data-00000-of-00001"
    data.write_bytes(b"xyz" + data.read_bytes()[3:])
    evaluations: list[int] = []
    code = evaluate_beside(str(tmp_path), evaluations, timeout_seconds=0.1)
    assert code == loop.EXIT_FINISHED
    assert evaluations == [8]
    assert "model.ckpt-4.data" in caplog.text
    assert "No new checkpoint" in caplog.text


class ScaledEngine(CountingEngine):
    """Has loss scaling, which only training needs."""

    scale = 1024.0

    def snapshot(self) -> dict[str, np.ndarray]:
        return super().snapshot() | {"optimizer/loss_scale": np.asarray(self.scale)}


def test_mode_eval_takes_the_checkpoints_of_another_optimizer_and_keeps_them_whole(
    ram_dir: str,
) -> None:
    """A GPU trains in float16, with loss scaling, and a CPU evaluates in float32, without."""
    trainer, evaluator, evaluations = ScaledEngine(), CountingEngine(), list[int]()
    loop.train(engine=trainer, model_dir=ram_dir, settings=SETTINGS)
    evaluate_beside(ram_dir, evaluations, engine=evaluator)
    assert evaluations == [10]
    assert evaluator.snapshot() == CountingEngine.snapshot(trainer)
    assert read_checkpoint(f"{ram_dir}/best") == trainer.snapshot()


def test_a_process_beside_the_chief_does_the_same_steps_and_writes_nothing(ram_dir: str) -> None:
    chief_dir, evaluations = f"{ram_dir}/chief", []
    chief, worker = CountingEngine(), CountingEngine(is_chief=False)
    run_once(f"{ram_dir}/worker", evaluations, worker)
    run_once(chief_dir, [], chief)
    assert evaluations == [4, 8, 10]
    assert worker.snapshot() == chief.snapshot()
    assert not tf.io.gfile.exists(f"{ram_dir}/worker")
    before = outcome(chief_dir)
    restored = CountingEngine(is_chief=False)
    run_once(chief_dir, evaluations, restored, total_steps=12)
    assert restored.call_lengths == [2]  # from the chief's step 10
    assert outcome(chief_dir) == before


def test_going_back_to_an_earlier_checkpoint_evaluates_again(ram_dir: str) -> None:
    """N4: the evaluations of a training that was taken back do not count, nor does its best."""
    evaluations: list[int] = []
    run_once(ram_dir, evaluations, keep_checkpoints=9)
    for found in list_checkpoints(ram_dir):
        if found.step > 6:
            remove_checkpoint(found.prefix)
    engine = CountingEngine(nonfinite_at=7)
    with pytest.raises(loop.NonfiniteLossError):
        run_once(ram_dir, evaluations, engine, keep_checkpoints=9)
    assert steps(ram_dir, "eval") == [4]
    assert int(read_checkpoint(f"{ram_dir}/best")["global_step"]) == 4
    run_once(ram_dir, evaluations, keep_checkpoints=9)
    assert evaluations == [4, 8, 10, 8, 10]
    assert steps(ram_dir, "eval") == [4, 8, 10]
    assert int(read_checkpoint(f"{ram_dir}/best")["global_step"]) == 8


class MeetingEngine(CountingEngine):
    """One of two hosts, which notes what the ledger holds whenever they meet."""

    num_processes = 2

    def __init__(self, model_dir: str, *, is_refused: bool) -> None:
        super().__init__()
        self._model_dir, self._is_refused = model_dir, is_refused
        self.seen: list[tuple[str, list[int]]] = []

    def agree_on_step(self) -> None:
        self.seen.append(("agree", steps(self._model_dir, "eval")))
        if self._is_refused:
            raise UserError(f"the hosts restored different steps: {self.step}, 10")

    def any_process(self, flag: bool) -> bool:
        self.seen.append(("meet", steps(self._model_dir, "eval")))
        return flag


def test_hosts_agree_before_anything_is_discarded_and_meet_before_others_read(
    ram_dir: str,
) -> None:
    """A run that is refused keeps its record: one of its hosts had read an older checkpoint."""
    run_once(ram_dir, [], keep_checkpoints=9)
    for found in list_checkpoints(ram_dir):
        if found.step > 6:
            remove_checkpoint(found.prefix)
    before = outcome(ram_dir)
    engine = MeetingEngine(ram_dir, is_refused=True)
    with pytest.raises(UserError, match="different steps: 6, 10"):
        run_once(ram_dir, [], engine, keep_checkpoints=9)
    after = outcome(ram_dir)
    for kept in ("/best/best.json", "/best/model.ckpt-8.index"):
        assert after["files"][kept] == before["files"][kept]
    assert after["lines"] == before["lines"]
    engine = MeetingEngine(ram_dir, is_refused=False)
    run_once(ram_dir, [], engine, keep_checkpoints=9)
    assert engine.seen[:2] == [("agree", [4, 8, 10]), ("meet", [4])]
    assert steps(ram_dir, "eval") == [4, 8, 10]


class CollectiveEngine(CountingEngine):
    """One of two hosts, which counts the calls that both must make."""

    num_processes = 2

    def __init__(self, *, is_chief: bool, is_lost: bool) -> None:
        super().__init__(is_chief=is_chief)
        self._is_lost = is_lost
        self.calls: list[str] = []

    def any_process(self, flag: bool) -> bool:
        assert not flag or (self.is_chief and self._is_lost)
        self.calls.append("any_process")
        return self._is_lost  # what the two flags together are

    def snapshot(self) -> dict[str, np.ndarray]:
        self.calls.append("snapshot")
        return super().snapshot()


@pytest.mark.parametrize("is_lost", [False, True])
def test_all_hosts_take_part_in_keeping_the_best(tmp_path: Path, is_lost: bool) -> None:
    """Its files are torn or gone: with `train.shard_state` a snapshot needs every host."""
    calls = []
    for is_chief in (True, False):
        model_dir = str(tmp_path / f"{is_chief}")
        engine = CollectiveEngine(is_chief=is_chief, is_lost=is_lost)
        writer = Checkpoints(model_dir, keep=2)
        writer.prepare()
        writer.save(CountingEngine().snapshot())
        (found,) = writer.published
        if is_lost:
            Path(f"{found.prefix}.data-00000-of-00001").write_bytes(b"")
        evaluator = Evaluator(engine, model_dir, evaluation_settings(evaluating([])))
        evaluator.evaluate_once(found, Preemption(lambda: None), DiscardingWriter())
        assert evaluator.evaluated_steps == {0}
        if is_chief:
            assert read_best_record(f"{model_dir}/best") == BestRecord("AP50", 0.1, 0)
            assert int(read_checkpoint(f"{model_dir}/best")["global_step"]) == 0
        calls.append(engine.calls)
    assert calls == [["any_process", "snapshot"] if is_lost else ["any_process"]] * 2


def test_a_new_training_in_an_emptied_folder_keeps_its_own_best(ram_dir: str) -> None:
    """N3: killed before its first evaluation, it must not take the old best for its own."""
    run_once(ram_dir, [])
    for found in list_checkpoints(ram_dir):
        remove_checkpoint(found.prefix)
    with pytest.raises(loop.NonfiniteLossError):
        run_once(ram_dir, [], CountingEngine(nonfinite_at=4))
    assert [found.step for found in list_checkpoints(ram_dir)] == [3]
    assert read_best_record(f"{ram_dir}/best") is None
    run_once(ram_dir, [], total_steps=4)
    assert read_best_record(f"{ram_dir}/best") == BestRecord("AP50", AP50[4], 4)
    assert [found.step for found in list_checkpoints(f"{ram_dir}/best")] == [4]


def test_another_best_metric_keeps_the_better_copy(ram_dir: str) -> None:
    """N5: the copy in best/ was evaluated too, although its checkpoint is gone elsewhere."""
    run_once(ram_dir, [])
    assert [found.step for found in list_checkpoints(ram_dir)] == [9, 10]
    engine = CountingEngine()
    ap = {"AP50": 0.9, "AP": 0.01}  # at a later step: worse by the new metric
    code = loop.train_and_eval(
        engine=engine,
        model_dir=ram_dir,
        settings=dataclasses.replace(SETTINGS, total_steps=12),
        evaluation=dataclasses.replace(
            evaluation_settings(lambda step: Evaluation(ap, {}), headline=["AP"]), best_metric="AP"
        ),
    )
    assert code == loop.EXIT_FINISHED
    assert read_best_record(f"{ram_dir}/best") == BestRecord("AP", 0.05, 8)


def test_mode_eval_waits_in_a_folder_whose_checkpoints_were_removed(
    ram_dir: str, caplog: pytest.LogCaptureFixture
) -> None:
    run_once(ram_dir, [])
    for found in list_checkpoints(ram_dir):
        remove_checkpoint(found.prefix)
    evaluations: list[int] = []
    with caplog.at_level(logging.INFO):
        evaluate_beside(ram_dir, evaluations, timeout_seconds=0.1)
    waiting = f"Waiting for new checkpoints in {ram_dir} (0 checkpoints now)"
    assert [record.getMessage() for record in caplog.records].count(waiting) == 1
    assert "No new checkpoint" in caplog.text  # it did not take the old evaluations for its own
    assert "No training has begun" not in caplog.text
    trainer = threading.Thread(
        target=lambda: loop.train(
            engine=CountingEngine(),
            model_dir=ram_dir,
            settings=dataclasses.replace(SETTINGS, keep_checkpoints=9),
        )
    )
    trainer.start()
    evaluate_beside(ram_dir, evaluations, timeout_seconds=20.0)
    trainer.join()
    assert evaluations[-1] == 10
    assert steps(ram_dir, "eval") == evaluations


def test_mode_eval_asks_whether_a_folder_where_nothing_was_trained_is_meant(
    ram_dir: str, caplog: pytest.LogCaptureFixture
) -> None:
    evaluate_beside(ram_dir, [], timeout_seconds=0.1)
    question = f"No training has begun in {ram_dir} yet: is that the trainer's --model_dir?"
    assert [record.getMessage() for record in caplog.records].count(question) == 1


def test_a_checkpoint_that_goes_while_it_is_evaluated_is_still_kept_as_best(ram_dir: str) -> None:
    """Whole, with the state of an optimizer that the evaluator does not have."""
    engine, trained = CountingEngine(), ScaledEngine()
    trained.train(4)
    writer = Checkpoints(ram_dir, keep=1)
    evaluated = trained.snapshot()
    writer.save(evaluated)
    writer.wait()

    def evaluate(step: int) -> Evaluation:
        trained.train(1)
        writer.save(trained.snapshot())
        writer.wait()
        return Evaluation({"AP50": 0.2}, {})

    loop.evaluate_checkpoints(
        engine=engine,
        model_dir=ram_dir,
        total_steps=10,
        evaluation=evaluation_settings(evaluate),
        timeout_seconds=0.0,
    )
    assert read_checkpoint(f"{ram_dir}/best") == evaluated
    assert read_best_record(f"{ram_dir}/best") == BestRecord("AP50", 0.2, 4)


def test_a_checkpoint_that_is_torn_and_written_again_is_evaluated(tmp_path: Path) -> None:
    trained, evaluations = CountingEngine(), list[int]()
    trained.train(4)
    writer = Checkpoints(str(tmp_path), keep=2)
    data = Path(f"{writer.save(trained.snapshot()).prefix}.data-00000-of-00001")
    writer.wait()
    data.write_bytes(b"xyz" + data.read_bytes()[3:])
    settings = evaluation_settings(evaluating(evaluations))
    evaluator = Evaluator(CountingEngine(), str(tmp_path), settings)

    def look() -> list[Checkpoint]:
        published = list_checkpoints(str(tmp_path))
        evaluator.prepare(published)
        pending = evaluator.pending(published, 10)
        for checkpoint in pending:
            with Preemption(lambda: None) as preemption:
                evaluator.restore_and_evaluate(checkpoint, preemption, DiscardingWriter())
        return pending

    assert [len(look()), len(look())] == [1, 0]
    trained.load(trained.snapshot() | {"weight": np.asarray(0.5)})  # the trainer fell back
    writer.save(trained.snapshot())
    writer.wait()
    look()
    assert evaluations == [4]


@pytest.mark.parametrize("is_back_at_the_step", [False, True])
def test_an_evaluation_during_which_the_trainer_went_back_does_not_count(
    is_back_at_the_step: bool, ram_dir: str
) -> None:
    trained, calls = CountingEngine(), list[int]()
    writer, saved = Checkpoints(ram_dir, keep=2), []
    for _ in range(2):
        trained.train(4)
        saved.append(writer.save(trained.snapshot()))
    writer.wait()

    def evaluate(step: int) -> Evaluation:
        calls.append(step)
        if len(calls) == 2:
            remove_checkpoint(saved[1].prefix)
            if is_back_at_the_step:
                trained.load(trained.snapshot() | {"weight": np.asarray(0.5)})
                writer.save(trained.snapshot())
                writer.wait()
        return Evaluation({"AP50": float(len(calls))}, {})

    loop.evaluate_checkpoints(
        engine=CountingEngine(),
        model_dir=ram_dir,
        total_steps=8,
        evaluation=evaluation_settings(evaluate),
        timeout_seconds=0.0,
    )
    values = {x["step"]: x["AP50"] for x in Ledger(ram_dir).lines() if x["kind"] == "eval"}
    assert values == ({4: 1.0, 8: 3.0} if is_back_at_the_step else {4: 1.0})
    best = saved[is_back_at_the_step]
    assert read_best_record(f"{ram_dir}/best") == BestRecord("AP50", values[best.step], best.step)
    assert read_checkpoint(f"{ram_dir}/best") == read_checkpoint(best.prefix)


ENDS = {
    "finished": {"state": "finished"},
    "failed": {"state": "failed", "reason": "ValueError: no"},
    "target": {"state": "stopped", "reason": "AP50 is 0.9", "exit_code": loop.EXIT_TARGET_REACHED},
    "no improvement": {"state": "stopped", "reason": "5", "exit_code": loop.EXIT_NO_IMPROVEMENT},
}


@pytest.mark.parametrize("end", ENDS)
def test_mode_eval_ends_with_a_training_that_ended_early(
    end: str, ram_dir: str, caplog: pytest.LogCaptureFixture
) -> None:
    trained = CountingEngine()
    trained.train(4)
    writer = Checkpoints(ram_dir, keep=1)
    writer.save(trained.snapshot())
    writer.wait()
    Ledger(ram_dir).append("state", 7 if end == "failed" else 4, ENDS[end])
    evaluations: list[int] = []
    started = time.monotonic()
    assert evaluate_beside(ram_dir, evaluations, timeout_seconds=60.0) == loop.EXIT_FINISHED
    assert time.monotonic() - started < 30
    assert evaluations == [4]  # what was saved is evaluated first
    assert f"the training {ENDS[end]['state']} at step" in caplog.text


@pytest.mark.parametrize(
    ("state", "is_claimed"), [("running", False), ("stopped", False), ("finished", True)]
)
def test_mode_eval_waits_for_a_training_that_may_go_on(
    state: str, is_claimed: bool, ram_dir: str, caplog: pytest.LogCaptureFixture
) -> None:
    trained = CountingEngine()
    trained.train(4)
    writer = Checkpoints(ram_dir, keep=1)
    writer.save(trained.snapshot())
    writer.wait()
    Ledger(ram_dir).append("state", 4, {"state": state, "reason": "SIGTERM"})
    if is_claimed:  # the line is of the attempt before
        with tf.io.gfile.GFile(f"{ram_dir}/train.claim.json", "w") as file:
            file.write("{}")
    assert evaluate_beside(ram_dir, [], timeout_seconds=0.3) == loop.EXIT_FINISHED
    assert "No new checkpoint" in caplog.text


def test_the_best_outlives_a_kill_amid_its_recording(
    ram_dir: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed at the ledger's line; the trainer removes the checkpoint before the restart."""
    trained = CountingEngine()
    trained.train(4)
    writer = Checkpoints(ram_dir, keep=1)
    saved = writer.save(trained.snapshot())
    writer.wait()
    evaluate_here = {
        "engine": CountingEngine(),
        "model_dir": ram_dir,
        "total_steps": 10,
        "evaluation": evaluation_settings(lambda step: Evaluation({"AP50": 0.2}, {})),
        "timeout_seconds": 0.0,
    }

    class KilledError(Exception):
        pass

    def kill(*_: object) -> None:
        raise KilledError

    with monkeypatch.context() as context:
        context.setattr(Ledger, "append", kill)
        with pytest.raises(KilledError):
            loop.evaluate_checkpoints(**evaluate_here)
    remove_checkpoint(saved.prefix)
    loop.evaluate_checkpoints(**evaluate_here)
    assert read_checkpoint(f"{ram_dir}/best") == trained.snapshot()
    assert read_best_record(f"{ram_dir}/best") == BestRecord("AP50", 0.2, 4)


def test_a_trainer_that_lost_its_claim_writes_nothing_more(tmp_path: Path) -> None:
    engine = CountingEngine()
    path = tmp_path / "train.claim.json"

    def take_over() -> None:
        claim = json.loads(path.read_text().rstrip("\0 "))
        path.write_text(json.dumps(claim | {"host": "elsewhere", "token": "another"}))

    train = engine.train

    def train_paused(num_steps: int) -> object:
        if engine.step >= 6:
            # A checkpoint is written while training continues; this one is still the trainer's.
            deadline = time.monotonic() + 240
            while len(list_checkpoints(str(tmp_path))) < 2 and time.monotonic() < deadline:
                time.sleep(0.01)
            take_over()
        return train(num_steps)

    engine.train = train_paused  # pyright: ignore[reportAttributeAccessIssue]
    with (
        pytest.raises(ClaimError, match="taken over by process .* on elsewhere"),
        claim_model_dir(str(tmp_path), "train", is_chief=True) as verify,
    ):
        loop.train(engine=engine, model_dir=str(tmp_path), settings=SETTINGS, verify=verify)
    assert [found.step for found in list_checkpoints(str(tmp_path))] == [3, 6]
    assert [line["kind"] for line in Ledger(str(tmp_path)).lines()] == ["state"] + ["train"] * 3
    assert path.exists()  # it is the other's now
