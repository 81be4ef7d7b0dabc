"""Sections of the page about a prepared set: splits, samples, coverage, findings, options."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tpudet.detection.preparation.records.prepared_set import PreparedSet
from tpudet.detection.preparation.report.look_alikes import DrawnPair
from tpudet.detection.preparation.report.sample_images import SampleImage
from tpudet.detection.preparation.report.set_statistics import SetNumbers, boxes_per_image
from tpudet.trainkit.class_list import ClassEntry
from tpudet.trainkit.pages.charts import split_variable
from tpudet.trainkit.pages.drawing import class_colour
from tpudet.trainkit.pages.html import (
    Content,
    Html,
    details,
    element,
    embedded_jpeg,
    joined,
    section,
    table,
    to_html,
)

_NAMES_SHOWN = 5


def split_label(split: str) -> Html:
    """A split's name with its colour in the charts."""
    swatch = Html(f'<i class="swatch" style="background:{split_variable(split)}"></i>')
    return element("span", swatch, split, classes="split")


def class_label(entry: ClassEntry) -> Html:
    """A class's name, with its identifier if that differs."""
    if entry.name == entry.identifier:
        return to_html(entry.name)
    return joined([entry.name, " ", element("small", entry.identifier)])


def splits_table(numbers: SetNumbers) -> Html:
    """One row of totals per split."""
    rows: list[list[Content]] = []
    for split, columns, counts in zip(
        numbers.prepared.splits, numbers.columns, numbers.counts, strict=True
    ):
        per_image = boxes_per_image(columns)
        height, width = np.median(columns.sizes, axis=0)
        row: list[Content] = [split_label(split.name), len(per_image)]
        row += [len(set(columns.names.tolist())), int((per_image == 0).sum())]
        row += [len(columns.class_ids), f"{per_image.mean():.2f}", int(columns.is_crowd.sum())]
        row += [f"{np.count_nonzero(counts.boxes):,} of {len(counts.boxes):,}"]
        row += [f"{width:.0f} × {height:.0f}", len(split.shards)]
        row += [_megabytes(sum(entry["bytes"] for entry in split.manifest["shards"]))]
        rows.append(row)
    headers = ["split", "images", "distinct", "without boxes", "boxes", "boxes per image"]
    headers += ["crowd regions", "classes with boxes", "median size, px", "shards", "all shards"]
    return table(headers, rows, classes="totals")


def _megabytes(size: int) -> str:
    return f"{size / 1e9:,.1f} GB" if size >= 1e9 else f"{size / 1e6:,.1f} MB"


def samples_section(numbers: SetNumbers, samples: Sequence[SampleImage]) -> Html:
    """The grid of sample images."""
    classes = numbers.prepared.classes
    shown = {class_id for sample in samples for class_id, _ in sample.classes}
    present = np.count_nonzero(numbers.boxes)
    text = (
        f"{len(samples)} images, chosen to show as many classes as possible: "
        f"{len(shown)} of the {present} with boxes. A box has the colour of its class; a "
        "click enlarges."
    )
    cards = [_sample_card(sample, classes) for sample in samples]
    return section("samples", "Samples", element("p", text), element("div", *cards, classes="grid"))


def look_alikes_section(pairs: Sequence[DrawnPair], classes: Sequence[ClassEntry]) -> Html:
    """Images that look alike, side by side."""
    text = (
        "One photo saved twice, frames of one scene, or neither: as gray images of 16 × 16 pixels "
        "they correlate by more than 0.97. Where one of them was trained on, the evaluation of the "
        "other says too much."
    )
    cards = [
        element(
            "div",
            element("h3", f"Correlation {pair.correlation:.3f}"),
            element(
                "div",
                *(_sample_card(one, classes) for one in (pair.first, pair.second)),
                classes="grid",
            ),
        )
        for pair in pairs
    ]
    return section("look_alikes", "Look-alikes", element("p", text), *cards)


