"""The command `gen_sub.py`: a predictions file -> a submission CSV."""

import argparse
import os
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from tqdm import tqdm

from detection.submission.class_list import read_class_list
from detection.submission.open_images_csv import format_predictions, write_submission
from detection.submission.predictions_file import Predictions, PredictionsError, read_predictions
from detection.submission.storage import is_file, open_file, replace_file


def submission_rows(predictions: Predictions, counts: Counter[str]) -> Iterator[tuple[str, str]]:
    """Yields (image id, prediction string) by rising image id, every image once.

    Images that could not be read have an empty string, for a submission must name every image.

    Args:
        predictions: of which the class identifiers become the labels.
        counts: is added to: `predictions`, `clipped`, `without_area`, `empty`, `unreadable`.
    """
    identifiers = [entry.identifier for entry in read_class_list(predictions.class_list_text)]
    unreadable = {
        os.path.splitext(name)[0]: None for name in predictions.metadata.get("unreadable", ())
    }
    images = {image.image_id: image for image in predictions.images}
    for image_id in sorted(images.keys() | unreadable.keys()):
        image = images.get(image_id)
        if image is None:
            counts["unreadable"] += 1
            yield image_id, ""
            continue
        row = format_predictions(identifiers, image.labels, image.scores, image.boxes_normalized)
        counts["predictions"] += row.kept
        counts["clipped"] += row.clipped
        counts["without_area"] += row.without_area
        counts["empty"] += not row.text
        yield image_id, row.text


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command; returns its exit code: 0 done, 1 unusable input, 2 wrong arguments."""
    parser = argparse.ArgumentParser(
        prog="gen_sub.py",
        description="Write the submission CSV (ImageId,PredictionString) of a predictions file.",
    )
    parser.add_argument("predictions", metavar="PREDICTIONS", help="written by inference.py")
    parser.add_argument(
        "--out", metavar="FILE", help="default: PREDICTIONS with .csv as its ending"
    )
    parser.add_argument("-f", "--force", action="store_true", help="replace FILE where it exists")
    arguments = parser.parse_args(argv)
    source: str = arguments.predictions
    target: str = arguments.out or os.path.splitext(source)[0] + ".csv"
    if not is_file(source):
        parser.error(f"no file {source}: PREDICTIONS is what inference.py wrote")
    if target == source:
        parser.error(f"--out {target} is the predictions file itself; name another file")
    if is_file(target) and not arguments.force:
        parser.error(f"{target} exists; -f replaces it, --out names another file")
    try:
        with open_file(source, "rb") as file:
            predictions = read_predictions(file, source)
        counts: Counter[str] = Counter()
        rows = submission_rows(predictions, counts)
        num_images = _write(target, tqdm(rows, total=len(predictions.images), unit=" images"))
    except (PredictionsError, OSError) as error:
        print(f"gen_sub.py: {error}", file=sys.stderr)
        return 1
    print(f"{target}: {num_images} images, {counts['predictions']} predictions")
    for key, meaning in {
        "empty": "images without any prediction",
        "unreadable": "images that inference could not read; their rows are empty",
        "clipped": "predictions clipped to the image",
        "without_area": "predictions left out, without area inside the image",
    }.items():
        if counts[key]:
            print(f"  {counts[key]} {meaning}")
    return 0


def _write(target: str, rows: Iterable[tuple[str, str]]) -> int:
    """Writes the CSV under a temporary name beside its own, then renames it."""
    temporary = f"{target}.tmp"
    with open_file(temporary, "w") as file:
        count = write_submission(file, rows)
    replace_file(temporary, target)
    return count
