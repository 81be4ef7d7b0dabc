"""Measures the input pipeline against its limit, decoding.

Prints images/s of decoding JPEGs alone, of a plain float32 pipeline and of tpudet's, for generated
photos in TFRecord shards of a temporary directory. All are measured in turn in short rounds of one
run, so that other load on the machine affects all alike; the numbers are medians over the rounds.
At the end it prints the share of each step in the processor time per image. `--augmentations` adds
a row per kind of `data.augmentations`.
"""

import argparse
import itertools
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple, get_args

import cv2
import numpy as np
import tensorflow as tf
from tqdm import tqdm

from tpudet.detection.data.config import AugmentationConfig, DataConfig
from tpudet.detection.data.pipeline import train_dataset
from tpudet.detection.data.tfrecord import EncodedImage, encode_example
from tpudet.trainkit.records import count_records, find_shards, shard_path, write_shard
from tpudet.trainkit.shuffled_records import ShuffledRecords

SHARD_COUNT = 4
RECORD_COUNT = 512  # the photos over and over, so that an epoch is not a shorter than real ones
JPEG_QUALITY = 90
MAX_INSTANCES = 100
DEFAULT_SCALE_RANGES = ((1.0, 1.0), (0.8, 1.2))
AUGMENTATIONS = {config().kind: config() for config in get_args(AugmentationConfig)}
SECONDS_UNTIMED = 0.2  # empties what a pipeline had buffered while others were measured


class Rate(NamedTuple):
    """Speed of one pipeline, medians over the rounds."""

    images_per_second: float
    processor_milliseconds: float  # per image, over all threads; hardly affected by other load


class Setting(NamedTuple):
    """Photos of one size on one canvas; sizes in pixels."""

    height: int
    width: int
    canvas: int


