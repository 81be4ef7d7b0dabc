"""Values that are far too long, as a manifest and its summary keep them."""

import json

from tpudet.detection.preparation.records.manifest import _entry, format_summary
from tpudet.detection.preparation.sources.annotations import Finding


def test_a_word_of_a_megabyte_is_cut_in_the_manifest_and_the_summary() -> None:
    finding = Finding("a.jpg", "not a number", "x" * 1_000_000, repaired=False)
    entry = _entry(finding)
    assert entry["detail"] == f"{'x' * 200}… (999,800 more characters)"
    manifest = {
        **{"split": "val", "part": "p", "images": 1, "boxes": 0},
        "boxes_per_class": {"cat": 2, "y" * 1_000_000: 1},
        **{"left_out": [entry], "left_out_counts": {"not a number": 1}},
        **{"repaired": [], "repaired_counts": {}},
    }
    assert len(json.dumps(entry)) < 400
    assert len(format_summary(manifest)) < 1500
