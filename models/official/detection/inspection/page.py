"""Builds the page of images with their found, false and missed objects."""

from collections import Counter
from collections.abc import Sequence
from urllib.parse import quote

import numpy as np

from tpudet.detection.inspection.image_panels import COLOURS, Comparison, ImageCard, Mark
from tpudet.detection.inspection.outcomes import FOUND
from tpudet.detection.inspection.page_tables import (
    classes_section,
    confusions_section,
    percentage,
    rules_section,
)
from tpudet.trainkit.pages.drawing import class_colour
from tpudet.trainkit.pages.html import (
    Content,
    Html,
    element,
    embedded_jpeg,
    joined,
    page,
    section,
    table,
    to_html,
)

_VARIABLES = " ".join(f"--{state}: rgb{colour};" for state, colour in COLOURS.items())
_STATES = "\n".join(
    f".swatch.{state} {{ background: var(--{state}); }}\n"
    f"g.{state} {{ stroke: var(--{state}); }}\n"
    f'body:has(.toggle[data-state="{state}"]:not(:checked)) g.{state} {{ display: none; }}'
    for state in COLOURS
)

STYLE = f"""
:root {{ {_VARIABLES} }}
body {{ max-width: 100rem; }}
.known {{ margin: 1rem 0; }}
.images {{ display: grid; gap: 1.1rem;
  grid-template-columns: repeat(auto-fill, minmax(min(100%, 25rem), 1fr)); }}
.images article {{ padding: .7rem .7rem .8rem; border: 1px solid var(--line);
  border-radius: 14px; background: var(--card); content-visibility: auto;
  contain-intrinsic-size: auto 26rem; }}
.images article[hidden] {{ display: none; }}
.images a {{ display: grid; place-items: center; aspect-ratio: 4 / 3; overflow: hidden;
  border-radius: 9px; background: var(--page); }}
.canvas {{ position: relative; width: min(100%, var(--ratio) / 1.33333 * 100%);
  aspect-ratio: var(--ratio); }}
.canvas img, .canvas svg {{ position: absolute; inset: 0; display: block; width: 100%;
  height: 100%; }}
.canvas svg {{ overflow: visible; }}
.canvas g {{ fill: transparent; stroke-width: 2.5px; }}
.canvas g:hover {{ fill: rgb(255 255 255 / .18); stroke-width: 4.5px; }}
.canvas rect {{ vector-effect: non-scaling-stroke; }}
.canvas g.missed {{ stroke-dasharray: 7 4; }}
.canvas g.found, .canvas g.ignored {{ stroke-width: 1.5px; }}
#classes :is(th, td):nth-last-child(-n + 2),
#confusions :is(th, td):nth-last-child(-n + 2) {{ text-align: right; }}
.chips[hidden] {{ display: none; }}
.chips span {{ display: inline-block; }}
.bar-of-choices {{ position: sticky; z-index: 1; top: 0; display: flex; flex-wrap: wrap;
  align-items: center; gap: .3rem 1.3rem; margin: 1.2rem 0 .9rem; padding: .6rem .2rem;
  border-bottom: 1px solid var(--line); background: var(--page); }}
.bar-of-choices label {{ display: inline-flex; align-items: center; gap: .35em; }}
.bar-of-choices select {{ max-width: 16rem; padding: .25rem .4rem; font: inherit; color: inherit;
  border: 1px solid var(--line); border-radius: 8px; background: var(--card); }}
.bar-of-choices .swatch {{ margin: 0; }}
.canvas g.low {{ display: none; }}
{_STATES}
"""

