"""What the page about a prepared set has beside the style sheet of every page."""

STYLE = """
:root { --train: #3f6fe0; --val: #e8832a; --test: #2a9d7c; --other: #8a63c9; }
@media (prefers-color-scheme: dark) {
  :root { --train: #6d96ff; --val: #ffa552; --test: #4fc9a4; --other: #b394ee; } }
.totals td { white-space: nowrap; }
.totals :is(th, td):not(:first-child) { text-align: right; }
.split { white-space: nowrap; }
.charts { display: grid; margin-bottom: 1rem; gap: 1.4rem 2rem;
  grid-template-columns: repeat(auto-fit, minmax(min(100%, 26rem), 1fr)); }
figure { min-width: 0; margin: 0; }
figcaption { margin-bottom: .4rem; font-weight: 600; }
.chart { max-width: 44rem; }
.chart svg { display: block; width: 100%; height: auto; }
.chart text { font-family: inherit !important; }
"""
