"""Charts as inline SVG for HTML pages: equal numbers give equal bytes.

Text and lines take their colours from the page's CSS (`currentColor`, `--grid`, `--train`, ...), so
one drawing suits light and dark themes.
"""

import io
import re
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator

# Placeholder colours that CSS variables replace; all must differ, also from black. A PNG file shows
# them as they are.
INK, GRID = "#010203", "#dde1e7"
_PLACEHOLDERS = {INK: "currentColor", GRID: "var(--grid)"}
_SPLITS = {"train": "#0a0b01", "val": "#0a0b02", "test": "#0a0b03"}
_OTHER_SPLIT = "#0a0b04"

STYLE: Any = {  # its annotation lists every key as a literal
    "svg.hashsalt": "tpudet",
    "svg.fonttype": "none",
    "text.parse_math": False,
    "font.size": 11,
    "text.color": INK,
    "axes.labelcolor": INK,
    "axes.edgecolor": GRID,
    "xtick.color": GRID,
    "ytick.color": GRID,
    "xtick.labelcolor": INK,
    "ytick.labelcolor": INK,
    "grid.color": GRID,
    "axes.axisbelow": True,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.spines.left": False,
}
_INCHES = (7.0, 3.3)
MAX_NAMES = 20  # more classes than a reader can tell apart in a chart
_NAME_LENGTH = 24  # characters of a name in a chart
LETTERS_IN_A_ROW = 60  # of all names below a chart; more are turned upright
_MANY_RANKS = 40  # with more, bars would be thinner than their gaps


def short_name(name: str) -> str:
    """Returns a name cut to what a chart has room for."""
    return name if len(name) <= _NAME_LENGTH else f"{name[: _NAME_LENGTH - 1]}…"


def split_variable(split: str) -> str:
    """Returns the CSS colour of a split."""
    return f"var(--{split if split in _SPLITS else 'other'})"


def rank_chart(
    counts: Mapping[str, np.ndarray], *, order: np.ndarray, names: Sequence[str], label: str
) -> str:
    """Charts the frequency of the classes, most frequent first, on a logarithmic scale.

    Up to 20 classes are named. With too many classes for bars, a thin line shows the sum of the
    splits.

    Args:
        counts: by split, [C].
        order: [C] rows of the counts in the order of the table.
        names: C names.
        label: of the vertical axis.
    """
    with matplotlib.rc_context(STYLE):
        figure, axes = _figure()
        ranks = np.arange(1, len(order) + 1)
        for number, (split, column) in enumerate(counts.items()):
            values = column[order].astype(float)
            if len(order) <= _MANY_RANKS:
                _bars(axes, ranks, values, number, len(counts), _colour(split))
            else:
                values[values == 0] = np.nan
                axes.plot(ranks, values, ".", color=_colour(split), markersize=5, alpha=0.85)
        if len(order) > _MANY_RANKS:
            total = np.sum([column[order] for column in counts.values()], axis=0)
            axes.stairs(total, np.arange(len(order) + 1) + 0.5, color=INK, linewidth=0.8)
        axes.set_yscale("log")
        axes.set_ylim(bottom=0.8)
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
        axes.set_xlim(0.4, len(order) + 0.6)
        if len(order) <= MAX_NAMES:
            shown = [short_name(names[int(row)]) for row in order]
            is_long = sum(map(len, shown)) > LETTERS_IN_A_ROW
            axes.set_xticks(ranks, shown, rotation=90 if is_long else 0)
        else:
            axes.xaxis.set_major_locator(MaxNLocator(steps=[1, 2, 5, 10], integer=True))
            axes.set_xlabel("rank of the class, as in the table")
        axes.set_ylabel(label)
        return figure_svg(figure, label)


