"""Time limits, targets and evaluations without improvement: saved, in words, with an exit code."""

import contextlib
import dataclasses
import functools
import logging
import os
import signal
import threading
import time
from collections.abc import Iterator, Mapping

import numpy as np
import pytest

from tpudet.trainkit.errors import UserError
from tpudet.trainkit.training import loop
from tpudet.trainkit.training.checkpoints import list_checkpoints
from tpudet.trainkit.training.engine import Signature, StepReport
from tpudet.trainkit.training.evaluator import Evaluation
from tpudet.trainkit.training.run_log import Ledger
from tpudet.trainkit.training.stopping import early_end

SETTINGS = loop.RunSettings(
    total_steps=20,
    iterations_per_loop=100,
    log_every_steps=100,
    checkpoint_every_steps=100,
    keep_checkpoints=1,
)
AP50 = {4: 0.2, 8: 0.6, 12: 0.5, 16: 0.6, 20: 0.9}


class PacedEngine:
    """Takes `seconds` per step, and stops where it is asked to."""

    batch_size = 2
    is_chief = True
    num_processes = 1

    def __init__(self, seconds: float = 0.0) -> None:
        self.step = 0
        self._seconds = seconds
        self._stopped = False

    def train(self, num_steps: int) -> StepReport:
        done = 0
        while done < num_steps and not self._stopped:
            time.sleep(self._seconds)
            done += 1
            self.step += 1
        return StepReport({"loss": 0.5}, done, 0.0, 0.1, done * self._seconds, None)

    def request_stop(self) -> None:
        self._stopped = True

    def any_process(self, flag: bool) -> bool:
        return flag

    def agree_on_step(self) -> None:
        pass

    def signature(self) -> Signature:
        return {"global_step": ((), "int64")}

    def snapshot(self) -> dict[str, np.ndarray]:
        return {"global_step": np.asarray(self.step, np.int64)}

    def load(self, arrays: Mapping[str, np.ndarray]) -> None:
        self.step = int(arrays["global_step"])

    def restart_input(self) -> None:
        pass

    @contextlib.contextmanager
    def averaged_weights(self) -> Iterator[None]:
        yield


def run(
    model_dir: str,
    *,
    stop_at: dict[str, float] | None = None,
    patience: int | None = None,
    seconds: float = 0.0,
    limit: float | None = None,
    in_evaluation: signal.Signals | None = None,
) -> tuple[int, int]:
    """Returns the exit code and the step of a process of train_and_eval."""
    engine = PacedEngine(seconds)

    def evaluate(step: int) -> Evaluation:
        if in_evaluation is not None:
            os.kill(os.getpid(), in_evaluation)
            threading.Event().wait(60)
        return Evaluation({"AP50": AP50[step]}, {})

    settings = dataclasses.replace(SETTINGS, stop_at=stop_at, patience=patience)
    if limit is not None:
        settings = dataclasses.replace(settings, deadline=time.monotonic() + limit)
    code = loop.train_and_eval(
        engine=engine,
        model_dir=model_dir,
        settings=settings,
        evaluation=loop.EvaluationSettings(
            evaluate=evaluate,
            every_steps=4,
            best_metric="AP50",
            headline=["AP50"],
        ),
    )
    assert [found.step for found in list_checkpoints(model_dir)] == [engine.step]
    return code, engine.step


def reason(model_dir: str) -> str:
    return Ledger(model_dir).lines()[-1]["reason"]


def test_a_target_ends_the_run_and_a_higher_one_resumes_it(
    ram_dir: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO):
        assert run(ram_dir, stop_at={"AP50": 0.6}) == (loop.EXIT_TARGET_REACHED, 8)
    assert reason(ram_dir) == "AP50 is 0.6000, 0.6 was wanted"
    assert "Ended at step 8 of 20: AP50 is 0.6000" in caplog.text
    assert (
        "the same command continues once train.stop_at is higher or null (exit code 81)"
        in caplog.text
    )
    assert run(ram_dir, stop_at={"AP50": 0.6}) == (loop.EXIT_TARGET_REACHED, 8)
    assert run(ram_dir, stop_at={"AP50": 0.95}) == (loop.EXIT_FINISHED, 20)


def test_no_improvement_ends_the_run_and_more_patience_resumes_it(ram_dir: str) -> None:
    # An equal value is no improvement.
    assert run(ram_dir, patience=2) == (loop.EXIT_NO_IMPROVEMENT, 16)
    assert reason(ram_dir) == (
        "2 evaluations without improvement: AP50 was highest at step 8, 0.6000"
    )
    assert run(ram_dir, patience=2) == (loop.EXIT_NO_IMPROVEMENT, 16)
    assert run(ram_dir, patience=3) == (loop.EXIT_FINISHED, 20)


