"""Writes what an evaluation shows: a CSV by class, charts as PNG, and one page with everything."""

import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from tpudet.detection.evaluation.class_charts import (
    confusion_chart,
    f1_chart,
    precision_recall_chart,
    shown_classes,
)
from tpudet.detection.evaluation.class_scores import NOTHING, confused_pairs
from tpudet.detection.evaluation.class_table import class_headers, class_table_csv, shown_shares
from tpudet.detection.evaluation.results import EvaluatedSplit
from tpudet.trainkit.files import storage
from tpudet.trainkit.pages.curves import Chart
from tpudet.trainkit.pages.drawing import shrunk_jpeg
from tpudet.trainkit.pages.html import (
    Content,
    Html,
    element,
    embedded_jpeg,
    figure,
    page,
    section,
    table,
)
from tpudet.trainkit.training.run_charts import loss_chart, metric_chart
from tpudet.trainkit.training.run_log import FILE_NAME, read_ledger

_PAIRS_SHOWN = 50
_IMAGE_SIDE = 1800  # pixels of the drawn images in the page
_CHARTED_METRICS = ("AP", "AP50", "AP75", "APs", "APm", "APl", "mask_AP", "mask_AP50")
_SECTIONS = {
    "classes": "Classes",
    "progress": "Progress",
    "curves": "Precision, recall and F1",
    "confusions": "Confusions",
    "images": "Images",
}


def report_run(results: EvaluatedSplit, model_dir: str) -> None:
    """Writes the report of a run's newest evaluation into its model_dir; replaces the last one."""
    ledger = read_ledger(os.path.join(model_dir, FILE_NAME))
    # The evaluation is recorded after it is reported.
    lines = [line for line in ledger if line["kind"] == "train" or line["step"] < results.step]
    lines.append({"kind": "eval", "step": results.step, **results.metrics})
    title = os.path.basename(model_dir.rstrip("/"))
    write_report(results, prefix=f"{model_dir}/", title=title, history=lines)


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
    charts = _charts(results, history)
    storage.write_text(f"{prefix}class_table.csv", class_table_csv(results.rows))
    names = [*results.class_names, NOTHING]
    confusions = pd.DataFrame(
        results.confusions, index=pd.Index(names, name="ground truth"), columns=names
    )
    storage.write_text(f"{prefix}confusions.csv", confusions.to_csv())
    for name, chart in charts.items():
        with storage.whole_file(f"{prefix}{name}.png", "wb") as file:
            file.write(chart.png)
    storage.write_text(f"{prefix}report.html", build_report(results, charts, title=title))


def _charts(results: EvaluatedSplit, history: Sequence[Mapping[str, Any]]) -> dict[str, Chart]:
    """The charts by the name of their file."""
    charts = {
        "losses": loss_chart(history),
        "metrics": metric_chart(history, _CHARTED_METRICS),
        "precision_recall": precision_recall_chart(results.scores, results.class_names),
        "f1": f1_chart(results.scores, results.class_names),
        "confusions": confusion_chart(results.confusions, results.scores, results.class_names),
    }
    return {name: chart for name, chart in charts.items() if chart is not None}


def build_report(results: EvaluatedSplit, charts: Mapping[str, Chart], *, title: str) -> str:
    """Builds the page; equal arguments give equal text.

    Args:
        results: of the evaluation.
        charts: by name: losses, metrics, precision_recall, f1, confusions; others may be missing.
        title: text.
    """
    progress = [
        figure(charts[name].svg, caption)
        for name, caption in (("losses", "Losses in training"), ("metrics", "Evaluations"))
        if name in charts
    ]
    sections = {
        "classes": _classes_section(results),
        "progress": _section("progress", _row(progress)) if progress else None,
        "curves": _curves_section(results, charts),
        "confusions": _confusions_section(results, charts),
        "images": _images_section(results.images) if results.images is not None else None,
    }
    shown = {name: content for name, content in sections.items() if content is not None}
    links = [Html(f'<a href="#{name}">{_SECTIONS[name]}</a>') for name in shown]
    lead = f"Evaluated on {results.split} at step {results.step:,}."
    body: list[Content] = [
        element("h1", title),
        element("p", lead, classes="lead"),
        _tiles(results),
        element("nav", *links),
        *shown.values(),
    ]
    return page(title, body)