def histogram_chart(
    shares: Mapping[str, np.ndarray],
    *,
    edges: np.ndarray,
    ticks: Mapping[float, str],
    xlabel: str,
    ylabel: str,
) -> str:
    """Charts overlaid histograms of the splits on a logarithmic horizontal axis.

    Args:
        shares: by split, percent in each bin, [bins].
        edges: [bins + 1], positive, increasing.
        ticks: labels by value.
        xlabel: label of the horizontal axis.
        ylabel: label of the vertical axis.
    """
    with matplotlib.rc_context(STYLE):
        figure, axes = _figure()
        for split, values in shares.items():
            colour = _colour(split)
            axes.stairs(values, edges, fill=True, color=colour, alpha=0.16)
            axes.stairs(values, edges, color=colour, linewidth=1.8)
        axes.set_xscale("log")
        axes.set_xticks(list(ticks), list(ticks.values()))
        axes.minorticks_off()
        axes.set_xlim(edges[0], edges[-1])
        _percent_axis(axes, ylabel)
        axes.set_xlabel(xlabel)
        return figure_svg(figure, xlabel)


def bar_chart(
    shares: Mapping[str, np.ndarray], *, names: Sequence[str], xlabel: str, ylabel: str
) -> str:
    """Charts bars of the splits side by side.

    Args:
        shares: by split, percent in each of n groups.
        names: n group names.
        xlabel: label of the horizontal axis.
        ylabel: label of the vertical axis.
    """
    with matplotlib.rc_context(STYLE):
        figure, axes = _figure()
        places = np.arange(len(names))
        for number, (split, values) in enumerate(shares.items()):
            _bars(axes, places, values, number, len(shares), _colour(split))
        axes.set_xticks(places, list(names))
        axes.tick_params(axis="x", length=0, labelsize=11 if len(names) < 10 else 8.5)
        _percent_axis(axes, ylabel)
        axes.set_xlabel(xlabel)
        return figure_svg(figure, xlabel)


def _figure() -> tuple[Figure, Axes]:
    figure = Figure(figsize=_INCHES, layout="constrained")
    axes = figure.subplots()
    axes.grid(axis="y", linewidth=0.8)
    axes.tick_params(axis="y", which="both", length=0)
    figure.patch.set_visible(False)
    axes.patch.set_visible(False)
    return figure, axes


def _bars(
    axes: Axes, places: np.ndarray, values: np.ndarray, number: int, count: int, colour: str
) -> None:
    width = 0.8 / count
    axes.bar(places + (number - (count - 1) / 2) * width, values, width * 0.92, color=colour)


def _percent_axis(axes: Axes, label: str) -> None:
    axes.set_ylabel(label)
    axes.set_ylim(bottom=0)
    axes.yaxis.set_major_locator(MaxNLocator(6, steps=[1, 2, 5, 10]))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g} %"))


def _colour(split: str) -> str:
    return _SPLITS.get(split, _OTHER_SPLIT)


def figure_svg(figure: Figure, name: str) -> str:
    """Returns a drawing in the colours of a page; `name` begins its ids."""
    stream = io.StringIO()
    with warnings.catch_warnings():
        # The page has the fonts of its reader.
        warnings.filterwarnings("ignore", message="Glyph .* missing from")
        figure.savefig(stream, format="svg", metadata={"Date": None})
    text = stream.getvalue()
    text = text[text.index("<svg") :].strip()
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
    text = re.sub(r' xmlns(:xlink)?="[^"]*"', "", text)  # HTML implies them
    # Ids are unique only within one drawing, and a page has several.
    prefix = re.sub(r"\W+", "-", name)
    text = re.sub(r'(\bid="|url\(#|href="#)', rf"\g<1>{prefix}-", text)
    text = re.sub(
        r'<svg [^>]*?viewBox="([^"]*)"[^>]*>', r'<svg viewBox="\1" aria-hidden="true">', text
    )
    colours = _PLACEHOLDERS | {c: split_variable(s) for s, c in _SPLITS.items()}
    for placeholder, colour in (colours | {_OTHER_SPLIT: "var(--other)"}).items():
        text = text.replace(placeholder, colour)
    return text
