"""Evaluates a whole split: predicts every image once, scores them, draws some of them."""

import functools
import logging
from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeVar

import numpy as np
import tensorflow as tf
from tqdm import tqdm

from tpudet.detection.config import CocoRulesConfig, OpenImagesRulesConfig
from tpudet.detection.evaluation.coco import (
    boxes_to_original,
    check_class_names,
    check_columns,
    coco_metrics,
    explain_missing,
)
from tpudet.detection.evaluation.ground_truth import GroundTruth, name_some
from tpudet.detection.evaluation.open_images.split import challenge_split
from tpudet.detection.types import Batch, Detections, ImageDetections
from tpudet.trainkit.class_list import ClassEntry
from tpudet.trainkit.files import storage
from tpudet.trainkit.pages.drawing import draw_comparison, encode_png, image_grid

# Below this score a detection is left out of the pictures; the metrics take all.
PICTURE_MIN_SCORE = 0.3

Fields = TypeVar("Fields", Batch, Detections)

logger = logging.getLogger(__name__)


class Rules(NamedTuple):
    """What is measured: functions of the detections of a whole split."""

    score: Callable[[ImageDetections], dict[str, float]]  # boxes in pixels of the pictures
    explain: Callable[[dict[str, float]], list[str]]  # says why metrics are -1


def build_rules(
    config: CocoRulesConfig | OpenImagesRulesConfig,
    truth: GroundTruth,
    classes: Sequence[ClassEntry],
) -> Rules:
    """Prepares the rules for a split.

    Raises:
        ValueError: a file that the config names is not usable.
        OSError: it cannot be opened.
    """
    match config:
        case CocoRulesConfig():
            names = [entry.name for entry in classes]
            return Rules(
                functools.partial(coco_metrics, truth, class_names=names),
                functools.partial(explain_missing, truth=truth),
            )
        case OpenImagesRulesConfig():
            challenge = challenge_split(
                truth, classes, hierarchy=config.hierarchy, image_labels=config.image_labels
            )
            return Rules(challenge.metrics, challenge.explanations)


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
        rules: Rules,
        num_images: int,
        picture_path: str,
    ):
        """Takes the parts.

        Args:
            predict: a replica's batch to its detections.
            strategy: whose replicas share each batch.
            dataset: of Batch, every image of the split once, fillers at the end.
            truth: ground truth of the same images.
            class_names: C names.
            rules: what is measured.
            num_images: how many images are drawn, the first of the split.
            picture_path: PNG file that is written anew at each evaluation.
        """
        self._strategy = strategy
        self._dataset = strategy.experimental_distribute_dataset(dataset)
        self._truth = truth
        self._class_names = tuple(class_names)
        self._rules = rules
        self._num_images = num_images
        self._picture_path = picture_path
        self._predict = tf.function(lambda batch: strategy.run(predict, (batch,)), autograph=False)

    def __call__(self, step: int) -> dict[str, float]:
        """Returns the metrics; `step` is the title of the pictures."""
        collected = SplitDetections(self._truth, self._class_names)
        pictures: list[np.ndarray] = []
        with tqdm(
            total=len(self._truth.records), desc="evaluating", unit="image", disable=None
        ) as bar:
            for replica_batches in self._dataset:
                batch = self._gather(Batch, replica_batches)
                detections = self._gather(Detections, self._predict(replica_batches))
                collected.add(batch, detections)
                bar.update(int((batch.records >= 0).sum()))
                if len(pictures) < self._num_images:
                    pictures += draw_batch(batch, detections, self._class_names)
        metrics = self._rules.score(collected.columns())
        for line in self._rules.explain(metrics):
            logger.info("%s", line)
        if self._num_images:
            self._publish(image_grid(pictures[: self._num_images], columns=2), step)
        return metrics

    def _gather(self, cls: type[Fields], replicas: Fields) -> Fields:
        """Joins the replicas' parts of every field along the batch, as NumPy arrays."""
        local = (self._strategy.experimental_local_results(field) for field in replicas)
        return cls(*(np.concatenate([part.numpy() for part in parts]) for parts in local))

    def _publish(self, grid: np.ndarray, step: int) -> None:
        tf.summary.image("detections", grid[None], step=step)
        temporary = f"{self._picture_path}.tmp"
        if storage.exists(temporary):  # left by a kill; ram:// would append to it
            storage.remove(temporary)
        with storage.open_file(temporary, "wb") as file:
            file.write(encode_png(grid))
        storage.rename(temporary, self._picture_path)


