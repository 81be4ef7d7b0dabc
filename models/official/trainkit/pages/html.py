"""Builders for self-contained HTML pages.

Text is escaped here and nowhere else; the type `Html` marks strings that are HTML already.
"""

import base64
import hashlib
from collections.abc import Iterable, Sequence
from html import escape

# Class lists can be longer than anybody reads, and pages should stay small.
MAX_ROWS = 2000
_MAX_TEXT = 300  # characters


class Html(str):
    """A string that is HTML already; any other string is escaped."""

    __slots__ = ()


Content = str | int | float


def to_html(content: Content) -> Html:
    """Converts to HTML: text escaped and truncated, integers with digit groups, floats `%.3g`."""
    if isinstance(content, Html):
        return content
    if isinstance(content, str):
        text = content if len(content) <= _MAX_TEXT else f"{content[:_MAX_TEXT]}…"
        return Html(escape(text))
    return Html(f"{content:,}" if isinstance(content, int) else f"{content:.3g}")


def joined(parts: Iterable[Content], separator: str = "") -> Html:
    """Joins the parts as HTML."""
    return Html(separator.join(to_html(part) for part in parts))


def element(tag: str, *contents: Content, classes: str = "") -> Html:
    """Returns `<tag class="classes">contents</tag>`."""
    attribute = f' class="{classes}"' if classes else ""
    return Html(f"<{tag}{attribute}>{joined(contents)}</{tag}>")


def table(
    headers: Sequence[Content], rows: Sequence[Sequence[Content]], *, classes: str = ""
) -> Html:
    """Returns a table that scrolls if it is too wide; columns with numbers are right-aligned.

    After `MAX_ROWS` rows a note says how many are left out.
    """
    aligned = [
        "number" if any(not isinstance(row[column], str) for row in rows) else ""
        for column in range(len(headers))
    ]
    head = _row("th", headers, aligned)
    body = joined(_row("td", row, aligned) for row in rows[:MAX_ROWS])
    html = f"<thead>{head}</thead><tbody>{body}</tbody>"
    rest = len(rows) - MAX_ROWS
    note = element("p", f"… and {rest:,} more rows.", classes="note") if rest > 0 else ""
    shown = Html(f'<table class="{classes}">{html}</table>')
    return joined([element("div", shown, classes="scroll"), note])


def _row(tag: str, cells: Sequence[Content], aligned: Sequence[str]) -> Html:
    pairs = zip(cells, aligned, strict=True)
    return element("tr", *(element(tag, cell, classes=classes) for cell, classes in pairs))


def details(summary: str, *contents: Content) -> Html:
    """Returns contents that a click reveals."""
    return element("details", element("summary", summary), *contents)


def figure(svg: str, caption: str, numbers: Content = "", *, is_wide: bool = False) -> Html:
    """Returns a chart with its caption and, revealed by a click, the table of its numbers.

    Among figures side by side, a wide one has a row of its own.
    """
    behind = details("Numbers", numbers) if numbers else ""
    chart = Html(f'<div class="chart">{svg}</div>')
    contents = (element("figcaption", caption), chart, behind)
    return element("figure", *contents, classes="wide" if is_wide else "")


def section(identifier: str, title: str, *contents: Content) -> Html:
    """Returns a section of the page that links can point to."""
    heading = element("h2", title)
    return Html(f'<section id="{identifier}">{joined([heading, *contents])}</section>')


def embedded_jpeg(jpeg: bytes, *, height: int, width: int, alternative: str) -> Html:
    """Returns a JPEG image as part of the page."""
    data = base64.b64encode(jpeg).decode()
    text = to_html(alternative)
    return Html(
        f'<img src="data:image/jpeg;base64,{data}" width="{width}" height="{height}" alt="{text}">'
    )


def page(title: str, body: Iterable[Content], *, style: str = "", script: str = "") -> str:
    """Returns a whole page that works offline; equal arguments give equal text.

    It loads nothing: images are data URIs, charts inline SVG, and a content security policy forbids
    everything else and any script but its own. A click on a header sorts tables of the class
    `sortable`; their second column is text, all others are numbers.

    Args:
        title: text.
        body: its elements.
        style: CSS after that of every page.
        script: JavaScript after that of every page.
    """
    script = _SCRIPT + script
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    policy = (
        "default-src 'none'; img-src data:; style-src 'unsafe-inline'; "
        f"script-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'"
    )
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="generator" content="tpudet">\n'  # as `file_kinds.PAGE` knows it
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"{element('title', title)}\n<style>{_STYLE}{style}</style>\n</head>\n<body>\n"
        + joined(body, "\n")
        + f"\n<script>{script}</script>\n</body>\n</html>\n"
    )


