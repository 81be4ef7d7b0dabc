"""The predecessor's learning rates and ours, step by step."""

import math
import runpy
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from tpudet.detection.config import ExperimentConfig
from tpudet.detection.legacy.import_file import convert_text
from tpudet.trainkit.config.decode import decode
from tpudet.trainkit.config.yaml_tree import parse_tree
from tpudet.trainkit.training.build_optimizer import build_schedule
from tpudet.trainkit.training.config import TrainConfig

FILES = Path(__file__).parents[1] / "legacy_files.py"
LEGACY = SimpleNamespace(**runpy.run_path(str(FILES)))
ROWS = {row["file"]: row for row in LEGACY.read_rows()}


def converted(old_text: str) -> tuple[TrainConfig, str]:
    """The run of the converted file, and the remarks as one text."""
    text, remarks = convert_text(old_text, "old.yaml")
    return decode(ExperimentConfig, parse_tree(text, "new.yaml")).train, "\n".join(remarks)


def legacy_rate(row: dict[str, str], step: int) -> float:
    """The predecessor's formulas, word for word."""
    start, _, warmup = (row["warmup"] or "0.0067 500").partition(" ")
    first, warm, peak = float(start), int(warmup), float(row["peak"])
    if step < warm:
        return first + step / warm * (peak - first)
    if row["schedule"] == "cosine":
        total = int(row["schedule_steps"])
        return peak * (math.cos(math.pi * (step - warm) / (total - warm)) + 1) / 2
    rate = peak
    for level, begin in zip(row["levels"].split(), row["steps"].split(), strict=True):
        rate = float(level) if step >= int(begin) else rate
    return rate


@pytest.mark.parametrize("name", ROWS)
def test_the_learning_rate_is_the_formulas_at_every_turn(name: str) -> None:
    row = ROWS[name]
    train, _ = converted(LEGACY.legacy_yaml(row))
    warmup = int(row["warmup"].split()[1]) if row["warmup"] else 500
    turns = [0, warmup, *LEGACY.whole_numbers(row["steps"], " "), 10000, 30000, train.total_steps]
    steps = np.array(sorted({max(turn + near, 0) for turn in turns for near in (-1, 0, 1, 377)}))
    expected = [legacy_rate(row, int(step)) for step in steps]
    rates = np.asarray(build_schedule(train)(steps))
    np.testing.assert_allclose(rates, expected, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize(
    ("steps", "levels", "warmup"),
    [
        ("500 900", "0.01 0.001", 500),  # where the warm-up ends
        ("499 900", "0.01 0.001", 500),
        ("100 300", "0.01 0.001", 500),  # both within it: the second one acts
        ("300 100 700", "0.01 0.02 0.001", 500),  # of the two, the one written last
        ("0 9", "0.01 0.001", 0),
        ("0 0", "0.01 0.001", 0),
        ("700 100", "0.01 0.08", 500),  # the peak again, and for good
    ],
)
def test_drops_within_the_warmup_act_at_its_end(steps: str, levels: str, warmup: int) -> None:
    row = {"warmup": f"0.004 {warmup}", "peak": "0.08", "schedule": "step"}
    row |= {"steps": steps, "levels": levels}
    lists = [", ".join(text.split()) for text in (steps, levels)]
    old = (
        f"train: {{learning_rate: {{warmup_steps: {warmup}, warmup_learning_rate: 0.004, "
        f"learning_rate_steps: [{lists[0]}], learning_rate_levels: [{lists[1]}]}}}}\n"
    )
    rates = np.asarray(build_schedule(converted(old)[0])(np.arange(1000)))
    expected = [legacy_rate(row, step) for step in range(1000)]
    np.testing.assert_allclose(rates, expected, rtol=1e-5, atol=1e-7)


def test_a_warmup_that_fell_is_level_and_told() -> None:
    """Its start is a default, 0.0067, so that a low peak alone made it fall.

    So is the first drop, to 0.008, above that peak: only the second, to 0.0008, is one.
    """
    train, remarks = converted("train: {learning_rate: {init_learning_rate: 0.001}}\n")
    assert "the warm-up fell from 0.0067 to the peak of 0.001 there" in remarks
    assert "the learning rate rose from 0.001 to 0.008 at step 15000 there; here it" in remarks
    rates = np.asarray(build_schedule(train)(np.array([0, 250, 500, 15000, 19999, 20000])))
    np.testing.assert_allclose(rates, [*[0.001] * 5, 0.0008], rtol=1e-6)
