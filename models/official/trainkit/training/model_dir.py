"""What a model_dir says of itself: its config and its class list, and the weights that count."""

import dataclasses
import logging
from collections.abc import Sequence
from typing import Any

import keras

from tpudet.detection.config import ExperimentConfig
from tpudet.trainkit.class_list import ClassEntry, first_difference, read_class_list
from tpudet.trainkit.config.decode import ConfigError, load_config, to_yaml
from tpudet.trainkit.files import storage
from tpudet.trainkit.files.storage import read_text, write_text
from tpudet.trainkit.source_version import git_commit
from tpudet.trainkit.training.checkpoints import (
    Checkpoint,
    list_checkpoints,
    read_checkpoint,
    stored_keys,
)

logger = logging.getLogger(__name__)


def read_classes(directory: str) -> tuple[str, tuple[ClassEntry, ...]]:
    """Returns text and entries of `classes.csv` in a directory.

    Raises:
        ConfigError: there is none, or it is not a class list.
    """
    path = f"{directory.rstrip('/')}/classes.csv"
    text = read_text(path)
    if text is None:
        raise ConfigError(f"{path} is not there: is this the folder that make_tfrecords.py wrote?")
    try:
        return text, read_class_list(text)
    except ValueError as error:
        raise ConfigError(f"{path}: {error}") from error


def describe_run(model_dir: str, config: ExperimentConfig, class_list_text: str) -> None:
    """Writes `config.yaml` and `classes.csv` into a model_dir, or checks those that are there.

    A changed config is allowed, so that a run can be prolonged; each changed key is logged. Another
    class list is not: the checkpoints would mean other classes.

    Raises:
        ConfigError: the class list differs; names the first row that does.
    """
    storage.make_folder(model_dir)
    path = f"{model_dir}/classes.csv"
    before = read_text(path)
    if before is None:
        write_text(path, class_list_text)
    else:
        changed = first_difference(read_class_list(before), read_class_list(class_list_text))
        if changed:
            raise ConfigError(f"{path}: {changed}; use another model_dir")
    path = f"{model_dir}/config.yaml"
    if read_text(path) is not None:
        for line in _config_changes(load_config(ExperimentConfig, path), config):
            logger.warning("Changed since the run began: %s", line)
    write_text(path, f"# Written by tpudet, commit {git_commit()}\n{to_yaml(config)}")


def load_run(
    model_dir: str, overrides: Sequence[str] = ()
) -> tuple[ExperimentConfig, str, tuple[ClassEntry, ...]]:
    """Returns config, class list text and class list of a trained model.

    Raises:
        ConfigError: it is no model_dir.
    """
    path = f"{model_dir}/config.yaml"
    if read_text(path) is None:
        raise ConfigError(f"{model_dir} is no model_dir: it has no config.yaml")
    config = load_config(ExperimentConfig, path, overrides=overrides)
    return config, *read_classes(model_dir)


def find_checkpoint(model_dir: str, step: str) -> Checkpoint:
    """Returns one of the checkpoints of a model_dir and of its `best/`.

    Args:
        model_dir: what train wrote.
        step: a step number, "latest" or "best".

    Raises:
        ConfigError: there is no such checkpoint; lists those that there are.
    """
    kept = {found.step: found for found in list_checkpoints(f"{model_dir}/best")}
    everything = kept | {found.step: found for found in list_checkpoints(model_dir)}
    if step == "best" and kept:
        return kept[max(kept)]
    if step == "latest" and everything:
        return everything[max(everything)]
    if step.isdigit() and int(step) in everything:
        return everything[int(step)]
    there = ", ".join(map(str, sorted(everything))) or "none"
    best = f"; best: {max(kept)}" if kept else ""
    raise ConfigError(f"{model_dir} has no checkpoint of step `{step}`; there are: {there}{best}")


def load_weights(model: keras.Model, prefix: str) -> None:
    """Fills a model from a checkpoint: averaged weights where it holds them, else plain ones.

    Raises:
        CheckpointMismatchError: lists the variables that the checkpoint lacks.
        ConfigError: lists the variables that have another shape there.
    """
    stored = stored_keys(prefix)
    paths = [variable.path for variable in model.variables]
    keys = [f"ema/{path}" if f"ema/{path}" in stored else path for path in paths]
    values = read_checkpoint(prefix, keys)
    problems = [
        f"{key} is {values[key].shape} there, {tuple(variable.shape)} in the model"
        for key, variable in zip(keys, model.variables, strict=True)
        if values[key].shape != tuple(variable.shape)
    ]
    if problems:
        listed = "\n  ".join(problems[:20])
        raise ConfigError(f"{prefix} does not fit the model, {len(problems)} faults:\n  {listed}")
    for key, variable in zip(keys, model.variables, strict=True):
        variable.assign(values[key])


def _config_changes(before: ExperimentConfig, after: ExperimentConfig) -> list[str]:
    old, new = _flat(dataclasses.asdict(before)), _flat(dataclasses.asdict(after))
    keys = sorted(old.keys() | new.keys())
    return [
        f"{key}: {old.get(key)} -> {new.get(key)}" for key in keys if old.get(key) != new.get(key)
    ]


def _flat(tree: dict[str, Any], path: str = "") -> dict[str, Any]:
    flat = {}
    for key, value in tree.items():
        here = f"{path}.{key}" if path else key
        flat |= _flat(value, here) if isinstance(value, dict) else {here: value}
    return flat