_STYLE = """
:root { color-scheme: light dark; --page: #f4f5f8; --card: #ffffff; --ink: #1d2430; --soft: #5c6675;
  --line: #dfe3ea; --grid: #dde1e8; --accent: #4056c8; --warn: #b3402a; --hover: #f1f3fa;
  --shade: rgb(20 30 60 / .22); }
@media (prefers-color-scheme: dark) {
  :root { --page: #12151b; --card: #1b2029; --ink: #e6e9ef; --soft: #9aa5b5; --line: #2c3440;
    --grid: #343d4b; --accent: #93a5ff; --warn: #ff9a80; --hover: #242b37;
    --shade: rgb(0 0 0 / .7); } }
* { box-sizing: border-box; }
html { scroll-behavior: smooth; }
body { margin: 0 auto; padding: 2.5rem 1.25rem 4rem; max-width: 76rem; background: var(--page);
  color: var(--ink); overflow-wrap: anywhere;
  font: 15px/1.55 system-ui, "Segoe UI", Roboto, "Noto Sans", sans-serif; }
h1 { margin: 0; font-size: 2.3rem; line-height: 1.2; letter-spacing: -.02em; }
h2 { margin: 0 0 .6rem; font-size: 1.3rem; letter-spacing: -.01em; }
h3 { margin: 1.2rem 0 .4rem; font-size: 1rem; }
p { margin: .3rem 0 .9rem; }
small, .note, .lead { color: var(--soft); }
.lead { margin: .2rem 0 1.4rem; font-size: 1.05rem; }
a { color: var(--accent); text-decoration: none; }
a:hover { text-decoration: underline; }
nav { display: flex; flex-wrap: wrap; gap: .4rem 1.2rem; margin: 1.4rem 0; }
section { margin: 1.25rem 0; padding: 1.4rem 1.5rem; border: 1px solid var(--line);
  border-radius: 14px; background: var(--card); }
.tiles { display: grid; gap: .8rem; grid-template-columns: repeat(auto-fit, minmax(9rem, 1fr)); }
.tile { padding: .9rem 1.1rem; border: 1px solid var(--line); border-radius: 14px;
  background: var(--card); }
.tile b { display: block; font-size: 1.7rem; line-height: 1.25; letter-spacing: -.02em;
  font-variant-numeric: tabular-nums; }
.tile span { color: var(--soft); }
.swatch { display: inline-block; width: .72em; height: .72em; margin-right: .4em;
  border-radius: 3px; }
.known { margin: 0; padding-left: 1.2rem; }
.inline { display: flex; flex-wrap: wrap; gap: .3rem 2rem; margin: 0 0 1rem; padding: 0;
  list-style: none; }
.grid { display: grid; gap: 1.1rem;
  grid-template-columns: repeat(auto-fill, minmax(15.5rem, 1fr)); }
article { min-width: 0; }
article small { white-space: nowrap; }
article p { margin: .45rem 0 0; line-height: 1.35; }
.frame { display: grid; place-items: center; aspect-ratio: 4 / 3; overflow: hidden;
  border-radius: 10px; background: var(--page); }
.frame img { display: block; width: 100%; height: 100%; object-fit: contain; }
.chips { display: flex; flex-wrap: wrap; gap: .1rem .8rem; font-size: .86rem; }
.charts { display: grid; margin-bottom: 1rem; gap: 1.4rem 2rem;
  grid-template-columns: repeat(auto-fit, minmax(min(100%, 26rem), 1fr)); }
figure { min-width: 0; margin: 0; }
figcaption { margin-bottom: .4rem; font-weight: 600; }
.chart { max-width: 44rem; }
.wide { grid-column: 1 / -1; }
.wide .chart { max-width: 64rem; }
.chart svg { display: block; width: 100%; height: auto; }
.chart text { font-family: inherit !important; }
.shares :is(th, td):nth-child(n + 5) { text-align: right; font-variant-numeric: tabular-nums; }
.enlarge img { max-width: 100%; height: auto; border-radius: 8px; cursor: zoom-in; }
.enlarge img.large { position: fixed; z-index: 2; inset: 0; width: 100vw; height: 100vh;
  max-width: none; border-radius: 0; background: var(--page); cursor: zoom-out;
  object-fit: contain; }
details { margin-top: .4rem; }
summary { color: var(--accent); cursor: pointer; }
/* A shadow where something is hidden at a side: covers move with the contents, shadows do not. */
.scroll { overflow-x: auto; background:
  linear-gradient(to right, var(--card) 1.2rem, transparent 2rem) left / 2rem 100% no-repeat local,
  linear-gradient(to left, var(--card) 1.2rem, transparent 2rem) right / 2rem 100% no-repeat local,
  linear-gradient(to right, var(--shade), transparent) left / 1rem 100% no-repeat,
  linear-gradient(to left, var(--shade), transparent) right / 1rem 100% no-repeat; }
.tall .scroll { max-height: 34rem; overflow: auto; border: 1px solid var(--line);
  border-radius: 10px; }
table { width: 100%; overflow-wrap: break-word; border-collapse: collapse; font-size: .92rem; }
th, td { padding: .34rem .7rem; border-bottom: 1px solid var(--line); text-align: left;
  vertical-align: top; }
th { color: var(--soft); font-weight: 600; vertical-align: bottom; }
td { max-width: 26rem; }
th.number, td.number { text-align: right; font-variant-numeric: tabular-nums; }
tbody tr:hover { background: var(--hover); }
.tall th { position: sticky; top: 0; background: var(--card); box-shadow: 0 1px var(--line); }
.sortable th { cursor: pointer; }
em { color: var(--warn); font-style: normal; font-weight: 600; }
.bar { width: 9rem; height: .8rem; margin-top: .3rem; border-radius: 3px; background: var(--page); }
.bar b { display: block; height: 100%; border-radius: 3px; background: var(--accent); }
input[type=search] { width: min(100%, 20rem); margin: .9rem 0 .7rem; padding: .4rem .7rem;
  font: inherit; color: inherit; border: 1px solid var(--line); border-radius: 8px;
  background: var(--page); }
footer { margin-top: 2rem; color: var(--soft); font-size: .88rem; }
@media (max-width: 40rem) { body { padding: 1.2rem .7rem; } section { padding: 1rem .9rem; } }
@media print { .tall .scroll { max-height: none; } }
"""