class SplitDetections:
    """Collects the detections of a split batch by batch, to be scored once.

    Only valid detections are kept, as columns of numbers: 28 bytes each.
    """

    def __init__(self, truth: GroundTruth, class_names: Sequence[str]):
        check_class_names(class_names)
        self.truth = truth
        self.class_names = tuple(class_names)
        self._index_of_record = {int(record): i for i, record in enumerate(truth.records)}
        self._seen = np.zeros(len(truth.records), bool)
        self._columns: list[ImageDetections] = []

    def add(self, batch: Batch, detections: Detections) -> None:
        """Takes in the detections of one batch; fillers (record -1) are passed over.

        Raises:
            ValueError: a record that is not in the ground truth, one that was added before, one
                whose picture has another size than the ground truth says, or a detection that
                is not finite or of an unknown class.
        """
        records, sizes = np.asarray(batch.records), np.asarray(batch.original_sizes)
        boxes, scores, classes, num_detections = map(np.asarray, detections)
        is_real = records >= 0
        indices = self._enter(records[is_real], sizes[is_real])
        boxes = boxes_to_original(boxes, np.asarray(batch.scales), np.asarray(batch.offsets), sizes)
        is_valid = np.arange(scores.shape[1]) < num_detections[is_real, None]
        columns = ImageDetections(
            image_indices=np.repeat(indices, is_valid.sum(axis=1)),
            boxes=boxes[is_real][is_valid].astype(np.float32),
            scores=scores[is_real][is_valid].astype(np.float32),
            classes=classes[is_real][is_valid].astype(np.int32),
        )
        check_columns(
            "detections", columns, num_images=len(self._seen), num_classes=len(self.class_names)
        )
        self._columns.append(columns)

    def columns(self) -> ImageDetections:
        """Returns everything added.

        Raises:
            ValueError: an image of the split was never added.
        """
        unseen = self.truth.records[~self._seen]
        if len(unseen):
            raise ValueError(
                f"{len(unseen)} of {len(self._seen)} images of the split were never evaluated "
                f"(records {name_some(unseen)}); the AP of a part of the split would mislead, so "
                "feed every image once, the last partial batch included"
            )
        return ImageDetections(*(np.concatenate(c) for c in zip(*self._columns, strict=True)))

    def _enter(self, records: np.ndarray, sizes: np.ndarray) -> np.ndarray:
        """Marks images as seen and returns their rows in the ground truth, [number of records]."""
        unknown = [int(r) for r in records if int(r) not in self._index_of_record]
        if unknown:
            raise ValueError(
                f"records {name_some(unknown)} are not in the ground truth of {len(self._seen)} "
                "images: detections and ground truth come from different files"
            )
        indices = np.array([self._index_of_record[int(r)] for r in records], np.int32)
        unique, times = np.unique(indices, return_counts=True)
        twice = set(unique[times > 1]) | set(indices[self._seen[indices]])
        if twice:
            raise ValueError(
                f"records {name_some(self.truth.records[sorted(twice)])} were evaluated twice"
            )
        differs = np.abs(self.truth.sizes[indices] - sizes).max(axis=1, initial=0) > 0.5
        if differs.any():
            i = int(np.argmax(differs))
            raise ValueError(
                f"record {records[i]} is {sizes[i]} px high and wide when decoded, but its ground "
                f"truth says {self.truth.sizes[indices[i]]}: write the TFRecord files again"
            )
        self._seen[indices] = True
        return indices


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
