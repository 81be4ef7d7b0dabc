"""Learning rates as pure functions of the step, in keras.ops: in a graph, in jit, or to be plotted.

A schedule takes a step (an integer, a tensor or an array, counted from 0) and returns the float32
rate of the same shape with which that step is taken. Each begins with a linear warm-up; that of
`one_cycle` is its rise.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any

import keras

ops: Any = keras.ops  # annotated with None among its results

Schedule = Callable[[Any], Any]


def stepwise(
    *,
    init_learning_rate: float,
    levels: Sequence[float] = (),
    boundaries: Sequence[int] = (),
    warmup_learning_rate: float = 0.0,
    warmup_steps: int = 0,
) -> Schedule:
    """Returns the schedule that holds a rate until the next boundary.

    `init_learning_rate` after the warm-up, then `levels[i]` from step `boundaries[i]` on.

    Args:
        init_learning_rate: rate at the end of the warm-up, above 0.
        levels: one rate for each boundary.
        boundaries: steps, rising, all after the warm-up.
        warmup_learning_rate: rate of step 0 where there is a warm-up.
        warmup_steps: length of the linear warm-up; 0 means none.

    Raises:
        ValueError: lists every argument that is out of its range.
    """
    faults = _warmup_faults(init_learning_rate, warmup_learning_rate, warmup_steps)
    if len(levels) != len(boundaries):
        faults.append(
            f"there are {len(levels)} levels {list(levels)} for {len(boundaries)} boundaries "
            f"{list(boundaries)}; each boundary needs one level"
        )
    if any(level < 0 or not math.isfinite(level) for level in levels):
        faults.append(f"levels are {list(levels)}; each must be 0 or more")
    lower_bounds = [max(warmup_steps, 0), *boundaries]
    if any(after <= before for before, after in zip(lower_bounds, boundaries, strict=False)):
        faults.append(
            f"boundaries are {list(boundaries)}; they must rise, and start after the "
            f"{warmup_steps} warm-up steps"
        )
    _refuse(faults)

    def rate(step: Any) -> Any:
        step = ops.cast(step, "float32")
        result = ops.full_like(step, init_learning_rate)
        for level, boundary in zip(levels, boundaries, strict=True):
            result = ops.where(step >= boundary, level, result)
        return _after_warmup(step, result, init_learning_rate, warmup_learning_rate, warmup_steps)

    return rate


def cosine(
    *,
    init_learning_rate: float,
    total_steps: int,
    warmup_learning_rate: float = 0.0,
    warmup_steps: int = 0,
) -> Schedule:
    """Returns the schedule that falls from `init_learning_rate` to 0 along half a cosine.

    The fall starts where the warm-up ends, reaches 0 at `total_steps` and stays there (SGDR,
    arXiv 1608.03983, section 3, one cycle). A run that is not longer than its warm-up never falls.

    Args:
        init_learning_rate: rate at the end of the warm-up, above 0.
        total_steps: step at which the rate is 0, 1 or more.
        warmup_learning_rate: rate of step 0 where there is a warm-up.
        warmup_steps: length of the linear warm-up; 0 means none.

    Raises:
        ValueError: lists every argument that is out of its range.
    """
    faults = _warmup_faults(init_learning_rate, warmup_learning_rate, warmup_steps)
    faults += _total_steps_faults(total_steps)
    _refuse(faults)

    def rate(step: Any) -> Any:
        step = ops.cast(step, "float32")
        result = init_learning_rate * _half_cosine(_progress(step, warmup_steps, total_steps))
        return _after_warmup(step, result, init_learning_rate, warmup_learning_rate, warmup_steps)

    return rate


def cosine_cyclic(
    *,
    init_learning_rate: float,
    trough_step: int,
    warmup_learning_rate: float = 0.0,
    warmup_steps: int = 0,
) -> Schedule:
    """Returns the cosine that goes on: 0 at `trough_step`, at the peak again as long after it.

    With `d = trough_step - warmup_steps` the period is 2 d. Unlike SGDR's restarts the rate comes
    back as smoothly as it went.

    Args:
        init_learning_rate: rate at the end of the warm-up, above 0.
        trough_step: first step at which the rate is 0, after the warm-up.
        warmup_learning_rate: rate of step 0 where there is a warm-up.
        warmup_steps: length of the linear warm-up; 0 means none.

    Raises:
        ValueError: lists every argument that is out of its range.
    """
    faults = _warmup_faults(init_learning_rate, warmup_learning_rate, warmup_steps)
    if trough_step <= max(warmup_steps, 0):
        faults.append(
            f"trough_step is {trough_step}; it must come after the {warmup_steps} warm-up steps"
        )
    _refuse(faults)
    fall_steps = trough_step - warmup_steps

    def rate(step: Any) -> Any:
        step = ops.cast(step, "float32")
        # One period at a time: float32 has few digits left for the cosine of a large angle.
        progress = ops.mod(step - warmup_steps, 2 * fall_steps) / fall_steps
        result = init_learning_rate * _half_cosine(progress)
        return _after_warmup(step, result, init_learning_rate, warmup_learning_rate, warmup_steps)

    return rate


def one_cycle(
    *,
    init_learning_rate: float,
    total_steps: int,
    rise_share: float = 0.4,
    start_divisor: float = 25.0,
    end_divisor: float = 1e4,
) -> Schedule:
    """Returns one rise and one fall (Smith and Topin, arXiv 1708.07120).

    From `init_learning_rate / start_divisor` up to `init_learning_rate` in a straight line, then
    down along half a cosine to `init_learning_rate / start_divisor / end_divisor` at `total_steps`,
    where it stays. The momentum stays as it is, which the paper moves the other way.

    Args:
        init_learning_rate: the peak, above 0.
        total_steps: steps of the run, 1 or more.
        rise_share: part of the run at which the peak is reached, between 0 and 1.
        start_divisor: peak over first rate, 1 or more.
        end_divisor: first rate over last rate, 1 or more.

    Raises:
        ValueError: lists every argument that is out of its range.
    """
    faults = _warmup_faults(init_learning_rate, 0.0, 0) + _total_steps_faults(total_steps)
    if not 0 < rise_share < 1:
        faults.append(f"rise_share is {rise_share}; it must be between 0 and 1")
    for name, divisor in (("start_divisor", start_divisor), ("end_divisor", end_divisor)):
        if not 1 <= divisor < math.inf:
            faults.append(f"{name} is {divisor}; it must be 1 or more")
    _refuse(faults)
    start = init_learning_rate / start_divisor
    end = start / end_divisor
    rise_steps = rise_share * total_steps

    def rate(step: Any) -> Any:
        step = ops.cast(step, "float32")
        fall = _half_cosine(_progress(step, rise_steps, total_steps))
        result = end + (init_learning_rate - end) * fall
        return _after_warmup(step, result, init_learning_rate, start, rise_steps)

    return rate


def polynomial(
    *,
    init_learning_rate: float,
    total_steps: int,
    end_learning_rate: float = 0.0,
    power: float = 1.0,
    warmup_learning_rate: float = 0.0,
    warmup_steps: int = 0,
) -> Schedule:
    """Returns `end + (init - end) * (1 - progress) ** power`, with a progress from 0 to 1.

    The progress begins where the warm-up ends, is 1 at `total_steps` and stays there.

    Args:
        init_learning_rate: rate at the end of the warm-up, above 0.
        total_steps: step at which the end is reached, 1 or more.
        end_learning_rate: rate at the end, 0 or more.
        power: 1 is a straight line; above 0.
        warmup_learning_rate: rate of step 0 where there is a warm-up.
        warmup_steps: length of the linear warm-up; 0 means none.

    Raises:
        ValueError: lists every argument that is out of its range.
    """
    faults = _warmup_faults(init_learning_rate, warmup_learning_rate, warmup_steps)
    faults += _total_steps_faults(total_steps)
    if not 0 <= end_learning_rate < math.inf:
        faults.append(f"end_learning_rate is {end_learning_rate}; it must be 0 or more")
    if not 0 < power < math.inf:
        faults.append(f"power is {power}; it must be above 0")
    _refuse(faults)

    def rate(step: Any) -> Any:
        step = ops.cast(step, "float32")
        remaining = 1.0 - _progress(step, warmup_steps, total_steps)
        fall = (init_learning_rate - end_learning_rate) * remaining**power
        result = end_learning_rate + fall
        return _after_warmup(step, result, init_learning_rate, warmup_learning_rate, warmup_steps)

    return rate


def exponential(
    *,
    init_learning_rate: float,
    decay_rate: float,
    decay_steps: int,
    staircase: bool = False,
    warmup_learning_rate: float = 0.0,
    warmup_steps: int = 0,
) -> Schedule:
    """Returns `init * decay_rate ** (n / decay_steps)` for the n-th step after the warm-up.

    Args:
        init_learning_rate: rate at the end of the warm-up, above 0.
        decay_rate: what `decay_steps` steps leave of the rate, above 0 and at most 1.
        decay_steps: 1 or more.
        staircase: holds the rate for `decay_steps` steps, then multiplies it.
        warmup_learning_rate: rate of step 0 where there is a warm-up.
        warmup_steps: length of the linear warm-up; 0 means none.

    Raises:
        ValueError: lists every argument that is out of its range.
    """
    faults = _warmup_faults(init_learning_rate, warmup_learning_rate, warmup_steps)
    if not 0 < decay_rate <= 1:
        faults.append(f"decay_rate is {decay_rate}; it must be above 0 and at most 1")
    if decay_steps < 1:
        faults.append(f"decay_steps is {decay_steps}; it must be 1 or more")
    _refuse(faults)

    def rate(step: Any) -> Any:
        step = ops.cast(step, "float32")
        decays = ops.maximum((step - warmup_steps) / decay_steps, 0.0)
        decays = ops.floor(decays) if staircase else decays
        result = init_learning_rate * ops.exp(math.log(decay_rate) * decays)
        return _after_warmup(step, result, init_learning_rate, warmup_learning_rate, warmup_steps)

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


def _progress(step: Any, first_step: float, total_steps: int) -> Any:
    """How much of the way from `first_step` to `total_steps` is behind, 0 to 1; `step` float32."""
    return ops.clip((step - first_step) / max(total_steps - first_step, 1), 0.0, 1.0)


def _half_cosine(progress: Any) -> Any:
    """1 at a progress of 0, 0 at 1."""
    return (ops.cos(math.pi * progress) + 1.0) / 2.0


def _after_warmup(
    step: Any, result: Any, init_learning_rate: float, warmup_learning_rate: float, steps: float
) -> Any:
    """Puts a linear rise from the warm-up rate before `result`; `step` is float32."""
    rise = (init_learning_rate - warmup_learning_rate) / max(steps, 1)
    return ops.where(step < steps, warmup_learning_rate + step * rise, result)


def _warmup_faults(
    init_learning_rate: float, warmup_learning_rate: float, warmup_steps: int
) -> list[str]:
    faults = []
    if not 0 < init_learning_rate < math.inf:
        faults.append(f"init_learning_rate is {init_learning_rate}; it must be above 0")
    if not 0 <= warmup_learning_rate < math.inf:
        faults.append(f"warmup_learning_rate is {warmup_learning_rate}; it must be 0 or more")
    if warmup_steps < 0:
        faults.append(f"warmup_steps is {warmup_steps}; it must be 0 (no warm-up) or more")
    return faults


def _total_steps_faults(total_steps: int) -> list[str]:
    return [] if total_steps >= 1 else [f"total_steps is {total_steps}; it must be 1 or more"]


def _refuse(faults: list[str]) -> None:
    if faults:
        raise ValueError("the learning rate cannot be scheduled: " + "; ".join(faults))
