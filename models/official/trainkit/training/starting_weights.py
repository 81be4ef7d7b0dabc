"""Opens the weights that a run starts from, and says what its model must be like to take them."""

import dataclasses
from collections.abc import Callable
from typing import Any, TypeVar

from tpudet.trainkit.files.storage import read_text
from tpudet.trainkit.training.checkpoints import list_checkpoints
from tpudet.trainkit.weights.config import WeightsConfig
from tpudet.trainkit.weights.families import TPUDET, Family
from tpudet.trainkit.weights.pretrained import Pretrained, open_pretrained, read_family

Config = TypeVar("Config")  # a task's ExperimentConfig


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

    A run that resumes keeps what its config.yaml says, and needs the weights no more. Only one
    with a checkpoint does: an attempt that saved nothing leaves a config.yaml that binds nobody.

    Returns:
        What the model's `auto` settings become, and the opened weights.
    """
    earlier = f"{model_dir}/config.yaml"
    resumes = bool(model_dir and list_checkpoints(model_dir)) and read_text(earlier) is not None
    expected = read_family(earlier) if resumes else None
    pretrained = None
    if weights and (loads_weights or expected is None):
        pretrained = open_pretrained(weights)
        expected = expected or pretrained.family
    return expected or TPUDET, pretrained if loads_weights else None
