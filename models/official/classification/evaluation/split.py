"""Evaluates a whole split: predicts every image once and scores the predictions."""

import logging
import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import tensorflow as tf
from tqdm import tqdm

from tpudet.classification.config import ExperimentConfig
from tpudet.classification.data.pipeline import eval_dataset
from tpudet.classification.data.splits import find_joined_split
from tpudet.classification.evaluation.draw import Mistake, draw_mistakes
from tpudet.classification.evaluation.metrics import (
    FEW_CLASSES,
    class_table,
    confusion_matrix,
    is_wrong,
    multi_label_class_table,
    multi_label_metrics,
    single_label_metrics,
)
from tpudet.classification.evaluation.report import EvaluatedSplit
from tpudet.classification.modeling.config import SigmoidLossConfig, SoftmaxLossConfig
from tpudet.classification.types import Batch, Predictions
from tpudet.trainkit.class_list import ClassEntry
from tpudet.trainkit.config.yaml_tree import ConfigError
from tpudet.trainkit.errors import UserError
from tpudet.trainkit.training.devices import Devices
from tpudet.trainkit.training.evaluator import Evaluation

_NUM_DRAWN = 16  # mistakes

logger = logging.getLogger(__name__)


class SplitPredictions(NamedTuple):
    """The predictions for the n images of a split, in file order."""

    probabilities: np.ndarray  # [n, C] float32
    targets: np.ndarray  # [n, C] float32
    mistakes: list[Mistake]  # the surest of this process


class SplitEvaluation:
    """Evaluates a split, called with the step as often as wanted; compiled once.

    Args:
        predict: from a replica's batch to its predictions.
        devices: they share each batch.
        dataset: of Batch, every image once, fillers at the end. With several processes each has its
            part of the images.
        shards: paths of the files that it reads.
        num_images: of all processes.
        loss: of the model; a sigmoid's images may be of several classes.
        split: its name.
        class_names: C names.
        report: called by process 0 with the results of each evaluation.
    """

    def __init__(
        self,
        *,
        predict: Callable[[Batch], Predictions],
        devices: Devices,
        dataset: tf.data.Dataset,
        shards: Sequence[str],
        num_images: int,
        loss: SoftmaxLossConfig | SigmoidLossConfig,
        split: str,
        class_names: Sequence[str],
        report: Callable[[EvaluatedSplit], None],
    ):
        self._predict = predict
        self._devices = devices
        self._dataset = dataset
        self.shards = shards
        self._num_images = num_images
        self._loss = loss
        self._is_single = not isinstance(loss, SigmoidLossConfig)
        self._split = split
        self._class_names = tuple(class_names)
        self._report = report

    def __call__(self, step: int) -> Evaluation:
        """Returns the metrics and the surest mistakes; process 0 draws those of its own images."""
        found = self._in_numbers(self.predictions())
        metrics = self.score(found)
        if self._devices.process_index > 0:
            return Evaluation(metrics, {})
        images = draw_mistakes(found.mistakes, self._class_names)
        matrix = count_confusions(found) if self._is_single else None
        self._report(
            EvaluatedSplit(
                split=self._split,
                step=step,
                metrics=metrics,
                table=(
                    multi_label_class_table(found.probabilities, found.targets, self._class_names)
                    if matrix is None
                    else class_table(matrix, self._class_names)
                ),
                confusions=matrix,
                images=images,
            )
        )
        return Evaluation(metrics, {} if images is None else {"mistakes": images})

    def predictions(self) -> SplitPredictions:
        """Predicts every image of the split.

        Raises:
            UserError: the files hold another number of records than their names tell.
        """
        records, probabilities, targets = [], [], []
        mistakes: list[Mistake] = []
        with tqdm(total=self._num_images, desc="evaluating", unit="image", disable=None) as bar:
            for batch, predictions in self._devices.predict_batches(self._predict, self._dataset):
                is_real = batch.records >= 0
                records.append(batch.records[is_real])
                probabilities.append(np.asarray(predictions.probabilities)[is_real])
                targets.append(np.asarray(batch.targets)[is_real])
                images = np.asarray(batch.images)[is_real]
                mistakes += self._mistakes(images, probabilities[-1], targets[-1])
                mistakes = sorted(mistakes, key=lambda one: -one.error)[:_NUM_DRAWN]
                bar.update(int(is_real.sum()))
        own = [np.concatenate(columns) for columns in (records, probabilities, targets)]
        parts = self._devices.gather(own)
        seen, *columns = (np.concatenate(column) for column in zip(*parts, strict=True))
        assert len(np.unique(seen)) == len(seen), "an image twice"
        if len(seen) != self._num_images:
            raise UserError(
                f"the split {self._split} has {len(seen)} records, and {self._num_images} were "
                "expected: the number at the end of a file's name, as of 00-224x224-10.tfrec, must "
                "be that of its records"
            )
        in_file_order = np.argsort(seen)
        in_order = [column[in_file_order] for column in columns]
        return SplitPredictions(probabilities=in_order[0], targets=in_order[1], mistakes=mistakes)

    def score(self, found: SplitPredictions) -> dict[str, float]:
        """Returns the metrics of finite predictions.

        Raises:
            UserError: an image that must have one label has not.
        """
        unlabelled = int((found.targets.sum(axis=1) != 1).sum())
        if unlabelled and self._is_single:
            raise UserError(
                f"{unlabelled} of {len(found.targets)} images of the split {self._split} have not "
                "exactly one label, so it cannot be scored; tpudet classify predicts images "
                "without labels"
            )
        if isinstance(self._loss, SigmoidLossConfig):
            return multi_label_metrics(
                found.probabilities, found.targets, class_weights=self._loss.class_weights
            )
        return single_label_metrics(found.probabilities, found.targets.argmax(axis=1))

    def _in_numbers(self, found: SplitPredictions) -> SplitPredictions:
        """The predictions of which those that are not finite are wrong in every class."""
        broken = np.logical_not(np.isfinite(found.probabilities).all(axis=1))
        if broken.any():
            logger.warning(
                "%d of %d images of the split %s have probabilities that are not finite: they "
                "count as wrong",
                int(broken.sum()),
                len(broken),
                self._split,
            )
        probabilities = np.where(broken[:, None], 1.0 - found.targets, found.probabilities)
        return found._replace(probabilities=probabilities)

    def _mistakes(
        self, images: np.ndarray, probabilities: np.ndarray, targets: np.ndarray
    ) -> list[Mistake]:
        """Returns the images of a batch that are predicted wrongly."""
        rows = np.flatnonzero(is_wrong(probabilities, targets, is_single=self._is_single))
        errors = probabilities if self._is_single else np.abs(probabilities - targets)
        return [
            Mistake(
                np.array(images[row]), targets[row], channel, float(probabilities[row, channel])
            )
            for row, channel in zip(rows, errors[rows].argmax(axis=1).tolist(), strict=True)
        ]


