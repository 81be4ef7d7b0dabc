"""The report on loading weights: the fate of every variable and of every tensor."""

from collections.abc import Iterable
from typing import NamedTuple

from tpudet.trainkit.weights.families import Family


class Missing(NamedTuple):
    """A variable that the file has no values for."""

    path: str
    wanted: tuple[
        str, ...
    ]  # names that the file would have; none where the system has no such part


class ShapeSkipped(NamedTuple):
    """A variable whose values in the file have another shape."""

    path: str
    shape: tuple[int, ...]
    stored_shape: tuple[int, ...]  # in our layout


class PartlyLoaded(NamedTuple):
    """A variable of which the file has some numbers; the others keep their initial values."""

    path: str
    num_loaded: int
    size: int


class LoadReport(NamedTuple):
    """The result of `load_weights`; `text` formats it for the user."""

    loaded: tuple[str, ...]  # paths of variables
    missing: tuple[Missing, ...]
    shape_skipped: tuple[ShapeSkipped, ...]
    excluded: tuple[str, ...]  # paths of variables
    unused: tuple[str, ...]  # names in the file
    family: Family
    prefix: str  # of the backbone's names in the file
    backbone_share: float  # of the backbone's numbers, those excluded apart, that were loaded
    differences: tuple[str, ...]  # sentences on what the weights expect and the model lacks
    notes: tuple[str, ...] = ()  # sentences on what was chosen or left out in the file
    partly_loaded: tuple[PartlyLoaded, ...] = ()  # also among those loaded

    def text(self, limit: int | None = None) -> str:
        """Formats the report.

        Args:
            limit: most names to list per section; None lists all.
        """
        behind = f" behind the prefix {self.prefix}" if self.prefix else ""
        rows = (
            ("loaded", self.loaded),
            ("missing", self.missing),
            ("shape skipped", self.shape_skipped),
            ("excluded", self.excluded),
            ("unused", self.unused),
        )
        lines = [
            f"Weights of {self.family.name}{behind}: "
            f"{self.backbone_share:.1%} of the backbone's numbers loaded.",
            *(f"  {name:<13} {len(entries):>5}" for name, entries in rows),
            *(f"Note: {sentence}" for sentence in (*self.differences, *self.notes)),
            *_section(
                "Missing in the file; these keep their initial values:",
                _missing_lines(self.missing, {path.split("/")[0] for path in self.loaded}),
                limit,
            ),
            *_section(
                "Of another shape; they keep their initial values, as a class layer for another "
                "number of classes does:",
                [
                    f"{path} is {_size(shape)}, in the file {_size(stored)}"
                    for path, shape, stored in self.shape_skipped
                ],
                limit,
            ),
            *_section(
                "Loaded in part; the numbers of classes that the file does not have keep their "
                "initial values:",
                [f"{path}: {count:,} of {size:,}" for path, count, size in self.partly_loaded],
                limit,
            ),
            *_section("Excluded; they keep their initial values:", self.excluded, limit),
            *_section("Unused in the file:", self.unused, limit),
        ]
        return "\n".join(lines) + "\n"


def _size(shape: tuple[int, ...]) -> str:
    return "x".join(map(str, shape)) or "a single number"


def _missing_lines(missing: Iterable[Missing], loaded_parts: set[str]) -> list[str]:
    """One line a variable; one for all of a part that nothing was loaded of."""
    lines, whole = [], {}
    for path, wanted in missing:
        part = path.split("/")[0]
        if part in loaded_parts:
            lines.append(f"{path} (would be {' and '.join(wanted)})" if wanted else path)
        else:
            whole[part] = whole.get(part, 0) + 1
    return lines + [f"all of {part}/ ({count} variables)" for part, count in whole.items()]


def _section(title: str, entries: Iterable[str], limit: int | None) -> list[str]:
    entries = list(entries)
    if not entries:
        return []
    lines = [title, *(f"  {entry}" for entry in entries[:limit])]
    more = len(entries) - len(lines) + 1
    return [*lines, f"  and {more} more"] if more else lines
