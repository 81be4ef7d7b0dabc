"""What the page of pictures has beside the style sheet and script of every page."""

from detection.inspection.pictures import COLOURS

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
.pictures {{ display: grid; gap: 1.1rem;
  grid-template-columns: repeat(auto-fill, minmax(min(100%, 25rem), 1fr)); }}
.pictures article {{ padding: .7rem .7rem .8rem; border: 1px solid var(--line);
  border-radius: 14px; background: var(--card); content-visibility: auto;
  contain-intrinsic-size: auto 26rem; }}
.pictures article[hidden] {{ display: none; }}
.pictures a {{ display: grid; place-items: center; aspect-ratio: 4 / 3; overflow: hidden;
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
#classes :is(th, td):nth-last-child(-n + 2) {{ text-align: right; }}
.chips span {{ display: inline-block; }}
.bar-of-choices {{ position: sticky; z-index: 1; top: 0; display: flex; flex-wrap: wrap;
  align-items: center; gap: .3rem 1.3rem; margin: 1.2rem 0 .9rem; padding: .6rem .2rem;
  border-bottom: 1px solid var(--line); background: var(--page); }}
.bar-of-choices label {{ display: inline-flex; align-items: center; gap: .35em; }}
.bar-of-choices select {{ max-width: 16rem; padding: .25rem .4rem; font: inherit; color: inherit;
  border: 1px solid var(--line); border-radius: 8px; background: var(--card); }}
.bar-of-choices .swatch {{ margin: 0; }}
{_STATES}
"""

# Order and class; without scripts all pictures are there in the order in which they were chosen.
SCRIPT = """
const grid = document.querySelector(".pictures"), cards = [...grid.children];
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
"""
