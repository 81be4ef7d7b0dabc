"""Where a run's time goes, by hand and over simulated days of kills."""

import contextlib
import math
import re
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pytest

from tpudet.detection.commands import list_runs
from tpudet.trainkit.training import loop, run
from tpudet.trainkit.training.engine import Signature, StepReport
from tpudet.trainkit.training.evaluator import Evaluation
from tpudet.trainkit.training.run_log import Ledger
from tpudet.trainkit.training.wall_time import PARTS, WallClock, sum_wall_time

REPORT = StepReport({"loss": 1.0}, 10, 0.25, 0.1, 8.0, None)  # 8 s, a quarter of it waiting


def test_a_clock_divides_the_time_since_the_start_without_a_rest() -> None:
    times = iter([105.0, 120.0, 121.5, 121.5])
    clock = WallClock(100.0, now=lambda: next(times))
    clock.lap("start")
    clock.lap_steps(REPORT)  # 15 s, of which 8 were steps
    clock.lap("save")
    assert clock.take() == {"start": 5, "input": 2, "steps": 6, "compile": 7, "save": 1.5}
    clock.lap("other")
    assert clock.take() == {}


def test_a_clock_that_is_set_back_takes_no_time_away() -> None:
    times = iter([90.0, 91.0])
    clock = WallClock(100.0, now=lambda: next(times))
    clock.lap("start")
    clock.lap("evaluation")
    assert clock.take() == {"evaluation": 1}


def line(kind: str, **values: Any) -> dict[str, Any]:
    return {"kind": kind, "step": 1, "time": 1.0, **values}


def test_attempts_are_summed_and_what_was_lost_is_redone() -> None:
    lines = [
        line("state", state="running", started=0.0, wall_seconds={"start": 5.0}),
        line("train", wall_seconds={"compile": 3.0, "steps": 20.0, "save": 1.0}),
        # Killed; what it had written beyond its checkpoint is removed by the second attempt.
        line(
            "state",
            state="running",
            started=100.0,
            last_seen=40.0,
            discarded_seconds={"compile": 2.0, "steps": 9.0, "input": 1.0},
            wall_seconds={"start": 4.0},
        ),
        line("train", wall_seconds={"steps": 10.0, "evaluation": 6.0}),
        line("state", state="stopped", wall_seconds={"save": 1.0}),
        line("state", state="running", started=900.0, last_seen=130.0, wall_seconds={"start": 2.0}),
    ]
    found = sum_wall_time(lines)
    assert found.attempts == 3
    # 10 s were lost with lines; after the last one at most the 24 s that one line stands for.
    assert found.seconds == {
        **{"start": 11, "compile": 5, "steps": 30, "input": 0, "save": 2, "evaluation": 6},
        **{"redone": 10 + 24, "other": 0},
    }
    assert found.goodput == pytest.approx(36 / 88)


def test_a_ledger_of_before_has_no_goodput() -> None:
    found = sum_wall_time([line("state", state="running"), line("train")])
    assert found.total == 0
    assert math.isnan(found.goodput)


@pytest.mark.parametrize("wrong", ["x", None, [1], {"steps": "nan"}, {"steps": 10**400}, {"no": 1}])
def test_damaged_times_count_as_none(wrong: Any) -> None:
    lines = [line("state", state="running", started=wrong), line("train", wall_seconds=wrong)]
    assert sum_wall_time(lines).total == 0


class Killed(BaseException):
    """Stands for SIGKILL: nothing is recorded."""


class World:
    """A machine whose time passes only by what is done, and which kills every half hour."""

    def __init__(self) -> None:
        self.now = 1.7e9
        self.killed_at = math.inf

    def pass_time(self, seconds: float) -> None:
        self.now += seconds
        if self.now >= self.killed_at:
            self.now = self.killed_at
            raise Killed