def count_confusions(found: SplitPredictions) -> np.ndarray:
    """Returns the confusion matrix, [C, C], of images that are each of one class."""
    num_classes = found.targets.shape[1]
    return confusion_matrix(
        found.probabilities.argmax(axis=1), found.targets.argmax(axis=1), num_classes
    )


def build_evaluation(
    config: ExperimentConfig,
    *,
    predict: Callable[[Batch], Predictions],
    classes: Sequence[ClassEntry],
    devices: Devices,
    report: Callable[[EvaluatedSplit], None],
) -> SplitEvaluation:
    """Builds the evaluation of `data.eval_split`.

    Args:
        config: the experiment.
        predict: from a replica's batch to its predictions.
        classes: rows of the class list.
        devices: they share each batch.
        report: called by process 0 with the results of each evaluation.

    Raises:
        ConfigError: the split is missing, unfinished or damaged, its classes are others, or the
            best metric is not among its metrics.
    """
    data = config.data
    is_single = not isinstance(config.model.loss, SigmoidLossConfig)
    wanted = {config.evaluation.schedule.best_metric, *(config.train.stop_at or ())}
    if "top5" in wanted and not (is_single and len(classes) > FEW_CLASSES):
        raise ConfigError(
            "evaluation.schedule.best_metric or train.stop_at is top5, which needs more than "
            f"{FEW_CLASSES} classes and model.loss softmax; there are {len(classes)} classes: "
            "choose top1"
        )
    if "micro_f1" in wanted and is_single:
        raise ConfigError(
            "evaluation.schedule.best_metric or train.stop_at is micro_f1, which needs model.loss "
            "sigmoid: choose top1"
        )
    split = find_joined_split(data.directory, data.eval_split, classes)
    num_records, max_images = sum(split.records_per_shard), config.evaluation.schedule.max_images
    return SplitEvaluation(
        predict=predict,
        devices=devices,
        dataset=eval_dataset(
            data,
            shards=split.shards,
            num_records=num_records,
            num_classes=len(classes),
            batch_size=math.ceil(config.evaluation.schedule.batch_size / devices.num_processes),
            process_index=devices.process_index,
            process_count=devices.num_processes,
            max_images=max_images,
        ),
        shards=split.shards,
        num_images=min(num_records, max_images or num_records),
        loss=config.model.loss,
        split=data.eval_split,
        class_names=[entry.name for entry in classes],
        report=report,
    )
