"""Writes an HTML page about a prepared set: numbers, charts and sample images."""

import argparse
from collections.abc import Sequence
from functools import partial

from tpudet.trainkit.command_line import new_parser, report_file, run_command
from tpudet.trainkit.files.file_kinds import PAGE

_MAX_SAMPLES = 200

_EPILOG = """examples:
  tpudet describe_dataset $STORAGE/converted/part_0
  tpudet describe_dataset gs://bucket/converted/part_0 --output part_0.html --samples 60

The page opens in any browser without a network and is smaller than 6 MB. Every record is read once
and checked against the manifests. In sets of up to 50,000 images all are decoded, at a small size,
to find those that look alike.
exit codes: 0 done, 2 wrong arguments, or no finished set or a damaged one, 130 interrupted
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command; returns its exit code."""
    parser = new_parser("tpudet describe_dataset", __doc__, epilog=_EPILOG)
    parser.add_argument("part_dir", metavar="PART_DIR", help="converted/PART")
    parser.add_argument(
        "--output",
        type=partial(report_file, kind=PAGE),
        metavar="FILE",
        help="default: PART_DIR/report.html",
    )
    parser.add_argument(
        "--samples",
        type=_sample_count,
        default=24,
        metavar="N",
        help=f"images in the page, 0 to {_MAX_SAMPLES} (default 24)",
    )
    return run_command(parser, argv, _run)


def _sample_count(text: str) -> int:
    if not text.isdecimal() or int(text) > _MAX_SAMPLES:
        raise argparse.ArgumentTypeError(f"`{text}` is not an integer from 0 to {_MAX_SAMPLES}")
    return int(text)


def _run(arguments: argparse.Namespace) -> str:
    from tpudet.detection.preparation.report.page import write_dataset_page

    return write_dataset_page(arguments.part_dir, arguments.output, num_samples=arguments.samples)
