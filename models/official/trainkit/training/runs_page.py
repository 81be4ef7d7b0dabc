"""A page that compares training runs: their progress, curves of all in one chart, what differs."""

import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tpudet.trainkit.errors import UserError
from tpudet.trainkit.files.file_kinds import PAGE, file_of_kind
from tpudet.trainkit.pages.charts import MAX_NAMES
from tpudet.trainkit.pages.curves import Line, line_chart
from tpudet.trainkit.pages.evaluation_page import Section, evaluation_page, side_by_side
from tpudet.trainkit.pages.html import Content, element, figure, table
from tpudet.trainkit.training.run_charts import line_by_step
from tpudet.trainkit.training.run_comparison import compare_runs
from tpudet.trainkit.training.run_log import FILE_NAME, read_ledger
from tpudet.trainkit.training.runs import RunSummary, find_model_dirs, run_cells, summarize_runs

_HEADERS = ("run", "step", "last", "best", "at step", "images/s", "wait", "age", "state")


def write_runs_page(path: str, directory: str, *, metric: str, silent_after_minutes: float) -> str:
    """Writes a page about all runs below a folder; returns a sentence about it.

    Args:
        path: of the page.
        directory: folder or bucket.
        metric: as for `build_runs_page`.
        silent_after_minutes: as for `runs.summarize_run`.

    Raises:
        UserError: there is no run, the page cannot be written, or would replace another file.
    """
    model_dirs = list(find_model_dirs(directory))
    if not model_dirs:
        raise UserError(f"no runs below {directory}: no folder there holds {FILE_NAME}")
    runs = summarize_runs(model_dirs, metric=metric, silent_after_minutes=silent_after_minutes)
    page = build_runs_page(model_dirs, runs, metric=metric, directory=directory)
    with file_of_kind(path, "w", PAGE) as file:
        file.write(page)
    return f"{path}: the page about the runs below {directory}. Open it in a browser."


def build_runs_page(
    model_dirs: Sequence[str], runs: Sequence[RunSummary], *, metric: str, directory: str
) -> str:
    """Builds the page; equal arguments and files give equal text.

    Args:
        model_dirs: of the runs, at least one.
        runs: their rows, see `runs.summarize_run`.
        metric: that chooses the best evaluation of a run, and is charted.
        directory: in which they were found.
    """
    order = sorted(range(len(runs)), key=lambda k: -_best(runs[k]))
    model_dirs, runs = [model_dirs[k] for k in order], [runs[k] for k in order]
    names, best = run_names(model_dirs), runs[0].best
    facts: dict[str, Content] = {"runs": len(runs)}
    if best is not None:
        facts[f"best {metric}, of {names[0]}"] = f"{best:.3f}"
    differences = [list[Content](row) for row in compare_runs(model_dirs, metric=metric)[1:]]
    compared = Section("comparison", "Where they differ", [table(["", *names], differences)])
    return evaluation_page(
        f"Runs below {directory}",
        lead=f"By their best {metric}.",
        facts=facts,
        sections=[
            Section("runs", "Progress", [_progress_table(names, runs, metric)]),
            _curves_section(dict(zip(names, model_dirs, strict=True)), metric),
            compared if len(runs) > 1 else None,
        ],
    )


def run_names(model_dirs: Sequence[str]) -> list[str]:
    """The names of the folders; where two are equal, with those of the folders around them."""
    parts = [model_dir.rstrip("/").split("/") for model_dir in model_dirs]
    for depth in (1, 2):
        names = ["/".join(one[-depth:]) for one in parts]
        if len(set(names)) == len(names):
            return names
    return list(model_dirs)


def _best(run: RunSummary) -> float:
    return -np.inf if run.best is None else run.best


def _progress_table(names: Sequence[str], runs: Sequence[RunSummary], metric: str) -> Content:
    rows = [[name, *run_cells(run)[2:]] for name, run in zip(names, runs, strict=True)]
    headers = [f"{name} {metric}" if name in ("last", "best") else name for name in _HEADERS]
    return table(headers, [list[Content](row) for row in rows])


def _curves_section(model_dirs: Mapping[str, str], metric: str) -> Section | None:
    """Charts the metric and the loss of the first runs by step; None if no run has either."""
    shown = list(model_dirs.items())[:MAX_NAMES]
    ledgers = {name: read_ledger(os.path.join(path, FILE_NAME)) for name, path in shown}
    figures: list[Content] = []
    for kind, key, caption in (("eval", metric, metric), ("train", "loss", "Loss in training")):
        lines = _lines(ledgers, kind, key)
        if lines:
            chart = line_chart(
                lines,
                name=f"{key} of runs",
                xlabel="step",
                ylabel=key,
                is_logarithmic=kind == "train",
            )
            figures.append(figure(chart.svg, caption))
    if not figures:
        return None
    text = f"Of {len(model_dirs):,} runs the {len(shown)} best are shown."
    note = element("p", text, classes="note") if len(shown) < len(model_dirs) else ""
    return Section("curves", "Curves", [note, side_by_side(figures)])


def _lines(
    ledgers: Mapping[str, Sequence[Mapping[str, Any]]], kind: str, key: str
) -> dict[str, Line]:
    found = {}
    for name, ledger in ledgers.items():
        of_kind = [line for line in ledger if line["kind"] == kind]
        line = line_by_step(of_kind, key, is_logarithmic=kind == "train")
        if line is not None:
            found[name] = line
    return found
