"""The manifest of a written set, and its summary for the screen."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from tpudet.detection.preparation.records.shard_job import ShardReport
from tpudet.detection.preparation.sources.annotations import MISSING_FILE, Annotations, Finding
from tpudet.detection.preparation.sources.checks import CLIPPED
from tpudet.trainkit.errors import shorten

_NAMES_SHOWN = 3
_MISSING_SHOWN = 10  # missing files, because a person can fetch them
_CLASSES_SHOWN = 20
_LONGEST_DETAIL = 200  # characters; a damaged file may have a word of megabytes


def build_manifest(
    *,
    split: str,
    part: str,
    annotations: Annotations,
    reports: Sequence[ShardReport],
    copies: Mapping[str, int],
    options: Mapping[str, Any],
) -> dict[str, Any]:
    """Builds the manifest for JSON: a function of the inputs alone, without times or host names.

    `images` and `boxes` count what was written, copies included; `boxes_per_class` lists every
    class in the order of the class ids, even without boxes, `crowds_per_class` those with crowd
    regions, and `images_per_boxes` the images with each number of boxes. `copies` holds the files
    that are written more than once; the findings of an image are listed once.
    """
    counts: Counter[str] = Counter()
    crowds: Counter[str] = Counter()
    images_per_boxes: Counter[int] = Counter()
    for report in reports:
        counts.update(report.boxes_per_class)
        crowds.update(report.crowds_per_class)
        images_per_boxes.update({int(n): k for n, k in report.images_per_boxes.items()})
    found = _found_once((f for report in reports for f in report.findings), copies)
    findings = [*annotations.findings, *found]
    repaired = [finding for finding in findings if finding.repaired]
    left_out = [finding for finding in findings if not finding.repaired]
    return {
        "split": split,
        "part": part,
        "images": sum(report.records for report in reports),
        "boxes": sum(report.boxes for report in reports),
        "boxes_per_class": {entry.name: counts[entry.name] for entry in annotations.classes},
        "crowds_per_class": dict(crowds),
        "images_per_boxes": {str(n): k for n, k in sorted(images_per_boxes.items())},
        "shards": [
            {
                "file": report.file,
                "records": report.records,
                "bytes": report.bytes,
                "inputs": report.inputs,
            }
            for report in reports
        ],
        "repaired": [_entry(finding) for finding in repaired],
        "left_out": [_entry(finding) for finding in left_out],
        "repaired_counts": _counts(repaired),
        "left_out_counts": _counts(left_out),
        "options": dict(options),
    }


def _found_once(findings: Iterable[Finding], copies: Mapping[str, int]) -> Iterator[Finding]:
    """Yields the findings of one of the `copies` of each image; all copies have the same."""
    seen: Counter[Finding] = Counter()
    for finding in findings:
        if seen[finding] % copies.get(finding.file, 1) == 0:
            yield finding
        seen[finding] += 1


def _entry(finding: Finding) -> dict[str, str]:
    entry = {"file": finding.file, "reason": finding.reason}
    return entry | ({"detail": shorten(finding.detail, _LONGEST_DETAIL)} if finding.detail else {})


def _counts(findings: Iterable[Finding]) -> dict[str, int]:
    return dict(Counter(finding.reason for finding in findings).most_common())


def format_summary(manifest: Mapping[str, Any]) -> str:
    """Describes a manifest: totals, boxes per class, and each fault with its first files."""
    lines = [
        f"{manifest['split']}_{manifest['part']}: {manifest['images']} images, "
        f"{manifest['boxes']} boxes"
    ]
    per_class = sorted(manifest["boxes_per_class"].items(), key=lambda item: -item[1])
    shown = [(shorten(name, _LONGEST_DETAIL), count) for name, count in per_class[:_CLASSES_SHOWN]]
    width = max(len(name) for name, _ in shown)
    lines += [f"  {name:{width}} {count:9d}" for name, count in shown]
    rest = per_class[_CLASSES_SHOWN:]
    if rest:
        empty = sum(count == 0 for _, count in per_class)
        without = f"; {empty} classes have no boxes" if empty else ""
        lines.append(f"  and {len(rest)} more classes{without}")
    lines += _fault_table("left out", manifest["left_out_counts"], manifest["left_out"])
    lines += _fault_table("repaired", manifest["repaired_counts"], manifest["repaired"])
    clipped = manifest["repaired_counts"].get(CLIPPED, 0)
    if clipped > max(1, manifest["boxes"] / 2):
        lines.append(
            "Most boxes were clipped: they may be corners x1, y1, x2, y2 that were read as x, y, "
            "width, height, or of images of another size."
        )
    return "\n".join(lines)


def _fault_table(
    title: str, counts: Mapping[str, int], entries: Sequence[Mapping[str, str]]
) -> list[str]:
    if not counts:
        return [f"{title}: nothing"]
    lines = [f"{title}:"]
    for reason, count in counts.items():
        lines.append(f"  {count:7d}  {reason}")
        limit = _MISSING_SHOWN if reason == MISSING_FILE else _NAMES_SHOWN
        shown = [entry for entry in entries if entry["reason"] == reason][:limit]
        for entry in shown:
            detail = f" ({entry['detail']})" if "detail" in entry else ""
            lines.append(f"           {entry['file']}{detail}")
        if count > len(shown):
            lines.append("           ...")
    return lines
