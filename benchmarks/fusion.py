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
from merge_as_before import compile_predecessor, merge_as_before

from tpudet.detection.commands import merge_subs
from tpudet.detection.submission.errors import NO_BAD_ROWS
from tpudet.detection.submission.files import (
    BlockResult,
    align,
    cut,
    in_file_order,
    open_submission,
    print_block,
    scan,
)
from tpudet.detection.submission.fusion.blocks import Block, ScannedRows, SubmissionFile
from tpudet.detection.submission.fusion.kernel import load_kernel
from tpudet.detection.submission.open_images_csv import HEADER_LINE
from tpudet.detection.submission.writer import map_in_order, write_submission_file

NUM_LABELS = 500
OBJECTS = 40  # per image; each model finds each of them once, the rest is clutter
# With --clustered: objects per image, and the share of predictions that are of one of them.
CLUSTERED_OBJECTS, CLUSTERED_SHARE = 12, 0.8


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


def generate(
    path: str,
    num_images: int,
    num_predictions: int,
    num_classes: int,
    model: int,
    *,
    clustered: bool = False,
) -> None:
    """Writes a submission. Objects depend on the image alone, predictions on the model too."""
    labels = [b"/m/0%05x" % (7919 * k + 11) for k in range(NUM_LABELS)]
    print_rows = load_kernel().print_rows
    with open(path, "wb") as file:
        file.write(HEADER_LINE.encode())
        for first in range(0, num_images, 256):
            images = np.arange(first, min(first + 256, num_images))
            ids = b"".join(b"%016x" % (int(i) * 2654435761) for i in images)
            draw = _clustered_predictions if clustered else _predictions
            numbers, scores, boxes = draw(images, num_predictions, num_classes, model)
            rows = ScannedRows(
                image_ends=num_predictions * np.arange(len(images) + 1),
                label_files=np.zeros(len(scores), np.int32),
                label_starts=np.zeros(len(scores), np.int64),
                label_lengths=np.zeros(len(scores), np.int32),
                label_numbers=numbers,
                scores=scores,
                boxes=boxes,
            )
            written = np.ones(len(images), np.uint8)
            file.write(print_rows(_block_of_ids(ids, len(images)), written, rows, labels, 5, 5))


def _block_of_ids(ids: bytes, num_images: int) -> Block:
    """Returns a block whose only text is the ids, of 16 bytes each."""
    starts = 16 * np.arange(num_images)
    zeros = np.zeros(num_images, np.int64)
    data = np.frombuffer(ids, np.uint8)
    no_rows = np.zeros((0, 5), np.int64)
    source = SubmissionFile("", data, no_rows, np.zeros(0, "S16"), NO_BAD_ROWS, None)
    ends = np.arange(num_images + 1)
    return Block((source,), zeros, starts, starts + 16, ends, zeros, zeros, zeros, zeros)


def _predictions(
    images: np.ndarray, num_predictions: int, num_classes: int, model: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Label numbers [n], scores [n] and boxes [n, 4] of n = images x num_predictions."""
    numbers, scores, boxes = [], [], []
    for image in images.tolist():
        objects = np.random.default_rng(image)
        classes = objects.permutation(NUM_LABELS)[:num_classes]
        own = np.random.default_rng((image, model))
        of_object = classes[objects.integers(0, num_classes, OBJECTS)]
        sides = objects.uniform(0.03, 0.4, (OBJECTS, 2))
        corners = objects.uniform(0, 1 - sides) + own.normal(0, 0.05, (OBJECTS, 2)) * sides
        clutter_sides = own.uniform(0.03, 0.4, (num_predictions, 2))
        clutter_corners = own.uniform(0, 1 - clutter_sides)
        order = np.sort(own.beta(0.5, 2.0, num_predictions))[::-1]
        number = np.concatenate([of_object, classes[own.integers(0, num_classes, num_predictions)]])
        corners = np.concatenate([corners, clutter_corners])[:num_predictions]
        sides = np.concatenate([sides, clutter_sides])[:num_predictions]
        boxes.append(np.concatenate([corners, corners + sides], axis=1).clip(0, 1))
        numbers.append(number[:num_predictions])
        scores.append(order)
    return (
        np.concatenate(numbers).astype(np.int32),
        np.concatenate(scores),
        np.concatenate(boxes),
    )


def _clustered_predictions(
    images: np.ndarray, num_predictions: int, num_classes: int, model: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """As `_predictions`, but most are of few objects: the hard case of suppression."""
    numbers, scores, boxes = [], [], []
    for image in images.tolist():
        objects = np.random.default_rng(image)
        classes = objects.permutation(NUM_LABELS)[:num_classes]
        own = np.random.default_rng((image, model))
        of_object = classes[objects.integers(0, num_classes, CLUSTERED_OBJECTS)]
        sides = objects.uniform(0.03, 0.4, (CLUSTERED_OBJECTS, 2))
        corners = objects.uniform(0, 1 - sides)
        found = own.integers(0, CLUSTERED_OBJECTS, num_predictions)
        is_clutter = own.random(num_predictions) >= CLUSTERED_SHARE
        noise = own.normal(0, 0.05, (2, num_predictions, 2))
        own_sides = sides[found] * np.exp(noise[0])
        own_corners = corners[found] + noise[1] * own_sides
        number = of_object[found]
        clutter_sides = own.uniform(0.03, 0.4, (num_predictions, 2))
        own_corners[is_clutter] = own.uniform(0, 1 - clutter_sides)[is_clutter]
        own_sides[is_clutter] = clutter_sides[is_clutter]
        number[is_clutter] = classes[own.integers(0, num_classes, num_predictions)][is_clutter]
        boxes.append(np.concatenate([own_corners, own_corners + own_sides], axis=1).clip(0, 1))
        numbers.append(number)
        scores.append(np.sort(own.beta(0.5, 2.0, num_predictions))[::-1])
    return (
        np.concatenate(numbers).astype(np.int32),
        np.concatenate(scores),
        np.concatenate(boxes),
    )


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
