"""Evaluates a whole split: predicts every image once, scores the detections, draws some images."""

import functools
import logging
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf
from tqdm import tqdm

from tpudet.detection.config import (
    CocoRulesConfig,
    ExperimentConfig,
    OpenImagesRulesConfig,
    RulesConfig,
)
from tpudet.detection.data.pipeline import eval_dataset
from tpudet.detection.evaluation.coco import (
    check_class_names,
    check_columns,
    coco_metrics,
    explain_missing,
)
from tpudet.detection.evaluation.drawing import draw_batch
from tpudet.detection.evaluation.ground_truth import GroundTruth, load_ground_truth
from tpudet.detection.evaluation.mask_jobs import NUM_WORKERS, PasteJob, paste_job
from tpudet.detection.evaluation.open_images.split import challenge_split
from tpudet.detection.ops.numpy_boxes import boxes_to_original
from tpudet.detection.ops.numpy_masks import Rle
from tpudet.detection.types import Batch, Detections, ImageDetections
from tpudet.trainkit.class_list import ClassEntry
from tpudet.trainkit.config.decode import ConfigError
from tpudet.trainkit.errors import listing
from tpudet.trainkit.files import storage
from tpudet.trainkit.jobs.worker_pool import run_jobs
from tpudet.trainkit.pages.drawing import encode_png, image_grid
from tpudet.trainkit.record_splits import find_split
from tpudet.trainkit.training.devices import Devices
from tpudet.trainkit.training.evaluator import Evaluation

logger = logging.getLogger(__name__)


class Rules(NamedTuple):
    """The evaluation rules of a split, as functions of all its detections."""

    score: Callable[[ImageDetections], dict[str, float]]  # boxes in pixels of the original images
    explain: Callable[[dict[str, float]], list[str]]  # says why metrics are -1