SETTINGS = (Setting(480, 640, 640), Setting(768, 1024, 512))


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command and returns its exit code."""
    arguments = _parse(argv)
    scale_ranges = [(low, high) for low, high in arguments.scale_range or DEFAULT_SCALE_RANGES]
    print(
        f"{arguments.images} photos per size, batches of {arguments.batch_size}, "
        f"{arguments.num_parallel_calls} images at once, medians of {arguments.rounds} rounds "
        f"of {arguments.seconds:g} s"
    )
    for setting in SETTINGS:
        photos = draw_photos(arguments.images, setting.height, setting.width, arguments.seed)
        kilobytes = statistics.mean(map(len, photos)) / 1000
        print(f"\n{setting.width}x{setting.height} ({kilobytes:.0f} KB) on {setting.canvas}")
        with tempfile.TemporaryDirectory() as directory:
            pipelines = _pipelines(photos, setting, scale_ranges, directory, arguments)
            rates = measure(pipelines, arguments.rounds, arguments.seconds)
        _print_rates(rates)
        _print_shares(processor_shares(photos, setting))
    return 0


def draw_photos(count: int, height: int, width: int, seed: int) -> list[bytes]:
    """Generates JPEGs of the size of photos: about 125 KB at 640x480.

    Smooth noise of several scales, fine grain, and filled circles with sharp edges.
    """
    random = np.random.default_rng(seed)
    photos = []
    for _ in tqdm(range(count), desc="generating photos", leave=False):
        image = np.full((height, width, 3), 128, np.float32) + random.normal(
            0, 7, (height, width, 1)
        )
        for cells, amplitude in ((8, 60), (32, 40), (128, 22), (400, 10)):
            noise = random.normal(0, amplitude, (cells * height // width, cells, 3))
            image += cv2.resize(noise, (width, height), interpolation=cv2.INTER_CUBIC)
        photo = image.clip(0, 255).astype(np.uint8)
        for _ in range(8):
            centre = (int(random.integers(width)), int(random.integers(height)))
            colour = [int(value) for value in random.integers(0, 256, 3)]
            cv2.circle(photo, centre, int(random.integers(10, 80)), colour, -1)
        parameters = [cv2.IMWRITE_JPEG_QUALITY, JPEG_QUALITY]
        photos.append(cv2.imencode(".jpg", photo, parameters)[1].tobytes())
    return photos


def measure(
    pipelines: dict[str, tuple[tf.data.Dataset, int]], rounds: int, seconds: float
) -> dict[str, Rate]:
    """Runs endless pipelines in turn and returns the speed of each.

    Args:
        pipelines: by name, the dataset and the number of images per element.
        rounds: measurements of each; one more round before them is not counted.
        seconds: length of a measurement.
    """
    iterators = {name: iter(dataset) for name, (dataset, _) in pipelines.items()}
    rates: dict[str, list[Rate]] = {name: [] for name in pipelines}
    for number in tqdm(range(rounds + 1), desc="measuring rounds", leave=False):
        for name, iterator in iterators.items():
            _count_elements(iterator, SECONDS_UNTIMED if number else seconds)
            start, processor_start = time.perf_counter(), time.process_time()
            images = _count_elements(iterator, seconds) * pipelines[name][1]
            wall, processor = time.perf_counter() - start, time.process_time() - processor_start
            if number:
                rates[name].append(Rate(images / wall, processor / images * 1000))
    return {
        name: Rate(*(statistics.median(column) for column in zip(*values, strict=True)))
        for name, values in rates.items()
    }


def processor_shares(photos: Sequence[bytes], setting: Setting) -> dict[str, float]:
    """Returns processor milliseconds per image of the single steps, each run by itself.

    Decoding at 1/8 does all of the Huffman decoding and nearly none of the DCT, so it measures the
    former, and the additional cost of a larger image measures DCT, chroma and colour.
    """
    ratio = max(1, max(setting.height, setting.width) // setting.canvas)
    encoded = [tf.constant(photo) for photo in photos[:16]]
    image = tf.io.decode_jpeg(encoded[0], channels=3, ratio=ratio)
    height, width, _ = image.shape
    smaller = (int(height * 0.9), int(width * 0.9))
    repeated = tf.data.Dataset.from_tensors(image).repeat()
    batches = iter(repeated.padded_batch(8, [setting.canvas, setting.canvas, 3]))

    def decode(at: int) -> float:
        return _milliseconds(
            [lambda e=e: tf.io.decode_jpeg(e, channels=3, ratio=at) for e in encoded]
        )

    huffman, decoded = decode(8), decode(ratio)
    return {
        "Huffman decoding": huffman,
        f"DCT and colour (1/{ratio})": decoded - huffman,
        "flip (of every second)": _milliseconds([lambda: tf.reverse(image, [1])] * 16) / 2,
        "padding and batching": _milliseconds([lambda: next(batches)] * 8) / 8,
        "resize (x0.9; where the scale is not 1)": _milliseconds(
            [lambda: tf.cast(tf.image.resize(tf.cast(image, tf.float32) + 0.5, smaller), tf.uint8)]
            * 16
        ),
    }


def _pipelines(
    photos: Sequence[bytes],
    setting: Setting,
    scale_ranges: Sequence[tuple[float, float]],
    directory: str,
    arguments: argparse.Namespace,
) -> dict[str, tuple[tf.data.Dataset, int]]:
    """Returns the pipelines to compare: decoding alone, the plain one, tpudet's variants."""
    parallel, batch_size = arguments.num_parallel_calls, arguments.batch_size
    encoded = tf.data.Dataset.from_tensor_slices(list(photos)).repeat()
    alone = encoded.map(lambda photo: tf.io.decode_jpeg(photo), num_parallel_calls=parallel)
    pipelines: dict[str, Any] = {
        "decode alone": (alone.prefetch(16), 1),
        "plain float32": (_plain_dataset(encoded, setting.canvas, batch_size), batch_size),
    }
    kinds = arguments.augmentations
    prefix = str(Path(directory) / "train_photos")
    shards = _write_shards(photos, setting, prefix, with_masks="copy_paste" in kinds)
    variants = {f"ours, scale {low:g}-{high:g}": ((low, high), ()) for low, high in scale_ranges}
    variants |= {f"ours, {kind}": (scale_ranges[0], (AUGMENTATIONS[kind],)) for kind in kinds}
    for name, (scale_range, augmentations) in variants.items():
        data = DataConfig(
            canvas_size=(setting.canvas, setting.canvas),
            max_instances=MAX_INSTANCES,
            scale_range=scale_range,
            augmentations=augmentations,
        )
        ours = train_dataset(
            data,
            ShuffledRecords(shards, count_records(shards), seed=arguments.seed),
            batch_size=batch_size,
            num_parallel_calls=parallel,
        )
        pipelines[name] = (ours, batch_size)
    return pipelines


def _plain_dataset(encoded: tf.data.Dataset, canvas: int, batch_size: int) -> tf.data.Dataset:
    """The obvious pipeline: everything in float32, one image at a time."""

    def prepare(photo: Any) -> Any:
        image = tf.io.decode_jpeg(photo, channels=3)
        size = tf.cast(tf.shape(image)[:2], tf.float32)
        size = tf.cast(tf.round(size * (canvas / tf.reduce_max(size))), tf.int32)
        image = tf.image.resize(image, size) / 255.0
        image = (image - [0.485, 0.456, 0.406]) / [0.229, 0.224, 0.225]
        image = tf.image.random_flip_left_right(image)
        return tf.image.pad_to_bounding_box(image, 0, 0, canvas, canvas)

    return encoded.map(prepare).batch(batch_size, drop_remainder=True).prefetch(1)


