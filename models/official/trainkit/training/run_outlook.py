"""Says what a run is going to do, before hours are spent on it."""

import dataclasses
import logging
import math
from collections.abc import Collection, Sequence
from typing import NamedTuple

import keras

from tpudet.trainkit.config.idle_keys import IdleKeys, describe_idle
from tpudet.trainkit.errors import count_of
from tpudet.trainkit.training.build_optimizer import drops_warning, warmup_warning
from tpudet.trainkit.training.config import TrainConfig
from tpudet.trainkit.training.engine import StepReport
from tpudet.trainkit.training.freezing import Frozen, frozen_at_random
from tpudet.trainkit.training.run_log import format_duration

FIRST_STEPS = 8  # of a run: cut into calls of 1, 1, 2 and 4 steps
_ENOUGH_SECONDS = 5.0  # of measured steps
_LONG_HOURS = 2

logger = logging.getLogger(__name__)


class Done(NamedTuple):
    """Progress of a run where it resumes, and its plan before."""

    steps: int
    records: int  # consumed
    batch_size: int | None  # these two of its config.yaml
    total_steps: int | None


def with_total_steps(
    train: TrainConfig, num_images: int, *, done: Done | None = None
) -> TrainConfig:
    """Returns the config with `total_steps` from `total_epochs`, if it has those.

    Layers of a config replace one by the other; where one file has both, a warning says so. A run
    that resumes with another batch size, or has done so before, has the steps that it has done and
    those for the records that remain.

    Args:
        train: the config of a run.
        num_images: training images.
        done: None for a run that begins.
    """
    if train.total_epochs is None:
        return train
    records = math.ceil(train.total_epochs * num_images)
    steps = max(math.ceil(records / train.batch_size), 1)
    # An unchanged plan stays: steps that loss scaling skipped consumed records and do not count.
    if done and (done.batch_size, done.total_steps) != (train.batch_size, steps):
        steps = done.steps + max(math.ceil((records - done.records) / train.batch_size), 0)
    if train.total_steps not in (steps, TrainConfig.total_steps):
        logger.warning(
            "train.total_steps %d has no effect beside train.total_epochs %g, which are %d steps: "
            "set one of them to null",
            train.total_steps,
            train.total_epochs,
            steps,
        )
    return dataclasses.replace(train, total_steps=steps)


def log_plan(
    train: TrainConfig,
    *,
    model: keras.Model,
    kind: str,
    canvas_size: tuple[int, int],
    num_images: int,
    num_classes: int,
    num_devices: int,
    idle_keys: Sequence[IdleKeys] = (),
) -> None:
    """Logs the size of the model, the length of the run and what is odd about the config.

    Args:
        train: the config of the run.
        model: the model.
        kind: of the model, as in the config.
        canvas_size: height and width in pixels.
        num_images: training images.
        num_classes: rows of classes.csv.
        num_devices: devices that train.
        idle_keys: keys of other sections that change nothing.
    """
    logger.info(
        "%s: %s parameters, %d classes, canvas %dx%d, precision %s, %s",
        kind,
        f"{model.count_params():,}",
        num_classes,
        *canvas_size,
        model.dtype_policy.name,
        count_of(num_devices, "device", "devices"),
    )
    epochs = train.total_epochs or train.total_steps * train.batch_size / max(num_images, 1)
    logger.info(
        "%d training images; with %d per step, %s end at step %d",
        num_images,
        train.batch_size,
        "1 epoch" if epochs == 1 else f"{epochs:.1f} epochs",
        train.total_steps,
    )
    logger.info("%s", describe_learning_rate(train))
    warnings = (
        warmup_warning(train),
        drops_warning(train),
        describe_idle([*idle_keys, *train.idle_keys()]),
    )
    for warning in filter(None, warnings):
        logger.warning("%s", warning)


def describe_learning_rate(train: TrainConfig) -> str:
    """Returns a sentence on the highest rate of the run, and where it comes from."""
    rate, batch, reference = train.learning_rate, train.batch_size, train.reference_batch_size
    if reference is None:
        return (
            f"Learning rate: {rate.kind}, at most {rate.peak:g}, whatever the batch size: there is "
            "no train.reference_batch_size"
        )
    resulting = rate.peak * batch / reference
    because = f": {rate.peak:g} x {batch} / {reference}, as it is given for batches of {reference}"
    return (
        f"Learning rate: {rate.kind}, at most {resulting:g}{because if batch != reference else ''}"
    )


class FirstSteps:
    """Says from the first steps of a run how long all of them will take on this machine.

    Args:
        total_steps: of the run.
        advice: what to do about a run of more than `_LONG_HOURS`; empty says nothing.
    """

    def __init__(self, total_steps: int, advice: str) -> None:
        self._total_steps = total_steps
        self._advice = advice
        self._steps, self._seconds = 0, 0.0
        self._is_over = False

    def add(self, report: StepReport, step: int) -> None:
        """Logs the losses of step 1, then the duration of the run, once it is known.

        Args:
            report: of the steps since the last call.
            step: the last of them.
        """
        if self._is_over or not 0 < step <= FIRST_STEPS or step == self._total_steps:
            return
        if step == 1:  # takes longer than others: buffers are made, kernels are chosen
            losses = "  ".join(f"{name} {value:.4g}" for name, value in report.losses.items())
            logger.info("step 1/%d  %s", self._total_steps, losses)
            return
        self._steps += report.steps_done
        self._seconds += report.seconds
        if self._seconds < _ENOUGH_SECONDS and step < FIRST_STEPS:
            return
        self._is_over = True
        per_step = self._seconds / max(self._steps, 1)
        remaining = per_step * (self._total_steps - step)
        logger.info(
            "%.3g s per step on this machine: the remaining %s will take about %s, "
            "evaluations not counted",
            per_step,
            count_of(self._total_steps - step, "step", "steps"),
            format_duration(remaining),
        )
        if self._advice and remaining > _LONG_HOURS * 3600:
            logger.warning("That is more than %d hours. %s", _LONG_HOURS, self._advice)


def log_frozen(frozen: Frozen, *, loaded: Collection[str], begins: bool) -> None:
    """Logs what is frozen, with a warning if it would keep its initial values for good.

    Args:
        frozen: of the model.
        loaded: paths of the variables with pretrained weights.
        begins: whether the run starts at step 0, without a checkpoint.
    """
    if not frozen.layers:
        return
    logger.info(
        "Frozen: %d layers, %s parameters: %s",
        len(frozen.layers),
        f"{frozen.num_parameters:,}",
        ", ".join(frozen.layers),
    )
    if begins and (warning := frozen_at_random(frozen, loaded)):
        logger.warning("%s", warning)
