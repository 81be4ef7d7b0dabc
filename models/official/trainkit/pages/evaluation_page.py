"""The page about an evaluation of any task: its frame, and the sections that tasks share."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

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

_PAIRS_SHOWN = 50
_WIDE_INCHES = 9.0  # in half the page the letters of a wider chart would be too small to read
_IMAGE_SIDE = 1800  # pixels of the drawn images in the page


class Section(NamedTuple):
    """A part of the page, with a link to it at the top."""

    identifier: str
    title: str
    contents: Sequence[Content]


class ConfusedPair(NamedTuple):
    """A cell of a confusion matrix beside its diagonal."""

    truth: str
    predicted: str
    times: int


def confused_pairs(confusions: np.ndarray, names: Sequence[str]) -> list[ConfusedPair]:
    """The wrong cells of a confusion matrix, the largest first; equal ones in their order.

    Args:
        confusions: [n, n] truth by prediction.
        names: n names of its rows and columns.
    """
    wrong = confusions.copy()
    np.fill_diagonal(wrong, 0)
    places = np.argsort(-wrong, axis=None, kind="stable")[: np.count_nonzero(wrong)]
    rows, columns = np.unravel_index(places, wrong.shape)
    return [
        ConfusedPair(names[int(row)], names[int(column)], int(wrong[row, column]))
        for row, column in zip(rows, columns, strict=True)
    ]


def evaluation_page(
    title: str, *, lead: str, facts: Mapping[str, Content], sections: Sequence[Section | None]
) -> str:
    """Builds the page; equal arguments give equal text.

    Args:
        title: text.
        lead: a sentence under it.
        facts: shown large, by name.
        sections: in their order; None is left out.
    """
    shown = [part for part in sections if part is not None]
    links = [Html(f'<a href="#{part.identifier}">{part.title}</a>') for part in shown]
    tiles = [
        element("div", element("b", value), element("span", name), classes="tile")
        for name, value in facts.items()
    ]
    body: list[Content] = [
        element("h1", title),
        element("p", lead, classes="lead"),
        element("div", *tiles, classes="tiles"),
        element("nav", *links),
        *(section(part.identifier, part.title, *part.contents) for part in shown),
    ]
    return page(title, body)


def side_by_side(figures: Sequence[Content]) -> Html:
    """Returns figures in a row, as many as the window has room for."""
    return element("div", *figures, classes="charts")


def classes_section(
    text: str, headers: Sequence[Content], rows: Sequence[list[Content]]
) -> Section:
    """Returns the table by class.

    Args:
        text: what its numbers are.
        headers: of the columns; the second is the name of the class.
        rows: one per class.
    """
    shown = element("div", table(headers, rows, classes="sortable"), classes="tall shares")
    return Section(
        "classes", "Classes", [element("p", f"{text} A click on a header sorts."), shown]
    )


def progress_section(charts: Mapping[str, Chart]) -> Section | None:
    """Returns the charts `losses` and `metrics` of the run so far; None if there is neither."""
    captions = {"losses": "Losses in training", "metrics": "Evaluations"}
    figures = [figure(charts[name].svg, text) for name, text in captions.items() if name in charts]
    return Section("progress", "Progress", [side_by_side(figures)]) if figures else None


def confusions_section(
    text: str, note: Content, *, chart: Chart, caption: str, pairs: Sequence[ConfusedPair]
) -> Section:
    """Returns the confusion matrix beside its largest wrong cells.

    Args:
        text: what is counted.
        note: what the chart leaves out; may be empty.
        chart: of the matrix.
        caption: of the chart.
        pairs: all, the largest first.
    """
    rows = [list(pair) for pair in pairs[:_PAIRS_SHOWN]]
    listed = table(["ground truth", "predicted", "count"], rows)
    listed = element("div", listed, classes="tall")
    more = len(pairs) - len(rows)
    rest = element("p", f"and {more:,} more pairs, in confusions.csv", classes="note")
    beside = element("figure", element("figcaption", "Most frequent"), listed, rest if more else "")
    matrix = figure(chart.svg, caption, is_wide=chart.width > _WIDE_INCHES)
    shown = side_by_side([matrix, beside])
    return Section("confusions", "Confusions", [element("p", text), note, shown])


def images_section(text: str, images: np.ndarray | None, *, alternative: str) -> Section | None:
    """Returns one drawing of images, [h, w, 3] uint8; None without it.

    Args:
        text: what they show.
        images: the drawing.
        alternative: text for readers who do not see it.
    """
    if images is None:
        return None
    (height, width), jpeg = shrunk_jpeg(images, _IMAGE_SIDE)
    shown = embedded_jpeg(jpeg, height=height, width=width, alternative=alternative)
    paragraph = element("p", f"{text} A click enlarges.")
    return Section("images", "Images", [paragraph, element("div", shown, classes="enlarge")])


def write_report_files(
    prefix: str, *, tables: Mapping[str, str], charts: Mapping[str, Chart], report: str
) -> None:
    """Writes `report.html`, tables as CSV and charts as PNG.

    Args:
        prefix: of the names of all files, such as `MODEL_DIR/`.
        tables: texts by name.
        charts: by name.
        report: the page.
    """
    for name, text in tables.items():
        storage.write_text(f"{prefix}{name}.csv", text)
    for name, chart in charts.items():
        with storage.whole_file(f"{prefix}{name}.png", "wb") as file:
            file.write(chart.png)
    storage.write_text(f"{prefix}report.html", report)
