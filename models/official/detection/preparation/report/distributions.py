"""Sections of the page about a prepared set: distributions of classes, boxes and images."""

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from tpudet.detection.preparation.report.sections import class_label, split_label
from tpudet.detection.preparation.report.set_statistics import (
    SetNumbers,
    aspect_ratios,
    boxes_per_image,
    relative_sides,
    size_groups,
)
from tpudet.trainkit.pages.charts import bar_chart, histogram_chart, rank_chart
from tpudet.trainkit.pages.curves import density_chart
from tpudet.trainkit.pages.html import Content, Html, element, figure, joined, section, table

_SIDE_EDGES = np.geomspace(0.002, 1.0, 28)
_SIDE_TICKS = {n / 100: f"{n:g} %" for n in (0.2, 0.5, 1, 2, 5, 10, 20, 50, 100)}
_RATIO_EDGES = 2.0 ** np.linspace(-3.5, 3.5, 29)
_RATIO_TICKS = {1 / 8: "1:8", 1 / 4: "1:4", 1 / 2: "1:2", 1: "1:1", 2: "2:1", 4: "4:1", 8: "8:1"}
_SIZE_NAMES = ("small: below 32² px", "medium: below 96² px", "large")
_CENTRE_CELLS = 24  # in either direction
# Lower bounds of the groups of images by number of boxes.
_COUNT_GROUPS = (0, 1, 2, 3, 4, 5, 6, 8, 10, 15, 20, 30, 50, 100)


def classes_section(numbers: SetNumbers) -> Html:
    """Images and boxes per class: charts by rank, and a table of all classes."""
    total = numbers.boxes
    order = np.argsort(-total, kind="stable")
    charts, names = [], [entry.name for entry in numbers.prepared.classes]
    for label in ("boxes", "images"):
        by_split = dict(
            zip(numbers.split_names, (getattr(c, label) for c in numbers.counts), strict=True)
        )
        svg = rank_chart(by_split, order=order, names=names, label=label)
        charts.append(figure(svg, f"{label.capitalize()} per class"))
    longest = np.log1p(max(total.max(), 1))
    rows: list[list[Content]] = []
    for rank, row in enumerate(order, start=1):
        width = 100 * np.log1p(total[row]) / longest
        bar = Html(f'<div class="bar"><b style="width:{width:.1f}%"></b></div>')
        counts: list[Content] = [rank, class_label(numbers.prepared.classes[row])]
        counts += [int(c.images[row]) for c in numbers.counts]
        counts += [int(c.boxes[row]) for c in numbers.counts]
        rows.append([*counts, int(total[row]), bar])
    headers: list[Content] = ["rank", "class"]
    headers += [joined([split_label(name), " images"]) for name in numbers.split_names]
    headers += [joined([split_label(name), " boxes"]) for name in numbers.split_names]
    text = "Counts are on logarithmic scales: equal distances mean equal factors."
    contents = [element("p", text), element("div", *charts, classes="charts")]
    found = table([*headers, "all boxes", "on a log scale"], rows, classes="sortable")
    return section("classes", "Classes", *contents, element("div", found, classes="tall"))


def boxes_section(numbers: SetNumbers) -> Html:
    """Sizes and shapes of the boxes, and the number of boxes per image."""
    sides = [relative_sides(columns) for columns in numbers.columns]
    ratios = [aspect_ratios(columns) for columns in numbers.columns]
    groups = [size_groups(columns) for columns in numbers.columns]
    sizes = bar_chart(
        _shares(numbers, groups),
        names=("small", "medium", "large"),
        xlabel="size class of COCO",
        ylabel="of the split's boxes",
    )
    figures = [
        _histogram(
            numbers,
            sides,
            _SIDE_EDGES,
            _SIDE_TICKS,
            xlabel="√(box area / image area)",
            caption="Relative side of the boxes",
            written=lambda edge: f"{edge:.1%}",
        ),
        _histogram(
            numbers,
            ratios,
            _RATIO_EDGES,
            _RATIO_TICKS,
            xlabel="width : height, in pixels",
            caption="Aspect ratio of the boxes",
            written=lambda ratio: f"{ratio:.2f}",
        ),
        figure(
            sizes,
            "Boxes by area in pixels²",
            _counts_table(numbers, "area", _SIZE_NAMES, groups),
        ),
        _images_figure(numbers),
        _sizes_figure(np.concatenate(sides), np.concatenate(ratios)),
        _centres_figure(numbers),
    ]
    return section("boxes", "Boxes and images", element("div", *figures, classes="charts"))


