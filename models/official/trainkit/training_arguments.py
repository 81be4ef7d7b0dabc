"""Arguments of the commands that train, time, plan and evaluate, whatever the task."""

import argparse
import math
import time

from tpudet.trainkit.command_line import (
    add_json_argument,
    add_set_argument,
    positive_integer,
    positive_number,
    report_file,
)
from tpudet.trainkit.files.file_kinds import DRAWING, PLAN, RATE_TABLE, STEP_TIMES


def add_training_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds --model_dir, --mode, --eval_timeout, --max_hours, --log_file and --dry_run."""
    parser.add_argument("--model_dir", required=True, help="checkpoints, log and metrics go here")
    parser.add_argument(
        "--mode",
        choices=("train", "eval", "train_and_eval"),
        default="train_and_eval",
        help="eval waits for the checkpoints that another process writes (train_and_eval)",
    )
    parser.add_argument(
        "--eval_timeout",
        type=positive_number,
        metavar="SECONDS",
        help="mode eval ends after this time without a new checkpoint (never)",
    )
    parser.add_argument(
        "--max_hours",
        type=_deadline,
        default=math.inf,
        dest="deadline",
        metavar="HOURS",
        help="save and stop this long after the start, with exit code 80; the same command resumes",
    )
    parser.add_argument("--log_file", default="", help="local file to append the log to")
    parser.add_argument(
        "--dry_run", action="store_true", help="build everything, say what would happen, and stop"
    )


def add_range_test_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds --start, --end, --num_steps and --output."""
    numbers = {"start": (1e-8, "first rate"), "end": (100.0, "rate of the last step")}
    for name, (default, text) in numbers.items():
        parser.add_argument(
            f"--{name}",
            type=positive_number,
            default=default,
            metavar="RATE",
            help=f"{text} (%(default)g)",
        )
    parser.add_argument(
        "--num_steps", type=positive_integer, default=150, metavar="N", help="(%(default)s)"
    )
    parser.add_argument(
        "--output",
        type=_curve_file,
        default="learning_rate.png",
        metavar="FILE.png",
        help="curve (%(default)s); its points are written beside it, as CSV",
    )


def add_plan_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds --tpu, --steps, --search, --num_classes and --json."""
    parser.add_argument("--tpu", required=True, metavar="NAME", help="v5e-8, v3-8, v6e-1, ...")
    parser.add_argument(
        "--steps",
        choices=("train", "evaluate", "both"),
        default="both",
        help="which steps to compile (%(default)s)",
    )
    parser.add_argument(
        "--search",
        action="store_true",
        help="search the largest training batch that fits: at least two more compilations",
    )
    parser.add_argument(
        "--num_classes",
        type=positive_integer,
        metavar="N",
        help="default: the rows of the data set's class list, or where there is none those of COCO "
        "or ImageNet",
    )
    add_json_argument(parser, "what was found", PLAN)


def add_step_time_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds --input, --steps, --warmup_steps and --json."""
    parser.add_argument(
        "--input", choices=("synthetic", "real", "both"), default="synthetic", help="(%(default)s)"
    )
    parser.add_argument(
        "--steps", type=positive_integer, default=20, metavar="N", help="timed steps (%(default)s)"
    )
    parser.add_argument(
        "--warmup_steps",
        type=positive_integer,
        default=3,
        metavar="N",
        help="untimed steps before (%(default)s)",
    )
    add_json_argument(parser, "the times", STEP_TIMES)


def add_evaluation_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds --model_dir, --step, --split, --output and --set."""
    parser.add_argument("--model_dir", required=True, help="the folder that train wrote")
    parser.add_argument("--step", default="latest", help="step number, latest or best (latest)")
    parser.add_argument("--split", default="", help="split to evaluate (data.eval_split)")
    parser.add_argument(
        "--output",
        default="",
        metavar="DIR",
        help="folder for the results, named after the run there (that of --model_dir)",
    )
    add_set_argument(
        parser, "set one value of the experiment, e.g. data.directory=DIR; may be repeated"
    )


def rate_table_path(curve: str) -> str:
    """Returns the path of the table beside the curve of a range test."""
    return f"{curve.removesuffix('.png')}.csv"


def _curve_file(text: str) -> str:
    report_file(rate_table_path(text), kind=RATE_TABLE)
    return report_file(text, kind=DRAWING)


def _deadline(text: str) -> float:
    """So many hours from now, by `time.monotonic`."""
    return time.monotonic() + 3600.0 * positive_number(text)