# Order, class and score, which a link may give, as index.html#score=0.7. Without scripts all images
# are shown in the order in which they were chosen.
SCRIPT = """
const grid = document.querySelector(".images"), cards = [...grid.children];
const order = document.getElementById("order"), wanted = document.getElementById("class");
order.addEventListener("change", () => {
  const key = order.value, value = card => Number(card.dataset[key]);
  const rank = (a, b) => a.dataset.rank - b.dataset.rank;
  cards.sort((a, b) => key === "rank" ? rank(a, b)
    : key === "name" ? a.dataset.name.localeCompare(b.dataset.name)
    : value(b) - value(a) || rank(a, b));
  grid.append(...cards);
});
wanted.addEventListener("change", () => {
  for (const card of cards)
    card.hidden = wanted.value !== "" && !card.dataset.classes.split(" ").includes(wanted.value);
});
// Predictions are matched in descending order of score: leaving out the lowest changes no other.
const score = document.getElementById("score"), shown = document.getElementById("shown");
const boxes = [...document.querySelectorAll("g[data-score]")];
for (const box of boxes) box.dataset.state = box.getAttribute("class");
const inWords = counts => ["missed", "false", "found"].map(s => `${counts[s]} ${s}`).join(", ");
const compared = cards.filter(card => card.querySelector(".counts"));
for (const card of compared) card.atStart = {...card.dataset};
const count = card => {
  const counts = {missed: 0, false: 0, found: 0, badness: 0};
  for (const box of card.querySelectorAll("g")) {
    const state = box.getAttribute("class");
    counts[state] += 1;
    counts.badness += state === "missed" ? 1 : state === "false" ? Number(box.dataset.score) : 0;
  }
  return counts;
};
score.addEventListener("input", () => {
  const lowest = Number(score.value), isLowest = score.value === score.min;
  for (const box of boxes) {
    const state = box.dataset.state, isLow = Number(box.dataset.score) < lowest;
    box.setAttribute("class", !isLow ? state : state === "found" ? "missed" : "low");
  }
  const total = {missed: 0, false: 0, found: 0};
  for (const card of compared) {
    const counts = isLowest ? card.atStart : count(card), line = card.querySelector(".counts");
    for (const key of ["missed", "false", "found", "badness"]) card.dataset[key] = counts[key];
    for (const state in total) total[state] += Number(counts[state]);
    line.firstChild.textContent = inWords(counts);
    line.lastChild.textContent = ` · badness ${Number(counts.badness).toFixed(2)}`;
    card.querySelector(".chips").hidden = !isLowest;  // they are those of the lowest score
  }
  const rest = compared.length ? `: ${inWords(total)} in these images` : "";
  shown.textContent = lowest.toFixed(2) + rest;
  for (const cell of document.querySelectorAll("[data-scores]")) {
    const numbers = cell.dataset.scores.split(" ").map(text => text.split("x").map(Number));
    const sum = numbers.reduce((sum, [at, times]) => at / 100 < lowest ? sum : sum + times, 0);
    cell.textContent = sum.toLocaleString("en");
    cell.closest("tr").hidden = sum === 0;
  }
});
const linked = location.hash.match(/^#score=([0-9.]+)$/);
if (linked) {
  score.value = linked[1];
  score.dispatchEvent(new Event("input"));
}
"""


_LEGEND = {
    "found": "Found: the right class, IoU 0.5 or more",
    "false": "False: a prediction that finds no object",
    "missed": "Missed: a ground-truth object that no prediction finds",
    "ignored": "Ignored: group regions, and predictions in them",
}
_ORDERS = {
    "rank": "as chosen",
    "badness": "the worst first",
    "missed": "most missed first",
    "false": "most false first",
    "name": "by name",
}
_FAULTS = ("false", "missed", "")  # without ground truth all are shown
_CHIPS_SHOWN = 6


def build_page(
    comparison: Comparison,
    cards: Sequence[ImageCard],
    *,
    title: str,
    facts: dict[str, str],
    notes: Sequence[str],
) -> str:
    """Returns the page; equal arguments give equal text.

    Args:
        comparison: all images that were compared.
        cards: the images to show, in their order.
        title: of the page.
        facts: what the page was made from, by name.
        notes: for the user.
    """
    body: list[Content] = [element("h1", title), *_head(comparison, len(cards))]
    if notes:
        body.append(element("ul", *(element("li", note) for note in notes), classes="known"))
    shown = [_card(comparison, rank, one) for rank, one in enumerate(cards)]
    body += [_bar(comparison, cards), element("div", *shown, classes="images")]
    if comparison.outcomes is not None:
        body += [
            classes_section(comparison, comparison.outcomes),
            confusions_section(comparison, comparison.outcomes),
            rules_section(comparison),
        ]
    rows = [[name, value] for name, value in facts.items()]
    body.append(section("origin", "Made from", table(["input", "source"], rows)))
    return page(title, body, style=STYLE, script=SCRIPT)


def _head(comparison: Comparison, num_images: int) -> list[Content]:
    facts: dict[str, Content] = {"images shown": num_images}
    if comparison.outcomes is not None and comparison.ground_truth is not None:
        num_found = int((comparison.outcomes.kinds == FOUND).sum())
        missed, false = (
            int(comparison.outcomes.is_missed.sum()),
            int(comparison.outcomes.is_false.sum()),
        )
        facts["images compared"] = len(comparison.predicted.image_ids)
        facts["found"] = num_found
        facts["missed"] = missed
        facts["false"] = false
        facts["recall"] = percentage(num_found, num_found + missed)
        facts["precision"] = percentage(num_found, num_found + false)
    else:
        facts["images"] = len(comparison.predicted.image_ids)
        facts["predictions"] = len(comparison.predicted.scores)
    tiles = [
        element("div", element("b", value), element("span", name), classes="tile")
        for name, value in facts.items()
    ]
    what = "Ground truth and predictions" if comparison.outcomes is not None else "Predictions"
    lead = (
        f"{what} of score {comparison.min_score:g} or more. Point at a box to read its label; a "
        "click opens the image in full size"
    )
    lead += ", the ground truth beside the predictions." if comparison.outcomes is not None else "."
    return [element("p", lead, classes="lead"), element("div", *tiles, classes="tiles")]


