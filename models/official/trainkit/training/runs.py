"""Tables of the training runs below a folder or bucket."""

import contextlib
import os
import sys
import time
from collections.abc import Iterator, Sequence
from typing import Any, Literal, NamedTuple

from tpudet.trainkit.files import storage
from tpudet.trainkit.screen import is_output_read
from tpudet.trainkit.training import run_log
from tpudet.trainkit.training.run_comparison import compare_runs, read_settings
from tpudet.trainkit.training.wall_time import PARTS, sum_wall_time

Content = Literal["progress", "goodput", "comparison"]

_MODEL_DIR_NAMES = {run_log.FILE_NAME, "config.yaml", "checkpoint"}  # one of them marks a model_dir
_HEADER = ("version", "part", "step", "last", "best", "at step", "images/s", "wait", "age", "state")
_LEFT_ALIGNED = {"", "version", "part", "state"}


class RunSummary(NamedTuple):
    """The progress of one run; None where the ledger does not say."""

    version: str
    part: str
    step: int
    total_steps: int | None
    last: float | None  # newest value of the metric
    best: float | None
    best_step: int | None
    images_per_second: float | None
    input_wait_share: float | None  # 0..1
    age_seconds: float | None  # of the newest line
    state: str


def find_model_dirs(directory: str) -> Iterator[str]:
    """Yields the model_dirs at or below `directory`, each once; a model_dir is not searched.

    Links are followed after everything else, so that a run is found under its own name.
    """
    folders, links, seen = [directory], [], set[str]()
    while folders or links:
        folder = folders.pop() if folders else links.pop(0)
        place = folder if storage.is_remote(folder) else os.path.realpath(folder)
        if place in seen:
            continue
        seen.add(place)
        names, files = storage.list_kinds(folder)
        if _MODEL_DIR_NAMES.intersection(names + files):
            yield folder
            continue
        below = [os.path.join(folder, name) for name in names]
        links += [path for path in below if os.path.islink(path)]
        folders += [path for path in reversed(below) if not os.path.islink(path)]


def summarize_run(
    model_dir: str, *, metric: str, now: float, silent_after_minutes: float
) -> RunSummary:
    """Reads one ledger.

    Args:
        model_dir: named `<version>-<part>`.
        metric: the metric that `last` and `best` show.
        now: seconds since 1970.
        silent_after_minutes: without a new line for so long, a running run is called silent.
    """
    lines = run_log.read_ledger(os.path.join(model_dir, run_log.FILE_NAME))
    version, part = _split_name(model_dir)
    values = [
        (value, line["step"])
        for line in lines
        if line["kind"] == "eval" and (value := run_log.finite_number(line.get(metric))) is not None
    ]
    best, best_step = max(values, key=lambda pair: pair[0], default=(None, None))
    trained: dict[str, Any] = next((x for x in reversed(lines) if x["kind"] == "train"), {})
    newest = run_log.finite_number(lines[-1].get("time")) if lines else None
    age = None if newest is None else now - newest
    return RunSummary(
        version=version,
        part=part,
        step=_newest_step(lines),
        total_steps=_total_steps(model_dir, lines),
        last=values[-1][0] if values else None,
        best=best,
        best_step=best_step,
        images_per_second=run_log.finite_number(trained.get("images_per_second")),
        input_wait_share=run_log.finite_number(trained.get("input_wait_share")),
        age_seconds=age,
        state=_describe_state(lines, age, silent_after_minutes),
    )


def _newest_step(lines: Sequence[dict[str, Any]]) -> int:
    """Of the trainer, where it has written: an evaluator beside it may lag behind."""
    own = [line["step"] for line in lines if line["kind"] != "eval"]
    return (own or [line["step"] for line in lines] or [0])[-1]


def _total_steps(model_dir: str, lines: Sequence[dict[str, Any]]) -> int | None:
    """From the ledger's newest state line, else from the configuration."""
    for line in reversed(lines):
        if line["kind"] == "state" and isinstance(line.get("total_steps"), int):
            return line["total_steps"]
    try:
        return int(read_settings(model_dir)["train"]["total_steps"])
    except (KeyError, TypeError, ValueError, OverflowError):
        return None


def _describe_state(
    lines: Sequence[dict[str, Any]], age_seconds: float | None, silent_after_minutes: float
) -> str:
    if not lines:
        return "no line yet"
    newest: dict[str, Any] = next((x for x in reversed(lines) if x["kind"] == "state"), {})
    state, reason = newest.get("state", "running"), newest.get("reason")
    if state == "running" and (age_seconds or 0.0) > 60 * silent_after_minutes:
        return "silent (was running)"
    return f"{state}: {str(reason).splitlines()[0]}" if reason else str(state)


