"""Refuses hosts that would train one model with different settings, data or versions."""

import dataclasses
import hashlib
import os
from collections.abc import Mapping
from importlib.metadata import version
from typing import Any

from tpudet.trainkit.errors import UserError, shorten
from tpudet.trainkit.record_splits import Split
from tpudet.trainkit.source_version import git_commit
from tpudet.trainkit.training.run_comparison import flatten_settings
from tpudet.trainkit.training.start import Start

_PACKAGES = ("tpudet", "jax", "keras")  # whose versions decide what is computed
_LONGEST_VALUE = 200  # in the message


def require_same_settings(
    start: Start[Any],
    class_list_text: str,
    train_split: Split,
    *,
    mode: str,
    dry_run: bool,
) -> None:
    """Compares what this host trains with what the other hosts train; with one host, nothing.

    Hosts that differ train on without an error: all apply the same gradients, which nobody meant.

    Args:
        start: of this host, with the devices of all.
        class_list_text: contents of classes.csv.
        train_split: the training data.
        mode: --mode of the command.
        dry_run: --dry_run of the command.

    Raises:
        UserError: a value differs; names the first one that does.
    """
    devices = start.devices
    if devices.num_processes == 1:
        return
    from tpudet.trainkit.training.jax_devices import JaxDevices

    assert isinstance(devices, JaxDevices)
    settings = {
        **{f"version of {package}": version(package) for package in _PACKAGES},
        "commit of tpudet": git_commit(),
        "--mode": mode,
        "--dry_run": str(dry_run),
        **dict(flatten_settings(dataclasses.asdict(start.config))),
        **{
            f"row {number} of the class list": row
            for number, row in enumerate(class_list_text.splitlines(), start=1)
        },
        **{
            f"number of records in {os.path.basename(shard)}": str(count)
            for shard, count in zip(train_split.shards, train_split.records_per_shard, strict=True)
        },
    }
    devices.meet("opened the data")
    # The texts travel only where there is a difference to be named.
    if len(set(devices.gather(_digest(settings)))) > 1:
        raise UserError(_difference(devices.gather(settings)))


def _difference(everyone: list[dict[str, str]]) -> str:
    """Names the first setting that differs from the first host's, in words.

    Args:
        everyone: settings of each process.
    """
    first = everyone[0]
    for process, other in enumerate(everyone):
        for key in [*first, *other]:
            if first.get(key) != other.get(key):
                mine, its = (
                    shorten(one.get(key, "missing"), _LONGEST_VALUE) for one in (first, other)
                )
                return (
                    f"the hosts would not train the same: {key} is {mine} on process 0 and {its} "
                    f"on process {process}. Start the same command on every host, with the same "
                    "data and versions"
                )
    raise ValueError("the settings do not differ")


def _digest(settings: Mapping[str, str]) -> str:
    return hashlib.sha256(repr(settings).encode()).hexdigest()
