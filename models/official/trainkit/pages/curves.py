"""Charts of lines, of a matrix and of a density, as inline SVG for a page and as a PNG file.

Names of lines, rows and columns may be of any script: where matplotlib's font lacks a character,
the PNG shows a box; the page uses the fonts of its reader.
"""

import io
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import to_rgba
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from matplotlib.ticker import LogFormatter, MaxNLocator

from tpudet.trainkit.pages.charts import (
    GRID,
    INK,
    LETTERS_IN_A_ROW,
    STYLE,
    figure_svg,
    short_name,
)

# Mid tones, legible on white and on dark pages; neighbours differ in hue and lightness.
_COLOURS = (
    "#3f6fe0", "#e8832a", "#2a9d7c", "#d1495b", "#8a63c9", "#9a7b2f", "#d667b0", "#6b7785",
    "#8fb339", "#2aa7c4", "#5b8def", "#b35c1e", "#5fc29f", "#ef7d86", "#6a4ba8", "#c9a94a",
    "#a0457f", "#93a1b0", "#5f7f1f", "#167a94",
)  # fmt: skip
_INCHES = (7.0, 3.8)
_PNG_DOTS_PER_INCH = 130


class _PlainLogFormatter(LogFormatter):
    """Chooses the ticks that have room for a number, and writes 0.2 instead of 2e-01."""

    def __call__(self, x: float, pos: int | None = None) -> str:
        return f"{x:g}" if super().__call__(x, pos) else ""


class Chart(NamedTuple):
    """One drawing in two formats."""

    svg: str
    png: bytes
    width: float  # inches


class Line(NamedTuple):
    """n points of a line."""

    x: np.ndarray
    y: np.ndarray
    is_emphasized: bool = False  # drawn thick, in the colour of text


def line_chart(
    lines: Mapping[str, Line],
    *,
    name: str,
    xlabel: str,
    ylabel: str,
    xlimits: tuple[float, float] | None = None,
    ylimits: tuple[float, float] | None = None,
    is_logarithmic: bool = False,
) -> Chart:
    """Charts lines with a legend of their names beside it.

    Args:
        lines: by name, at most MAX_NAMES and one emphasized. If every x is of an integer type, so
            are the ticks.
        name: of the chart, for ids in a page.
        xlabel: label of the horizontal axis.
        ylabel: label of the vertical axis.
        xlimits: of the horizontal axis; by default those of the points.
        ylimits: of the vertical axis.
        is_logarithmic: whether the vertical axis is.
    """

    def draw(axes: Axes) -> None:
        colours = iter(_COLOURS)
        for label, line in lines.items():
            colour, width = (INK, 2.6) if line.is_emphasized else (next(colours), 1.6)
            marker = "o" if len(line.x) <= 2 else None  # one point is not a line
            axes.plot(
                line.x, line.y, color=colour, lw=width, label=short_name(label), marker=marker, ms=4
            )
        if is_logarithmic:
            axes.set_yscale("log")
            for of_axis in (axes.yaxis.set_major_formatter, axes.yaxis.set_minor_formatter):
                of_axis(_PlainLogFormatter(minor_thresholds=(2, 0.6)))
        axes.set(xlabel=xlabel, ylabel=ylabel, xlim=xlimits, ylim=ylimits)
        if all(np.issubdtype(line.x.dtype, np.integer) for line in lines.values()):
            locator = MaxNLocator(steps=[1, 2, 5, 10], integer=True, min_n_ticks=1)
            axes.xaxis.set_major_locator(locator)
        axes.grid(axis="both", lw=0.8)
        if lines:
            spacing = 0.5 if len(lines) <= 12 else 0.2  # 21 names must fit
            place = {"loc": "upper left", "bbox_to_anchor": (1.0, 1.02), "labelspacing": spacing}
            axes.legend(**place, frameon=False, fontsize=9)

    return _render(draw, name, _INCHES)


