"""The share of the peak, by hand, and where it is not known."""

import pytest

from tpudet.trainkit.training.device_peaks import compiled_flops, peak_flops, peak_share
from tpudet.trainkit.training.engine import StepReport
from tpudet.trainkit.training.run_log import Progress, format_line


@pytest.mark.parametrize(
    ("kind", "tflops"),
    [
        ("TPU v2", 22.5),
        ("TPU v3", 61.5),
        ("TPU v4", 275.0),
        ("TPU v5 lite", 197.0),  # not the v5p, whose name it begins with
        ("TPU v5", 459.0),
        ("TPU v6 lite", 918.0),
        ("NVIDIA H100 80GB HBM3", 989.0),
    ],
)
def test_kinds_are_told_apart(kind: str, tflops: float) -> None:
    assert peak_flops(kind) == tflops * 1e12


def test_the_share_is_operations_over_time_over_peak() -> None:
    """10 steps of 1.97 TFLOP in 0.4 s are 49.25 TFLOP/s, a quarter of 197."""
    share = peak_share(1.97e12, steps=10, seconds=0.4, device_kind="TPU v5 lite")
    assert share == pytest.approx(0.25)
    assert peak_share(1.97e12, steps=10, seconds=0.4, device_kind="cpu") is None
    assert peak_share(None, steps=10, seconds=0.4, device_kind="TPU v5 lite") is None


def test_a_compiled_product_of_matrices_costs_two_operations_a_term() -> None:
    class Executable:
        def __init__(self, cost: dict[str, float]) -> None:
            self.cost_analysis = lambda: cost

    assert compiled_flops(Executable({"flops": 2.0 * 8**3})) == 1024.0
    assert compiled_flops(Executable({})) is None
    assert compiled_flops(Executable({"flops": -1.0})) is None


def test_the_log_shows_it_weighted_by_time() -> None:
    progress = Progress(batch_size=8)
    progress.add(StepReport({"loss": 1.0}, 10, 0.0, 0.1, 3.0, None, 0.4))
    progress.add(StepReport({"loss": 1.0}, 10, 0.0, 0.1, 1.0, None, 0.2))
    summary = progress.summary(remaining_steps=0, remaining_eval_seconds=0.0)
    assert summary["peak_share"] == 0.35
    assert "waiting for input 0%  35% of peak  ETA" in format_line(20, 20, summary)


def test_where_it_is_unknown_the_line_is_as_before() -> None:
    progress = Progress(batch_size=8)
    progress.add(StepReport({"loss": 1.0}, 10, 0.0, 0.1, 3.0, None))
    summary = progress.summary(remaining_steps=0, remaining_eval_seconds=0.0)
    assert "peak_share" not in summary
    assert "waiting for input 0%  ETA" in format_line(10, 20, summary)
