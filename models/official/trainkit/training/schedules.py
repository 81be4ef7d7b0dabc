"""Learning rates as pure functions of the step, in keras.ops: in a graph, in jit, or to be plotted.

A schedule takes a step (an integer, a tensor or an array, counted from 0) and returns the float32
rate of the same shape with which that step is taken.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any

from keras import ops

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
    if total_steps < 1:
        faults.append(f"total_steps is {total_steps}; it must be 1 or more")
    _refuse(faults)
    falling_steps = max(total_steps - warmup_steps, 1)

    def rate(step: Any) -> Any:
        step = ops.cast(step, "float32")
        progress: Any = ops.clip((step - warmup_steps) / falling_steps, 0.0, 1.0)
        cosine_of_progress: Any = ops.cos(math.pi * progress)
        result = init_learning_rate * (cosine_of_progress + 1.0) / 2.0
        return _after_warmup(step, result, init_learning_rate, warmup_learning_rate, warmup_steps)

    return rate


def _after_warmup(
    step: Any, result: Any, init_learning_rate: float, warmup_learning_rate: float, steps: int
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


def _refuse(faults: list[str]) -> None:
    if faults:
        raise ValueError("the learning rate cannot be scheduled: " + "; ".join(faults))