def _bar(comparison: Comparison, cards: Sequence[ImageCard]) -> Html:
    """Legend, order, class and score; stays visible while the page is scrolled."""
    parts: list[Content] = []
    states = sum((_states(one) for one in cards), Counter())
    for state, meaning in _LEGEND.items():
        if states[state]:
            box = Html(f'<input type="checkbox" class="toggle" data-state="{state}" checked>')
            swatch = Html(f'<i class="swatch {state}"></i>')
            name = element("b", state)
            parts.append(Html(f'<label title="{to_html(meaning)}">{box}{swatch}{name}</label>'))
    orders = (
        _ORDERS if comparison.outcomes is not None else {k: _ORDERS[k] for k in ("rank", "name")}
    )
    options = "".join(f'<option value="{key}">{text}</option>' for key, text in orders.items())
    parts.append(Html(f'<label>Order <select id="order">{options}</select></label>'))
    # Classes with a fault in an image; without ground truth, classes in an image.
    classes = sorted({k for one in cards for k in _class_ids(one)})
    names = [
        f'<option value="{k}">{to_html(comparison.classes[k - 1].name)}</option>' for k in classes
    ]
    what = "Faults in" if comparison.outcomes is not None else "With"
    every = '<option value="">any class</option>'
    parts.append(Html(f'<label>{what} <select id="class">{every}{"".join(names)}</select></label>'))
    parts.append(_slider(comparison.min_score))
    return element("div", *parts, classes="bar-of-choices")


def _slider(min_score: float) -> Html:
    return Html(
        '<label title="Found objects below it become missed">Score '
        f'<input type="range" id="score" min="{min_score:g}" max="1" step="0.01" '
        f'value="{min_score:g}"><output id="shown" for="score">{min_score:.2f}</output></label>'
    )


def _states(one: ImageCard) -> Counter[str]:
    states: Counter[str] = Counter()
    for (state, _), count in one.counts.items():
        states[state] += count
    return states


def _class_ids(one: ImageCard) -> set[int]:
    return {class_id for state, class_id in one.counts if state in _FAULTS}


def _card(comparison: Comparison, rank: int, one: ImageCard) -> Html:
    states = _states(one)
    data = {
        "rank": rank,
        "badness": f"{one.badness:.4f}",
        "missed": states["missed"],
        "false": states["false"],
        "found": states["found"],
        "name": to_html(one.image_id),
        "classes": " ".join(map(str, sorted(_class_ids(one)))),
    }
    attributes = "".join(f' data-{key}="{value}"' for key, value in data.items())
    height, width = one.size
    image = embedded_jpeg(one.jpeg, height=height, width=width, alternative=f"Image {one.image_id}")
    boxes = joined(_rectangle(mark) for mark in one.marks)
    overlay = f'<svg viewBox="0 0 1 1" preserveAspectRatio="none">{boxes}</svg>'
    link = (
        f'<a href="{quote(one.file)}" title="{_LINK_TITLE}">'
        f'<div class="canvas" style="--ratio:{width / height:.5f}">{image}{overlay}</div></a>'
    )
    full_height, full_width = one.original
    size = element("small", f"{full_width} × {full_height}")
    caption = element("p", element("b", one.image_id), " ", size)
    return Html(
        f"<article{attributes}>{link}{caption}{_summary(comparison, one, states)}</article>"
    )


_LINK_TITLE = "The image in full size"


def _rectangle(mark: Mark) -> Html:
    y1, x1, y2, x2 = np.clip(mark.box, 0, 1).tolist()
    numbers = f'x="{x1:.4f}" y="{y1:.4f}" width="{x2 - x1:.4f}" height="{y2 - y1:.4f}"'
    style = "" if mark.state else f' style="stroke:{_css_colour(mark.class_id)}"'
    title = element("title", mark.text)
    score = "" if mark.score is None else f' data-score="{mark.score:.4f}"'
    return Html(f'<g class="{mark.state}"{score}{style}>{title}<rect {numbers}/></g>')


def _css_colour(class_id: int) -> str:
    return f"rgb({','.join(str(channel) for channel in class_colour(class_id))})"


def _summary(comparison: Comparison, one: ImageCard, states: Counter[str]) -> Html:
    """The faults in words, most frequent first."""
    counts = Counter({key: count for key, count in one.counts.items() if key[0] in _FAULTS})
    chips: list[Content] = []
    for (state, class_id), count in counts.most_common(_CHIPS_SHOWN):
        style = "" if state else f' style="background:{_css_colour(class_id)}"'
        swatch = Html(f'<i class="swatch {state}"{style}></i>')
        times = f" × {count}" if count > 1 else ""
        name = comparison.classes[class_id - 1].name
        chips.append(element("span", swatch, f"{state} {name}{times}".strip()))
    if len(counts) > _CHIPS_SHOWN:
        chips.append(element("span", f"and {len(counts) - _CHIPS_SHOWN} more"))
    if hidden := one.counts.total() - len(one.marks):
        chips.append(element("span", f"{hidden:,} boxes not drawn here"))
    lines: list[Content] = []
    if comparison.outcomes is not None:
        text = f"{states['missed']} missed, {states['false']} false, {states['found']} found"
        badness = element("small", f" · badness {one.badness:.2f}")
        lines.append(element("p", text, badness, classes="counts"))
    return joined([*lines, element("p", *chips, classes="chips")])
