"""The breakdown of a run's wall time: a clock for one attempt, and the sum over all attempts.

An attempt is one process that trains. Its lines in the ledger say in `wall_seconds` what the time
since its line before went to. A later attempt removes the lines beyond its checkpoint, and says in
its own first line what they held: their steps are done again, so their time counts as `redone`. So
does what a killed attempt did after its last line; as nobody knows when it was killed, that is the
time until the next start, but no more than the longest time between two lines.

Good are steps and evaluations: the goodput is their share of the time of all attempts.
"""

import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, NamedTuple, get_args

from tpudet.trainkit.training.engine import StepReport
from tpudet.trainkit.training.run_log import finite_number

Part = Literal["start", "compile", "steps", "input", "save", "evaluation", "redone", "other"]
PARTS: tuple[Part, ...] = get_args(Part)
GOOD: tuple[Part, ...] = ("steps", "evaluation")
_KEPT = ("start", "compile")  # of discarded lines: what the steps that they lost did not take

WALL_SECONDS = "wall_seconds"  # keys of a line in the ledger
STARTED, LAST_SEEN, DISCARDED = "started", "last_seen", "discarded_seconds"
_ENDS = ("finished", "stopped", "failed")


class WallClock:
    """Divides the time of a process into parts.

    Args:
        started: when the process began, in seconds since 1970.
        now: the time, likewise; None means `time.time`.
    """

    def __init__(self, started: float, now: Callable[[], float] | None = None) -> None:
        self._now = now or time.time
        self._last = started
        self._seconds: defaultdict[Part, float] = defaultdict(float)

    def lap(self, part: Part) -> None:
        """Ascribes the time since the last lap to a part."""
        self._spend(part, self._elapse())

    def lap_steps(self, report: StepReport) -> None:
        """Ascribes the time since the last lap to the steps that it was spent on.

        What a call of the engine takes beside its steps is tracing and compiling.
        """
        elapsed = self._elapse()
        waited = min(report.input_wait_share * report.seconds, elapsed)
        stepped = min(report.seconds - waited, elapsed - waited)
        self._spend("input", waited)
        self._spend("steps", stepped)
        self._spend("compile", elapsed - waited - stepped)

    def take(self) -> dict[str, float]:
        """Returns the seconds by part since the last call, without those below a millisecond."""
        taken = {part: round(seconds, 3) for part, seconds in self._seconds.items()}
        self._seconds.clear()
        return {part: seconds for part, seconds in taken.items() if seconds}

    def _elapse(self) -> float:
        now = self._now()
        elapsed, self._last = now - self._last, now
        return max(elapsed, 0.0)  # the machine's time may be set back

    def _spend(self, part: Part, seconds: float) -> None:
        self._seconds[part] += seconds


def wall_seconds(line: Mapping[str, Any], key: str = WALL_SECONDS) -> dict[Part, float]:
    """Returns the seconds by part that a line of a ledger holds under a key; may be empty."""
    found = line.get(key)
    if not isinstance(found, Mapping):
        return {}
    return {
        part: number for part in PARTS if (number := finite_number(found.get(part))) is not None
    }


class WallTime(NamedTuple):
    """The time of all attempts of a run."""

    attempts: int
    seconds: dict[Part, float]  # by part, all of them

    @property
    def total(self) -> float:
        """Seconds of all parts."""
        return sum(self.seconds.values())

    @property
    def goodput(self) -> float:
        """The share of steps and evaluations, 0..1; NaN before anything was measured."""
        return sum(self.seconds[part] for part in GOOD) / self.total if self.total else float("nan")


def sum_wall_time(lines: Sequence[Mapping[str, Any]]) -> WallTime:
    """Sums up a ledger by the rules of the module's docstring."""
    seconds: dict[Part, float] = dict.fromkeys(PARTS, 0.0)
    attempts, has_ended = 0, True
    longest = _longest_interval(lines)
    for line in lines:
        for part, spent in wall_seconds(line).items():
            seconds[part] += spent
        started, last_seen = finite_number(line.get(STARTED)), finite_number(line.get(LAST_SEEN))
        if started is not None:
            for part, lost in wall_seconds(line, DISCARDED).items():
                seconds[part if part in _KEPT else "redone"] += lost
            if not has_ended and last_seen is not None:
                seconds["redone"] += min(max(started - last_seen, 0.0), longest)
            attempts, has_ended = attempts + 1, False
        elif line["kind"] == "state":
            has_ended = line.get("state") in _ENDS
    return WallTime(attempts, seconds)


def _longest_interval(lines: Sequence[Mapping[str, Any]]) -> float:
    """The longest time that a line accounts for, beside those of an attempt's start."""
    totals = [
        sum(found.values())
        for line in lines
        if line["kind"] == "train" and "start" not in (found := wall_seconds(line))
    ]
    return max(totals, default=0.0)
