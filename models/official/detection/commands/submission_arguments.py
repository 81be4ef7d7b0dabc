"""Arguments that several commands on submissions share."""

import argparse
from typing import Any

from tpudet.detection.submission.fusion.settings import METHODS, FusionSettings
from tpudet.detection.submission.hierarchy import HIERARCHY
from tpudet.trainkit.command_line import add_threads_argument, natural_number, new_parser, share

JOIN_MIN_CONF = 0.02  # predictions with a score above it are joined
EXIT_CODES = "exit codes: 0 done, 2 wrong arguments or unusable files (nothing is written)\n"


def rewriting_parser(prog: str, description: str, epilog: str) -> argparse.ArgumentParser:
    """A parser of RESULT FILE and the flags of commands that write a submission."""
    parser = new_parser(prog, description, epilog=f"{epilog}\n{EXIT_CODES}")
    parser.add_argument("target", metavar="RESULT", help="the submission to write")
    parser.add_argument("source", metavar="FILE", help="the submission to read")
    add_rewriting_arguments(parser)
    return parser


def add_rewriting_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds -f, --skip_bad and --threads, which every command that writes a submission has."""
    parser.add_argument("-f", "--force", action="store_true", help="replace RESULT if it exists")
    parser.add_argument("--skip_bad", action="store_true", help="leave bad rows out and count them")
    add_threads_argument(parser)


def add_hierarchy_argument(parser: argparse._ActionsContainer) -> None:
    """Adds --hierarchy, by default the file in $DATA."""
    parser.add_argument(
        "--hierarchy",
        metavar="JSON",
        help=f"the class hierarchy (default: $DATA/{HIERARCHY}, $DATA being `data`)",
    )


def add_generating_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds --classes, --hierarchy and -f of the commands that generate submissions."""
    parser.add_argument(
        "--classes",
        metavar="CSV",
        help="a class list: only predictions of its classes are written, with its identifiers and "
        "their ancestors (--hierarchy none: without); classes are found in it by name or "
        "else by identifier (default: all, as predicted)",
    )
    parser.add_argument(
        "--hierarchy",
        metavar="JSON",
        help="a class hierarchy: each prediction is repeated for its ancestors, each box of a "
        "label once, with the best score; `none` adds no ancestors (default: "
        f"$DATA/{HIERARCHY}, $DATA being `data`, if it exists)",
    )
    parser.add_argument(
        "--masks", action="store_true", help="submit masks (instance segmentation) instead of boxes"
    )
    parser.add_argument("-f", "--force", action="store_true", help="replace what exists")


def add_fusion_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the options of a merge, which `fusion_options` collects."""
    default = FusionSettings()
    parser.add_argument(
        "--method",
        default=default.method,
        metavar="METHOD",
        help=f"{', '.join(METHODS)} (default: %(default)s)",
    )
    for name, meaning in {
        "iou": "overlap above which boxes suppress or join one another; not used by soft_gaussian",
        "sigma": "of soft_gaussian: scores fall by exp(-IoU**2 / sigma)",
        "threshold": "lowest score",
    }.items():
        parser.add_argument(
            f"--{name}",
            type=float,
            default=getattr(default, name),
            metavar="X",
            help=f"{meaning} (default: %(default)s)",
        )
    parser.add_argument(
        "--weights",
        type=_numbers,
        default=[],
        metavar="W,W,…",
        help="one per submission, in their order; only their ratios count (default: all equal)",
    )
    parser.add_argument(
        "--class_settings", metavar="FILE", default="", help="settings for some labels"
    )
    parser.add_argument(
        "--max_per_image",
        type=natural_number,
        default=0,
        metavar="N",
        help="keep the N best of an image (default: 0, all)",
    )
    parser.add_argument(
        "--mask_votes",
        type=share,
        default=0.5,
        metavar="SHARE",
        help="share of the merged masks, by weight, that must cover a pixel (default: %(default)s, "
        "the majority; 0: any, the union)",
    )


def _numbers(text: str) -> list[float]:
    try:
        return [float(part) for part in text.split(",")]
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"`{text}` is not a list of numbers: 2,1,1") from error


def fusion_options(arguments: argparse.Namespace) -> dict[str, Any]:
    """The fields of `submission.merge.MergeOptions`."""
    names = ("class_settings", "weights", "max_per_image", "mask_votes")
    settings = FusionSettings(*(getattr(arguments, name) for name in FusionSettings._fields))
    return {"settings": settings, **{name: getattr(arguments, name) for name in names}}


def add_truth_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds GROUNDTRUTH and the flags by which it and submissions are read; see `truth_options`."""
    parser.add_argument("groundtruth", metavar="GROUNDTRUTH", help="box CSV of Open Images")
    parser.add_argument("--hierarchy", metavar="JSON", help="the class hierarchy")
    parser.add_argument(
        "--image_labels",
        metavar="FILE",
        help="CSV of verified labels, ImageID,LabelName,Confidence (or Source)",
    )
    parser.add_argument(
        "--classes", metavar="FILE", help="score only these; `MID,name` per line, without header"
    )
    parser.add_argument("--masks", action="store_true", help="instance segmentation")
    parser.add_argument("--skip_bad", action="store_true", help="leave bad rows out and count them")
    add_threads_argument(parser)
    parser.add_argument("-f", "--force", action="store_true", help="replace existing files")


def truth_options(arguments: argparse.Namespace) -> dict[str, Any]:
    """The fields of `evaluation.open_images.evaluate.ChallengeOptions`."""
    names = ["groundtruth", "hierarchy", "image_labels", "classes", "masks", "threads", "skip_bad"]
    return {name: getattr(arguments, name) for name in names}
