"""The owner of a claim, as the file of the claim names it."""

import json
from datetime import UTC, datetime
from typing import NamedTuple

from tpudet.trainkit.files.json_text import parse_json
from tpudet.trainkit.files.processes import ProcessIdentity


class ClaimOwner(NamedTuple):
    """A process that holds a claim, as the file of the claim names it."""

    identity: ProcessIdentity
    token: str  # of one Claim
    since: float  # seconds since 1970
    alive: float  # the last sign of life, seconds since 1970

    def describe(self) -> str:
        """Returns the process, its machine and since when, for a message."""
        since = datetime.fromtimestamp(self.since, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
        return f"process {self.identity.process} on {self.identity.host} since {since}"

    def to_json(self) -> str:
        """Inverse of `from_json`."""
        fields = self._asdict() | self.identity._asdict()
        del fields["identity"]
        return json.dumps({name: fields[name] for name in _FIELDS})

    @classmethod
    def from_json(cls, text: str) -> "ClaimOwner | None":
        """Returns the owner; None of a torn file."""
        try:
            fields = parse_json(text)
            values = {name: kind(fields[name]) for name, kind in _FIELDS.items()}
            owner = cls(
                ProcessIdentity(**{name: values[name] for name in ProcessIdentity._fields}),
                values["token"],
                values["since"],
                values["alive"],
            )
            owner.describe()
        except (ValueError, TypeError, KeyError, OverflowError, OSError):
            return None
        return owner


_FIELDS = {
    "host": str,
    "process": int,
    "boot": str,
    "namespace": str,
    "started": str,
    "token": str,
    "since": float,
    "alive": float,
}
