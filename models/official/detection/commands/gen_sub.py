"""The command `gen_sub.py`: a predictions file -> a submission CSV."""

import argparse
import os
import sys
from collections import Counter
from collections.abc import Iterator, Sequence

import numpy as np
from tqdm import tqdm

from tpudet.detection.inference.predictions_file import (
    Predictions,
    PredictionsError,
    read_predictions,
)
from tpudet.detection.submission.ancestors import AncestorTable, ancestor_table
from tpudet.detection.submission.files import SubmissionError
from tpudet.detection.submission.hierarchy import Hierarchy
from tpudet.detection.submission.labels import read_class_file, read_hierarchy_file
from tpudet.detection.submission.open_images_csv import format_predictions, write_submission
from tpudet.trainkit.class_list import ClassEntry, class_ids, read_class_list
from tpudet.trainkit.files.storage import is_file, open_file, whole_file

_EPILOG = """\
examples: gen_sub.py predictions/retinanet-part_0-640.parquet
          gen_sub.py p.parquet --out sub.csv --hierarchy challenge-2019-label500-hierarchy.json

exit codes: 0 done, 1 unusable predictions, 2 wrong arguments
"""
_SUMMARY = {
    "added": "of them ancestors of others",
    "empty": "images without any prediction",
    "unreadable": "images that inference could not read; their rows are empty",
    "clipped": "predictions clipped to the image",
    "without_area": "predictions left out, without area inside the image",
    "other_classes": "predictions left out, of classes that --classes lacks",
}


def submission_rows(
    predictions: Predictions,
    counts: Counter[str],
    *,
    identifiers: Sequence[str],
    ancestors: AncestorTable | None = None,
) -> Iterator[tuple[str, str]]:
    """Yields (image id, prediction string) by rising image id, every image once.

    Images that could not be read have an empty string, for a submission must name every image.

    Args:
        predictions: what was predicted.
        counts: is added to: `predictions` and the keys of the summary.
        identifiers: the label of each class, empty for a class that is left out.
        ancestors: a table that begins with the identifiers which are not empty; None: none are
            added.
    """
    kept = [identifier for identifier in identifiers if identifier]
    is_kept = np.array([False, *map(bool, identifiers)])
    numbers = np.cumsum(is_kept)  # from classes to rows of `kept`, both from 1
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
        chosen = is_kept[image.labels]
        row = format_predictions(
            kept,
            numbers[image.labels[chosen]],
            image.scores[chosen],
            image.boxes_normalized[chosen],
            ancestors,
        )
        counts["predictions"] += row.kept
        counts["added"] += row.kept + row.without_area - int(chosen.sum())
        counts["clipped"] += row.clipped
        counts["without_area"] += row.without_area
        counts["other_classes"] += len(chosen) - int(chosen.sum())
        counts["empty"] += not row.text
        yield image_id, row.text


def wanted_identifiers(
    predicted: Sequence[ClassEntry], wanted: Sequence[ClassEntry]
) -> tuple[str, ...]:
    """The identifier in `wanted` of each predicted class, empty where it is not there.

    A class is found by its identifier, or else by its name, so that a detector of `cat` can be
    given the MIDs of a class list.

    Raises:
        SubmissionError: no class is found, or two are the same one.
    """
    ids = class_ids(wanted)
    places = [ids.get(entry.identifier, ids.get(entry.name, 0)) for entry in predicted]
    for i, place in enumerate(places):
        if place and place in places[:i]:
            pair = (predicted[places.index(place)], predicted[i])
            both = " and ".join(f"{entry.identifier} ({entry.name})" for entry in pair)
            raise SubmissionError(f"{both} are both its {wanted[place - 1].identifier}")
    if not any(places):
        raise SubmissionError(
            f"none of the predicted classes is in it, neither {predicted[0].identifier} nor "
            f"{predicted[0].name}, to begin with"
        )
    return tuple(wanted[place - 1].identifier if place else "" for place in places)


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command; returns its exit code: 0 done, 1 unusable input, 2 wrong arguments."""
    parser = _parser()
    arguments = parser.parse_args(argv)
    source: str = arguments.predictions
    target: str = arguments.out or os.path.splitext(source)[0] + ".csv"
    if not is_file(source):
        parser.error(f"no file {source}: PREDICTIONS is what inference.py wrote")
    if target == source:
        parser.error(f"--out {target} is the predictions file itself; name another file")
    if is_file(target) and not arguments.force:
        parser.error(f"{target} exists; -f replaces it, --out names another file")
    counts: Counter[str] = Counter()
    try:
        wanted = read_class_file(arguments.classes) if arguments.classes else None
        hierarchy = read_hierarchy_file(arguments.hierarchy) if arguments.hierarchy else None
    except (SubmissionError, OSError) as error:
        parser.error(str(error))
    try:
        num_images = _generate(target, source, wanted, hierarchy, counts)
    except SubmissionError as error:
        parser.error(f"--classes {arguments.classes}: {error}")
    except (PredictionsError, OSError) as error:
        print(f"gen_sub.py: {error}", file=sys.stderr)
        return 1
    print(f"{target}: {num_images} images, {counts['predictions']} predictions")
    for key, meaning in _SUMMARY.items():
        if counts[key]:
            print(f"  {counts[key]} {meaning}")
    return 0


def _generate(
    target: str,
    source: str,
    wanted: Sequence[ClassEntry] | None,
    hierarchy: Hierarchy | None,
    counts: Counter[str],
) -> int:
    """Writes the CSV whole or not at all; returns the number of images."""
    with open_file(source, "rb") as file:
        predictions = read_predictions(file, source)
    predicted = read_class_list(predictions.class_list_text)
    identifiers = tuple(entry.identifier for entry in predicted)
    if wanted is not None:
        identifiers = wanted_identifiers(predicted, wanted)
    ancestors = ancestor_table(hierarchy, list(filter(None, identifiers))) if hierarchy else None
    rows = submission_rows(predictions, counts, identifiers=identifiers, ancestors=ancestors)
    with whole_file(target, "w") as file:
        return write_submission(file, tqdm(rows, total=len(predictions.images), unit=" images"))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="gen_sub.py",
        description="Write the submission CSV (ImageId,PredictionString) of a predictions file.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("predictions", metavar="PREDICTIONS", help="written by inference.py")
    parser.add_argument(
        "--out", metavar="FILE", help="default: PREDICTIONS with .csv as its ending"
    )
    parser.add_argument(
        "--classes",
        metavar="CSV",
        help="a class list: only its classes are written, with its identifiers; those of the "
        "predictions are found in it by identifier or else by name (default: all, as predicted)",
    )
    parser.add_argument(
        "--hierarchy",
        metavar="JSON",
        help="a class hierarchy: each prediction is repeated for its ancestors, each box of a "
        "label once, with the best score (default: none are added)",
    )
    parser.add_argument("-f", "--force", action="store_true", help="replace FILE where it exists")
    return parser


if __name__ == "__main__":
    sys.exit(main())
