"""The range test of the learning rate: it grows each step until the loss diverges.

After Smith, arXiv 1506.01186, section 3.3, with the numbers of fastai and of the packages that
follow it.
"""

import dataclasses
import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from tpudet.trainkit.config.ranges import BrokenRules
from tpudet.trainkit.errors import UserError
from tpudet.trainkit.files.file_kinds import DRAWING, PNG_METADATA, RATE_TABLE, file_of_kind
from tpudet.trainkit.input_errors import input_errors_in_words
from tpudet.trainkit.record_splits import Split
from tpudet.trainkit.training.build_training import Training
from tpudet.trainkit.training.config import (
    RangeTestScheduleConfig,
    ScheduleConfig,
    TrainConfig,
)
from tpudet.trainkit.training.engine import Engine, NonfiniteStep
from tpudet.trainkit.training.start import resolve_start
from tpudet.trainkit.training_arguments import rate_table_path
from tpudet.trainkit.weights.families import Family

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SMOOTHING = 0.05  # share of a step's loss in the smoothed loss
DIVERGENCE = 5.0  # the test ends where the smoothed loss exceeds this multiple of its minimum
_TRIMMED = (10, 5)  # points at the beginning and at the end that no suggestion is drawn from


class RangeTest(NamedTuple):
    """The result of a range test over n steps."""

    rates: list[float]
    losses: list[float]
    smoothed: list[float]
    suggestion: float | None  # rate where the loss falls fastest; None from fewer than 17 steps
    nonfinite: NonfiniteStep | None  # the step that ended the test, if a loss was not finite
    scale: float = 1.0  # of a config's rates to the test's: reference batch over that of the test
    schedule: ScheduleConfig | None = None  # of the config: its other rates follow its peak


def run_range_test(
    config: Any,
    split: Split,
    *,
    start: float,
    end: float,
    num_steps: int,
    resolve_auto: Callable[[Any, Family], Any],
    build_training: Callable[..., Training[Any]],
) -> RangeTest:
    """Builds a training of an experiment and runs the test on it, see `find_learning_rate`.

    Args:
        config: the experiment as decoded, a dataclass with `model` and `train`.
        split: the training data.
        start: first rate.
        end: rate of the last step.
        num_steps: steps of the test.
        resolve_auto: as for `resolve_start`.
        build_training: from a config without `auto`, `devices` and `pretrained` to the training.

    Raises:
        UserError: config, data set and weights do not fit together.
    """
    train = range_test_config(config.train, start=start, end=end, num_steps=num_steps)
    run = resolve_start(
        dataclasses.replace(config, train=train),
        num_images=sum(split.records_per_shard),
        model_dir=None,
        resolve_auto=resolve_auto,
    )
    training = build_training(run.config, devices=run.devices, pretrained=run.pretrained)
    with input_errors_in_words(lambda: split.shards):
        found = find_learning_rate(training.engine, num_steps)
    reference = config.train.reference_batch_size
    scale = reference / config.train.batch_size if reference else 1.0
    return found._replace(scale=scale, schedule=config.train.learning_rate)


def range_test_config(
    train: TrainConfig, *, start: float, end: float, num_steps: int
) -> TrainConfig:
    """Returns the config of a range test of a run: as it is, but for its rate and length.

    Raises:
        UserError: the first rate is not below the last.
    """
    try:
        schedule = RangeTestScheduleConfig(start=start, end=end)
    except BrokenRules as error:
        raise UserError(f"the rates of the test: {error}") from error
    return dataclasses.replace(
        train,
        total_steps=num_steps,
        total_epochs=None,
        reference_batch_size=None,
        learning_rate=schedule,
    )


def find_learning_rate(engine: Engine, num_steps: int) -> RangeTest:
    """Trains while the rate grows, then restores weights, optimizer and input position.

    Ends early where a loss is not finite, or where the smoothed one exceeds `DIVERGENCE` times its
    lowest value.

    Args:
        engine: built with `range_test_config`.
        num_steps: of the test, 1 or more.
    """
    before = engine.snapshot()
    rates: list[float] = []
    losses: list[float] = []
    smoothed: list[float] = []
    nonfinite: NonfiniteStep | None = None
    try:
        for _ in range(num_steps):
            report = engine.train(1)
            nonfinite = report.nonfinite
            if nonfinite is not None or not report.steps_done:
                break
            loss = report.losses["loss"]
            last = smoothed[-1] if smoothed else loss
            rates.append(report.learning_rate)
            losses.append(loss)
            smoothed.append(SMOOTHING * loss + (1.0 - SMOOTHING) * last)
            if smoothed[-1] > DIVERGENCE * min(smoothed):
                break
    finally:
        engine.load(before)
        engine.restart_input()
    return RangeTest(rates, losses, smoothed, suggest(rates, smoothed), nonfinite)


