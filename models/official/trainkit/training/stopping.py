"""Rules that end a run before its last step, and the exit codes that say which one did."""

import math
from collections.abc import Mapping

EXIT_FINISHED = 0
EXIT_FAILED = 1
EXIT_START_AGAIN = 75  # EX_TEMPFAIL of sysexits.h: a signal, or a host or TPU was lost
EXIT_TIME_LIMIT = 80
EXIT_TARGET_REACHED = 81
EXIT_NO_IMPROVEMENT = 82


class EarlyEnd(Exception):
    """A run ends here by its own rules, with everything saved.

    Args:
        reason: what was reached, without a full stop.
        remedy: what to change so that the same command trains on.
        exit_code: of the process.
    """

    def __init__(self, reason: str, *, remedy: str, exit_code: int) -> None:
        super().__init__(reason)
        self.remedy = remedy
        self.exit_code = exit_code


def early_end(
    history: Mapping[int, Mapping[str, float]],
    *,
    best_metric: str,
    stop_at: Mapping[str, float],
    patience: int | None,
) -> EarlyEnd | None:
    """Returns why training ends after its newest evaluation; None if it continues.

    Args:
        history: metrics by name, of each evaluated step; those that are not finite left out.
        best_metric: the metric whose improvements count.
        stop_at: training ends when the newest evaluation has at least these values, all of them;
            none means never.
        patience: training ends after this many evaluations in a row without a value of best_metric
            above all before, counted from the first one that has it; None means never.
    """
    if not history:
        return None
    newest = history[max(history)]
    if stop_at and all(newest.get(name, -math.inf) >= wanted for name, wanted in stop_at.items()):
        reached = ", ".join(
            f"{name} is {newest[name]:.4f}, {wanted:g} was wanted"
            for name, wanted in stop_at.items()
        )
        return EarlyEnd(
            reached, remedy="train.stop_at is higher or null", exit_code=EXIT_TARGET_REACHED
        )
    values = {step: found[best_metric] for step, found in history.items() if best_metric in found}
    if not values or patience is None:
        return None
    best = min(values, key=lambda step: (-values[step], step))
    without_improvement = sum(step > best for step in history)
    if without_improvement < patience:
        return None
    return EarlyEnd(
        f"{without_improvement} evaluations without improvement: {best_metric} was highest at "
        f"step {best}, {values[best]:.4f}",
        remedy="train.patience is higher or null",
        exit_code=EXIT_NO_IMPROVEMENT,
    )
