"""Compares runs side by side: the settings in which they differ, and their best values."""

import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from tpudet.trainkit.config.yaml_tree import ConfigError, parse_tree, plain_values
from tpudet.trainkit.files import storage
from tpudet.trainkit.training import run_log

_MEASURED = "measured on"  # row of split and rules: AP by other rules is another number
_LONGEST_CELL = 40  # characters, unless cells differ only beyond


def compare_runs(model_dirs: Sequence[str], *, metric: str) -> list[list[str]]:
    """Compares runs by their `config.yaml` and their evaluations.

    Args:
        model_dirs: of the runs.
        metric: the metric whose highest value chooses the evaluation of a run.

    Returns:
        Rows of a table whose header names the runs: every setting that is not the same in all, then
        the step of the best evaluation and its metrics, with the split and the rules that they are
        of where these differ. A setting that a run does not have is `-`.
    """
    settings = [dict(flatten_settings(read_settings(model_dir))) for model_dir in model_dirs]
    names = dict.fromkeys(name for one in settings for name in one)
    rows = [[name, *(one.get(name, "-") for one in settings)] for name in names]
    rows = [row for row in rows if len(set(row[1:])) > 1]
    best = [_best_evaluation(model_dir, metric) for model_dir in model_dirs]
    metrics = dict.fromkeys(name for one in best for name in one)
    found = [[name, *(one.get(name, "-") for one in best)] for name in metrics]
    rows += [row for row in found if row[0] != _MEASURED or len(set(row[1:]) - {"-"}) > 1]
    runs = [os.path.basename(model_dir.rstrip("/")) for model_dir in model_dirs]
    return [["", *runs], *([name, *_shortened(cells)] for name, *cells in rows)]


def read_settings(model_dir: str) -> dict[str, Any]:
    """The values of a run's `config.yaml`; empty where it is missing or cannot be read."""
    path = os.path.join(model_dir, "config.yaml")
    try:
        return plain_values(parse_tree(storage.read_text(path) or "", path, repeated=[]))
    except ConfigError:
        return {}


def flatten_settings(node: Any, path: str = "") -> Iterator[tuple[str, str]]:
    """Yields the settings of a config as `train.batch_size` or `data.parts[0].kind`, and text."""
    if isinstance(node, Mapping):
        for key, value in node.items():
            yield from flatten_settings(value, f"{path}.{key}" if path else str(key))
    elif isinstance(node, list) and any(isinstance(item, Mapping) for item in node):
        for index, item in enumerate(node):
            yield from flatten_settings(item, f"{path}[{index}]")
    elif path:
        yield path, str(node)


def _best_evaluation(model_dir: str, metric: str) -> dict[str, str]:
    lines = run_log.read_ledger(os.path.join(model_dir, run_log.FILE_NAME))
    values = [
        (value, line)
        for line in lines
        if line["kind"] == "eval" and (value := run_log.finite_number(line.get(metric))) is not None
    ]
    if not values:
        return {}
    _, best = max(values, key=lambda pair: pair[0])
    # Of each class the page of a run has the values; here they would be rows by the hundred.
    numbers = {
        name: run_log.finite_number(value)
        for name, value in best.items()
        if name not in ("kind", "step", "time", "seconds") and "/" not in name
    }
    shown = {
        name: "-" if value < 0 else f"{value:.4f}"  # -1 stands for a metric without objects
        for name, value in numbers.items()
        if value is not None
    }
    measured = best.get("measured")
    about = {_MEASURED: measured} if isinstance(measured, str) else {}
    return {f"best {metric} at step": str(best["step"]), **about, **shown}


def _shortened(cells: Sequence[str]) -> list[str]:
    """Cuts long cells, but not so far that different ones look the same."""
    longest = _LONGEST_CELL
    while True:
        cut = [cell if len(cell) <= longest else f"{cell[: longest - 1]}…" for cell in cells]
        if len(set(cut)) == len(set(cells)):
            return cut
        longest += _LONGEST_CELL
