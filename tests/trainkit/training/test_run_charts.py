"""The charts of a run's ledger."""

import re

import pytest

from tpudet.trainkit.training.run_charts import metric_chart


@pytest.mark.parametrize("steps", [[200], [3], [1, 2]])
def test_ticks_of_the_steps_are_whole_numbers(steps: list[int]) -> None:
    lines = [{"kind": "eval", "step": step, "AP": 0.5} for step in steps]
    chart = metric_chart(lines, ["AP"])
    assert chart is not None
    axis = chart.svg.split("matplotlib.axis_")[1]
    ticks = re.findall(r"<text[^>]*>([^<]+)</text>", axis)
    assert ticks.pop() == "step"
    assert set(map(str, steps)) <= set(ticks)
    assert not any("." in tick for tick in ticks)
