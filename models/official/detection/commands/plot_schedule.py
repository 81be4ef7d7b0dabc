"""Draws an experiment's learning rate as a PNG: `python -m tpudet.detection.commands.plot_schedule CONFIG`."""

import argparse
import os
import sys
from collections.abc import Sequence

import numpy as np
from matplotlib.figure import Figure

from tpudet.detection.commands.experiment_arguments import add_config_arguments, experiment_config
from tpudet.detection.config import ExperimentConfig
from tpudet.trainkit.command_line import run_command, writing
from tpudet.trainkit.files.storage import whole_file
from tpudet.trainkit.training.build_optimizer import build_schedule, warmup_warning

_EXAMPLES = """examples:
  python -m tpudet.detection.commands.plot_schedule quickstart
  python -m tpudet.detection.commands.plot_schedule my.yaml --output rate.png --set train.total_steps=500

Exit codes: 0 the picture is written, 2 wrong usage or a config that cannot be read.
"""
_MAX_POINTS = 20_000  # steps at which the rate is computed; more are not seen
_INK, _MARKS, _SHADE = "#1f5fa8", "#9a9a9a", "#e8eef6"


def main(argv: Sequence[str] | None = None) -> int:
    """Command line; see --help."""
    parser = argparse.ArgumentParser(
        prog="plot_schedule",
        description="Draws the learning rate of an experiment over its steps, as a PNG.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_config_arguments(parser)
    parser.add_argument(
        "--output", metavar="FILE.png", help="what is written (CONFIG's stem + _schedule.png)"
    )
    return run_command(parser, argv, _run)


def _run(arguments: argparse.Namespace) -> int:
    config = experiment_config(arguments)
    stem = os.path.basename(arguments.config).removesuffix(".yaml").removesuffix(".yml")
    output = arguments.output or f"{stem}_schedule.png"
    figure = draw_schedule(config, title=stem)
    with writing(output), whole_file(output, "wb") as file:
        figure.savefig(file, format="png", dpi=120)
    print(f"Wrote {output}")
    return 0


def schedule_points(config: ExperimentConfig) -> tuple[np.ndarray, np.ndarray]:
    """Returns steps [points] int64 and the learning rates [points] float32 with which they go.

    Every step where there are few enough, else evenly spread ones and both sides of each jump.
    """
    total, rate = config.train.total_steps, config.train.learning_rate
    spread = np.linspace(0, total - 1, min(total, _MAX_POINTS)).round().astype(np.int64)
    jumps = np.array([getattr(rate, "warmup_steps", 0), *getattr(rate, "drop_steps", ())], np.int64)
    near = np.concatenate([jumps - 1, jumps])
    steps = np.union1d(spread, near[(near >= 0) & (near < total)])
    return steps, np.asarray(build_schedule(config.train)(steps))


def draw_schedule(config: ExperimentConfig, *, title: str) -> Figure:
    """Draws the rate twice, on a linear and on a logarithmic axis, over the whole run.

    The warm-up is shaded, and a mark stands at every evaluation.
    """
    steps, rates = schedule_points(config)
    train, every = config.train, config.evaluation.schedule.every_steps
    evaluations = [*range(every, train.total_steps, every), train.total_steps]
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
    linear.set(ylabel="learning rate", ylim=(0, None), title=f"{title}: {_describe(config)}")
    logarithmic.set(xlabel="step")
    positive = rates[rates > 0]
    if positive.size:  # a run of one step may be warm-up from 0
        floor = positive.max() * 1e-6  # a cosine's zero would take the axis down for ever
        limits = (max(positive.min(), floor) / 1.5, positive.max() * 1.5)
        logarithmic.set(yscale="log", ylabel="logarithmic", ylim=limits)
    shaded = warmup_warning(train) or f"{warmup:,} steps of warm-up"
    shaded = f"shaded: {shaded}; " if warmup else ""
    figure.supxlabel(f"{shaded}marks: {len(evaluations)} evaluations", fontsize="small")
    return figure


def _describe(config: ExperimentConfig) -> str:
    train = config.train
    factor = train.batch_size / (train.reference_batch_size or train.batch_size)
    scaled = f", rates x {factor:g} for a batch of {train.batch_size}" if factor != 1 else ""
    return f"{train.learning_rate.kind}, {train.total_steps:,} steps{scaled}"


if __name__ == "__main__":
    sys.exit(main())
