"""What a log line says: mean losses, speed, waiting for input, time left."""

from collections.abc import Mapping
from typing import Any

from trainkit.training.task import StepReport


class Progress:
    """Sums up the reports since the last log line or checkpoint, whichever is later.

    Starting anew at each checkpoint makes a line the same whether or not the run was killed and
    restored there.
    """

    def __init__(self, *, batch_size: int) -> None:
        """Takes the images a step over all replicas."""
        self._batch_size = batch_size
        self.reset()

    def reset(self) -> None:
        """Forgets what was summed up."""
        self._steps = 0
        self._seconds = 0.0
        self._waited_seconds = 0.0
        self._learning_rate = 0.0
        self._loss_sums: dict[str, float] = {}

    def add(self, report: StepReport) -> None:
        """Takes in one call of `engine.train`."""
        self._steps += report.steps_done
        self._seconds += report.seconds
        self._waited_seconds += report.input_wait_share * report.seconds
        self._learning_rate = report.learning_rate
        for name, value in report.losses.items():
            self._loss_sums[name] = self._loss_sums.get(name, 0.0) + value * report.steps_done

    def summary(self, *, remaining_steps: int, remaining_eval_seconds: float) -> dict[str, Any]:
        """The values of a train line, as `ledger` lists them."""
        steps, seconds = max(self._steps, 1), max(self._seconds, 1e-9)
        return {
            **{name: total / steps for name, total in self._loss_sums.items()},
            "learning_rate": self._learning_rate,
            "images_per_second": round(self._steps * self._batch_size / seconds, 3),
            "input_wait_share": round(self._waited_seconds / seconds, 4),
            "eta_seconds": round(remaining_steps * seconds / steps + remaining_eval_seconds, 1),
            "steps": self._steps,
        }


def format_line(step: int, total_steps: int, summary: Mapping[str, Any]) -> str:
    """One line for the screen."""
    losses = "  ".join(
        f"{name} {value:.4g}" for name, value in summary.items() if name.startswith("loss")
    )
    return (
        f"step {step}/{total_steps}  {losses}  learning rate {summary['learning_rate']:.4g}  "
        f"{summary['images_per_second']:.1f} images/s  "
        f"waiting for input {summary['input_wait_share']:.0%}  "
        f"ETA {format_duration(summary['eta_seconds'])}"
    )


def format_duration(seconds: float) -> str:
    """Hours, minutes and seconds, as `1:02:03`."""
    minutes, whole_seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{whole_seconds:02d}"
