"""Tables of the page of predictions, over all images compared."""

from collections import Counter

import numpy as np

from tpudet.detection.inspection.image_panels import Comparison
from tpudet.detection.inspection.outcomes import FAULT_NAMES, FOUND, WRONG_CLASS, Outcomes
from tpudet.trainkit.pages.html import Content, Html, element, section, table

_PAIRS_SHOWN = 50


def percentage(part: int, whole: int) -> str:
    """A percentage, or a dash where there is nothing."""
    return f"{part / whole:.0%}" if whole else "–"


def classes_section(comparison: Comparison, outcomes: Outcomes) -> Html:
    """Found, missed and false objects by class, with the kinds of faults."""
    assert comparison.ground_truth is not None
    bins = len(comparison.classes) + 1
    is_false = outcomes.is_false
    found = np.bincount(comparison.predicted.class_ids[outcomes.kinds == FOUND], minlength=bins)
    missed = np.bincount(comparison.ground_truth.class_ids[outcomes.is_missed], minlength=bins)
    kinds = [
        np.bincount(comparison.predicted.class_ids[outcomes.kinds == kind], minlength=bins)
        for kind in FAULT_NAMES
    ]
    false = np.bincount(comparison.predicted.class_ids[is_false], minlength=bins)
    order = sorted(range(1, bins), key=lambda k: (-(missed[k] + false[k]), k))
    rows: list[list[Content]] = [
        [k, comparison.classes[k - 1].name, int(found[k]), int(missed[k]), int(false[k]),
         *(int(kind[k]) for kind in kinds),
         percentage(int(found[k]), int(found[k] + missed[k])),
         percentage(int(found[k]), int(found[k] + false[k]))]
        for k in order
        if found[k] + missed[k] + false[k]
    ]  # fmt: skip
    headers = ["id", "class", "found", "missed", "false", *FAULT_NAMES.values()]
    headers += ["recall", "precision"]
    shown = element("div", table(headers, rows, classes="sortable"), classes="tall")
    text = f"Predictions of score {comparison.min_score:g} or more, wherever the slider stands."
    note = element("p", text, classes="note")
    return section("classes", "All images compared, by class", note, shown)


def confusions_section(comparison: Comparison, outcomes: Outcomes) -> Html:
    """The pairs of classes that are taken for each other, the most frequent first.

    Their scores are there in hundredths, `70x2` for two of 0.70 to 0.71: the slider recounts.
    """
    assert comparison.ground_truth is not None
    confused = np.flatnonzero(outcomes.kinds == WRONG_CLASS)
    truth = comparison.ground_truth.class_ids[outcomes.confused_with[confused]]
    predicted, scores = comparison.predicted.class_ids[confused], comparison.predicted.scores
    pairs = Counter(zip(truth.tolist(), predicted.tolist(), strict=True))
    rows: list[list[Content]] = []
    for (own, other), count in pairs.most_common(_PAIRS_SHOWN):
        of_pair = scores[confused][(truth == own) & (predicted == other)]
        hundredths, times = np.unique(
            np.floor(100 * of_pair + 1e-4).astype(int), return_counts=True
        )
        listed = " ".join(f"{h}x{n}" for h, n in zip(hundredths, times, strict=True))
        names = [comparison.classes[class_id - 1].name for class_id in (own, other)]
        shown = Html(f'<span data-scores="{listed}">{count:,}</span>')
        rows.append([*names, shown, f"{of_pair.max():.2f}"])
    if not rows:
        nothing = element("p", "No class is taken for another.", classes="note")
        return section("confusions", "Classes taken for others", nothing)
    headers = ["ground truth", "predicted", "count", "highest score"]
    more = f"and {len(pairs) - len(rows):,} more pairs" if len(pairs) > len(rows) else ""
    note = element("p", more, classes="note") if more else ""
    return section("confusions", "Classes taken for others", table(headers, rows), note)


def rules_section(comparison: Comparison) -> Html:
    """The matching rule in words."""
    lines = [
        f"Predictions of score {comparison.min_score:g} or more are compared, class by class "
        "within an image, in descending order of score. A prediction finds the object of its class "
        "with the highest IoU, if that is 0.5 or more and no better prediction found it before.",
        "Badness of an image: its number of missed objects plus the sum of the scores of its "
        "false predictions.",
        "A false prediction is a duplicate (its object was found already), else of the wrong class "
        "(IoU 0.5 or more with an object of another), else badly placed (IoU 0.1 or more), else "
        "without object.",
        "A prediction with half or more of its area in a group region of its class is ignored.",
    ]
    items = element("ul", *(element("li", line) for line in lines), classes="known")
    return section("rules", "How it is counted", items)
