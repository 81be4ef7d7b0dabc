"""Resolves what a run starts with: steps, pretrained weights, devices, and every `auto`."""

import dataclasses
from collections.abc import Callable
from typing import Any, Generic, NamedTuple, TypeVar

from tpudet.trainkit.config.find import DEFAULT_TASK, find_task, read_value
from tpudet.trainkit.config.yaml_tree import ConfigError
from tpudet.trainkit.files import storage
from tpudet.trainkit.training.build_engine import choose_devices, resolve_precision
from tpudet.trainkit.training.checkpoints import list_checkpoints, read_checkpoint
from tpudet.trainkit.training.devices import Devices
from tpudet.trainkit.training.engine import RECORDS_CONSUMED
from tpudet.trainkit.training.model_dir import config_to_resume, require_own_config
from tpudet.trainkit.training.run_outlook import Done, with_total_steps
from tpudet.trainkit.weights.config import WeightsConfig
from tpudet.trainkit.weights.families import TPUDET, Family
from tpudet.trainkit.weights.pretrained import Pretrained, open_pretrained, read_family

Config = TypeVar("Config")  # a task's ExperimentConfig


class Start(NamedTuple, Generic[Config]):
    """A run before its model is built."""

    config: Config  # without `auto`, with `train.total_steps`
    devices: Devices
    pretrained: Pretrained | None  # the weights to load
    begins: bool  # at step 0, without a checkpoint


def resolve_start(
    config: Config,
    *,
    num_images: int,
    model_dir: str | None,
    trains: bool = True,
    resolve_auto: Callable[[Any, Family], Any],
) -> Start[Config]:
    """Opens the weights, chooses the devices and replaces every `auto`.

    Args:
        config: the experiment as decoded, a dataclass with `model` and `train`.
        num_images: training images.
        model_dir: of the run; may not exist yet, and is None where nothing is saved.
        trains: whether the run trains, and so loads the weights when it begins.
        resolve_auto: as for `resolve_config`.

    Raises:
        UserError: the weights cannot be read, the devices are not available, or the model_dir is of
            another task or would lose a config.yaml that a user wrote.
    """
    if model_dir:
        _require_same_task(model_dir, config)
    if model_dir and trains:
        require_own_config(model_dir)
    begins = not (model_dir and list_checkpoints(model_dir))
    experiment: Any = config
    train = with_total_steps(experiment.train, num_images, done=read_done(model_dir))
    experiment, pretrained = resolve_config(
        dataclasses.replace(experiment, train=train),
        model_dir,
        loads_weights=begins and trains,
        resolve_auto=resolve_auto,
    )
    devices = choose_devices(train)
    train = resolve_precision(train, devices, model_dir, trains=trains)
    return Start(dataclasses.replace(experiment, train=train), devices, pretrained, begins)


def _require_same_task(model_dir: str, config: Any) -> None:
    """Refuses a run of the other task, whose keys mean nothing to this one."""
    path = f"{model_dir}/config.yaml"
    if not storage.is_file(path):
        return
    there, here = find_task(path), getattr(config, "task", DEFAULT_TASK)
    if there != here:
        raise ConfigError(
            f"{model_dir} holds a run of the task {there}, by its config.yaml, and this experiment "
            f"is of the task {here}: choose another --model_dir"
        )


def read_done(model_dir: str | None) -> Done | None:
    """Returns what a run that resumes has done, from its newest checkpoint; None if it begins."""
    path = config_to_resume(model_dir)
    found = list_checkpoints(model_dir) if model_dir else []
    if path is None or not found:
        return None
    position = read_checkpoint(found[-1].prefix, [RECORDS_CONSUMED])
    return Done(
        steps=found[-1].step,
        records=int(position[RECORDS_CONSUMED]),
        batch_size=read_value(path, "train", "batch_size"),
        total_steps=read_value(path, "train", "total_steps"),
    )


def resolve_config(
    config: Config,
    model_dir: str | None,
    *,
    loads_weights: bool,
    resolve_auto: Callable[[Any, Family], Any],
) -> tuple[Config, Pretrained | None]:
    """Opens `train.weights` if they are needed, and replaces every `auto` of the model.

    Args:
        config: the experiment as decoded, a dataclass with `model` and `train`.
        model_dir: of the run; may not exist yet, and is None where nothing is saved.
        loads_weights: whether the run will load the weights.
        resolve_auto: (config of a model, what the weights expect) -> the config without `auto`.

    Returns:
        The config without `auto`, and the opened weights; None if the run does not load any.

    Raises:
        WeightsError: the weights cannot be read, or are of no known family.
    """
    experiment: Any = config
    expected, pretrained = _open_starting_weights(
        experiment.train.weights, model_dir, loads_weights=loads_weights
    )
    model = resolve_auto(experiment.model, expected)
    return dataclasses.replace(experiment, model=model), pretrained


def _open_starting_weights(
    weights: WeightsConfig | None, model_dir: str | None, *, loads_weights: bool
) -> tuple[Family, Pretrained | None]:
    """Opens the weights if they are needed.

    A run that resumes keeps what its config.yaml says, and needs the weights no more.

    Returns:
        What the model's `auto` settings become, and the opened weights.
    """
    earlier = config_to_resume(model_dir)
    expected = read_family(earlier) if earlier else None
    pretrained = None
    if weights and (loads_weights or expected is None):
        pretrained = open_pretrained(weights)
        expected = expected or pretrained.family
    return expected or TPUDET, pretrained if loads_weights else None
