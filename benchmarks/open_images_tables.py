"""Times the preparation's steps on tables as large as those of Open Images.

It writes a box CSV of the real layout (13 columns, and by default 12.2 million boxes of 500 classes
on 1.74 million images, with counts by Zipf's law), then runs every step on it in a process of its
own. A line per step: seconds, those that the cores worked for it (the two differ where the machine
is shared), the most memory that the process held, and that memory less what the imports alone take.
"""

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

from tpudet.detection.preparation.open_images.class_splits import split_step
from tpudet.detection.preparation.open_images.filter_boxes import filter_boxes
from tpudet.detection.preparation.open_images.validation import pick_validation
from tpudet.detection.preparation.records.balance import plan_copies
from tpudet.detection.preparation.sources.box_csv import ALL_COLUMNS, read_boxes, write_boxes
from tpudet.detection.preparation.sources.open_images import read_open_images
from tpudet.trainkit.class_list import ClassEntry, read_classes, write_class_list
from tpudet.trainkit.files.storage import write_text

MIN_IMAGES_PER_CLASS = 1000
MAX_SECONDS, MAX_BYTES = 60.0, 6e9
_CHUNK_IMAGES = 50_000


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command and returns its exit code: 1 where a step is over the limits."""
    arguments = _parse(argv)
    if arguments.step:
        print(json.dumps(_measure(STEPS[arguments.step], arguments)))
        return 0
    with tempfile.TemporaryDirectory(dir=arguments.folder) as folder:
        arguments.folder = folder
        print(
            f"{arguments.boxes} boxes, {arguments.images} images, "
            f"{len(os.sched_getaffinity(0))} cores (load now {os.getloadavg()[0]:.1f})\n\n"
            f"{'step':<22}{'seconds':>9}{'CPU s':>9}{'peak GB':>9}{'own GB':>9}"
        )
        is_within = [_run_step(name, arguments) for name in STEPS]
        print(f"\nThe CSV has {os.path.getsize(f'{folder}/boxes.csv') / 1e9:.2f} GB.")
    return 0 if all(is_within) else 1


def write_tables(folder: str, *, num_boxes: int, num_images: int) -> None:
    """Writes boxes.csv, of about `num_boxes` rows, classes.csv and human.txt."""
    classes = [ClassEntry(f"/m/{number:06x}", f"Class {number}") for number in range(500)]
    write_text(f"{folder}/classes.csv", write_class_list(classes))
    write_text(f"{folder}/human.txt", "".join(f"{e.identifier}\n" for e in classes[5:500:38]))
    pieces = _random_boxes([entry.identifier for entry in classes], num_boxes, num_images)
    write_boxes(f"{folder}/boxes.csv", pieces)


def _random_boxes(labels: list[str], num_boxes: int, num_images: int) -> Iterator[pa.Table]:
    rng = np.random.default_rng(0)
    shares = 1 / np.arange(1, len(labels) + 1)
    shares /= shares.sum()
    for first in range(0, num_images, _CHUNK_IMAGES):
        count = min(_CHUNK_IMAGES, num_images - first)
        per_image = 1 + rng.poisson(num_boxes / num_images - 1, count)
        images = np.repeat(first + np.arange(count), per_image)
        rows = len(images)
        corners = np.sort(rng.integers(0, 1_000_000, (2, rows, 2)), axis=2)
        flags = rng.choice([0, 1, -1], (5, rows), p=[0.9, 0.08, 0.02])
        columns = [
            pc.utf8_lpad(pa.array(images).cast(pa.string()), 16, "0"),
            pa.array(["xclick", "activemil"]).take(pa.array(rng.integers(0, 2, rows))),
            pa.array(labels).take(pa.array(rng.choice(len(labels), rows, p=shares))),
            pa.array(["1"] * rows),
            *(_fraction(corners[axis, :, end]) for axis in (0, 1) for end in (0, 1)),
            *(pa.array(flag).cast(pa.string()) for flag in flags),
        ]
        yield pa.Table.from_arrays(columns, names=list(ALL_COLUMNS))


def _fraction(millionths: np.ndarray) -> Any:
    digits = pc.utf8_lpad(pa.array(millionths).cast(pa.string()), 6, "0")
    return pc.binary_join_element_wise(pa.scalar("0."), digits, "")


def _run_step(name: str, arguments: argparse.Namespace) -> bool:
    command = [sys.executable, __file__, "--step", name, "--folder", arguments.folder]
    command += ["--boxes", str(arguments.boxes), "--images", str(arguments.images)]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        print(f"{name} failed:\n{done.stderr[-4000:]}", file=sys.stderr)
        return False
    measured = json.loads(done.stdout.splitlines()[-1])
    seconds, cpu, peak, own = (measured[key] for key in ("seconds", "cpu", "peak", "own"))
    is_within = peak <= MAX_BYTES and seconds <= MAX_SECONDS
    mark = "" if is_within else f"   over {MAX_SECONDS:.0f} s or {MAX_BYTES / 1e9:.0f} GB"
    memory = f"{peak / 1e9:>9.2f}{own / 1e9:>9.2f}"
    print(f"{name:<22}{seconds:>9.1f}{cpu:>9.1f}{memory}{mark}", flush=True)
    return is_within


def _measure(
    step: Callable[[argparse.Namespace], Any], arguments: argparse.Namespace
) -> dict[str, float]:
    before = _peak_bytes()
    start, cpu_start = time.perf_counter(), time.process_time()
    step(arguments)
    return {
        "seconds": time.perf_counter() - start,
        "cpu": time.process_time() - cpu_start,
        "peak": _peak_bytes(),
        "own": _peak_bytes() - before,
    }


def _peak_bytes() -> int:
    # A new process counts what the one that started it held as its own, and so every step is one:
    # the parent holds no more than the imports, which the child needs as well.
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def _write(arguments: argparse.Namespace) -> None:
    write_tables(arguments.folder, num_boxes=arguments.boxes, num_images=arguments.images)


def _filter(arguments: argparse.Namespace) -> None:
    folder = arguments.folder
    filter_boxes(f"{folder}/filtered.csv", f"{folder}/boxes.csv", remove_inside=True)


def _split(arguments: argparse.Namespace) -> None:
    folder = arguments.folder
    step = split_step(
        folder,
        f"{folder}/boxes.csv",
        f"{folder}/classes.csv",
        boundaries=(0, 100, 200, 300, 400, 500),
        human_parts=f"{folder}/human.txt",
    )
    step.run()


def _pick(arguments: argparse.Namespace) -> None:
    folder = arguments.folder
    boxes = read_boxes(f"{folder}/boxes.csv", columns=("ImageID", "LabelName"))
    pick_validation(boxes, read_classes(f"{folder}/classes.csv"), num_samples=5)


def _balance(arguments: argparse.Namespace) -> None:
    folder = arguments.folder
    boxes = read_boxes(f"{folder}/boxes.csv", columns=("ImageID", "LabelName"))
    plan_copies(
        len(boxes["ImageID"].cat.categories),
        boxes["ImageID"].cat.codes.to_numpy(),
        boxes["LabelName"].cat.codes.to_numpy(),
        num_classes=len(boxes["LabelName"].cat.categories),
        min_images_per_class=MIN_IMAGES_PER_CLASS,
        max_copies=None,
        seed=0,
    )


def _read(arguments: argparse.Namespace) -> None:
    folder = arguments.folder
    read_open_images(f"{folder}/boxes.csv", images=folder, classes=f"{folder}/classes.csv")


STEPS: dict[str, Callable[[argparse.Namespace], Any]] = {
    "write these tables": _write,
    "filter": _filter,
    "class split": _split,
    "validation pick": _pick,
    "balancing plan": _balance,
    "reader": _read,
}


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--boxes", type=int, default=12_200_000, help="rows (%(default)s)")
    parser.add_argument("--images", type=int, default=1_740_000, help="images (%(default)s)")
    parser.add_argument("--folder", help="where to put about 3 GB for the while; default: TMPDIR")
    parser.add_argument("--step", choices=STEPS, help=argparse.SUPPRESS)
    return parser.parse_args(argv)


if __name__ == "__main__":
    sys.exit(main())
