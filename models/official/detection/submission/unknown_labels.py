"""Counts predictions whose label is not in a hierarchy or class list."""

from collections.abc import Sequence

import numpy as np

from tpudet.detection.submission.fusion.blocks import Block, ScannedRows

_NUM_SHOWN = 5


class UnknownLabels:
    """Counts predictions without a known label, and keeps some of their labels.

    Blocks may come from several threads and in any order.
    """

    def __init__(self) -> None:
        self._found: list[tuple[int, int, list[str]]] = []

    def add(self, block: Block, rows: ScannedRows) -> None:
        """Counts the predictions of a block whose label number is -1."""
        unknown = np.flatnonzero(rows.label_numbers < 0)
        labels: list[str] = []
        for i in unknown[:_NUM_SHOWN].tolist():
            start, length = int(rows.label_starts[i]), int(rows.label_lengths[i])
            text = block.sources[rows.label_files[i]].data[start : start + length]
            labels.append(text.tobytes().decode("utf-8", "replace"))
        if labels:
            self._found.append((int(block.piece_lines[0]), len(unknown), labels))

    def add_labels(self, labels: Sequence[str]) -> None:
        """Counts predictions by their labels, none of which is known, in the order of the file."""
        if labels:
            self._found.append((len(self._found), len(labels), [*labels[:_NUM_SHOWN]]))

    def describe(self, what: str) -> str:
        """`<count> <what>: <some labels> …`, or an empty string if there were none."""
        if not self._found:
            return ""
        count = sum(number for _, number, _ in self._found)
        labels = dict.fromkeys(label for _, _, labels in sorted(self._found) for label in labels)
        return f"{count} {what}: {', '.join(list(labels)[:_NUM_SHOWN])} …"
