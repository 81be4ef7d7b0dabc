"""Evaluates a whole split: predicts every image once, scores the detections, draws some images."""

import functools
import logging
import math
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
import tensorflow as tf
from tqdm import tqdm

from tpudet.detection.config import (
    CocoRulesConfig,
    ExperimentConfig,
    OpenImagesRulesConfig,
    RulesConfig,
)
from tpudet.detection.data.foreign_records import check_foreign_records
from tpudet.detection.data.pipeline import eval_dataset
from tpudet.detection.data.resize import build_resize
from tpudet.detection.evaluation.class_scores import ClassScores
from tpudet.detection.evaluation.class_table import format_class_table
from tpudet.detection.evaluation.coco import (
    coco_class_scores,
    coco_metrics,
    explain_missing,
)
from tpudet.detection.evaluation.drawing import draw_batch
from tpudet.detection.evaluation.ground_truth import GroundTruth, load_ground_truth
from tpudet.detection.evaluation.mask_jobs import NUM_WORKERS, PasteJob, paste_job
from tpudet.detection.evaluation.open_images.split import challenge_split
from tpudet.detection.evaluation.results import EvaluatedSplit, collect_results
from tpudet.detection.evaluation.split_detections import SplitDetections
from tpudet.detection.types import Batch, Detections, DetectionTable
from tpudet.trainkit.class_list import ClassEntry
from tpudet.trainkit.config.decode import ConfigError
from tpudet.trainkit.files import storage
from tpudet.trainkit.input_errors import check_of_pipeline
from tpudet.trainkit.jobs.worker_pool import run_jobs
from tpudet.trainkit.pages.drawing import encode_png, image_grid
from tpudet.trainkit.record_splits import find_split
from tpudet.trainkit.training.devices import Devices
from tpudet.trainkit.training.evaluator import Evaluation

logger = logging.getLogger(__name__)


class Rules(NamedTuple):
    """The evaluation rules of a split, as functions of all its detections."""

    score: Callable[[DetectionTable], dict[str, float]]  # boxes in pixels of the original images
    explain: Callable[[dict[str, float]], list[str]]  # says why metrics are -1
    score_classes: Callable[[DetectionTable], ClassScores]


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
                functools.partial(coco_class_scores, truth, num_classes=len(names)),
            )
        case OpenImagesRulesConfig():
            challenge = challenge_split(
                truth, classes, hierarchy=config.hierarchy, image_labels=config.image_labels
            )
            return Rules(challenge.metrics, challenge.explanations, challenge.class_scores)


def build_evaluation(
    config: ExperimentConfig,
    *,
    predict: Callable[[Batch], Detections],
    classes: Sequence[ClassEntry],
    devices: Devices,
    image_path: str,
    report: Callable[[EvaluatedSplit], None],
) -> "SplitEvaluation":
    """Builds the evaluation of `data.eval_split`; reads its ground truth at once.

    Args:
        config: the experiment.
        predict: from a replica's batch to its detections.
        classes: rows of classes.csv.
        devices: they share each batch.
        image_path: PNG file for the drawn images.
        report: called by process 0 with the results of each evaluation.

    Raises:
        ConfigError: the split is missing, unfinished or damaged, its classes are not `classes`, or
            a file of `evaluation.rules` is not usable.
    """
    data, schedule = config.data, config.evaluation.schedule
    class_names = [entry.name for entry in classes]
    split = find_split(data.directory, data.eval_split, class_names)
    try:
        check_foreign_records(split, classes, data.eval_split)
        with_masks = config.model.predicts_masks
        truth = load_ground_truth(split.shards, class_names, with_masks=with_masks)
        rules = build_rules(config.evaluation.rules, truth, classes)
    except (ValueError, OSError, tf.errors.OpError) as error:
        said = check_of_pipeline(error) or str(error)
        raise ConfigError(said) from error
    return SplitEvaluation(
        predict=predict,
        devices=devices,
        dataset=eval_dataset(
            shards=split.shards,
            canvas_size=data.canvas_size,
            resize=build_resize(data.resize),
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
        split=data.eval_split,
        report=report,
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
        split: its name.
        report: called by process 0 with the results of each evaluation.
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
        split: str,
        report: Callable[[EvaluatedSplit], None],
    ):
        self._predict = predict
        self._devices = devices
        self._dataset = dataset
        self._truth = truth
        self._class_names = tuple(class_names)
        self._rules = rules
        self._num_images = num_images
        self._image_path = image_path
        self._split = split
        self._report = report

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
        columns = collected.columns()
        metrics = self._rules.score(columns)
        for line in self._rules.explain(metrics):
            logger.info("%s", line)
        if self._devices.process_index > 0:
            return Evaluation(metrics, {})
        grid = self._write_images(drawn)
        results = collect_results(
            self._truth,
            columns,
            split=self._split,
            step=step,
            metrics=metrics,
            scores=self._rules.score_classes(columns),
            class_names=self._class_names,
            images=grid,
        )
        logger.info("Classes of %s:\n%s", self._split, format_class_table(results.rows))
        self._report(results)
        return Evaluation(metrics, {} if grid is None else {"detections": grid})

    def _write_images(self, drawn: Sequence[np.ndarray]) -> np.ndarray | None:
        """Writes the drawn images as one PNG and returns it; None if none are wanted."""
        if not self._num_images:
            return None
        grid = image_grid(drawn[: self._num_images], columns=2)
        with storage.whole_file(self._image_path, "wb") as file:
            file.write(encode_png(grid))
        return grid

    def _predict_all(
        self, collected: SplitDetections, drawn: list[np.ndarray]
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
