"""Learning rates as pure functions of the step: in a graph, under jit, or for a plot.

A schedule takes a step (an integer, a tensor or an array, counted from 0) and returns the float32
rate of that step in the same shape. `after_warmup` puts a linear rise before any of them. The
ranges of the arguments are checked in `config`.
"""

import math
from collections.abc import Callable, Sequence

from tpudet.trainkit.keras_ops import ops
from tpudet.trainkit.types import Tensor

Schedule = Callable[[Tensor | int], Tensor]


def stepwise(*, peak: float, drop_rates: Sequence[float], drop_steps: Sequence[int]) -> Schedule:
    """Returns `peak` up to the first drop, then `drop_rates[i]` from step `drop_steps[i]` on.

    Args:
        peak: first rate, above 0.
        drop_rates: a rate per drop, 0 or more.
        drop_steps: increasing steps, 0 or more.
    """

    def rate(step: Tensor | int) -> Tensor:
        step = ops.cast(step, "float32")
        result = ops.full_like(step, peak)
        for drop_rate, drop_step in zip(drop_rates, drop_steps, strict=True):
            result = ops.where(step >= drop_step, drop_rate, result)
        return result

    return rate


def cosine(*, peak: float, total_steps: int, end: float = 0.0) -> Schedule:
    """Returns a fall along half a cosine (SGDR, arXiv 1608.03983, section 3).

    Args:
        peak: first rate, above 0.
        total_steps: step at which the end is reached, 1 or more; the rate is constant afterwards.
        end: rate at the end, 0 or more.
    """

    def rate(step: Tensor | int) -> Tensor:
        share = _half_cosine(_progress(step, total_steps))
        return end + (peak - end) * share

    return rate


def cosine_cyclic(*, peak: float, trough_step: int) -> Schedule:
    """Returns a cosine with a period of `2 * trough_step`: from the peak to 0 and back.

    Unlike with SGDR's restarts the rate rises as smoothly as it falls.

    Args:
        peak: first rate, above 0.
        trough_step: first step at which the rate is 0, half a period; 1 or more.
    """

    def rate(step: Tensor | int) -> Tensor:
        # One period at a time: float32 has few digits left for the cosine of a large angle.
        in_period = ops.mod(ops.cast(step, "float32"), 2 * trough_step)
        return peak * _half_cosine(in_period / trough_step)

    return rate


def one_cycle(
    *,
    peak: float,
    total_steps: int,
    rise_share: float,
    start_divisor: float,
    end_divisor: float,
) -> Schedule:
    """Returns one rise and one fall (Smith and Topin, arXiv 1708.07120).

    From `peak / start_divisor` up to `peak` in a straight line, then down along half a cosine to
    `peak / start_divisor / end_divisor` at `total_steps`, where it stays. In the paper the momentum
    moves the other way: see `one_cycle_momentum`.

    Args:
        peak: highest rate, above 0.
        total_steps: steps of the run, 1 or more.
        rise_share: part of the run at which the peak is reached, between 0 and 1.
        start_divisor: peak over first rate, 1 or more.
        end_divisor: first rate over last rate, 1 or more.
    """
    start, rise_steps = peak / start_divisor, round(rise_share * total_steps)
    fall = cosine(
        peak=peak,
        total_steps=max(total_steps - rise_steps, 1),
        end=start / end_divisor,
    )
    return after_warmup(fall, warmup_start=start, peak=peak, warmup_steps=rise_steps)


def one_cycle_momentum(
    *, highest: float, lowest: float, total_steps: int, rise_share: float
) -> Schedule:
    """Returns the momentum of `one_cycle`: down in a straight line, then up along half a cosine.

    Large where the rate is small and the other way round (arXiv 1803.09820, section 4.3).

    Args:
        highest: at the first and the last step, 0 to 1.
        lowest: where the rate is highest, 0 to 1.
        total_steps: as in `one_cycle`.
        rise_share: as in `one_cycle`.
    """
    rise_steps = round(rise_share * total_steps)

    def momentum(step: Tensor | int) -> Tensor:
        falling = _progress(step, max(rise_steps, 1))
        rest = ops.cast(step, "float32") - rise_steps
        rising = 1.0 - _half_cosine(_progress(rest, max(total_steps - rise_steps, 1)))
        return highest - (highest - lowest) * (falling - rising)

    return momentum


def polynomial(*, peak: float, total_steps: int, end: float, power: float) -> Schedule:
    """Returns `end + (peak - end) * (1 - step / total_steps) ** power`.

    Args:
        peak: first rate, above 0.
        total_steps: step at which the end is reached, 1 or more; the rate is constant afterwards.
        end: rate at the end, 0 or more.
        power: 1 is a straight line; above 0.
    """

    def rate(step: Tensor | int) -> Tensor:
        remaining = 1.0 - _progress(step, total_steps)
        return end + (peak - end) * remaining**power

    return rate


def exponential(*, peak: float, decay_rate: float, decay_steps: int, staircase: bool) -> Schedule:
    """Returns `peak * decay_rate ** (step / decay_steps)`.

    Args:
        peak: first rate, above 0.
        decay_rate: factor on the rate per `decay_steps` steps, above 0 and at most 1.
        decay_steps: 1 or more.
        staircase: whether the rate is constant for `decay_steps` steps, then drops.
    """

    def rate(step: Tensor | int) -> Tensor:
        decays = ops.cast(step, "float32") / decay_steps
        decays = ops.floor(decays) if staircase else decays
        return peak * ops.exp(math.log(decay_rate) * decays)

    return rate


def range_test(*, start: float, end: float, total_steps: int) -> Schedule:
    """Returns a rate that grows by the same factor each step (arXiv 1506.01186, section 3.3).

    Args:
        start: first rate, above 0.
        end: rate of the last step, above 0.
        total_steps: steps of the test, 1 or more.
    """

    def rate(step: Tensor | int) -> Tensor:
        share = ops.cast(step, "float32") / max(total_steps - 1, 1)
        return start * ops.exp(math.log(end / start) * share)

    return rate


def after_warmup(
    schedule: Schedule, *, warmup_start: float, peak: float, warmup_steps: int
) -> Schedule:
    """Returns a linear rise to the peak, then the schedule from its step 0.

    Args:
        schedule: starts at `warmup_steps`.
        warmup_start: rate of step 0 if there is a warm-up, 0 or more.
        peak: end of the rise, above 0: the schedule's first rate, except for one that drops there
            at once.
        warmup_steps: length of the rise; 0 means none.
    """
    rise = (peak - warmup_start) / max(warmup_steps, 1)

    def rate(step: Tensor | int) -> Tensor:
        step = ops.cast(step, "float32")
        after = schedule(ops.maximum(step - warmup_steps, 0.0))
        return ops.where(step < warmup_steps, warmup_start + step * rise, after)

    return rate


def scaled(schedule: Schedule, factor: float) -> Schedule:
    """Returns the schedule with all its rates, including the warm-up, times `factor`.

    For a batch `factor` times as large as the one that the rates were chosen for (Goyal et al.,
    arXiv 1706.02677, section 2.1).
    """
    return lambda step: factor * schedule(step)


def _progress(step: Tensor | int, total_steps: int) -> Tensor:
    """The share of the steps that is done, 0 to 1, float32."""
    return ops.clip(ops.cast(step, "float32") / total_steps, 0.0, 1.0)


def _half_cosine(progress: Tensor) -> Tensor:
    """From 1 at a progress of 0 to 0 at 1."""
    return (ops.cos(math.pi * progress) + 1.0) / 2.0
