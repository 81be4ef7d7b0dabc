"""Picks some images per class from a box CSV as a small validation set."""

import argparse
from collections.abc import Sequence

from tpudet.detection.commands.preparation_arguments import add_overwrite_argument, add_positionals
from tpudet.detection.preparation.open_images.challenge import BLACKLIST, CLASSES
from tpudet.trainkit.command_line import new_parser, positive_integer, run_command
from tpudet.trainkit.files import storage
from tpudet.trainkit.files.locations import data_path, storage_path

_EPILOG = """example:
  tpudet build_validation val_part_0.csv validation.csv classes_part_0.csv --num_samples 5 \\
      --blacklist blacklist.txt --image_dir $DATA/validation --viz_directory review

exit codes: 0 done or up to date, 2 wrong arguments or inputs (nothing is left half-written)
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command; returns its exit code."""
    parser = new_parser("tpudet build_validation", __doc__, epilog=_EPILOG)
    add_positionals(
        parser,
        ("output", "OUTPUT", storage_path("prepared", "val.csv"), "box CSV to write"),
        ("source", "INPUT", storage_path("prepared", "val_no_groups.csv"), "box CSV"),
        ("classes", "CLASSES", data_path(CLASSES), "class list, one `MID,name` per line"),
    )
    parser.add_argument(
        "--num_samples",
        type=positive_integer,
        default=5,
        metavar="N",
        help="images per class (default 5)",
    )
    parser.add_argument(
        "--blacklist",
        metavar="FILE",
        help=f"images not to pick, one name per line (default: {BLACKLIST} in $DATA, if there)",
    )
    parser.add_argument(
        "--image_dir",
        default=data_path("validation"),
        metavar="DIR",
        help="folder of the images, for drawings (default: %(default)s)",
    )
    parser.add_argument(
        "--viz_directory",
        metavar="DIR",
        help="draw <class>_<image>.jpg here, with boxes; other files there are left alone",
    )
    parser.add_argument(
        "--only_picked_class",
        action="store_true",
        help="of each image, keep only boxes of the classes that it was picked for",
    )
    add_overwrite_argument(parser, "an existing file")
    return run_command(parser, argv, _run)


def _run(arguments: argparse.Namespace) -> None:
    from tpudet.detection.preparation.open_images.validation import validation_step
    from tpudet.trainkit.jobs.steps import run_step

    default = data_path(BLACKLIST)
    step = validation_step(
        arguments.output,
        arguments.source,
        arguments.classes,
        num_samples=arguments.num_samples,
        blacklist=arguments.blacklist or (default if storage.exists(default) else None),
        image_directory=arguments.image_dir,
        viz_directory=arguments.viz_directory,
        only_picked_class=arguments.only_picked_class,
    )
    run_step(step, overwrite=arguments.overwrite)
