"""Writes what an evaluation shows: tables as CSV, charts as PNG, and one page with everything."""

import os
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from tpudet.trainkit.pages.charts import MAX_NAMES
from tpudet.trainkit.pages.curves import Chart, confusion_matrix_chart
from tpudet.trainkit.pages.evaluation_page import (
    Section,
    classes_section,
    confused_pairs,
    confusions_section,
    evaluation_page,
    images_section,
    progress_section,
    write_report_files,
)
from tpudet.trainkit.pages.html import Content, element
from tpudet.trainkit.training.run_charts import progress_charts, run_history

_CHARTED_METRICS = ("top1", "macro_f1", "micro_f1", "top5")  # those in 0..1


class EvaluatedSplit(NamedTuple):
    """The results of one evaluation of a split with C classes."""

    split: str
    step: int
    metrics: Mapping[str, float]
    table: pd.DataFrame  # one row per class, see `class_table`
    confusions: np.ndarray | None  # [C, C]; None where an image may be of several classes
    images: np.ndarray | None  # [h, w, 3] uint8, the surest mistakes; None without any


def report_run(results: EvaluatedSplit, model_dir: str) -> None:
    """Writes the report of a run's newest evaluation into its model_dir; replaces the last one."""
    write_report(
        results,
        prefix=f"{model_dir}/",
        title=os.path.basename(model_dir.rstrip("/")),
        history=run_history(model_dir, results.step, results.metrics),
    )


def write_report(
    results: EvaluatedSplit, *, prefix: str, title: str, history: Sequence[Mapping[str, Any]] = ()
) -> None:
    """Writes `class_table.csv`, `confusions.csv`, charts as PNG, and `report.html`.

    Args:
        results: of the evaluation.
        prefix: of the names of all files, such as `MODEL_DIR/`.
        title: of the page.
        history: lines of the run's ledger up to this evaluation; without them losses and metrics
            are not charted.
    """
    names = results.table["class"].tolist()
    tables = {"class_table": results.table.to_csv(index=False, float_format="%.4f")}
    charts = progress_charts(history, _CHARTED_METRICS)
    if results.confusions is not None:
        index = pd.Index(names, name="ground truth")
        tables["confusions"] = pd.DataFrame(results.confusions, index=index, columns=names).to_csv()
        charts["confusions"] = _confusion_chart(results.confusions, names)
    report = evaluation_page(
        title,
        lead=f"Evaluated on {results.split} at step {results.step:,}.",
        facts=_facts(results),
        sections=[
            _classes_section(results.table),
            progress_section(charts),
            _confusions_section(results, charts, names),
            images_section(
                "The surest mistakes: the classes of an image, and the wrong prediction.",
                results.images,
                alternative="Images that are predicted wrongly",
            ),
        ],
    )
    write_report_files(prefix, tables=tables, charts=charts, report=report)


def _facts(results: EvaluatedSplit) -> dict[str, Content]:
    facts: dict[str, Content] = {
        name: f"{results.metrics[name]:.3f}" for name in _CHARTED_METRICS if name in results.metrics
    }
    facts["loss"] = f"{-results.metrics['negative_loss']:.3f}"
    facts["classes"] = len(results.table)
    return facts


def _classes_section(table: pd.DataFrame) -> Section:
    rows: list[list[Content]] = []
    for number, row in enumerate(table.itertuples(index=False), start=1):
        name, images, *shares = row
        # The column of names holds strings, all others shares.
        shown = [
            value if isinstance(value, str) else "–" if np.isnan(value) else f"{value:.3f}"
            for value in shares
        ]
        rows.append([number, name, int(images), *shown])
    headers = ["id", *(column.replace("_", " ") for column in table.columns)]
    return classes_section("A share of no images is –.", headers, rows)


def _shown_classes(confusions: np.ndarray) -> np.ndarray:
    """[n] rows of the classes with the most images, as many as a chart can name, in their order."""
    return np.sort(np.argsort(-confusions.sum(axis=1), kind="stable")[:MAX_NAMES])


def _confusion_chart(confusions: np.ndarray, class_names: Sequence[str]) -> Chart:
    chosen = _shown_classes(confusions)
    names = [class_names[int(row)] for row in chosen]
    return confusion_matrix_chart(confusions[np.ix_(chosen, chosen)], names)


def _confusions_section(
    results: EvaluatedSplit, charts: Mapping[str, Chart], class_names: Sequence[str]
) -> Section | None:
    if results.confusions is None:
        return None
    num_shown, num_classes = len(_shown_classes(results.confusions)), len(class_names)
    note: Content = ""
    if num_shown < num_classes:
        text = f"Of {num_classes:,} classes the {num_shown} with the most images are shown."
        note = element("p", text, classes="note")
    return confusions_section(
        "Each image counts at its class and at the most probable one.",
        note,
        chart=charts["confusions"],
        caption="Images by class and by prediction",
        pairs=confused_pairs(results.confusions, class_names),
    )
