"""Runs the whole chain on a data set that it draws itself, within minutes on two cores.

Images and boxes -> TFRecords -> training -> SavedModel -> predictions -> submission CSV. Everything
is written below $STORAGE (output/demo, with --masks output/demo-masks). Started again, it resumes
where it stopped. The training starts from ImageNet weights; without them and without a connection,
`--set train.weights=null --set train.freeze=[]` starts from random ones, and finds less.
"""

import argparse
import os
import sys
from collections.abc import Iterator, Sequence
from glob import glob
from typing import NamedTuple

from tpudet.trainkit.command_line import (
    add_set_argument,
    new_parser,
    positive_integer,
    run_command,
)
from tpudet.trainkit.errors import UserError
from tpudet.trainkit.files.storage import is_remote
from tpudet.trainkit.jobs.child_process import run_child


class _Demo(NamedTuple):
    """The differences between the demos of boxes and of masks."""

    config: str
    part: str  # converted/PART
    images: str  # folder of the drawn set
    metric: str
    mask_flags: tuple[str, ...]  # of make_sample_set and gen_sub

    @property
    def name(self) -> str:
        """The name of model folder, log, predictions and submission."""
        return f"{self.config}-{self.part}"

    def records(self, images: str, split: str) -> list[str]:
        """The flags of make_tfrecords for a split of the drawn set."""
        flags = ["--format", "open_images", "--include_unlabeled", "--split", split]
        flags += ["--annotations", f"{images}/{split}_boxes.csv", "--images", f"{images}/{split}"]
        flags += ["--classes", f"{images}/classes.csv"]
        if self.mask_flags:
            flags += ["--include_masks", "--mask_csv", f"{images}/{split}_masks.csv"]
            flags += ["--mask_dir", f"{images}/{split}_masks"]
        return flags


_NUM_IMAGES = 500  # to draw
_BOXES = _Demo("demo", "sample", "images", "AP50", ())
_MASKS = _Demo("demo-masks", "sample_masks", "images_with_masks", "mask_AP50", ("--masks",))


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command; returns its exit code, or that of the step that failed."""
    parser = new_parser("tpudet demo", __doc__)
    parser.add_argument("--num_images", type=positive_integer, help="images to draw (default: 500)")
    parser.add_argument(
        "--masks",
        action="store_true",
        help="instance segmentation: every step with masks, config demo-masks",
    )
    add_set_argument(parser, "set one value of the config; may be repeated")
    return run_command(parser, argv, _run)


def _run(arguments: argparse.Namespace) -> int:
    demo = _MASKS if arguments.masks else _BOXES
    root = os.environ.get("STORAGE") or f"output/{demo.config}"
    if is_remote(root):
        raise UserError(f"STORAGE is {root}; the demo needs a local folder: unset it, or name one")
    os.makedirs(f"{root}/predictions", exist_ok=True)
    for title, verb, *flags in _steps(demo, root, arguments):
        print(f"\n== {title}", flush=True)
        if code := run_child([sys.executable, "-m", "tpudet", verb, *flags]):
            return code
    print("\n== Done")
    with open(f"{root}/logs/{demo.name}.log", encoding="utf-8") as log:
        print(*[line.strip() for line in log if f" {demo.metric}: " in line][-1:], sep="\n")
    print(f"SavedModel:  {_saved_model(root, demo.name)}")
    print(f"Submission:  {root}/predictions/{demo.name}.csv")
    print(f"Detections:  {root}/saved/{demo.name}/detections.png")
    print(f"Report:      {root}/saved/{demo.name}/report.html")
    return 0


def _steps(demo: _Demo, root: str, arguments: argparse.Namespace) -> Iterator[tuple[str, ...]]:
    """Yields a title, a verb and its flags, each when the step before has run."""
    images, records = f"{root}/{demo.images}", f"{root}/converted/{demo.part}"
    if os.path.exists(f"{images}/val_boxes.csv"):
        _check_drawn(images, arguments.num_images)
    else:
        count = str(arguments.num_images or _NUM_IMAGES)
        title = f"1/6 draw {count} images with their objects: {images}"
        flags = ["--output", images, "--num_images", count, *demo.mask_flags]
        yield (title, "make_sample_set", *flags)
    for split in ("train", "val"):
        title = f"2/6 write TFRecords of {split}: {records}"
        yield (title, "make_tfrecords", *demo.records(images, split), "--output", records)
    model_dir = ["--model_dir", f"{root}/saved/{demo.name}"]
    sets = [f"data.directory={records}", *arguments.overrides]
    overrides = [text for value in sets for text in ("--set", value)]
    log = ["--log_file", f"{root}/logs/{demo.name}.log"]
    title = "3/6 train and evaluate"
    yield (title, "train", "--config", demo.config, *model_dir, *log, *overrides)
    flags = ["--export_root", f"{root}/final", "--step", "best", "--overwrite"]
    yield ("4/6 export the SavedModel", "export", *model_dir, *flags)
    predictions = f"{root}/predictions/{demo.name}.parquet"
    saved_model = _saved_model(root, demo.name)
    flags = [predictions, saved_model, "--images", f"{images}/val", "--overwrite"]
    yield ("5/6 predict the validation images", "predict", *flags)
    flags = [predictions, "--out", f"{root}/predictions/{demo.name}.csv", "-f", *demo.mask_flags]
    yield ("6/6 write the submission", "gen_sub", *flags)


def _check_drawn(images: str, num_images: int | None) -> None:
    """Raises if the set that an earlier run drew has another number of images."""
    drawn = len(glob(f"{images}/*/*.jpg"))
    if num_images not in (None, drawn):
        raise UserError(
            f"--num_images {num_images}: {images} has {drawn} images of an earlier run; remove it "
            "to draw others, or leave --num_images out"
        )


def _saved_model(root: str, name: str) -> str:
    """The SavedModel written last: there may be several, of other resolutions."""
    found = glob(f"{root}/final/{name}-*/saved_model.pb")
    return os.path.dirname(max(found, key=os.path.getmtime))