class SimulatedEngine:
    """Steps, saves and a start that take as long as they might; no arithmetic.

    A step takes a second, as of a large detector on eight chips. What a save keeps the steps
    waiting is the copy to the host's memory; the file is written while they continue. Only the
    first attempt compiles, the others find the compile cache.
    """

    STEP, WAIT, SNAPSHOT, START, COMPILE, CACHED = 1.0, 0.002, 0.1, 15.0, 120.0, 5.0

    batch_size = 64
    num_processes = 1
    is_chief = True

    def __init__(self, world: World, *, is_first: bool) -> None:
        self.step = 0
        self._world = world
        self._compile = self.COMPILE if is_first else self.CACHED
        world.pass_time(self.START)

    def train(self, num_steps: int) -> StepReport:
        self._world.pass_time(self._compile)
        self._compile = 0.0
        seconds = num_steps * (self.STEP + self.WAIT)
        self._world.pass_time(seconds)
        self.step += num_steps
        waited = self.WAIT / (self.STEP + self.WAIT)
        return StepReport({"loss": 1.0}, num_steps, waited, 0.1, seconds, None)

    def any_process(self, flag: bool) -> bool:
        return flag

    def agree_on_step(self) -> None:
        pass

    def request_stop(self) -> None:
        pass

    def signature(self) -> Signature:
        return {"global_step": ((), "int64"), "records_consumed": ((), "int64")}

    def snapshot(self) -> dict[str, np.ndarray]:
        self._world.pass_time(self.SNAPSHOT)
        step = np.asarray(self.step, np.int64)
        return {"global_step": step, "records_consumed": step}

    def load(self, arrays: Mapping[str, np.ndarray]) -> None:
        self.step = int(arrays["global_step"])

    def restart_input(self) -> None:
        pass

    @contextlib.contextmanager
    def averaged_weights(self) -> Iterator[None]:
        yield


@pytest.mark.parametrize(
    ("hours", "least"), [(1.5, 0.93), pytest.param(24.0, 0.97, marks=pytest.mark.slow)]
)
def test_a_kill_every_half_hour_leaves_97_percent_of_a_day_to_steps_and_evaluations(
    hours: float,
    least: float,
    ram_dir: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    world = World()
    monkeypatch.setattr("time.time", lambda: world.now)
    total_steps = round(hours * 3600)
    settings = loop.RunSettings(
        total_steps=total_steps,
        iterations_per_loop=20,
        log_every_steps=20,
        checkpoint_every_steps=20,
        keep_checkpoints=2,
    )

    def evaluate(step: int) -> Evaluation:
        world.pass_time(100.0)
        return Evaluation({"AP50": 0.5}, {})

    evaluation = loop.EvaluationSettings(
        evaluate=evaluate, every_steps=3600, best_metric="AP50", headline=()
    )
    code, kills, begin = None, 0, world.now
    while code is None:
        world.killed_at = world.now + 1800
        monkeypatch.setattr(run, "command_start", lambda at=world.now: at)
        with contextlib.suppress(Killed):
            code = loop.train_and_eval(
                engine=SimulatedEngine(world, is_first=not kills),
                model_dir=ram_dir,
                settings=settings,
                evaluation=evaluation,
            )
        kills += code is None
    assert code == 0
    assert kills >= 2 * hours
    found = sum_wall_time(Ledger(ram_dir).lines())
    assert found.attempts == kills + 1
    # Every step once, a second each, whatever was done again.
    assert found.seconds["steps"] == pytest.approx(total_steps, rel=1e-3)
    assert found.seconds["start"] == pytest.approx(15 * (kills + 1), rel=1e-3)
    assert found.total == pytest.approx(world.now - begin, rel=5e-3)
    assert found.goodput > least
    assert list_runs.main([ram_dir, "--goodput"]) == 0
    header, row = capsys.readouterr().out.splitlines()[-2:]
    print(header, row, sep="\n")
    assert header.split()[4:-1] == list(PARTS)
    shares = [float(share) for share in re.findall(r"([\d.]+)%", row)]
    assert sum(shares[:-1]) == pytest.approx(100, abs=0.5)
    assert shares[-1] == pytest.approx(100 * found.goodput, abs=0.1)
