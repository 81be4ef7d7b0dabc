"""Evaluates a whole split: predicts every image once, scores them, draws some of them."""

import logging
from collections.abc import Callable, Sequence
from typing import TypeVar

import numpy as np
import tensorflow as tf
from tqdm import tqdm

from detection.drawing import draw_comparison, encode_png, image_grid
from detection.evaluation.coco import CocoEvaluation
from detection.evaluation.ground_truth import GroundTruth
from detection.types import Batch, Detections

# Below this score a detection is left out of the pictures; the metrics take all.
PICTURE_MIN_SCORE = 0.3

Fields = TypeVar("Fields", Batch, Detections)

logger = logging.getLogger(__name__)


class SplitEvaluation:
    """A function from the step to the metrics that is traced once and called many times."""

    def __init__(
        self,
        *,
        predict: Callable[[Batch], Detections],
        strategy: tf.distribute.Strategy,
        dataset: tf.data.Dataset,
        truth: GroundTruth,
        class_names: Sequence[str],
        num_pictures: int,
        picture_path: str,
    ):
        """Takes the parts.

        Args:
            predict: a replica's batch to its detections.
            strategy: whose replicas share each batch.
            dataset: of Batch, every image of the split once, fillers at the end.
            truth: ground truth of the same images.
            class_names: C names.
            num_pictures: how many images are drawn, the first of the split.
            picture_path: PNG file that is written anew at each evaluation.
        """
        self._strategy = strategy
        self._dataset = strategy.experimental_distribute_dataset(dataset)
        self._truth = truth
        self._class_names = tuple(class_names)
        self._num_pictures = num_pictures
        self._picture_path = picture_path
        self._predict = tf.function(lambda batch: strategy.run(predict, (batch,)), autograph=False)

    def __call__(self, step: int) -> dict[str, float]:
        """Returns the metrics of `coco_metrics`; `step` is the title of the pictures."""
        evaluation = CocoEvaluation(self._truth, self._class_names)
        pictures: list[np.ndarray] = []
        with tqdm(
            total=len(self._truth.records), desc="evaluating", unit="image", disable=None
        ) as bar:
            for replica_batches in self._dataset:
                batch = self._gather(Batch, replica_batches)
                detections = self._gather(Detections, self._predict(replica_batches))
                evaluation.add(batch, detections)
                bar.update(int((batch.records >= 0).sum()))
                if len(pictures) < self._num_pictures:
                    pictures += draw_batch(batch, detections, self._class_names)
        metrics = evaluation.result()
        for line in evaluation.explanations(metrics):
            logger.info("%s", line)
        if self._num_pictures:
            self._publish(image_grid(pictures[: self._num_pictures], columns=2), step)
        return metrics

    def _gather(self, cls: type[Fields], replicas: Fields) -> Fields:
        """Joins the replicas' parts of every field along the batch, as NumPy arrays."""
        local = (self._strategy.experimental_local_results(field) for field in replicas)
        return cls(*(np.concatenate([part.numpy() for part in parts]) for parts in local))

    def _publish(self, grid: np.ndarray, step: int) -> None:
        tf.summary.image("detections", grid[None], step=step)
        temporary = f"{self._picture_path}.tmp"
        if tf.io.gfile.exists(temporary):  # left by a kill; ram:// would append to it
            tf.io.gfile.remove(temporary)
        with tf.io.gfile.GFile(temporary, "wb") as file:
            file.write(encode_png(grid))
        tf.io.gfile.rename(temporary, self._picture_path, overwrite=True)


def draw_batch(
    batch: Batch, detections: Detections, class_names: Sequence[str]
) -> list[np.ndarray]:
    """Draws ground truth beside detections for every image of a batch; fillers are left out."""
    pictures = []
    for i in np.flatnonzero(batch.records >= 0):
        size = batch.original_sizes[i] * batch.scales[i] - batch.offsets[i]
        height, width = np.minimum(np.round(size).astype(int), batch.images.shape[1:3])
        pictures.append(
            draw_comparison(
                batch.images[i, :height, :width],
                truth_boxes=batch.boxes[i],
                truth_classes=batch.classes[i],
                boxes=detections.boxes[i],
                scores=detections.scores[i],
                classes=detections.classes[i],
                class_names=class_names,
                min_score=PICTURE_MIN_SCORE,
                title=f"record {batch.records[i]}",
            )
        )
    return pictures