def _section(name: str, *contents: Content) -> Html:
    return section(name, _SECTIONS[name], *contents)


def _row(figures: Sequence[Content]) -> Html:
    return element("div", *figures, classes="charts")


def _tiles(results: EvaluatedSplit) -> Html:
    names = ("AP", "AP50", "AP75", "mask_AP", "mask_AP50", "ARmax100")
    facts: dict[str, Content] = {
        name: f"{results.metrics[name]:.3f}" for name in names if name in results.metrics
    }
    facts["classes"] = len(results.class_names)
    facts["instances"] = int(results.scores.instances.sum())
    tiles = [
        element("div", element("b", value), element("span", name), classes="tile")
        for name, value in facts.items()
    ]
    return element("div", *tiles, classes="tiles")


def _classes_section(results: EvaluatedSplit) -> Html:
    headers = ["id", *class_headers(results.rows)]
    rows: list[list[Content]] = []
    for number, row in enumerate(results.rows, start=1):
        shares = shown_shares(row, ".3f", missing="–")
        cells: list[Content] = [number, row.name, row.images, row.instances, *shares]
        rows.append(cells[: len(headers)])
    text = (
        "Precision and recall are those at the score with the best F1 of the class, at an IoU of "
        "0.5. Crowds are no instances. A click on a header sorts."
    )
    shown = element("div", table(headers, rows, classes="sortable"), classes="tall shares")
    return _section("classes", element("p", text), shown)


def _curves_section(results: EvaluatedSplit, charts: Mapping[str, Chart]) -> Html:
    figures = [
        figure(charts["precision_recall"].svg, "Precision by recall, IoU 0.5"),
        figure(charts["f1"].svg, "F1 by the lowest score that counts, IoU 0.5"),
    ]
    return _section("curves", _left_out(results), _row(figures))


def _left_out(results: EvaluatedSplit) -> Content:
    num_shown, num_classes = len(shown_classes(results.scores)), len(results.class_names)
    if num_shown == num_classes:
        return ""
    text = f"Of {num_classes:,} classes the {num_shown} with the most instances are shown."
    return element("p", text, classes="note")


def _confusions_section(results: EvaluatedSplit, charts: Mapping[str, Chart]) -> Html:
    text = (
        f"Predictions of score {results.min_score:.2f} or more, which has the best mean F1. They "
        "take objects of any class by falling score, at an IoU of 0.5 or more. The last row counts "
        "predictions without object, the last column missed objects."
    )
    pairs = confused_pairs(results.confusions, results.class_names)
    rows = [list(pair) for pair in pairs[:_PAIRS_SHOWN]]
    listed = table(["ground truth", "predicted", "count"], rows)
    more = len(pairs) - len(rows)
    note = element("p", f"and {more:,} more pairs, in confusions.csv", classes="note")
    chart = figure(charts["confusions"].svg, "Objects by class and by the prediction on them")
    beside = element("figure", element("figcaption", "Most frequent"), listed, note if more else "")
    return _section("confusions", element("p", text), _left_out(results), _row([chart, beside]))


def _images_section(images: np.ndarray) -> Html:
    (height, width), jpeg = shrunk_jpeg(images, _IMAGE_SIDE)
    text = "Ground truth on the left, detections on the right. A click enlarges."
    shown = embedded_jpeg(jpeg, height=height, width=width, alternative="Drawn detections")
    return _section("images", element("p", text), element("div", shown, classes="enlarge"))
