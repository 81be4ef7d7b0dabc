"""Times the training steps of an experiment on drawn or on real input."""

import tensorflow as tf

from tpudet.detection.build_detector import build_task
from tpudet.detection.build_training import build_train_dataset
from tpudet.detection.config import ExperimentConfig
from tpudet.detection.data.synthetic import synthetic_dataset
from tpudet.trainkit.record_splits import find_split
from tpudet.trainkit.training.devices import Devices
from tpudet.trainkit.training.model_dir import load_classes
from tpudet.trainkit.training.step_benchmark import StepTimes, TimedInput, time_training

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

        return TimedInput(name, _COCO_CLASSES, draw)
    names = [entry.name for entry in load_classes(config.data.directory)[1]]
    split = find_split(config.data.directory, config.data.train_split, names)

    def read(devices: Devices, start: int) -> tf.data.Dataset:
        return build_train_dataset(config, split, start, devices=devices)

    return TimedInput(name, len(names), read)


def time_experiment(
    config: ExperimentConfig,
    timed_input: TimedInput,
    *,
    network: str,
    warmup_steps: int,
    steps: int,
) -> StepTimes:
    """Builds the detector and its engine as for training, and times steps.

    Args:
        config: the experiment; values that are `auto` become those without pretrained weights.
        timed_input: from `open_input`.
        network: its name in the table.
        warmup_steps: untimed steps before.
        steps: timed steps.
    """
    return time_training(
        config.train,
        timed_input,
        make_task=lambda devices: build_task(
            config,
            num_classes=timed_input.num_classes,
            canvas_size=config.data.canvas_size,
            synchronized=devices.num_replicas > 1,
            sum_over_replicas=devices.sum_over_replicas,
        ),
        network=network,
        warmup_steps=warmup_steps,
        steps=steps,
    )
