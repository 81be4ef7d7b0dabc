"""Times writing TFRecords of images that need no encoding, beside a copy and the predecessor.

It generates images (JPEG, noise on a gradient) and a box CSV, then runs in turn, several times: a
copy, in which two processes read each file and write its bytes into one file per shard; ours, the
same shards in the same two processes; and once the predecessor's algorithm, one process that keeps
a table per image and builds whole messages. `warm`: the images are in memory, so that the copy
goes at the speed of memory. `disk`: they come from the disk and what was written is flushed to it,
as for any set that is larger than memory; ours then reads ahead, the copy does not. Not counted:
the start of the processes, and, for tpudet, the reading of the CSV. Needs 3 GB of disk temporarily.
"""

import argparse
import hashlib
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import NamedTuple

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import cv2
import numpy as np
import pandas as pd
import tensorflow as tf

from tpudet.detection.preparation.records.build_shard import build_shard
from tpudet.detection.preparation.records.plan import Plan, plan_shards
from tpudet.detection.preparation.records.shard_job import ShardJob
from tpudet.detection.preparation.sources.open_images import read_open_images
from tpudet.trainkit.images.headers import parse_jpeg

WORKERS = 2
BOXES_PER_IMAGE = 7  # of Open Images
NUM_CLASSES = 100
_ENCODED = 24  # different images; the others differ from them in a comment


class Setting(NamedTuple):
    """One kind of image."""

    name: str
    width: int  # pixels
    height: int
    quality: int  # of JPEG
    noise: float  # standard deviation, of 255
    num_images: int
    shards: int


# Noise that makes files as large as photos: 295 KB is the mean of Open Images' train set, whose
# parts are written to 10 or 20 shards of several GB each; so are the few shards here.
SETTINGS = (
    Setting("1024x768", 1024, 768, 90, 13.1, 4000, 4),
    Setting("300x225", 300, 225, 90, 8.5, 8000, 4),
)


class Timing(NamedTuple):
    """One run over all images."""

    seconds: float
    cpu_seconds: float  # of the processes that did it


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command and returns its exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--rounds", type=int, default=5, help="of copy and ours, in turn")
    parser.add_argument("--folder", help="of the temporary files: on the disk to be measured")
    arguments = parser.parse_args(argv)
    context = get_context("spawn")  # TensorFlow does not survive a fork
    with ProcessPoolExecutor(WORKERS, context) as pool:
        for setting in SETTINGS:
            with tempfile.TemporaryDirectory(dir=arguments.folder) as folder:
                _compare(setting, Path(folder), pool, arguments.rounds)
    return 0


def _compare(setting: Setting, folder: Path, pool: ProcessPoolExecutor, rounds: int) -> None:
    images, boxes, output = folder / "images", folder / "boxes.csv", folder / "output"
    for directory in (images, output):
        directory.mkdir()
    names, size = _write_review_images(setting, images)
    _write_boxes(boxes, names)
    plan = _plan(setting, boxes, images, output)
    count = setting.num_images
    print(
        f"\n{setting.name}: {count} images of {size / count / 1e3:.0f} KB, "
        f"{len(plan.annotations.boxes)} boxes, {setting.shards} shards, {WORKERS} processes, "
        f"{len(os.sched_getaffinity(0))} cores (load now {os.getloadavg()[0]:.1f})\n"
        f"{'':<22}{'seconds':>9}{'MB/s':>8}{'µs/image':>10}{'cores':>7}{'copy/it':>9}{'by CPU':>8}"
    )
    paths = [str(images / name) for name in names]
    for state in ("warm", "disk"):
        copies, ours = _run_in_turn(plan, pool, rounds, paths if state == "disk" else ())
        _print_row(f"copy, {state}", copies, copies, count, size)
        _print_row(f"ours, {state}", ours, copies, count, size)
        if state == "warm":
            old = _time(lambda: _predecessor(boxes, images, output, setting.shards))
            _remove(output)
            _print_row(f"predecessor, {state}", [old], copies, count, size)
            seconds = statistics.median(timing.seconds for timing in ours)
            print(f"{'':<22}ours is {old.seconds / seconds:.1f} times as fast as the predecessor")


