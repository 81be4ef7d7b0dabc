"""Runs the whole chain on a data set that it draws itself, within minutes on two cores.

Images and boxes -> TFRecords -> training -> SavedModel -> predictions -> submission CSV. Everything
is written below $STORAGE (output/demo). Started again, it resumes where it stopped. The training
starts from ImageNet weights; without them and without a connection, `--set train.weights=null --set
train.freeze=[]` starts from random ones, and finds less.
"""

import argparse
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from glob import glob

from tpudet.trainkit.command_line import new_parser, positive_integer, run_command

_NAME = "demo-sample"


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command; returns its exit code, or that of the step that failed."""
    parser = new_parser("tpudet demo", __doc__)
    parser.add_argument(
        "--num_images", type=positive_integer, default=500, help="images to draw (500)"
    )
    parser.add_argument(
        "--set",
        metavar="KEY=VALUE",
        action="append",
        default=[],
        dest="overrides",
        help="set one value of the config demo; may be repeated",
    )
    return run_command(parser, argv, _run)


def _run(arguments: argparse.Namespace) -> int:
    root = os.environ.get("STORAGE") or "output/demo"
    os.makedirs(f"{root}/predictions", exist_ok=True)
    for title, verb, *flags in _steps(root, arguments):
        print(f"\n== {title}", flush=True)
        done = subprocess.run([sys.executable, "-m", "tpudet", verb, *flags], check=False)
        if done.returncode:
            return done.returncode
    print("\n== Done")
    with open(f"{root}/logs/{_NAME}.log", encoding="utf-8") as log:
        print(*[line.strip() for line in log if "AP50: " in line][-1:], sep="\n")
    print(f"SavedModel:  {_saved_model(root)}")
    print(f"Submission:  {root}/predictions/{_NAME}.csv")
    print(f"Detections:  {root}/saved/{_NAME}/detections.png")
    return 0


def _steps(root: str, arguments: argparse.Namespace) -> Iterator[tuple[str, ...]]:
    """Yields a title, a verb and its flags, each when the step before has run."""
    images, records = f"{root}/images", f"{root}/converted/sample"
    if not os.path.exists(f"{images}/val_boxes.csv"):
        count = str(arguments.num_images)
        title = f"1/6 draw {count} images with their boxes: {images}"
        yield (title, "make_sample_set", "--output", images, "--num_images", count)
    for split in ("train", "val"):
        source = ["--annotations", f"{images}/{split}_boxes.csv", "--images", f"{images}/{split}"]
        source += ["--classes", f"{images}/classes.csv", "--split", split, "--output", records]
        title = f"2/6 write TFRecords of {split}: {records}"
        yield (title, "make_tfrecords", "--format", "open_images", "--include_unlabeled", *source)
    model_dir = ["--model_dir", f"{root}/saved/{_NAME}"]
    sets = [f"data.directory={records}", *arguments.overrides]
    overrides = [text for value in sets for text in ("--set", value)]
    log = ["--log_file", f"{root}/logs/{_NAME}.log"]
    title = "3/6 train and evaluate"
    yield (title, "train", "--config", "demo", *model_dir, *log, *overrides)
    flags = ["--export_root", f"{root}/final", "--step", "best", "--overwrite"]
    yield ("4/6 export the SavedModel", "export", *model_dir, *flags)
    predictions = f"{root}/predictions/{_NAME}.parquet"
    flags = [predictions, _saved_model(root), "--images", f"{images}/val", "--overwrite"]
    yield ("5/6 predict the validation images", "predict", *flags)
    flags = [predictions, "--out", f"{root}/predictions/{_NAME}.csv", "-f"]
    yield ("6/6 write the submission", "gen_sub", *flags)


def _saved_model(root: str) -> str:
    """The SavedModel written last: there may be several, of other resolutions."""
    found = glob(f"{root}/final/{_NAME}-*/saved_model.pb")
    return os.path.dirname(max(found, key=os.path.getmtime))