def _histogram(
    numbers: SetNumbers,
    values: Sequence[np.ndarray],
    edges: np.ndarray,
    ticks: Mapping[float, str],
    *,
    xlabel: str,
    caption: str,
    written: Callable[[float], str],
) -> Html:
    """The outermost bins include everything beyond them, as the table says."""
    inside = np.nextafter(edges[-1], 0)
    counts = [np.histogram(v.clip(edges[0], inside), edges)[0] for v in values]
    svg = histogram_chart(
        _shares(numbers, counts),
        edges=edges,
        ticks=ticks,
        xlabel=xlabel,
        ylabel="of the split's boxes",
    )
    names = [f"{written(a)} to {written(b)}" for a, b in zip(edges[:-1], edges[1:], strict=True)]
    names[0] = f"below {written(edges[1])}"
    names[-1] = f"from {written(edges[-2])}"
    return figure(svg, caption, _counts_table(numbers, xlabel, names, counts))


def _sizes_figure(sides: np.ndarray, ratios: np.ndarray) -> Html:
    rows, columns = (
        values.clip(edges[0], np.nextafter(edges[-1], 0))
        for values, edges in ((ratios, _RATIO_EDGES), (sides, _SIDE_EDGES))
    )
    counts = np.histogram2d(rows, columns, [_RATIO_EDGES, _SIDE_EDGES])[0]
    chart = density_chart(
        counts,
        x_edges=_SIDE_EDGES,
        y_edges=_RATIO_EDGES,
        name="sizes and shapes",
        xlabel="√(box area / image area)",
        ylabel="width : height, in pixels",
        xticks=_SIDE_TICKS,
        yticks=_RATIO_TICKS,
        is_logarithmic=True,
    )
    return figure(chart.svg, "Sizes and aspect ratios of all boxes")


def _centres_figure(numbers: SetNumbers) -> Html:
    boxes = np.concatenate([columns.boxes_normalized for columns in numbers.columns])
    edges = np.linspace(0, 1, _CENTRE_CELLS + 1)
    rows, columns = ((boxes[:, :2] + boxes[:, 2:]) / 2).T.clip(0, 1)
    counts = np.histogram2d(rows, columns, [edges, edges])[0]
    ticks = {share / 100: f"{share} %" for share in (0, 25, 50, 75, 100)}
    chart = density_chart(
        counts,
        x_edges=edges,
        y_edges=edges,
        name="centres",
        xlabel="of the image's width",
        ylabel="of its height",
        xticks=ticks,
        yticks=ticks,
    )
    return figure(chart.svg, "Centres of all boxes")


def _images_figure(numbers: SetNumbers) -> Html:
    per_image = [boxes_per_image(columns) for columns in numbers.columns]
    groups = [
        np.bincount(np.digitize(counts, _COUNT_GROUPS) - 1, minlength=len(_COUNT_GROUPS))
        for counts in per_image
    ]
    last = max((int(np.flatnonzero(group)[-1]) for group in groups), default=0)
    names = [_group_name(index) for index in range(last + 1)]
    svg = bar_chart(
        _shares(numbers, [group[: last + 1] for group in groups]),
        names=names,
        xlabel="boxes in the image",
        ylabel="of the split's images",
    )
    exact = np.unique(np.concatenate(per_image))
    counts = [np.array([(c == n).sum() for n in exact]) for c in per_image]
    behind = _counts_table(numbers, "boxes in the image", [f"{n:,}" for n in exact], counts)
    return figure(svg, "Images by their number of boxes", behind)


def _group_name(index: int) -> str:
    first = _COUNT_GROUPS[index]
    if index + 1 == len(_COUNT_GROUPS):
        return f"{first}+"
    last = _COUNT_GROUPS[index + 1] - 1
    return f"{first}" if first == last else f"{first}–{last}"


def _shares(numbers: SetNumbers, counts: Sequence[np.ndarray]) -> dict[str, np.ndarray]:
    """Percentages of each split's total, so that splits of any size can be compared."""
    shares = [100 * count / max(count.sum(), 1) for count in counts]
    return dict(zip(numbers.split_names, shares, strict=True))


def _counts_table(
    numbers: SetNumbers, what: str, names: Sequence[str], counts: Sequence[np.ndarray]
) -> Html:
    rows = [[name, *map(int, row)] for name, row in zip(names, np.stack(counts, 1), strict=True)]
    return table([what, *map(split_label, numbers.split_names)], rows, classes="plain")
