"""Charts of a run from its ledger: losses and metrics over the steps."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tpudet.trainkit.pages.charts import MAX_NAMES
from tpudet.trainkit.pages.curves import Chart, Line, line_chart
from tpudet.trainkit.training.run_log import finite_number


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


def _chart(
    lines: Sequence[Mapping[str, Any]],
    names: Sequence[str],
    *,
    main: str,
    ylabel: str,
    ylimits: tuple[float, float] | None = None,
    is_logarithmic: bool = False,
) -> Chart | None:
    drawn = {}
    for name in names:
        points = [(line["step"], finite_number(line.get(name))) for line in lines]
        # -1 stands for a metric without objects; a logarithmic axis has no 0.
        known = [(step, value) for step, value in points if value is not None and value >= 0]
        known = [point for point in known if point[1] > 0 or not is_logarithmic]
        if known:
            steps, values = np.array(known, float).T
            drawn[name] = Line(steps, values, is_emphasized=name == main)
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