def _plan(setting: Setting, boxes: Path, images: Path, output: Path) -> Plan:
    annotations = read_open_images(
        str(boxes), images=str(images), image_list=None, classes=None, include_unlabeled=False
    )
    return plan_shards(
        annotations,
        image_directories=(str(images),),
        output=str(output),
        split="train",
        num_shards=setting.shards,
        seed=0,
        check_pixels=False,
        options={},
    )


def _run_in_turn(
    plan: Plan, pool: ProcessPoolExecutor, rounds: int, paths: Sequence[str]
) -> tuple[list[Timing], list[Timing]]:
    """Times the copy and tpudet; from and to the disk if the images' `paths` are given.

    The first round, which warms up, is left out.
    """
    copies: list[Timing] = []
    ours: list[Timing] = []
    for _ in range(rounds + 1):
        for function, timings in ((_copy, copies), (_ours, ours)):
            _forget(paths)
            timings.append(_run(pool, function, plan.jobs(write=True), bool(paths)))
            _remove(Path(plan.directory))
    return copies[1:], ours[1:]


def _print_row(
    name: str, timings: Sequence[Timing], copies: Sequence[Timing], count: int, size: int
) -> None:
    seconds = statistics.median(timing.seconds for timing in timings)
    cpu_seconds = statistics.median(timing.cpu_seconds for timing in timings)
    pairs = list(zip(copies, timings, strict=False))
    ratio = statistics.median(copy.seconds / timing.seconds for copy, timing in pairs)
    cpu_ratio = statistics.median(copy.cpu_seconds / timing.cpu_seconds for copy, timing in pairs)
    print(
        f"{name:<22}{seconds:>9.2f}{size / seconds / 1e6:>8.0f}{seconds / count * 1e6:>10.0f}"
        f"{cpu_seconds / seconds:>7.1f}{ratio:>9.0%}{cpu_ratio:>8.0%}",
        flush=True,
    )


def _run(
    pool: ProcessPoolExecutor,
    function: Callable[[ShardJob, bool], float],
    jobs: Iterable[ShardJob],
    flushes: bool,
) -> Timing:
    start = time.perf_counter()
    futures = [pool.submit(function, job, flushes) for job in jobs]
    cpu_seconds = sum(future.result() for future in futures)
    return Timing(time.perf_counter() - start, cpu_seconds)


def _time(function: Callable[[], None]) -> Timing:
    start, cpu_start = time.perf_counter(), time.process_time()
    function()
    return Timing(time.perf_counter() - start, time.process_time() - cpu_start)


def _copy(job: ShardJob, flushes: bool) -> float:
    """A plain copy; returns the seconds of CPU."""
    start = time.process_time()
    with open(job.path, "wb") as output:
        for name in job.annotations.images["file"].tolist():
            with open(os.path.join(job.image_directories[0], name), "rb") as image:
                output.write(image.read())
    if flushes:
        _flush(job.path)
    return time.process_time() - start


def _ours(job: ShardJob, flushes: bool) -> float:
    start = time.process_time()
    build_shard(job, lambda _: None)
    if flushes:
        _flush(job.path)
    return time.process_time() - start


def _flush(path: str) -> None:
    with open(path, "rb") as file:
        os.fsync(file.fileno())


def _predecessor(boxes: Path, images: Path, output: Path, num_shards: int) -> None:
    """Facts 4.2: a table per image in memory, an order without seed, writers in turn."""
    table = pd.read_csv(boxes)
    ids = {label: row for row, label in enumerate(sorted(table["LabelName"].unique()), start=1)}
    groups = [(name, group) for name, group in table.groupby("ImageID")]
    order = np.random.default_rng(0).permutation(len(groups))
    paths = [str(output / f"old-{index:05d}.tfrecord") for index in range(num_shards)]
    writers = [tf.io.TFRecordWriter(path) for path in paths]
    for number, row in enumerate(order):
        name, group = groups[row]
        with tf.io.gfile.GFile(str(images / f"{name}.jpg"), "rb") as file:
            encoded = file.read()
        example = _predecessor_example(str(row), f"{name}.jpg", encoded, group, ids)
        writers[number % num_shards].write(example.SerializeToString())
    for writer in writers:
        writer.close()