def format_table(runs: Sequence[RunSummary], *, metric: str) -> str:
    """Returns aligned columns under a header, one line per run."""
    header = [f"{name} {metric}" if name in ("last", "best") else name for name in _HEADER]
    return _align([header, *(run_cells(run) for run in runs)])


def _align(rows: Sequence[Sequence[str]]) -> str:
    """Columns under the first row, words to the left and numbers to the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for row in rows:
        cells = [
            cell.ljust(width) if name in _LEFT_ALIGNED else cell.rjust(width)
            for cell, width, name in zip(row, widths, rows[0], strict=True)
        ]
        lines.append("  ".join(cells).rstrip())
    return "\n".join(lines)


def run_cells(run: RunSummary) -> list[str]:
    """The row of a run: version, part, step, last, best and its step, speed, wait, age, state."""

    def shown(value: float | None, pattern: str) -> str:
        return "-" if value is None else pattern.format(value)

    return [
        run.version,
        run.part or "-",
        f"{run.step}/{'?' if run.total_steps is None else run.total_steps}",
        shown(run.last, "{:.4f}"),
        shown(run.best, "{:.4f}"),
        shown(run.best_step, "{}"),
        shown(run.images_per_second, "{:.1f}"),
        shown(run.input_wait_share, "{:.0%}"),
        "-" if run.age_seconds is None else _format_age(run.age_seconds),
        run.state,
    ]


def _format_age(seconds: float) -> str:
    """A rough age such as 45s, 12m, 3h, 2d; below two of a unit the smaller unit is used."""
    seconds = max(seconds, 0)
    for size, letter in ((86400, "d"), (3600, "h"), (60, "m")):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f}{letter}"
    return f"{seconds:.0f}s"


def format_goodput(model_dirs: Sequence[str]) -> str:
    """Returns where the wall time of each run went, in percent of all its attempts."""
    rows = [["version", "part", "attempts", "time", *PARTS, "goodput"]]
    for model_dir in model_dirs:
        version, part = _split_name(model_dir)
        wall = sum_wall_time(run_log.read_ledger(os.path.join(model_dir, run_log.FILE_NAME)))
        total = wall.total
        shares = [f"{wall.seconds[name] / total:.1%}" if total else "-" for name in PARTS]
        goodput = f"{wall.goodput:.1%}" if total else "-"
        duration = run_log.format_duration(total) if total else "-"
        rows.append([version, part or "-", str(wall.attempts), duration, *shares, goodput])
    return _align(rows)


def _split_name(model_dir: str) -> tuple[str, str]:
    """The version, which may have hyphens, and the part that a model_dir is named after."""
    fields = os.path.basename(model_dir.rstrip("/")).split("-")
    fields_of_part = 2 if fields[-1].startswith("fold_") else 1
    place = max(1, len(fields) - fields_of_part)
    return "-".join(fields[:place]), "-".join(fields[place:])


def summarize_runs(
    model_dirs: Sequence[str], *, metric: str, silent_after_minutes: float
) -> list[RunSummary]:
    """Reads the ledgers of several runs, as `summarize_run` does."""
    now = time.time()
    return [
        summarize_run(model_dir, metric=metric, now=now, silent_after_minutes=silent_after_minutes)
        for model_dir in model_dirs
    ]


def report(
    directory: str, *, metric: str, silent_after_minutes: float, content: Content = "progress"
) -> str:
    """Returns a table of all runs below `directory`, or a sentence if there are none."""
    model_dirs = list(find_model_dirs(directory))
    if not model_dirs:
        return f"No runs below {directory}: no folder there holds {run_log.FILE_NAME}."
    match content:
        case "goodput":
            return format_goodput(model_dirs)
        case "comparison":
            return _align(compare_runs(model_dirs, metric=metric))
    runs = summarize_runs(model_dirs, metric=metric, silent_after_minutes=silent_after_minutes)
    return format_table(runs, metric=metric)


def print_report(
    directory: str,
    *,
    metric: str,
    silent_after_minutes: float,
    every_seconds: float | None,
    content: Content = "progress",
) -> None:
    """Prints a table once, or again and again until Ctrl-C or until nobody reads it."""
    clear = "\033[2J\033[H" if every_seconds and sys.stdout.isatty() else ""
    with contextlib.suppress(KeyboardInterrupt):
        while True:
            table = report(
                directory,
                metric=metric,
                silent_after_minutes=silent_after_minutes,
                content=content,
            )
            print(clear + table, flush=True)
            if not every_seconds or not is_output_read():
                return
            time.sleep(every_seconds)
