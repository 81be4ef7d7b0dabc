"""Times the training steps of a classifier on drawn or on real input."""

import functools
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf
from tqdm import tqdm

from tpudet.classification.build_classifier import build_train_dataset, make_task
from tpudet.classification.config import ExperimentConfig
from tpudet.classification.data.splits import find_joined_split
from tpudet.classification.data.synthetic import synthetic_dataset
from tpudet.classification.modeling.config import SigmoidLossConfig
from tpudet.trainkit.input_errors import input_errors_in_words
from tpudet.trainkit.training.devices import Devices
from tpudet.trainkit.training.model_dir import load_classes
from tpudet.trainkit.training.step_benchmark import TimedInput

_IMAGENET_CLASSES = 1000
_UNTIMED_SECONDS = 0.2  # empties what an input had buffered while others were measured


def count_classes(config: ExperimentConfig) -> int:
    """Returns the rows of the class list; without a data set, those of the loss or of ImageNet.

    Raises:
        ConfigError: a data set is named, and its class list is not usable.
    """
    data, loss = config.data, config.model.loss
    if data.directory or data.classes:
        return len(load_classes(data.directory or ".", data.classes)[1])
    weights = loss.class_weights if isinstance(loss, SigmoidLossConfig) else ()
    return len(weights) or _IMAGENET_CLASSES


def open_input(name: str, config: ExperimentConfig) -> TimedInput:
    """Finds the input of that name, "synthetic" or "real".

    Raises:
        ConfigError: the data set of real input is not usable.
    """
    if name == "synthetic":
        num_classes = count_classes(config)

        def draw(devices: Devices, start: int) -> tf.data.Dataset:
            return synthetic_dataset(
                config.data.image_size,
                batch_size=config.train.batch_size // devices.num_processes,
                num_classes=num_classes,
                seed=config.train.seed,
            )

        make = functools.partial(make_task, config, num_classes)
        return TimedInput(name, num_classes, draw, make)
    _, classes = load_classes(config.data.directory, config.data.classes)
    split = find_joined_split(config.data.directory, config.data.train_split, classes)

    def read(devices: Devices, start: int) -> tf.data.Dataset:
        return build_train_dataset(config, split, start, devices=devices)

    make = functools.partial(make_task, config, len(classes))
    return TimedInput(name, len(classes), read, make, split.shards)


class InputTimes(NamedTuple):
    """The speed of an input, medians over the rounds."""

    name: str  # basic, optimized or cached
    images_per_second: float  # alone, without training
    processor_milliseconds: float  # per image, over all threads; hardly affected by other load


def time_inputs(
    config: ExperimentConfig, *, rounds: int, seconds: float
) -> tuple[list[InputTimes], list[ExperimentConfig]]:
    """Times the naive pipeline, the optimized one and, where `data.cache` is set, the cached one.

    All are measured in turn in short rounds, so that other load on the machine affects all alike.

    Args:
        config: the experiment.
        rounds: measurements of each; one more round before them is not counted.
        seconds: length of a measurement.

    Returns:
        The times, and the experiment with each of these inputs.

    Raises:
        UserError: the data set or the cache is not usable.
    """
    configs = {
        name: replace(config, data=replace(config.data, pipeline=name, cache=""))
        for name in ("basic", "optimized")
    }
    if config.data.cache:
        configs["cached"] = replace(config, data=replace(config.data, pipeline="optimized"))
    _, classes = load_classes(config.data.directory, config.data.classes)
    split = find_joined_split(config.data.directory, config.data.train_split, classes)
    batches = {name: iter(build_train_dataset(one, split, 0)) for name, one in configs.items()}
    rates: dict[str, list[tuple[float, float]]] = {name: [] for name in configs}
    with input_errors_in_words(lambda: split.shards):
        for number in tqdm(range(rounds + 1), desc="measuring rounds", disable=None):
            for name, iterator in batches.items():
                _count_batches(iterator, _UNTIMED_SECONDS if number else seconds)
                start, processor_start = time.perf_counter(), time.process_time()
                images = _count_batches(iterator, seconds) * config.train.batch_size
                wall, processor = time.perf_counter() - start, time.process_time() - processor_start
                if number:
                    rates[name].append((images / wall, processor / images * 1000))
    times = [InputTimes(name, *np.median(rates[name], axis=0).tolist()) for name in configs]
    return times, list(configs.values())


def _count_batches(batches: Iterator[Any], seconds: float) -> int:
    end = time.perf_counter() + seconds
    count = 0
    while not count or time.perf_counter() < end:
        next(batches)
        count += 1
    return count