def confusion_matrix_chart(counts: np.ndarray, names: Sequence[str]) -> Chart:
    """Charts how often which class was taken for which; colours are shares of the row.

    Args:
        counts: [C, C] int, truth by predicted class; at most MAX_NAMES + 1 classes.
        names: C names.
    """
    num_classes = len(names)

    def draw(axes: Axes) -> None:
        shares = counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)
        colours = np.tile(to_rgba(_COLOURS[0]), (num_classes, num_classes, 1))
        colours[..., 3] = 0.85 * shares  # of the page's own colour behind it
        edges = np.arange(num_classes + 1) - 0.5
        axes.pcolormesh(edges, edges, colours, edgecolors=GRID, lw=0.8)
        size = 10 if num_classes <= 12 else 9
        for (row, column), count in np.ndenumerate(counts):
            if count:
                axes.text(column, row, f"{count:,}", ha="center", va="center", fontsize=size)
        is_long = max(map(len, names)) * num_classes > LETTERS_IN_A_ROW
        shown = [short_name(name) for name in names]
        axes.set_xticks(range(num_classes), shown, rotation=90 if is_long else 0)
        axes.set_yticks(range(num_classes), shown)
        axes.set(xlabel="predicted", ylabel="ground truth", ylim=(num_classes - 0.5, -0.5))
        axes.tick_params(length=0, labelsize=size)
        axes.grid(False)

    side = 2.6 + 0.42 * num_classes
    return _render(draw, "confusions", (side + 1.4, side))


def density_chart(
    counts: np.ndarray,
    *,
    x_edges: np.ndarray,
    y_edges: np.ndarray,
    name: str,
    xlabel: str,
    ylabel: str,
    xticks: Mapping[float, str],
    yticks: Mapping[float, str],
    is_logarithmic: bool = False,
) -> Chart:
    """Charts where points lie; the darkest cell has the most of them.

    Args:
        counts: [Y, X] int points in each cell.
        x_edges: [X + 1], in ascending order.
        y_edges: [Y + 1], in ascending order.
        name: of the chart, for ids in a page.
        xlabel: label of the horizontal axis.
        ylabel: label of the vertical axis.
        xticks: labels by value.
        yticks: labels by value.
        is_logarithmic: whether both axes are; else y grows downwards, as in an image.
    """

    def draw(axes: Axes) -> None:
        rows, columns = np.nonzero(counts)  # empty cells would be most of the drawing
        opacities = np.sqrt(counts / max(counts.max(initial=0), 1))  # so that few points show, too
        for row, column in zip(rows, columns, strict=True):
            corner = x_edges[column], y_edges[row]
            size = x_edges[column + 1] - corner[0], y_edges[row + 1] - corner[1]
            opacity = float(opacities[row, column])
            axes.add_patch(Rectangle(corner, *size, fc=_COLOURS[0], lw=0, alpha=opacity))
        if is_logarithmic:
            axes.set(xscale="log", yscale="log")
        axes.set_xticks(list(xticks), list(xticks.values()))
        axes.set_yticks(list(yticks), list(yticks.values()))
        axes.minorticks_off()
        ends = y_edges[[0, -1]] if is_logarithmic else y_edges[[-1, 0]]
        axes.set(xlabel=xlabel, ylabel=ylabel, xlim=x_edges[[0, -1]], ylim=ends)
        axes.grid(axis="both", lw=0.8)

    return _render(draw, name, _INCHES)


def _render(draw: Callable[[Axes], None], name: str, inches: tuple[float, float]) -> Chart:
    with matplotlib.rc_context(STYLE), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing from")
        figure = Figure(figsize=inches, layout="constrained")
        axes = figure.subplots()
        axes.patch.set_visible(False)
        draw(axes)
        figure.patch.set_visible(False)
        svg = figure_svg(figure, name)
        figure.set_layout_engine("none")  # it stays as laid out, which took half of the time
        figure.patch.set(visible=True, facecolor="white")
        stream = io.BytesIO()
        figure.savefig(stream, format="png", dpi=_PNG_DOTS_PER_INCH)
    return Chart(svg, stream.getvalue(), inches[0])