def _sample_card(sample: SampleImage, classes: Sequence[ClassEntry]) -> Html:
    chips = []
    for class_id, count in sample.classes:
        colour = ",".join(str(channel) for channel in class_colour(class_id))
        swatch = Html(f'<i class="swatch" style="background:rgb({colour})"></i>')
        times = f" × {count}" if count > 1 else ""
        chips.append(element("span", swatch, classes[class_id - 1].name, times, classes="chip"))
    image = embedded_jpeg(
        sample.jpeg,
        height=sample.height,
        width=sample.width,
        alternative=f"Image {sample.source_id} of {sample.split} with its boxes",
    )
    height, width = sample.original
    size = element("small", f"{width} × {height}")
    caption = element("p", split_label(sample.split), " ", sample.source_id, " ", size)
    legend = element("p", *chips, classes="chips")
    return element("article", element("div", image, classes="frame enlarge"), caption, legend)


def coverage_section(numbers: SetNumbers) -> Html:
    """The classes without boxes in a split."""
    lacking, classes = numbers.lacking, numbers.prepared.classes
    parts: list[Content] = []
    for name, row in zip(numbers.split_names, lacking, strict=True):
        count = int(row.sum())
        what = f": {count:,} of {len(classes):,} classes lack boxes" if count else ": all classes"
        parts.append(element("li", split_label(name), what))
    contents: list[Content] = [element("ul", *parts, classes="inline")]
    rows: list[list[Content]] = []
    for row in np.flatnonzero(lacking.any(axis=0)):
        cells = [int(c.boxes[row]) or element("em", "none") for c in numbers.counts]
        rows.append([int(row) + 1, class_label(classes[row]), *cells])
    if rows:
        headers = [
            "id",
            "class",
            *(joined([split_label(n), " boxes"]) for n in numbers.split_names),
        ]
        found = table(headers, rows, classes="sortable")
        contents.append(element("div", found, classes="tall"))
    return section("coverage", "Class coverage", *contents)


def repairs_section(prepared: PreparedSet) -> Html:
    """The findings by reason, left out and repaired, each with its first files."""
    contents: list[Content] = []
    for key, title in (("left_out", "Left out"), ("repaired", "Repaired")):
        rows: list[list[Content]] = []
        for split in prepared.splits:
            for reason, count in split.manifest[f"{key}_counts"].items():
                found = [e for e in split.manifest.get(key, ()) if e.get("reason") == reason]
                rows.append([split_label(split.name), reason, count, _first_names(found, count)])
        headers = ["split", "reason", "count", f"the first {_NAMES_SHOWN}"]
        nothing = element("p", "Nothing.", classes="note")
        contents += [
            element("h3", title),
            table(headers, rows, classes="plain") if rows else nothing,
        ]
    return section("repairs", "Repaired and left out", *contents)


def _first_names(entries: Sequence[Mapping[str, Any]], count: int) -> Html:
    lines = []
    for entry in entries[:_NAMES_SHOWN]:
        detail = f" ({entry['detail']})" if entry.get("detail") else ""
        lines.append(joined([str(entry.get("file", "")), element("small", detail)]))
    if count > len(lines):
        lines.append(to_html(f"… and {count - len(lines):,} more, listed in the manifest"))
    return joined(lines, "<br>")


def options_section(prepared: PreparedSet) -> Html:
    """The options of each split, from its manifest."""
    names = dict.fromkeys(k for split in prepared.splits for k in split.manifest["options"])
    rows = [
        [name, *(_option(s.manifest["options"].get(name)) for s in prepared.splits)]
        for name in names
    ]
    headers = ["option", *(split_label(split.name) for split in prepared.splits)]
    found = details("Options of each split", table(headers, rows, classes="plain"))
    return section("options", "How it was made", found)


def _option(value: Any) -> str:
    if value is None:
        return "–"
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
