"""Writes the report of an evaluation: a CSV by class, charts as PNG, and one page of all."""

import os
from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from tpudet.detection.evaluation.class_charts import (
    confusion_chart,
    f1_chart,
    precision_recall_chart,
    shown_classes,
)
from tpudet.detection.evaluation.class_scores import NOTHING
from tpudet.detection.evaluation.class_table import class_headers, class_table_csv, shown_shares
from tpudet.detection.evaluation.results import EvaluatedSplit
from tpudet.trainkit.pages.curves import Chart
from tpudet.trainkit.pages.evaluation_page import (
    Section,
    classes_section,
    confused_pairs,
    confusions_section,
    evaluation_page,
    images_section,
    progress_section,
    side_by_side,
    write_report_files,
)
from tpudet.trainkit.pages.html import Content, element, figure
from tpudet.trainkit.training.run_charts import progress_charts, run_history

_CHARTED_METRICS = ("AP", "AP50", "AP75", "APs", "APm", "APl", "mask_AP", "mask_AP50")


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
    names = [*results.class_names, NOTHING]
    confusions = pd.DataFrame(
        results.confusions, index=pd.Index(names, name="ground truth"), columns=names
    )
    charts = {
        **progress_charts(history, _CHARTED_METRICS),
        "precision_recall": precision_recall_chart(results.scores, results.class_names),
        "f1": f1_chart(results.scores, results.class_names),
        "confusions": confusion_chart(results.confusions, results.scores, results.class_names),
    }
    write_report_files(
        prefix,
        tables={"class_table": class_table_csv(results.rows), "confusions": confusions.to_csv()},
        charts=charts,
        report=build_report(results, charts, title=title),
    )


def build_report(results: EvaluatedSplit, charts: Mapping[str, Chart], *, title: str) -> str:
    """Builds the page; equal arguments give equal text.

    Args:
        results: of the evaluation.
        charts: by name: losses, metrics, precision_recall, f1, confusions; the first two may be
            missing.
        title: text.
    """
    return evaluation_page(
        title,
        lead=f"Evaluated on {results.split} at step {results.step:,}.",
        facts=_facts(results),
        sections=[
            _classes_section(results),
            progress_section(charts),
            _curves_section(results, charts),
            _confusions_section(results, charts),
            images_section(
                "Ground truth on the left, detections on the right.",
                results.images,
                alternative="Drawn detections",
            ),
        ],
    )


def _facts(results: EvaluatedSplit) -> dict[str, Content]:
    names = ("AP", "AP50", "AP75", "mask_AP", "mask_AP50", "ARmax100")
    facts: dict[str, Content] = {
        name: f"{results.metrics[name]:.3f}" for name in names if name in results.metrics
    }
    facts["classes"] = len(results.class_names)
    facts["instances"] = int(results.scores.instances.sum())
    return facts


def _classes_section(results: EvaluatedSplit) -> Section:
    headers = ["id", *class_headers(results.rows)]
    rows: list[list[Content]] = []
    for number, row in enumerate(results.rows, start=1):
        shares = shown_shares(row, ".3f", missing="–")
        cells: list[Content] = [number, row.name, row.images, row.instances, *shares]
        rows.append(cells[: len(headers)])
    text = (
        "Precision and recall are those at the score with the best F1 of the class, at an IoU of "
        "0.5. Crowds are no instances."
    )
    return classes_section(text, headers, rows)


def _curves_section(results: EvaluatedSplit, charts: Mapping[str, Chart]) -> Section:
    figures = [
        figure(charts["precision_recall"].svg, "Precision by recall, IoU 0.5"),
        figure(charts["f1"].svg, "F1 by the lowest score that counts, IoU 0.5"),
    ]
    contents = [_left_out(results), side_by_side(figures)]
    return Section("curves", "Precision, recall and F1", contents)


def _left_out(results: EvaluatedSplit) -> Content:
    num_shown, num_classes = len(shown_classes(results.scores)), len(results.class_names)
    if num_shown == num_classes:
        return ""
    text = f"Of {num_classes:,} classes the {num_shown} with the most instances are shown."
    return element("p", text, classes="note")


def _confusions_section(results: EvaluatedSplit, charts: Mapping[str, Chart]) -> Section:
    text = (
        f"Predictions of score {results.min_score:.2f} or more, which has the best mean F1. They "
        "take objects of any class in descending order of score, at an IoU of 0.5 or more. The "
        "last row counts predictions without object, the last column missed objects."
    )
    return confusions_section(
        text,
        _left_out(results),
        chart=charts["confusions"],
        caption="Objects by class and by the prediction on them",
        pairs=confused_pairs(results.confusions, [*results.class_names, NOTHING]),
    )