def build_rules(
    config: RulesConfig,
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


def build_evaluation(
    config: ExperimentConfig,
    *,
    predict: Callable[[Batch], Detections],
    classes: Sequence[ClassEntry],
    devices: Devices,
    image_path: str,
) -> "SplitEvaluation":
    """Builds the evaluation of `data.eval_split`; reads its ground truth at once.

    Args:
        config: the experiment.
        predict: from a replica's batch to its detections.
        classes: rows of classes.csv.
        devices: they share each batch.
        image_path: PNG file for the drawn images.

    Raises:
        ConfigError: the split is missing, unfinished or damaged, its classes are not `classes`, or
            a file of `evaluation.rules` is not usable.
    """
    data, schedule = config.data, config.evaluation.schedule
    class_names = [entry.name for entry in classes]
    split = find_split(data.directory, data.eval_split, class_names)
    try:
        with_masks = config.model.predicts_masks
        truth = load_ground_truth(split.shards, class_names, with_masks=with_masks)
        rules = build_rules(config.evaluation.rules, truth, classes)
    except (ValueError, OSError, tf.errors.OpError) as error:
        raise ConfigError(str(error)) from error
    return SplitEvaluation(
        predict=predict,
        devices=devices,
        dataset=eval_dataset(
            shards=split.shards,
            canvas_size=data.canvas_size,
            batch_size=math.ceil(schedule.batch_size / devices.num_processes),
            max_instances=data.max_instances,
            class_names=class_names,
            process_index=devices.process_index,
            process_count=devices.num_processes,
            num_records=sum(split.records_per_shard),
        ),
        truth=truth,
        class_names=class_names,
        rules=rules,
        num_images=schedule.num_images,
        image_path=image_path,
    )


class SplitEvaluation:
    """Evaluates a split, called with the step as often as wanted; compiled once.

    Args:
        predict: from a replica's batch to its detections.
        devices: they share each batch.
        dataset: of Batch, every image of the split once, fillers at the end. With several processes
            each has its part of the images.
        truth: ground truth of the same images.
        class_names: C names.
        rules: how detections are scored.
        num_images: how many images are drawn, the first of the split, by process 0.
        image_path: PNG file that each evaluation overwrites.
    """

    def __init__(
        self,
        *,
        predict: Callable[[Batch], Detections],
        devices: Devices,
        dataset: tf.data.Dataset,
        truth: GroundTruth,
        class_names: Sequence[str],
        rules: Rules,
        num_images: int,
        image_path: str,
    ):
        self._predict = predict
        self._devices = devices
        self._dataset = dataset
        self._truth = truth
        self._class_names = tuple(class_names)
        self._rules = rules
        self._num_images = num_images
        self._image_path = image_path

    def __call__(self, step: int) -> Evaluation:
        """Returns the metrics and the drawn images, which are also written to `image_path`."""
        collected = SplitDetections(self._truth, self._class_names)
        drawn: list[np.ndarray] = []
        # Masks are pasted by workers while the next batches are predicted.
        jobs = self._predict_all(collected, drawn)
        for number, masks in run_jobs(
            paste_job, jobs, workers=NUM_WORKERS, progress=lambda _: None
        ):
            collected.set_masks(number, masks)
        collected.share(self._devices.gather)
        metrics = self._rules.score(collected.columns())
        for line in self._rules.explain(metrics):
            logger.info("%s", line)
        if not self._num_images or self._devices.process_index > 0:
            return Evaluation(metrics, {})
        grid = image_grid(drawn[: self._num_images], columns=2)
        with storage.whole_file(self._image_path, "wb") as file:
            file.write(encode_png(grid))
        return Evaluation(metrics, {"detections": grid})

    def _predict_all(
        self, collected: "SplitDetections", drawn: list[np.ndarray]
    ) -> Iterator[PasteJob]:
        """Adds all detections to `collected`, and images to `drawn`; yields the masks to paste."""
        with tqdm(
            total=len(self._truth.records), desc="evaluating", unit="image", disable=None
        ) as bar:
            for batch, detections in self._devices.predict_batches(self._predict, self._dataset):
                job = collected.add(batch, detections)
                bar.update(int((batch.records >= 0).sum()))
                if len(drawn) < self._num_images:
                    drawn += draw_batch(batch, detections, self._class_names, self._truth)
                if job is not None:
                    yield job


class SplitDetections:
    """Collects the detections of a split batch by batch, to score them together.

    Only valid detections are kept, as columns of numbers: 28 bytes each, and some 600 more for the
    run lengths of a mask.
    """

    def __init__(self, truth: GroundTruth, class_names: Sequence[str]):
        check_class_names(class_names)
        self.truth = truth
        self.class_names = tuple(class_names)
        self._index_of_record = {int(record): i for i, record in enumerate(truth.records)}
        self._seen = np.zeros(len(truth.records), bool)
        self._columns: list[ImageDetections] = []
        self._masks: dict[int, list[Rle]] = {}  # by place in `_columns`

    def add(self, batch: Batch, detections: Detections) -> PasteJob | None:
        """Adds the detections of one batch; fillers (record -1) are skipped.

        Returns:
            The masks that have to be pasted into their images, for `set_masks`; None if the
            detections have none.

        Raises:
            ValueError: a record that is not in the ground truth, one that was added before, one
                whose image has another size than in the ground truth, or a detection that is not
                finite or of an unknown class.
        """
        records, sizes = np.asarray(batch.records), np.asarray(batch.original_sizes)
        scores, classes, num_detections = map(
            np.asarray, (detections.scores, detections.classes, detections.num_detections)
        )
        is_real = records >= 0
        indices = self._mark_seen(records[is_real], sizes[is_real])
        boxes = boxes_to_original(
            np.asarray(detections.boxes),
            scales=np.asarray(batch.scales),
            offsets=np.asarray(batch.offsets),
            sizes=sizes,
        )
        is_valid = np.arange(scores.shape[1]) < num_detections[is_real, None]
        rows = np.repeat(indices, is_valid.sum(axis=1))
        columns = ImageDetections(
            image_indices=rows,
            boxes=boxes[is_real][is_valid].astype(np.float32),
            scores=scores[is_real][is_valid].astype(np.float32),
            classes=classes[is_real][is_valid].astype(np.int32),
        )
        check_columns(
            "detections", columns, num_images=len(self._seen), num_classes=len(self.class_names)
        )
        self._columns.append(columns)
        if detections.masks is None:
            return None
        return PasteJob(
            number=len(self._columns) - 1,
            masks=np.asarray(detections.masks)[is_real][is_valid].astype(np.float32),
            boxes=columns.boxes,
            sizes=np.round(self.truth.sizes[rows]).astype(int),
        )

    def set_masks(self, number: int, masks: list[Rle]) -> None:
        """Adds the pasted masks of the job of this number."""
        self._masks[number] = masks

    def share(self, gather: Callable[[Any], list[Any]]) -> None:
        """Adds what the other processes have added, so that all hold the same.

        Args:
            gather: returns the values of all processes; every process calls it.

        Raises:
            ValueError: an image was added by several processes.
        """
        parts = gather((self._seen, self._columns, self._masks))
        times = np.sum([seen for seen, _, _ in parts], axis=0)
        if (times > 1).any():
            twice = self.truth.records[times > 1]
            raise ValueError(f"records {listing(twice)} were evaluated by several processes")
        self._seen, self._columns, self._masks = times > 0, [], {}
        for _, columns, masks in parts:
            first = len(self._columns)
            self._masks |= {first + place: rles for place, rles in masks.items()}
            self._columns += columns

    def columns(self) -> ImageDetections:
        """Returns everything that was added.

        Raises:
            ValueError: an image of the split was never added.
        """
        unseen = self.truth.records[~self._seen]
        if len(unseen):
            raise ValueError(
                f"{len(unseen)} of {len(self._seen)} images of the split were never evaluated "
                f"(records {listing(unseen)}); the AP of a part of the split would mislead, so "
                "feed every image once, the last partial batch included"
            )
        columns, masks = self._columns, self._masks
        return ImageDetections(
            image_indices=np.concatenate([c.image_indices for c in columns]),
            boxes=np.concatenate([c.boxes for c in columns]),
            scores=np.concatenate([c.scores for c in columns]),
            classes=np.concatenate([c.classes for c in columns]),
            masks=[m for place in sorted(masks) for m in masks[place]] if masks else None,
        )

    def _mark_seen(self, records: np.ndarray, sizes: np.ndarray) -> np.ndarray:
        """Marks images as seen and returns their rows in the ground truth, [number of records]."""
        unknown = [int(r) for r in records if int(r) not in self._index_of_record]
        if unknown:
            raise ValueError(
                f"records {listing(unknown)} are not in the ground truth of {len(self._seen)} "
                "images: detections and ground truth come from different files"
            )
        indices = np.array([self._index_of_record[int(r)] for r in records], np.int32)
        unique, times = np.unique(indices, return_counts=True)
        twice = set(unique[times > 1]) | set(indices[self._seen[indices]])
        if twice:
            raise ValueError(
                f"records {listing(self.truth.records[sorted(twice)])} were evaluated twice"
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
