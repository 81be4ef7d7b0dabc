"""Command: one HTML page about a prepared set, to look at: numbers, charts and sample pictures."""

import argparse
import os
from collections.abc import Sequence

from tqdm import tqdm

from tpudet.detection.preparation.report.page import build_page
from tpudet.detection.preparation.report.sample_images import (
    PICTURE_BYTES,
    choose_samples,
    draw_sample,
)
from tpudet.detection.preparation.report.set_statistics import read_numbers
from tpudet.trainkit.command_line import run_command
from tpudet.trainkit.files.storage import write_text

_MAX_SAMPLES = 200

_EPILOG = """example:
  scripts/describe_dataset.py $STORAGE/converted/part_0
  scripts/describe_dataset.py gs://bucket/converted/part_0 --output part_0.html --samples 60

The page opens in any browser without a network and is smaller than 6 MB. Every record is read once
and checked against the manifests; pictures are decoded for the samples alone.
exit status: 0 done, 2 wrong arguments, no finished set there, or a damaged one, 130 interrupted
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command; returns its exit status."""
    parser = argparse.ArgumentParser(
        prog="describe_dataset.py",
        description=(__doc__ or "").split(": ", 1)[1],
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("part_dir", metavar="PART_DIR", help="converted/PART")
    parser.add_argument("--output", metavar="FILE", help="default: PART_DIR/report.html")
    parser.add_argument(
        "--samples",
        type=_sample_count,
        default=24,
        metavar="N",
        help=f"pictures in the page, 0 to {_MAX_SAMPLES} (default 24)",
    )
    return run_command(parser, argv, _run)


def _sample_count(text: str) -> int:
    if not text.isdecimal() or int(text) > _MAX_SAMPLES:
        raise argparse.ArgumentTypeError(f"{text} is not a whole number from 0 to {_MAX_SAMPLES}")
    return int(text)


def _run(arguments: argparse.Namespace) -> int:
    output = arguments.output or os.path.join(arguments.part_dir, "report.html")
    numbers = read_numbers(arguments.part_dir)
    places = choose_samples(numbers.columns, arguments.samples)
    max_bytes = PICTURE_BYTES // max(len(places), 1)
    samples = [
        draw_sample(numbers.prepared, numbers.columns, place, max_bytes)
        for place in tqdm(places, unit="picture", desc="samples")
    ]
    write_text(output, build_page(numbers, samples))
    images = sum(len(columns.source_ids) for columns in numbers.columns)
    print(
        f"{output}: {', '.join(numbers.split_names)}; {images:,} images, "
        f"{numbers.boxes.sum():,} boxes, {len(samples)} sample pictures. Open it in a browser."
    )
    return 0
