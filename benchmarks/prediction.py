"""Compares `tpudet predict`, from image files to the predictions file, with the network alone.

    prediction.py final/bccd-256x320 BCCD/JPEGImages --precision bfloat16

The network alone, suppression included, gets the same images on their canvases, in memory, as many
a call; both take turns. Starting TensorFlow and loading the model are not counted. Processor time
is that of all threads: other load on the machine changes it little.
"""

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext

import tensorflow as tf

from tpudet.detection.inference.parts import PredictionTask, finish_task, write_whole
from tpudet.detection.inference.saved_detector import Detector, load_detector, read_saved_detector
from tpudet.detection.inference.stream import predict_parts
from tpudet.trainkit.cpu import bfloat16_convolutions
from tpudet.trainkit.files.claims import Claim
from tpudet.trainkit.image_folder import ImageFile, list_images
from tpudet.trainkit.images.canvas import decode_to_canvas
from tpudet.trainkit.images.standardize import standardize
from tpudet.trainkit.saved_model import SavedModel, load_saved_model


def main(argv: Sequence[str] | None = None) -> None:
    """Runs the command."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("saved_model")
    parser.add_argument("images", help="folder")
    parser.add_argument("--precision", choices=["float32", "bfloat16"], default="float32")
    parser.add_argument("--batch_size", type=int, default=8)
    parser.add_argument("--workers", type=int, default=8, help="reading threads")
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args(argv)
    saved = read_saved_detector(arguments.saved_model)
    images = list_images(arguments.images, None)
    with bfloat16_convolutions() if arguments.precision == "bfloat16" else nullcontext():
        detect, detect_canvases = (
            load_detector(saved),
            load_network(saved, images, arguments.batch_size),
        )
        detect([tf.io.read_file(image.path).numpy() for image in images[: arguments.batch_size]])
        detect_canvases()
        alone, whole = [], []
        for _ in range(arguments.rounds):
            alone.append(seconds(detect_canvases))
            whole.append(
                seconds(
                    lambda: predict_folder(
                        saved, images, detect, arguments.batch_size, arguments.workers
                    )
                )
            )
    print(f"{len(images)} images, {arguments.precision}, median of {arguments.rounds} rounds")
    for kind, place in (("processor", 0), ("wall", 1)):
        network, prediction = (
            statistics.median(row[place] for row in rows) for rows in (alone, whole)
        )
        print(
            f"{kind} ms an image: network {1000 * network / len(images):.1f}, from file to file "
            f"{1000 * prediction / len(images):.1f}; ratio {network / prediction:.3f}"
        )


def load_network(
    saved: SavedModel, images: Sequence[ImageFile], batch_size: int
) -> Callable[[], None]:
    """Returns a function that detects in the images, which are on their canvases already."""
    model = load_saved_model(saved)
    height, width = saved.metadata["canvas_size"]
    canvases = [
        tf.stack([canvas_of(image, height, width) for image in images[start : start + batch_size]])
        for start in range(0, len(images), batch_size)
    ]

    def detect() -> None:
        for batch in canvases:
            model.signatures["canvas"](input=batch)["detection_scores"].numpy()

    return detect


def canvas_of(image: ImageFile, height: int, width: int) -> tf.Tensor:
    """The image as the exported model sees it, [H, W, 3] uint8."""
    with open(image.path, "rb") as file:
        encoded = standardize(file.read()).encoded
    return decode_to_canvas(tf.constant(encoded), height, width).image


def predict_folder(
    saved: SavedModel, images: Sequence[ImageFile], detect: Detector, batch_size: int, workers: int
) -> None:
    """Writes a predictions file of the images, as `tpudet predict` does."""
    with tempfile.TemporaryDirectory() as folder:
        path = f"{folder}/predictions.parquet"
        task = PredictionTask(saved, images, path)
        tf.io.gfile.makedirs(task.parts_directory)
        with Claim(f"{path}.claim.json", output=path) as claim:
            predict_parts(
                task.parts(),
                detect,
                batch_size=batch_size,
                workers=workers,
                on_progress=lambda _: None,
                write=lambda part: write_whole(
                    part.path,
                    [part.predictions],
                    saved,
                    {"key": task.key(), "unreadable": part.unreadable},
                    claim.ticket,
                ),
            )
            finish_task(task, claim.ticket)


def seconds(run: Callable[[], None]) -> tuple[float, float]:
    """Processor and wall seconds of a call."""
    start = time.process_time(), time.perf_counter()
    run()
    return time.process_time() - start[0], time.perf_counter() - start[1]


if __name__ == "__main__":
    main()
