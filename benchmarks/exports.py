"""Compares a SavedModel with the LiteRT and ONNX files made from it: size, AP and images/s.

    exports.py final/bccd-256x320 converted/bccd/val_bccd f32.tflite f32.onnx int8.tflite

Each image of the split, on its canvas, goes through all of them in turn, so that other load on the
machine affects all alike; images/s are of the median time of one image, decoding not included.
"""

import argparse
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf
from tqdm import tqdm

from tpudet.detection.data.pipeline import eval_dataset
from tpudet.detection.evaluation.coco import coco_metrics
from tpudet.detection.evaluation.ground_truth import load_ground_truth
from tpudet.detection.evaluation.split_detections import SplitDetections
from tpudet.detection.inference.saved_detector import read_saved_detector
from tpudet.detection.types import Detections
from tpudet.trainkit.class_list import read_class_list
from tpudet.trainkit.records import find_shards

Run = Callable[[np.ndarray], dict[str, Any]]  # of a canvas [1, H, W, 3] uint8


def load_saved_model(path: str) -> Run:
    """The signature `canvas` of a SavedModel with normalized boxes."""
    model: Any = tf.saved_model.load(path)  # kept by `run`: it owns the variables

    def run(canvas: np.ndarray) -> dict[str, Any]:
        found = model.signatures["canvas"](input=tf.constant(canvas))
        return {name: value.numpy() for name, value in found.items()}

    return run


def load_litert(path: str, threads: int) -> Run:
    """A LiteRT file."""
    from ai_edge_litert.interpreter import Interpreter

    detect: Any = Interpreter(model_path=path, num_threads=threads).get_signature_runner()

    def run(canvas: np.ndarray) -> dict[str, Any]:
        return detect(input=canvas)

    return run


def load_onnx(path: str, threads: int) -> Run:
    """An ONNX file."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    session = onnxruntime.InferenceSession(path, options)
    names = [output.name for output in session.get_outputs()]

    def run(canvas: np.ndarray) -> dict[str, Any]:
        return dict(zip(names, session.run(None, {"input": canvas}), strict=True))

    return run


def size_megabytes(path: Path) -> float:
    """Of a file, or of all files of a folder."""
    files = [path] if path.is_file() else [one for one in path.rglob("*") if one.is_file()]
    return sum(file.stat().st_size for file in files) / 1e6


def main() -> None:
    """Prints a row for each."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("saved_model")
    parser.add_argument("split", help="FOLDER/SPLIT_PART of a prepared set")
    parser.add_argument("files", nargs="*")
    parser.add_argument("--threads", type=int, default=1)
    arguments = parser.parse_args()
    tf.config.threading.set_intra_op_parallelism_threads(arguments.threads)
    tf.config.threading.set_inter_op_parallelism_threads(1)
    runs = {arguments.saved_model: load_saved_model(arguments.saved_model)}
    for path in arguments.files:
        load = load_litert if path.endswith(".tflite") else load_onnx
        runs[path] = load(path, arguments.threads)
    saved = read_saved_detector(arguments.saved_model)
    names = [entry.name for entry in read_class_list(saved.class_list_text)]
    shards = find_shards(arguments.split)
    height, width = saved.metadata["canvas_size"]
    truth = load_ground_truth(shards, names)
    collected = {path: SplitDetections(truth, names) for path in runs}
    seconds: dict[str, list[float]] = {path: [] for path in runs}
    batches = eval_dataset(
        shards=shards, canvas_size=(height, width), batch_size=1, max_instances=1, class_names=names
    )
    for batch in tqdm(batches, total=len(truth.records)):
        canvas = batch.images.numpy()
        for path, run in runs.items():
            started = time.perf_counter()
            found = run(canvas)
            seconds[path].append(time.perf_counter() - started)
            detections = Detections(
                boxes=found["detection_boxes"]
                * np.array([height, width, height, width], np.float32),
                scores=found["detection_scores"],
                classes=found["detection_classes"],
                num_detections=found["num_detections"],
            )
            collected[path].add(batch, detections)
    for path in runs:
        metrics = coco_metrics(truth, collected[path].columns(), names)
        rate = 1 / statistics.median(seconds[path])
        print(
            f"{path}: {size_megabytes(Path(path)):.1f} MB, AP {metrics['AP']:.4f}, "
            f"AP50 {metrics['AP50']:.4f}, {rate:.1f} images/s"
        )


if __name__ == "__main__":
    main()
