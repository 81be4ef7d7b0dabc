"""Times merge_subs, text to text, beside how its predecessor worked and ensemble-boxes.

Several submissions are generated: models that see the same objects, each with boxes and scores of
its own. The baseline is Soft-NMS in Cython, compiled here, called for each class of each image from
Python that splits and formats lines, in a pool of processes. `ensemble-boxes` is timed on arrays in
memory, so without any text, where it can be imported. All take turns, so that other load hits each
alike; the best of all rounds counts, because load only ever adds time. All write a new file, as the
commands do without -f: replacing 30 MB costs ext4 up to 20 ms, which it spends on writing them
out. Processor time is that of all threads and processes. The limit is the time that reading the
sources and printing the result takes on as many cores with nothing between the two.

With --trim the merged file is then cut at a score; large sizes (--images 100000 --predictions 300:
150 million predictions) are run with --rounds 0, which leaves the slow ones out.
"""

import argparse
import contextlib
import math
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence

import numpy as np
from generated_submissions import generate
from merge_as_before import compile_predecessor, merge_as_before

from tpudet.detection.commands import merge_subs
from tpudet.detection.submission.files import (
    BlockResult,
    align,
    cut,
    in_file_order,
    open_submission,
    print_block,
    scan,
)
from tpudet.detection.submission.fusion.blocks import Block
from tpudet.detection.submission.writer import map_in_order, write_submission_file


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the benchmark; returns the exit code."""
    arguments = _parse(argv)
    for num_classes in arguments.classes:
        with tempfile.TemporaryDirectory(dir=arguments.folder) as folder:
            _run(folder, num_classes, arguments)
    return 0


def _run(folder: str, num_classes: int, arguments: argparse.Namespace) -> None:
    sources = [f"{folder}/model_{k}.csv" for k in range(arguments.files)]
    started = time.perf_counter()
    for seed, path in enumerate(sources):
        generate(
            path,
            arguments.images,
            arguments.predictions,
            num_classes,
            seed,
            clustered=arguments.clustered,
        )
    num_bytes = sum(os.path.getsize(path) for path in sources)
    count = arguments.files * arguments.images * arguments.predictions
    print(
        f"{arguments.files} files x {arguments.images} images x {arguments.predictions} "
        f"predictions = {count / 1e6:g} M, {num_classes} classes per image, "
        f"{num_bytes / 1e6:.1f} MB of text, generated in "
        f"{time.perf_counter() - started:.1f} s; {arguments.threads} threads, "
        f"{len(os.sched_getaffinity(0))} cores, load {os.getloadavg()[0]:.1f}"
    )
    target = f"{folder}/merged.csv"
    merge = ["-f", "--threads", str(arguments.threads), target, *sources]
    if arguments.rounds:
        _compare(folder, sources, merge, count, num_bytes, arguments)
    else:
        _time_once(merge, target, arguments)


def _compare(
    folder: str,
    sources: Sequence[str],
    merge: Sequence[str],
    count: int,
    num_bytes: int,
    arguments: argparse.Namespace,
) -> None:
    library = compile_predecessor(folder)
    command = [sys.executable, "-m", "tpudet", "merge_subs", *merge]
    contenders: dict[str, Callable[[], object]] = {
        "predecessor's way": lambda: merge_as_before(
            library, sources, f"{folder}/before.csv", arguments.threads
        ),
        "ours": lambda: _quiet(merge),
        "ours, with Python's start": lambda: subprocess.run(
            command, check=True, stdout=subprocess.DEVNULL
        ),
        "limit: reading and printing alone": _limit(
            sources, f"{folder}/limit.csv", arguments.threads
        ),
    }
    if peer := _ensemble_boxes(sources):
        contenders["ensemble-boxes, no text, 1 core"] = peer
    best = {name: (math.inf, math.inf) for name in contenders}
    for _ in range(arguments.rounds):
        for name, run in contenders.items():
            for _ in range(3 if name.startswith(("ours", "limit")) else 1):
                for old in (f"{folder}/before.csv", f"{folder}/merged.csv"):
                    with contextlib.suppress(FileNotFoundError):
                        os.remove(old)
                measured = _measure(run)
                best[name] = min(best[name][0], measured[0]), min(best[name][1], measured[1])
    title = f"best of {arguments.rounds} rounds"
    print(f"{title:35}  seconds   x ours  processor s   x ours  M pred/s     MB/s")
    for name, (wall, processor) in best.items():
        print(
            f"{name:35}{wall:9.3f}{wall / best['ours'][0]:9.1f}{processor:13.3f}"
            f"{processor / best['ours'][1]:9.1f}{count / wall / 1e6:10.2f}"
            f"{num_bytes / wall / 1e6:9.0f}"
        )


def _measure(run: Callable[[], object]) -> tuple[float, float]:
    """Wall time and processor time, that of its processes included."""
    before, started = sum(os.times()[:4]), time.perf_counter()
    run()
    return time.perf_counter() - started, sum(os.times()[:4]) - before


def _time_once(merge: Sequence[str], target: str, arguments: argparse.Namespace) -> None:
    started = time.perf_counter()
    merge_subs.main(merge)
    seconds = time.perf_counter() - started
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    print(f"merge: {seconds:.1f} s, peak resident memory {peak / 1e3:.0f} MB")
    if not arguments.trim:
        return
    started = time.perf_counter()
    with open_submission(target) as source:

        def keep(block: Block) -> BlockResult:
            rows, faults = scan(block)
            chosen = rows.take(rows.scores >= arguments.trim)
            return print_block(block, chosen, faults, num_read=len(rows.scores))

        totals = write_submission_file(
            f"{target}.trimmed",
            in_file_order(source),
            keep,
            threads=arguments.threads,
            skip_bad=False,
        )
    seconds = time.perf_counter() - started
    print(
        f"trim at {arguments.trim}: {seconds:.1f} s, {os.path.getsize(target) / seconds / 1e6:.0f} "
        f"MB/s, {totals.num_written} of {totals.num_read} predictions"
    )


def _limit(sources: Sequence[str], target: str, threads: int) -> Callable[[], object]:
    """Reads the sources and prints the result, in threads, without anything between the two."""
    assert _quiet(["-f", "--threads", str(threads), target, *sources]) == 0
    with contextlib.ExitStack() as stack:
        files = [stack.enter_context(open_submission(path)) for path in sources]
        merged = stack.enter_context(open_submission(target))
    inputs = list(cut(align(files)))
    outputs = [(block, *scan(block)) for block in cut(in_file_order(merged))]

    def run() -> None:
        for _ in map_in_order(inputs, scan, threads):
            pass
        for _ in map_in_order(outputs, lambda scanned: print_block(*scanned), threads):
            pass

    return run


def _quiet(merge: Sequence[str]) -> int:
    with open(os.devnull, "w") as nowhere, contextlib.redirect_stdout(nowhere):
        return merge_subs.main(merge)


def _ensemble_boxes(sources: Sequence[str]) -> Callable[[], object] | None:
    """Soft-NMS of ensemble-boxes on everything, read beforehand; None without the package."""
    try:
        from ensemble_boxes import soft_nms  # pyright: ignore[reportMissingImports]
    except ImportError:
        print("ensemble-boxes (which needs numba) cannot be imported: left out")
        return None
    images: dict[int, list] = {}
    names: dict[bytes, int] = {}
    for path in sources:
        with open_submission(path) as source:
            for block in cut(in_file_order(source)):
                rows, _ = scan(block)
                labels = [
                    names.setdefault(source.data[s : s + n].tobytes(), len(names))
                    for s, n in zip(rows.label_starts, rows.label_lengths, strict=True)
                ]
                parts = rows.image_ends[1:-1]
                for number, part in enumerate(
                    zip(
                        np.split(rows.boxes, parts),
                        np.split(rows.scores, parts),
                        np.split(np.array(labels), parts),
                        strict=True,
                    )
                ):
                    key = int(block.piece_lines[number])
                    images.setdefault(key, []).append(part)

    def run() -> None:
        for parts in images.values():
            boxes, scores, labels = (list(column) for column in zip(*parts, strict=True))
            soft_nms(boxes, scores, labels, method=2, iou_thr=0.3, sigma=0.5, thresh=0.02)

    return run


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    for name, default in {
        "files": 5,
        "images": 1000,
        "predictions": 200,
        "rounds": 5,
    }.items():
        parser.add_argument(f"--{name}", type=int, default=default, help="default: %(default)s")
    parser.add_argument(
        "--classes",
        type=int,
        nargs="+",
        default=[25, 100],
        metavar="N",
        help="in an image, a table for each number: few are many boxes per class, the hard case "
        "(default: 25 100)",
    )
    parser.add_argument(
        "--clustered",
        action="store_true",
        help="most predictions are of few objects",
    )
    parser.add_argument("--threads", type=int, default=2, help="and processes (default: 2)")
    parser.add_argument("--trim", type=float, default=0.0, help="with --rounds 0: least score")
    parser.add_argument("--folder", help="where the generated files go for the time being")
    return parser.parse_args(argv)


if __name__ == "__main__":
    sys.exit(main())
