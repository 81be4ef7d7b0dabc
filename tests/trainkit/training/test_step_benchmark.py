"""The arithmetic of timed steps and their row."""

import pytest

from tpudet.trainkit.training.devices import choose_tensorflow_devices
from tpudet.trainkit.training.engine import NonfiniteStep, StepReport
from tpudet.trainkit.training.step_benchmark import HEADER, time_steps


class Clockwork:
    """An engine whose first call takes 9 s, and every step of later ones 0.5 s."""

    batch_size = 8

    def __init__(self, nonfinite: NonfiniteStep | None = None) -> None:
        self.calls: list[int] = []
        self.nonfinite = nonfinite

    def train(self, num_steps: int) -> StepReport:
        self.calls.append(num_steps)
        seconds = 9.0 if len(self.calls) == 1 else 0.5 * num_steps
        return StepReport({"loss": 1.0}, num_steps, 0.25, 0.1, seconds, self.nonfinite)


def run(engine: Clockwork):
    return time_steps(
        engine,  # pyright: ignore[reportArgumentType]
        devices=choose_tensorflow_devices("cpu", 1),
        network="r50_fpn_640",
        input_name="synthetic",
        warmup_steps=3,
        steps=4,
    )


def test_warm_up_is_not_timed_and_images_are_those_of_all_devices() -> None:
    engine = Clockwork()
    times = run(engine)
    assert engine.calls == [3, 4]
    assert (times.seconds_per_batch, times.images_per_second) == (0.5, 16.0)
    assert times.input_wait_share == 0.25
    cells = times.row().strip("| ").split(" | ")
    assert cells[1:] == [
        "float32",
        "r50_fpn_640, synthetic input, tensorflow",
        "8",
        "0.500",
        "16.0",
    ]
    assert len(cells) == HEADER.splitlines()[0].count("|") - 1
    assert " cores of " in times.device


def test_a_loss_that_is_not_finite_is_no_measurement() -> None:
    with pytest.raises(ValueError, match="not finite at step 2"):
        run(Clockwork(NonfiniteStep(2, {}, [])))
