"""Predicts a folder of images: `python -m detection.predict PREDICTIONS MODEL_DIR --images DIR`.

An image that cannot be read is named on the screen; the exit code stays 0 as long as one image was
predicted.
"""

import argparse
import os
import sys
from collections.abc import Sequence

from detection.image_folder import ImageFolderError, list_images, read_ids
from detection.inference import IMAGES_A_PART, InferenceError, plan_parts, run_inference
from detection.saved_detector import SavedDetectorError, find_saved_model, read_saved_detector
from detection.submission.predictions_file import PredictionsError
from detection.submission.storage import is_file


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command; returns 0 done, 1 nothing could be predicted; exits with 2 on bad use."""
    parser = _parser()
    arguments = parser.parse_args(argv)
    target: str = arguments.predictions
    try:
        if is_file(target) and not arguments.overwrite:
            raise InferenceError(f"{target} exists: --overwrite replaces it")
        saved = read_saved_detector(find_saved_model(arguments.model_dir))
        ids = read_ids(arguments.ids) if arguments.ids else None
        images = list_images(arguments.images, ids)
        size = "x".join(map(str, saved.metadata["canvas_size"]))
        print(f"model {saved.directory}, canvas {size}; {len(images)} images of {arguments.images}")
        if arguments.dry_run:
            parts = plan_parts(target, images, IMAGES_A_PART)
            finished = sum(is_file(path) for path, _ in parts)
            print(f"would write {target} in {len(parts)} parts; {finished} lie there already")
            return 0
        count, unreadable = run_inference(
            saved=saved,
            images=images,
            predictions_path=target,
            batch_size=arguments.batch_size,
            workers=arguments.workers,
            discard_foreign_parts=arguments.overwrite,
        )
    except (InferenceError, SavedDetectorError, ImageFolderError, PredictionsError) as error:
        parser.error(str(error))
    print(f"{target}: {count} images predicted")
    if unreadable:
        print(f"WARNING: {len(unreadable)} images could not be read:", file=sys.stderr)
        for name, reason in unreadable.items():
            print(f"  {name}: {reason}", file=sys.stderr)
    return 0 if count else 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="inference.py",
        description="Run the newest SavedModel of a directory on a folder of images. A run that "
        "was killed goes on where it was when the same command is given again.",
    )
    parser.add_argument(
        "predictions", metavar="PREDICTIONS", help="file to write: .pkl a pickle, else Parquet"
    )
    parser.add_argument("model_dir", metavar="MODEL_DIR", help="holds a SavedModel, or folders do")
    parser.add_argument("--images", metavar="DIR", required=True, help="folder of images")
    parser.add_argument("--batch_size", type=_positive, default=8, help="images a call [8]")
    parser.add_argument(
        "--workers", type=_positive, default=2 * (os.cpu_count() or 1), help="reading threads"
    )
    parser.add_argument("--ids", metavar="FILE", help="take these image ids only, one a line")
    parser.add_argument(
        "--overwrite",
        action="store_true",
        help="replace PREDICTIONS, and parts left by a run with another model or other images",
    )
    parser.add_argument("--dry_run", action="store_true", help="say what would be done")
    return parser


def _positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{value} is below 1")
    return value


if __name__ == "__main__":
    sys.exit(main())
