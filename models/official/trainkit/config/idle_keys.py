"""Keys of a config that are set and change nothing, because of other keys."""

from collections.abc import Iterable
from typing import Any, NamedTuple


class IdleKeys(NamedTuple):
    """Keys of one section of a config without effect."""

    section: str  # its path: model.anchors
    config: Any  # the section, a dataclass
    default: Any  # what it is where nothing is set
    keys: tuple[str, ...]
    reason: str


def describe_idle(found: Iterable[IdleKeys]) -> str:
    """Says which of the keys are set to other values than their default; empty if none is."""
    said = []
    for section, config, default, keys, reason in found:
        changed = [key for key in keys if getattr(config, key) != getattr(default, key)]
        if changed:
            said.append(f"{' and '.join(f'{section}.{key}' for key in changed)}: {reason}")
    return "; ".join(said)