def test_a_target_at_the_last_step_is_the_end_of_the_run(ram_dir: str) -> None:
    assert run(ram_dir, stop_at={"AP50": 0.9}) == (loop.EXIT_FINISHED, 20)


def test_all_targets_must_be_reached_by_one_evaluation() -> None:
    history = {4: {"AP50": 0.9, "AP": 0.2}, 8: {"AP50": 0.7, "AP": 0.4}}
    end_of = functools.partial(early_end, best_metric="AP", patience=None)
    assert end_of(history, stop_at={"AP50": 0.8, "AP": 0.3}) is None
    end = end_of(history, stop_at={"AP50": 0.7, "AP": 0.3})
    assert str(end) == "AP50 is 0.7000, 0.7 was wanted, AP is 0.4000, 0.3 was wanted"
    assert early_end({}, stop_at={"AP": 0.0}, best_metric="AP", patience=1) is None
    assert end_of({4: {}}, stop_at={"AP": 0.0}) is None  # it was not finite


def test_patience_begins_with_the_first_evaluation_that_has_the_metric() -> None:
    before = {2: {"AP": 0.5}, 4: {"AP": 0.4}, 6: {"AP": 0.3}}  # when another metric decided
    end_of = functools.partial(early_end, best_metric="AP50", stop_at={}, patience=2)
    assert end_of(before) is None
    assert end_of(before | {8: {"AP50": 0.2}, 10: {"AP50": 0.1}}) is None
    end = end_of(before | {8: {"AP50": 0.2}, 10: {"AP50": 0.1}, 12: {}})  # a NaN is no improvement
    assert str(end) == "2 evaluations without improvement: AP50 was highest at step 8, 0.2000"


def test_a_time_limit_saves_and_the_same_command_resumes(
    ram_dir: str, caplog: pytest.LogCaptureFixture
) -> None:
    former = signal.getsignal(signal.SIGALRM)
    with caplog.at_level(logging.INFO):
        code, step = run(ram_dir, seconds=0.1, limit=1.0)
    assert code == loop.EXIT_TIME_LIMIT
    assert 1 < step < 20
    assert reason(ram_dir) == "the time limit"
    assert f"Stopped by the time limit at step {step}" in caplog.text
    assert signal.getsignal(signal.SIGALRM) is former
    assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)
    assert run(ram_dir) == (loop.EXIT_FINISHED, 20)


def test_a_time_limit_interrupts_an_evaluation_which_is_made_up_for(ram_dir: str) -> None:
    began = run(ram_dir, limit=3600.0, in_evaluation=signal.SIGALRM)  # as if it were over
    assert began == (loop.EXIT_TIME_LIMIT, 4)
    assert run(ram_dir) == (loop.EXIT_FINISHED, 20)
    ledger = Ledger(ram_dir)
    evaluated = {line["step"] for line in ledger.lines() if line["kind"] == "eval"}
    assert evaluated == {4, 8, 12, 16, 20}


def test_the_first_steps_say_how_long_the_run_will_take(
    ram_dir: str, caplog: pytest.LogCaptureFixture
) -> None:
    """10,000 steps of 1 s are 2 h 46 min; known at step 8, where 7 steps were measured."""

    class HourEngine(PacedEngine):
        def train(self, num_steps: int) -> StepReport:
            report = super().train(num_steps)
            self._stopped = self.step >= 8
            seconds = 60.0 if self.step == 1 else report.steps_done * 1.0
            return report._replace(seconds=seconds)

    engine = HourEngine()
    settings = dataclasses.replace(SETTINGS, total_steps=10_000, advice_if_slow="Take less.")
    with caplog.at_level(logging.INFO), pytest.raises(RuntimeError, match="has the input ended"):
        loop.train(engine=engine, model_dir=ram_dir, settings=settings)
    lines = [record.getMessage() for record in caplog.records]
    assert lines[1] == "step 1/10000  loss 0.5"
    assert lines[2] == (
        "1 s per step on this machine: the remaining 9,992 steps will take about 2:46:32, "
        "evaluations not counted"
    )
    assert lines[3] == "That is more than 2 hours. Take less."


def test_a_target_that_no_evaluation_has_is_told_at_the_first(ram_dir: str) -> None:
    with pytest.raises(UserError, match="no metric APm; it has AP50"):
        run(ram_dir, stop_at={"APm": 0.5})
    assert Ledger(ram_dir).lines()[-1]["step"] == 4