def suggest(rates: list[float], smoothed: list[float]) -> float | None:
    """Returns the rate where the smoothed loss falls fastest; None of fewer than 17 points."""
    begin, end = _TRIMMED[0], len(smoothed) - _TRIMMED[1]
    if end - begin < 2:
        return None
    slopes = np.gradient(np.asarray(smoothed[begin:end]))
    return rates[begin + int(slopes.argmin())]


def write_range_test(found: RangeTest, output: str, *, title: str) -> str:
    """Writes the curve as PNG and its points as CSV beside it; returns a summary.

    Args:
        found: the test.
        output: PNG file.
        title: of the drawing.

    Raises:
        UserError: a file cannot be written, or would replace one of another kind.
    """
    import pandas as pd  # late, as Matplotlib below: the experiments import this module

    points = pd.DataFrame(
        {"learning_rate": found.rates, "loss": found.losses, "smoothed": found.smoothed}
    )
    table = rate_table_path(output)
    with file_of_kind(output, "wb", DRAWING) as file:
        figure = draw_range_test(found, title=title)
        figure.savefig(file, format="png", dpi=120, metadata=PNG_METADATA)
    with file_of_kind(table, "w", RATE_TABLE) as file:
        file.write(points.to_csv(index=False))
    return f"{_verdict(found)}; {len(found.rates)} steps, {output} and {table}"


def _verdict(found: RangeTest) -> str:
    """Says what to set, or why nothing is suggested and what to do."""
    if found.suggestion is not None:
        batch = "" if found.scale == 1.0 else ", for a batch of train.reference_batch_size"
        return (
            f"Suggestion: {found.suggestion:.2e}, where the loss falls fastest: "
            f"{_settings(found.schedule, found.scale * found.suggestion)}{batch}"
        )
    if found.nonfinite is None:
        return "No suggestion from so few steps: raise --num_steps, or lower --end"
    losses = ", ".join(f"{name} = {value:g}" for name, value in found.nonfinite.losses.items())
    remedy = (
        "lower --start, or look at the records (check_data)"
        if found.nonfinite.step == 1
        else "lower --end, or raise --num_steps"
    )
    return (
        f"No suggestion: the loss is not finite at step {found.nonfinite.step}, {losses}: {remedy}"
    )


def _settings(schedule: ScheduleConfig | None, peak: float) -> str:
    """Returns KEY=VALUE for the peak, and in proportion to it for the other rates of a schedule."""
    factor = peak / schedule.peak if schedule else 1.0
    settings = {"peak": f"{peak:.2e}"}
    for key in ("warmup_start", "end"):
        if rate := getattr(schedule, key, 0.0):
            settings[key] = f"{factor * rate:.2e}"
    if rates := getattr(schedule, "drop_rates", None):
        settings["drop_rates"] = f"[{','.join(f'{factor * rate:.2e}' for rate in rates)}]"
    return " ".join(f"train.learning_rate.{key}={value}" for key, value in settings.items())


def draw_range_test(found: RangeTest, *, title: str) -> "Figure":
    """Draws losses over the rate, with the suggestion."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 5), layout="constrained")
    axes = figure.subplots()
    axes.plot(found.rates, found.losses, color="#c5d5e8", lw=1, label="loss")
    axes.plot(found.rates, found.smoothed, color="#1f5fa8", lw=1.8, label="smoothed")
    if found.suggestion is not None:
        axes.axvline(
            found.suggestion, color="#b3402a", lw=1, label=f"suggestion {found.suggestion:.2g}"
        )
    finite = [value for value in found.smoothed if math.isfinite(value)]
    top = 1.5 * max(finite[: max(len(finite) // 2, 1)], default=1.0)
    axes.set(xscale="log", xlabel="learning rate", ylabel="loss", title=title, ylim=(0, top))
    axes.grid(alpha=0.3)
    axes.legend()
    return figure
