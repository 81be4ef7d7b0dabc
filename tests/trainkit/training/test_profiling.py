"""When traces begin and end, and that TensorFlow's are written where TensorBoard looks."""

import logging
import time
from pathlib import Path

import pytest

from tpudet.trainkit.training.config import ProfileConfig
from tpudet.trainkit.training.profiling import Profiler, Tracer


class Traces:
    """A tracer that counts, and a clock that is set."""

    def __init__(self) -> None:
        self.events: list[str] = []
        self.now = 0.0

    def tracer(self) -> Tracer:
        return Tracer(lambda directory: self.events.append(directory), self.stop)

    def stop(self) -> None:
        self.events.append("stop")

    def profiler(self, **config: float) -> Profiler:
        settings = ProfileConfig(**({"duration_ms": 60_000} | config))  # pyright: ignore
        return Profiler("m", settings, self.tracer, lambda: self.now)


def test_by_steps_a_trace_begins_at_the_first_boundary_beyond_a_multiple() -> None:
    traces = Traces()
    profiler = traces.profiler(every_steps=100)
    begun = []
    for step in (40, 80, 120, 160, 199, 240):
        traces.now += 20.0
        if profiler.at_boundary(step):
            begun.append(step)
            profiler.close()
    assert begun == [120, 240]
    assert traces.events == ["m", "stop"] * 2


def test_by_seconds_a_trace_begins_so_long_after_the_last() -> None:
    traces = Traces()
    profiler = traces.profiler(every_seconds=30.0)
    begun = []
    for step in range(9):
        if profiler.at_boundary(step):
            begun.append(traces.now)
            profiler.close()
        traces.now += 20.0
    assert begun == [40.0, 80.0, 120.0, 160.0]


def test_a_trace_is_left_out_while_one_runs() -> None:
    traces = Traces()
    profiler = traces.profiler(every_steps=1)
    for step in range(4):
        profiler.at_boundary(step)
        traces.now += 20.0
    assert traces.events == ["m"]
    profiler.close()
    profiler.close()
    assert traces.events == ["m", "stop"]


def test_traces_are_at_least_ten_seconds_apart() -> None:
    traces = Traces()
    profiler = traces.profiler(every_steps=1)
    begun = []
    for step in range(8):
        if profiler.at_boundary(step):
            begun.append(traces.now)
            profiler.close()
        traces.now += 4.0
    assert begun == [12.0, 24.0]


def test_the_duration_ends_a_trace() -> None:
    traces = Traces()
    profiler = traces.profiler(every_steps=1, duration_ms=20)
    profiler.at_boundary(0)
    traces.now = 20.0
    assert profiler.at_boundary(1)
    deadline = time.monotonic() + 60
    while len(traces.events) < 2 and time.monotonic() < deadline:
        time.sleep(0.01)
    assert traces.events == ["m", "stop"]


def test_a_trace_that_fails_is_a_line_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    def fail(*directory: str) -> None:
        raise RuntimeError("another profiler is active")

    profiler = Profiler("m", ProfileConfig(every_steps=1), lambda: Tracer(fail, fail), iter_clock())
    profiler.at_boundary(0)
    with caplog.at_level(logging.WARNING):
        assert not profiler.at_boundary(1)
    assert "another profiler is active" in caplog.text
    profiler.close()


def iter_clock():
    times = iter(range(0, 1000, 20))
    return lambda: float(next(times))


def test_without_a_config_nothing_is_traced() -> None:
    profiler = Profiler("m", None)
    assert not any(profiler.at_boundary(step) for step in range(3))
    profiler.close()


@pytest.mark.parametrize("values", [{}, {"every_steps": 1, "every_seconds": 1.0}])
def test_the_config_names_one_interval(values: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="give either every_steps or every_seconds"):
        ProfileConfig(**values)  # pyright: ignore[reportArgumentType]


def test_tensorflow_writes_where_tensorboard_looks(tmp_path: Path) -> None:
    import tensorflow as tf

    profiler = Profiler(str(tmp_path), ProfileConfig(every_steps=1), clock=iter_clock())
    profiler.at_boundary(0)
    assert profiler.at_boundary(1)
    tf.linalg.matmul(tf.ones([8, 8]), tf.ones([8, 8]))
    profiler.close()
    (trace,) = tmp_path.glob("plugins/profile/*/*.xplane.pb")
    assert trace.stat().st_size > 0
