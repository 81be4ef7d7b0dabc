"""Draws the learning rate of a run."""

import numpy as np
from matplotlib.figure import Figure

from tpudet.trainkit.training.build_optimizer import build_schedule, warmup_warning
from tpudet.trainkit.training.config import TrainConfig

_MAX_POINTS = 20_000  # steps for which the rate is computed; more would not be visible
_INK, _MARKS, _SHADE = "#1f5fa8", "#9a9a9a", "#e8eef6"


def schedule_points(train: TrainConfig) -> tuple[np.ndarray, np.ndarray]:
    """Returns steps [points] int64 and their learning rates [points] float32.

    Every step of a short run; of a long one evenly spaced steps and both sides of each jump.
    """
    total, rate = train.total_steps, train.learning_rate
    spread = np.linspace(0, total - 1, min(total, _MAX_POINTS)).round().astype(np.int64)
    jumps = np.array([getattr(rate, "warmup_steps", 0), *getattr(rate, "drop_steps", ())], np.int64)
    near = np.concatenate([jumps - 1, jumps])
    steps = np.union1d(spread, near[(near >= 0) & (near < total)])
    return steps, np.asarray(build_schedule(train)(steps))


def draw_schedule(train: TrainConfig, *, eval_every_steps: int, title: str) -> Figure:
    """Draws the learning rate over the whole run on a linear and on a logarithmic axis.

    The warm-up is shaded and every evaluation is marked.

    Args:
        train: the config of the run.
        eval_every_steps: interval of the evaluations.
        title: beginning of the title.
    """
    steps, rates = schedule_points(train)
    evaluations = [*range(eval_every_steps, train.total_steps, eval_every_steps), train.total_steps]
    warmup = getattr(train.learning_rate, "warmup_steps", 0)
    figure = Figure(figsize=(9, 6), layout="constrained")
    linear, logarithmic = figure.subplots(2, 1, sharex=True)
    for axes in (linear, logarithmic):
        if warmup:
            axes.axvspan(0, min(warmup, train.total_steps), color=_SHADE, lw=0)
        axes.plot(steps, rates, color=_INK, lw=1.5)
        axes.plot(
            evaluations,
            [0.0] * len(evaluations),
            "|",
            color=_MARKS,
            markersize=10,
            transform=axes.get_xaxis_transform(),
            clip_on=False,
        )
        axes.grid(alpha=0.3)
        axes.set_xlim(0, train.total_steps)
    linear.set(ylabel="learning rate", ylim=(0, None), title=f"{title}: {_describe(train)}")
    logarithmic.set(xlabel="step")
    positive = rates[rates > 0]
    if positive.size:  # none in a run of one step that is warm-up from 0
        floor = positive.max() * 1e-6  # the end of a cosine is near 0 and would stretch the axis
        limits = (max(positive.min(), floor) / 1.5, positive.max() * 1.5)
        logarithmic.set(yscale="log", ylabel="logarithmic", ylim=limits)
    shaded = warmup_warning(train) or f"{warmup:,} steps of warm-up"
    shaded = f"shaded: {shaded}; " if warmup else ""
    figure.supxlabel(f"{shaded}marks: {len(evaluations)} evaluations", fontsize="small")
    return figure


def _describe(train: TrainConfig) -> str:
    factor = train.batch_size / (train.reference_batch_size or train.batch_size)
    scaled = f", rates x {factor:g} for a batch of {train.batch_size}" if factor != 1 else ""
    return f"{train.learning_rate.kind}, {train.total_steps:,} steps{scaled}"
