"""Says what a run is going to do, before hours are spent on it."""

import logging
from collections.abc import Collection

import keras

from tpudet.trainkit.training.build_optimizer import warmup_warning
from tpudet.trainkit.training.config import TrainConfig
from tpudet.trainkit.training.freezing import Frozen, frozen_at_random

logger = logging.getLogger(__name__)


def log_plan(
    train: TrainConfig,
    *,
    model: keras.Model,
    kind: str,
    canvas_size: tuple[int, int],
    num_images: int,
    num_classes: int,
    num_devices: int,
) -> None:
    """Logs the size of the model, the length of the run and what is odd about its schedule.

    Args:
        train: the config of the run.
        model: the model.
        kind: of the model, as in the config.
        canvas_size: height and width in pixels.
        num_images: training images.
        num_classes: rows of classes.csv.
        num_devices: devices that train.
    """
    logger.info(
        "%s: %s parameters, %d classes, canvas %dx%d, precision %s, %d devices",
        kind,
        f"{model.count_params():,}",
        num_classes,
        *canvas_size,
        model.dtype_policy.name,
        num_devices,
    )
    logger.info(
        "%d training images; %d steps of %d images are %.1f epochs",
        num_images,
        train.total_steps,
        train.batch_size,
        train.total_steps * train.batch_size / max(num_images, 1),
    )
    if warning := warmup_warning(train):
        logger.warning("%s", warning)


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
