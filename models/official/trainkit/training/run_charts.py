"""Charts of a run from its ledger: losses and metrics over the steps."""

import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tpudet.trainkit.pages.charts import MAX_NAMES
from tpudet.trainkit.pages.curves import Chart, Line, line_chart
from tpudet.trainkit.training.run_log import FILE_NAME, finite_number, read_ledger


def run_history(model_dir: str, step: int, metrics: Mapping[str, float]) -> list[Mapping[str, Any]]:
    """Returns the ledger of a run up to an evaluation that is not recorded yet, and its line.

    Args:
        model_dir: of the run.
        step: of the evaluation.
        metrics: that it found.
    """
    ledger = read_ledger(os.path.join(model_dir, FILE_NAME))
    lines: list[Mapping[str, Any]] = [
        line for line in ledger if line["kind"] == "train" or line["step"] < step
    ]
    return [*lines, {"kind": "eval", "step": step, **metrics}]


def progress_charts(lines: Sequence[Mapping[str, Any]], metrics: Sequence[str]) -> dict[str, Chart]:
    """Charts `losses` and `metrics`; one without a line is left out.

    Args:
        lines: of the ledger.
        metrics: as for `metric_chart`.
    """
    charts = {"losses": loss_chart(lines), "metrics": metric_chart(lines, metrics)}
    return {name: chart for name, chart in charts.items() if chart is not None}


def loss_chart(lines: Sequence[Mapping[str, Any]]) -> Chart | None:
    """Charts every loss of the train lines; None if there is none.

    Args:
        lines: of the ledger.
    """
    trained = [line for line in lines if line["kind"] == "train"]
    names = [name for name in (trained[-1] if trained else ()) if name.startswith("loss")]
    return _chart(trained, names[:MAX_NAMES], main="loss", ylabel="loss", is_logarithmic=True)


def metric_chart(lines: Sequence[Mapping[str, Any]], names: Sequence[str]) -> Chart | None:
    """Charts metrics of the eval lines; None if no line has one.

    Args:
        lines: of the ledger.
        names: of the metrics, in 0..1; the first is emphasized.
    """
    evaluated = [line for line in lines if line["kind"] == "eval"]
    return _chart(evaluated, names[:MAX_NAMES], main=names[0], ylabel="metric", ylimits=(0, 1))


def line_by_step(
    lines: Sequence[Mapping[str, Any]], name: str, *, is_logarithmic: bool
) -> Line | None:
    """The known values of one name over the steps; None if there is none.

    Args:
        lines: of the ledger.
        name: of a loss or metric.
        is_logarithmic: whether the axis is, which has no 0.
    """
    points = [(line["step"], finite_number(line.get(name))) for line in lines]
    # -1 stands for a metric without objects.
    known = [(step, value) for step, value in points if value is not None and value >= 0]
    known = [point for point in known if point[1] > 0 or not is_logarithmic]
    if not known:
        return None
    steps, values = np.array(known, float).T
    return Line(steps.astype(int), values)


def _chart(
    lines: Sequence[Mapping[str, Any]],
    names: Sequence[str],
    *,
    main: str,
    ylabel: str,
    ylimits: tuple[float, float] | None = None,
    is_logarithmic: bool = False,
) -> Chart | None:
    found = {name: line_by_step(lines, name, is_logarithmic=is_logarithmic) for name in names}
    drawn = {
        name: line._replace(is_emphasized=name == main)
        for name, line in found.items()
        if line is not None
    }
    if not drawn:
        return None
    return line_chart(
        drawn,
        name=f"{ylabel} by step",
        xlabel="step",
        ylabel=ylabel,
        ylimits=ylimits,
        is_logarithmic=is_logarithmic,
    )