def _predecessor_example(
    source_id: str, file: str, encoded: bytes, group: pd.DataFrame, ids: dict[str, int]
) -> tf.train.Example:
    header = parse_jpeg(encoded, walk_scans=False)  # Pillow read as little
    known = group[group["LabelName"].isin(ids)]
    sides = {
        "xmin": known["XMin"].to_numpy(),
        "xmax": known["XMax"].to_numpy(),
        "ymin": known["YMin"].to_numpy(),
        "ymax": known["YMax"].to_numpy(),
    }
    areas = (sides["xmax"] - sides["xmin"]) * (sides["ymax"] - sides["ymin"])
    labels = known["LabelName"].map(ids).to_numpy()
    texts = [label.encode() for label in known["LabelName"].to_numpy()]
    feature = {
        "image/height": _integers([header.height]),
        "image/width": _integers([header.width]),
        "image/filename": _bytes([file.encode()]),
        "image/source_id": _bytes([source_id.encode()]),
        "image/key/sha256": _bytes([hashlib.sha256(encoded).hexdigest().encode()]),
        "image/encoded": _bytes([encoded]),
        "image/format": _bytes([b"jpeg"]),
        "image/object/class/text": _bytes(texts),
        "image/object/class/label": _integers(labels),
        "image/object/is_crowd": _integers([0] * len(labels)),
        "image/object/area": _floats(areas),
    }
    feature |= {f"image/object/bbox/{side}": _floats(column) for side, column in sides.items()}
    return tf.train.Example(features=tf.train.Features(feature=feature))


def _bytes(values: Sequence[bytes]) -> tf.train.Feature:
    return tf.train.Feature(bytes_list=tf.train.BytesList(value=values))


def _floats(values: np.ndarray) -> tf.train.Feature:
    return tf.train.Feature(float_list=tf.train.FloatList(value=values))


def _integers(values: Sequence[int] | np.ndarray) -> tf.train.Feature:
    return tf.train.Feature(int64_list=tf.train.Int64List(value=values))


def _write_review_images(setting: Setting, folder: Path) -> tuple[list[str], int]:
    """Returns the names and the size of all."""
    names, size = [], 0
    encoded = list(_encode(setting))
    for number in range(setting.num_images):
        image = encoded[number % _ENCODED]
        comment = f"{number:08d}".encode()
        segment = b"\xff\xfe" + (len(comment) + 2).to_bytes(2, "big") + comment
        names.append(f"{number:016x}.jpg")
        size += (folder / names[-1]).write_bytes(image[:2] + segment + image[2:])
    return names, size


def _encode(setting: Setting) -> Iterator[bytes]:
    random = np.random.default_rng(0)
    y, x = np.mgrid[: setting.height, : setting.width]
    gradient = np.stack([x / setting.width, y / setting.height, 1 - x / setting.width], -1) * 255
    for _ in range(_ENCODED):
        pixels = gradient + random.normal(0, setting.noise, gradient.shape)
        options = [cv2.IMWRITE_JPEG_QUALITY, setting.quality]
        yield cv2.imencode(".jpg", pixels.clip(0, 255).astype(np.uint8), options)[1].tobytes()


def _write_boxes(path: Path, names: Sequence[str]) -> None:
    random = np.random.default_rng(0)
    count = len(names) * BOXES_PER_IMAGE
    starts, sides = random.uniform(0, 0.5, (2, count)), random.uniform(0.05, 0.5, (2, count))
    columns = {
        "ImageID": np.repeat([name.removesuffix(".jpg") for name in names], BOXES_PER_IMAGE),
        "Source": "verification",
        "LabelName": [f"/m/{label:03d}" for label in random.integers(0, NUM_CLASSES, count)],
        "Confidence": 1,
        **{"XMin": starts[0], "XMax": starts[0] + sides[0]},
        **{"YMin": starts[1], "YMax": starts[1] + sides[1]},
    }
    flags = ("IsOccluded", "IsTruncated", "IsGroupOf", "IsDepiction", "IsInside")
    pd.DataFrame(columns | dict.fromkeys(flags, 0)).to_csv(path, index=False)


def _forget(paths: Sequence[str]) -> None:
    """Drops files from memory, so that they are read from the disk again."""
    if paths:
        os.sync()
    for path in paths:
        with open(path, "rb") as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def _remove(folder: Path) -> None:
    for path in folder.iterdir():
        path.unlink()


if __name__ == "__main__":
    raise SystemExit(main())