def _write_shards(
    photos: Sequence[bytes], setting: Setting, prefix: str, *, with_masks: bool
) -> list[str]:
    random = np.random.default_rng(0)
    images = []
    for photo in photos:
        corners = np.sort(random.uniform(0.1, 0.4, (7, 2, 2)), axis=1).reshape(-1, 4)
        boxes = corners + [0, 0, 0.5, 0.5]
        masks = [_draw_mask(box, setting) for box in boxes] if with_masks else None
        images.append((photo, boxes, masks))
    records = []
    for number, (photo, boxes, masks) in zip(
        range(RECORD_COUNT), itertools.cycle(images), strict=False
    ):
        records.append(
            encode_example(
                EncodedImage(
                    source_id=str(number),
                    filename=f"{number}.jpg",
                    encoded=photo,
                    format="jpeg",
                    height=setting.height,
                    width=setting.width,
                ),
                boxes_normalized=boxes,
                labels=[1] * 7,
                texts=["object"] * 7,
                is_crowd=[False] * 7,
                areas=[1.0] * 7,
                masks=masks,
            )
        )
    for index in range(SHARD_COUNT):
        write_shard(shard_path(prefix, index, SHARD_COUNT), records[index::SHARD_COUNT])
    return find_shards(prefix)


def _draw_mask(box: np.ndarray, setting: Setting) -> bytes:
    """Returns the PNG of an ellipse that fills a box y1 x1 y2 x2 of 0..1."""
    corners = box.reshape(2, 2) * [setting.height, setting.width]
    (y, x), (height, width) = corners.mean(axis=0), corners[1] - corners[0]
    mask = np.zeros((setting.height, setting.width), np.uint8)
    cv2.ellipse(mask, ((float(x), float(y)), (float(width), float(height)), 0.0), 1, -1)
    return cv2.imencode(".png", mask)[1].tobytes()


def _count_elements(iterator: Iterator, seconds: float) -> int:
    end = time.perf_counter() + seconds
    count = 0
    while time.perf_counter() < end:
        next(iterator)
        count += 1
    return count


def _milliseconds(calls: Sequence[Callable[[], object]]) -> float:
    """Returns the median over 5 repeats of the mean processor time of a call."""
    times = []
    for _ in range(5):
        start = time.process_time()
        for call in calls:
            call()
        times.append((time.process_time() - start) / len(calls) * 1000)
    return statistics.median(times)


def _print_rates(rates: dict[str, Rate]) -> None:
    limit, plain = rates["decode alone"][0], rates["plain float32"][0]
    print(
        f"  {'':24}{'images/s':>10}{'of decode alone':>18}{'times plain':>14}{'CPU ms/image':>15}"
    )
    for name, (rate, processor) in rates.items():
        print(f"  {name:24}{rate:10.0f}{rate / limit:17.0%} {rate / plain:13.2f} {processor:14.2f}")


def _print_shares(milliseconds: dict[str, float]) -> None:
    total = sum(milliseconds.values())
    print("  where the processor time of an image goes, step by step:")
    for name, value in milliseconds.items():
        print(f"    {name:42}{value:6.2f} ms{value / total:6.0%}")


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[1])
    parser.add_argument("--images", type=int, default=64, help="photos generated per size")
    parser.add_argument("--seconds", type=float, default=1.0, help="length of a measurement")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--batch_size", type=int, default=8)
    parser.add_argument(
        "--scale_range",
        type=float,
        nargs=2,
        action="append",
        metavar=("LOW", "HIGH"),
        help="scale jitter of tpudet's pipeline, may be repeated (default: 1 1 and 0.8 1.2)",
    )
    parser.add_argument(
        "--augmentations",
        nargs="+",
        default=[],
        choices=AUGMENTATIONS,
        metavar="KIND",
        help="a row per kind, with its default settings and the first scale range: "
        + ", ".join(AUGMENTATIONS),
    )
    parser.add_argument(
        "--num_parallel_calls",
        type=int,
        default=os.cpu_count() or 1,
        help="images prepared at once, decoding alone included (default: the cores)",
    )
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args(argv)
    if min(arguments.images, arguments.rounds, arguments.batch_size, arguments.seconds) <= 0:
        parser.error("--images, --rounds, --batch_size and --seconds must be above 0")
    for low, high in arguments.scale_range or ():
        if not 0.1 <= low <= high <= 2.0:
            parser.error(f"--scale_range {low:g} {high:g} is not 0.1 <= LOW <= HIGH <= 2.0")
    return arguments


if __name__ == "__main__":
    sys.exit(main())
