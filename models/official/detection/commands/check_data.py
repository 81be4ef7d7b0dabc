"""Command: the checks of make_tfrecords on annotations and images, without writing."""

import argparse
import json
from collections.abc import Sequence

from tpudet.detection.preparation.records.manifest import format_summary
from tpudet.detection.preparation.records.plan import plan_shards
from tpudet.detection.preparation.records.write import check_only
from tpudet.detection.preparation.sources.read import add_source_arguments, read_annotations
from tpudet.trainkit.command_line import run_command
from tpudet.trainkit.files import storage

_IMAGES_A_JOB = 256

_EPILOG = """exit status: 0 all can be used (repairs are listed), 1 something would be left out,
2 wrong arguments or inputs
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command; returns its exit status."""
    parser = argparse.ArgumentParser(
        prog="check_data.py",
        description=(__doc__ or "").split(": ", 1)[1],
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_source_arguments(parser)
    parser.add_argument("--report", metavar="FILE", help="also write all findings there, as JSON")
    return run_command(parser, argv, _run)


def _run(arguments: argparse.Namespace) -> int:
    annotations = read_annotations(arguments)
    plan = plan_shards(
        annotations,
        image_directories=(arguments.images,),
        output="data",
        split="check",
        num_shards=-(-len(annotations.images) // _IMAGES_A_JOB),
        seed=0,
        include_masks=arguments.include_masks,
        options={},
    )
    found = check_only(plan, workers=arguments.workers)
    print(format_summary(found))
    if arguments.report is not None:
        parts = ("images", "boxes", "boxes_per_class", "left_out", "repaired")
        parts += ("left_out_counts", "repaired_counts")
        with storage.open_file(arguments.report, "w") as file:
            file.write(json.dumps({part: found[part] for part in parts}, indent=1) + "\n")
    return 1 if found["left_out"] else 0
