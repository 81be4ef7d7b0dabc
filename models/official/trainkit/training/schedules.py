"""Learning rates as pure functions of the step, in keras.ops: in a graph, in jit, or to be plotted.

A schedule takes a step (an integer, a tensor or an array, counted from 0) and returns the float32
rate of the same shape with which that step is taken. `after_warmup` puts a linear rise before any.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any

from tpudet.trainkit.keras_ops import ops

Schedule = Callable[[Any], Any]


def stepwise(
    *, peak: float, levels: Sequence[float] = (), boundaries: Sequence[int] = ()
) -> Schedule:
    """Returns `peak` up to the first boundary, then `levels[i]` from step `boundaries[i]` on.

    Args:
        peak: first rate, above 0.
        levels: one rate for each boundary, 0 or more.
        boundaries: steps, 0 or more and rising.

    Raises:
        ValueError: lists every argument that is out of its range.
    """
    faults = _peak_faults(peak)
    if len(levels) != len(boundaries):
        faults.append(
            f"there are {len(levels)} levels {list(levels)} for {len(boundaries)} boundaries "
            f"{list(boundaries)}; each boundary needs one level"
        )
    if any(level < 0 or not math.isfinite(level) for level in levels):
        faults.append(f"levels are {list(levels)}; each must be 0 or more")
    if any(after <= before for before, after in zip([-1, *boundaries], boundaries, strict=False)):
        faults.append(f"boundaries are {list(boundaries)}; they must be 0 or more, and rise")
    _refuse(faults)

    def rate(step: Any) -> Any:
        step = ops.cast(step, "float32")
        result = ops.full_like(step, peak)
        for level, boundary in zip(levels, boundaries, strict=True):
            result = ops.where(step >= boundary, level, result)
        return result

    return rate


def cosine(*, peak: float, total_steps: int, end_learning_rate: float = 0.0) -> Schedule:
    """Returns the schedule that falls along half a cosine (SGDR, arXiv 1608.03983, section 3).

    Args:
        peak: first rate, above 0.
        total_steps: step at which the end is reached, 1 or more; the rate stays there.
        end_learning_rate: rate at the end, 0 or more.

    Raises:
        ValueError: lists every argument that is out of its range.
    """
    faults = _peak_faults(peak) + _steps_faults("total_steps", total_steps)
    _refuse(faults + _rate_faults("end_learning_rate", end_learning_rate))

    def rate(step: Any) -> Any:
        share = _half_cosine(_progress(step, total_steps))
        return end_learning_rate + (peak - end_learning_rate) * share

    return rate


def cosine_cyclic(*, peak: float, trough_step: int) -> Schedule:
    """Returns the cosine that goes on: 0 at `trough_step`, at the peak again as long after it.

    Unlike SGDR's restarts the rate comes back as smoothly as it went.

    Args:
        peak: first rate, above 0.
        trough_step: first step at which the rate is 0, half a period; 1 or more.

    Raises:
        ValueError: lists every argument that is out of its range.
    """
    _refuse(_peak_faults(peak) + _steps_faults("trough_step", trough_step))

    def rate(step: Any) -> Any:
        # One period at a time: float32 has few digits left for the cosine of a large angle.
        in_period = ops.mod(ops.cast(step, "float32"), 2 * trough_step)
        return peak * _half_cosine(in_period / trough_step)

    return rate


def one_cycle(
    *,
    peak: float,
    total_steps: int,
    rise_share: float = 0.4,
    start_divisor: float = 25.0,
    end_divisor: float = 1e4,
) -> Schedule:
    """Returns one rise and one fall (Smith and Topin, arXiv 1708.07120).

    From `peak / start_divisor` up to `peak` in a straight line, then down along half a cosine to
    `peak / start_divisor / end_divisor` at `total_steps`, where it stays. The momentum stays as it
    is, which the paper moves the other way.

    Args:
        peak: highest rate, above 0.
        total_steps: steps of the run, 1 or more.
        rise_share: part of the run at which the peak is reached, between 0 and 1.
        start_divisor: peak over first rate, 1 or more.
        end_divisor: first rate over last rate, 1 or more.

    Raises:
        ValueError: lists every argument that is out of its range.
    """
    faults = _peak_faults(peak) + _steps_faults("total_steps", total_steps)
    if not 0 < rise_share < 1:
        faults.append(f"rise_share is {rise_share}; it must be between 0 and 1")
    for name, divisor in (("start_divisor", start_divisor), ("end_divisor", end_divisor)):
        if not 1 <= divisor < math.inf:
            faults.append(f"{name} is {divisor}; it must be 1 or more")
    _refuse(faults)
    start, rise_steps = peak / start_divisor, round(rise_share * total_steps)
    fall = cosine(
        peak=peak,
        total_steps=max(total_steps - rise_steps, 1),
        end_learning_rate=start / end_divisor,
    )
    return after_warmup(fall, warmup_learning_rate=start, peak=peak, warmup_steps=rise_steps)


def polynomial(
    *, peak: float, total_steps: int, end_learning_rate: float = 0.0, power: float = 1.0
) -> Schedule:
    """Returns `end + (peak - end) * (1 - step / total_steps) ** power`.

    Args:
        peak: first rate, above 0.
        total_steps: step at which the end is reached, 1 or more; the rate stays there.
        end_learning_rate: rate at the end, 0 or more.
        power: 1 is a straight line; above 0.

    Raises:
        ValueError: lists every argument that is out of its range.
    """
    faults = _peak_faults(peak) + _steps_faults("total_steps", total_steps)
    faults += _rate_faults("end_learning_rate", end_learning_rate)
    if not 0 < power < math.inf:
        faults.append(f"power is {power}; it must be above 0")
    _refuse(faults)

    def rate(step: Any) -> Any:
        remaining = 1.0 - _progress(step, total_steps)
        return end_learning_rate + (peak - end_learning_rate) * remaining**power

    return rate


def exponential(
    *, peak: float, decay_rate: float, decay_steps: int, staircase: bool = False
) -> Schedule:
    """Returns `peak * decay_rate ** (step / decay_steps)`.

    Args:
        peak: first rate, above 0.
        decay_rate: what `decay_steps` steps leave of the rate, above 0 and at most 1.
        decay_steps: 1 or more.
        staircase: holds the rate for `decay_steps` steps, then multiplies it.

    Raises:
        ValueError: lists every argument that is out of its range.
    """
    faults = _peak_faults(peak) + _steps_faults("decay_steps", decay_steps)
    if not 0 < decay_rate <= 1:
        faults.append(f"decay_rate is {decay_rate}; it must be above 0 and at most 1")
    _refuse(faults)

    def rate(step: Any) -> Any:
        decays = ops.cast(step, "float32") / decay_steps
        decays = ops.floor(decays) if staircase else decays
        return peak * ops.exp(math.log(decay_rate) * decays)

    return rate


def after_warmup(
    schedule: Schedule, *, warmup_learning_rate: float, peak: float, warmup_steps: int
) -> Schedule:
    """Returns a linear rise up to the peak, and then the schedule from its step 0.

    Args:
        schedule: what begins at `warmup_steps`.
        warmup_learning_rate: rate of step 0 where there is a warm-up, 0 or more.
        peak: where the rise leads to, above 0: the schedule's first rate, but for one that drops
            there at once.
        warmup_steps: length of the rise; 0 means none.

    Raises:
        ValueError: lists every argument that is out of its range.
    """
    faults = _rate_faults("warmup_learning_rate", warmup_learning_rate) + _peak_faults(peak)
    if warmup_steps < 0:
        faults.append(f"warmup_steps is {warmup_steps}; it must be 0 (no warm-up) or more")
    _refuse(faults)
    rise = (peak - warmup_learning_rate) / max(warmup_steps, 1)

    def rate(step: Any) -> Any:
        step = ops.cast(step, "float32")
        after = schedule(ops.maximum(step - warmup_steps, 0.0))
        return ops.where(step < warmup_steps, warmup_learning_rate + step * rise, after)

    return rate


def scaled(schedule: Schedule, factor: float) -> Schedule:
    """Returns the schedule with all its rates, those of the warm-up too, times `factor`.

    For a batch `factor` times as large as the one that the rates were chosen for (Goyal et al.,
    arXiv 1706.02677, section 2.1).

    Raises:
        ValueError: a factor that is not above 0.
    """
    if not 0 < factor < math.inf:
        _refuse([f"factor is {factor}; it must be above 0"])
    return lambda step: factor * schedule(step)


def _progress(step: Any, total_steps: int) -> Any:
    """How much of the way is behind, 0 to 1, float32."""
    return ops.clip(ops.cast(step, "float32") / total_steps, 0.0, 1.0)


def _half_cosine(progress: Any) -> Any:
    """1 at a progress of 0, 0 at 1."""
    return (ops.cos(math.pi * progress) + 1.0) / 2.0


def _peak_faults(peak: float) -> list[str]:
    return [] if 0 < peak < math.inf else [f"peak is {peak}; it must be above 0"]


def _rate_faults(name: str, rate: float) -> list[str]:
    return [] if 0 <= rate < math.inf else [f"{name} is {rate}; it must be 0 or more"]


def _steps_faults(name: str, steps: int) -> list[str]:
    return [] if steps >= 1 else [f"{name} is {steps}; it must be 1 or more"]


def _refuse(faults: list[str]) -> None:
    if faults:
        raise ValueError("the learning rate cannot be scheduled: " + "; ".join(faults))
