"""Times the commands that rewrite submissions (trim, join, parents), text to text.

A submission is generated, and a hierarchy whose labels have 1.5 ancestors on average, as those of
Open Images have. All commands take turns, so that other load hits each alike; the best of all
rounds counts, because load only ever adds time. Beside them stand three limits on the same text:
copying its bytes in memory, writing them to a file, and reading its numbers (`scan`) without doing
anything about them. MB/s are those of the text that is read; a command that writes more than it
reads, add_parents, is held by the writing, so the text that is written has a column too.
"""

import argparse
import contextlib
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Sequence

from generated_submissions import NUM_LABELS, generate

from tpudet.detection.commands import (
    add_parents,
    drop_parents,
    join_subs,
    trim_sub_by_num_of_predicts,
    trim_sub_by_threshold,
    trim_sub_decimal_digits,
)
from tpudet.detection.submission.files import in_file_order, open_submission, scan
from tpudet.detection.submission.writer import run_blocks

NUM_PREDICTIONS = 1000  # per image
NUM_CLASSES = 25  # per image
BYTES_A_PREDICTION = 50.75


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the benchmark; returns the exit code."""
    arguments = _parse(argv)
    with tempfile.TemporaryDirectory(dir=arguments.folder) as folder:
        source, halves = f"{folder}/whole.csv", [f"{folder}/{k}.csv" for k in (0, 1)]
        images = round(arguments.megabytes * 1e6 / NUM_PREDICTIONS / BYTES_A_PREDICTION)
        generate(source, images, NUM_PREDICTIONS, NUM_CLASSES, 0)
        for model, half in enumerate(halves):
            generate(half, images // 2, NUM_PREDICTIONS, NUM_CLASSES, model)
        with open(f"{folder}/hierarchy.json", "w") as file:
            json.dump(hierarchy(), file)
        target = f"{folder}/result.csv"
        contenders = _contenders(source, halves, target, f"{folder}/hierarchy.json", arguments)
        rows = _best_times(contenders, target, arguments.rounds)
        read = os.path.getsize(source) / 1e6
        print(
            f"{read:.0f} MB, {images * NUM_PREDICTIONS / 1e6:g} M predictions; "
            f"{arguments.threads} threads, {len(os.sched_getaffinity(0))} cores, "
            f"load {os.getloadavg()[0]:.1f}; best of {arguments.rounds}"
        )
        print(f"{'':38}  seconds  MB/s read  MB/s written  M predictions/s")
        for name, (seconds, written) in rows.items():
            print(
                f"{name:38}{seconds:9.2f}{read / seconds:11.0f}{written / seconds:14.0f}"
                f"{images * NUM_PREDICTIONS / seconds / 1e6:17.1f}"
            )
    return 0


def hierarchy() -> dict:
    """Of the labels that `generate` uses: five trees of three levels, 1.5 ancestors a label."""
    labels = iter([f"/m/0{7919 * k + 11:05x}" for k in range(NUM_LABELS)])

    def node(children: Sequence[dict] = ()) -> dict:
        return {"LabelName": next(labels), "Subcategory": list(children)}

    def leaves(count: int) -> list[dict]:
        return [node() for _ in range(count)]

    trees = [node([*(node(leaves(13)) for _ in range(4)), *leaves(42)]) for _ in range(5)]
    return {"LabelName": "/m/root", "Subcategory": [*trees, *({"LabelName": n} for n in labels)]}


def _contenders(
    source: str,
    halves: Sequence[str],
    target: str,
    hierarchy_file: str,
    arguments: argparse.Namespace,
) -> dict[str, Callable[[], object]]:
    common = ["-f", "--threads", str(arguments.threads), target]
    tree = ["--hierarchy", hierarchy_file]
    keep = round(arguments.megabytes * 1e6 / BYTES_A_PREDICTION / 2)
    commands = {
        "trim_sub_by_threshold 0.03": (trim_sub_by_threshold.main, [source, "0.03"]),
        "trim_sub_by_num_of_predicts (half)": (
            trim_sub_by_num_of_predicts.main,
            [source, str(keep)],
        ),
        "trim_sub_decimal_digits": (trim_sub_decimal_digits.main, [source]),
        "join_subs of two": (join_subs.main, list(halves)),
        "add_parents": (add_parents.main, [source, *tree]),
        "drop_parents": (drop_parents.main, [source, *tree]),
    }
    return {
        "limit: copying in memory": lambda: _copy(source),
        "limit: writing to a file": lambda: _write(source, target),
        "limit: scan only": lambda: _scan(source, arguments.threads),
        **{
            name: lambda main=main, rest=rest: _quiet(main, [*common, *rest])
            for name, (main, rest) in commands.items()
        },
    }


def _best_times(
    contenders: dict[str, Callable[[], object]], target: str, rounds: int
) -> dict[str, tuple[float, float]]:
    """Seconds, and MB written, of each."""
    best: dict[str, tuple[float, float]] = {}
    for _ in range(rounds):
        for name, run in contenders.items():
            with contextlib.suppress(FileNotFoundError):
                os.remove(target)
            started = time.perf_counter()
            run()
            seconds = time.perf_counter() - started
            written = os.path.getsize(target) / 1e6 if os.path.exists(target) else 0.0
            best[name] = min(best.get(name, (seconds, written)), (seconds, written))
    return best


def _copy(source: str) -> None:
    with open_submission(source) as opened:
        for first in range(0, len(opened.data), 1 << 20):
            opened.data[first : first + (1 << 20)].copy()


def _write(source: str, target: str) -> None:
    with open_submission(source) as opened, open(target, "wb") as file:
        for first in range(0, len(opened.data), 1 << 20):
            file.write(opened.data[first : first + (1 << 20)].data)


def _scan(source: str, threads: int) -> None:
    with open_submission(source) as opened:
        for _ in run_blocks(in_file_order(opened), scan, threads):
            pass


def _quiet(command: Callable[[Sequence[str]], int], arguments: Sequence[str]) -> None:
    with open(os.devnull, "w") as nowhere, contextlib.redirect_stdout(nowhere):
        assert command(arguments) == 0


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--megabytes", type=int, default=200, help="default: %(default)s")
    parser.add_argument("--rounds", type=int, default=5, help="default: %(default)s")
    parser.add_argument("--threads", type=int, default=2, help="default: %(default)s")
    parser.add_argument("--folder", help="where the generated files go for the time being")
    return parser.parse_args(argv)


if __name__ == "__main__":
    sys.exit(main())