# Sorting, searching and enlarging are optional: without scripts the page shows the same. The last
# lines tell tests whether all images were decoded and nothing is wider than the window.
_SCRIPT = """
for (const table of document.querySelectorAll("table.sortable")) {
  const body = table.tBodies[0], rows = [...body.rows];
  const number = cell => parseFloat(cell.textContent.replaceAll(",", ""));
  table.querySelectorAll("th").forEach((head, column) => head.addEventListener("click", () => {
    const direction = head.dataset.rising === "1" ? -1 : 1;
    head.dataset.rising = direction;
    rows.sort((a, b) => {
      const [left, right] = [a.cells[column], b.cells[column]];
      if (column === 1)
        return direction * left.textContent.localeCompare(right.textContent);
      return direction * ((number(left) || 0) - (number(right) || 0));
    });
    body.append(...rows);
  }));
  if (rows.length > 20) {
    const search = document.createElement("input");
    search.type = "search";
    search.placeholder = "Find a class";
    search.addEventListener("input", () => {
      const wanted = search.value.toLowerCase();
      for (const row of rows)
        row.hidden = !row.cells[1].textContent.toLowerCase().includes(wanted);
    });
    table.closest(".tall").before(search);
  }
}
for (const image of document.querySelectorAll(".enlarge img"))
  image.addEventListener("click", () => image.classList.toggle("large"));
addEventListener("keydown", event => {
  if (event.key === "Escape") document.querySelector("img.large")?.classList.remove("large");
});
addEventListener("load", () => {
  const root = document.documentElement, images = [...document.images];
  root.dataset.images = images.length;
  root.dataset.loaded = images.filter(image => image.naturalWidth > 0).length;
  root.dataset.overflow = root.scrollWidth - root.clientWidth;
});
"""
