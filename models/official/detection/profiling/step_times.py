"""Times the training steps of an experiment on drawn or on real input."""

import functools

import tensorflow as tf

from tpudet.detection.build_detector import build_train_dataset, make_task
from tpudet.detection.config import ExperimentConfig
from tpudet.detection.data.synthetic import synthetic_dataset
from tpudet.trainkit.record_splits import find_split
from tpudet.trainkit.training.devices import Devices
from tpudet.trainkit.training.model_dir import load_classes
from tpudet.trainkit.training.step_benchmark import TimedInput

_COCO_CLASSES = 80


def open_input(name: str, config: ExperimentConfig) -> TimedInput:
    """Finds the input of that name, "synthetic" or "real".

    Raises:
        ConfigError: the data set of real input is not usable.
    """
    if name == "synthetic":

        def draw(devices: Devices, start: int) -> tf.data.Dataset:
            return synthetic_dataset(
                config.data,
                batch_size=config.train.batch_size // devices.num_processes,
                with_masks=config.model.predicts_masks,
                num_classes=_COCO_CLASSES,
                seed=config.train.seed,
            )

        make = functools.partial(make_task, config, _COCO_CLASSES)
        return TimedInput(name, _COCO_CLASSES, draw, make)
    names = [entry.name for entry in load_classes(config.data.directory)[1]]
    split = find_split(config.data.directory, config.data.train_split, names)

    def read(devices: Devices, start: int) -> tf.data.Dataset:
        return build_train_dataset(config, split, start, devices=devices)

    make = functools.partial(make_task, config, len(names))
    return TimedInput(name, len(names), read, make, split.shards)
