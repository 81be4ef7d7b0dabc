"""The command `tpudet export_annotations`: a split of a prepared set as COCO ground truth."""

import argparse
from collections.abc import Sequence

from tpudet.trainkit.command_line import new_parser, run_command

_EPILOG = """\
example:
  tpudet export_annotations output/converted/cells instances_val.json --split val
  tpudet convert_predictions p.parquet results.json --to coco --ground_truth instances_val.json

Boxes are those of the records, after all repairs. Any COCO evaluator takes both files.

exit codes: 0 done, 2 wrong arguments or unusable files (nothing is written)
"""


def main(argv: Sequence[str] | None = None) -> int:
    parser = new_parser(
        "tpudet export_annotations",
        "Write a split of a prepared set as COCO ground truth, an instances JSON.",
        epilog=_EPILOG,
    )
    parser.add_argument("directory", metavar="PART_DIR", help="converted/PART")
    parser.add_argument("target", metavar="RESULT", help="JSON to write")
    parser.add_argument("--split", default="val", help="train, val or test [%(default)s]")
    parser.add_argument("--include_masks", action="store_true", help="write segmentations too")
    parser.add_argument("-f", "--force", action="store_true", help="replace RESULT")
    return run_command(parser, argv, _run)


def _run(arguments: argparse.Namespace) -> str:
    from tpudet.detection.evaluation.coco_json import export_annotations

    return export_annotations(**vars(arguments))
