"""The files of a model_dir that describe its run, and the choice of a checkpoint in it."""

import dataclasses
import logging
from collections.abc import Callable
from typing import Any, Generic, NamedTuple, TypeVar

import keras

from tpudet.trainkit.class_list import (
    ClassEntry,
    first_difference,
    read_class_list,
)
from tpudet.trainkit.config.decode import ConfigError, to_yaml
from tpudet.trainkit.config.find import run_config
from tpudet.trainkit.errors import listing
from tpudet.trainkit.files import storage
from tpudet.trainkit.files.storage import read_text, write_text
from tpudet.trainkit.record_splits import class_list_beside
from tpudet.trainkit.source_version import git_commit
from tpudet.trainkit.training.best_checkpoint import read_best_record
from tpudet.trainkit.training.checkpoints import Checkpoint, list_checkpoints, read_checkpoint
from tpudet.trainkit.weights.tensor_bundle import BEST_FOLDER, stored_keys

Config = TypeVar("Config")  # a task's ExperimentConfig

_MAX_SUBFOLDERS = 1000  # that are searched for a class list
_FIRST_LINE = "# Written by tpudet"  # of a config.yaml, from its beginning

logger = logging.getLogger(__name__)


class Run(NamedTuple, Generic[Config]):
    """The config and the class list of a run, read from its model_dir."""

    config: Config
    class_list_text: str
    classes: tuple[ClassEntry, ...]


def claim_path(model_dir: str, kind: str) -> str:
    """Returns the claim of the process that trains ("train") or evaluates ("eval") here."""
    return f"{model_dir}/{kind}.claim.json"


def load_classes(directory: str, path: str = "") -> tuple[str, tuple[ClassEntry, ...]]:
    """Returns text and entries of the class list of a data set or a model_dir.

    Args:
        directory: of the data set, or the model_dir.
        path: of the list; empty means `classes.csv` in the directory, or else the label map
            (*.pbtxt) that the TF Object Detection API has beside its records.

    Raises:
        ConfigError: it is missing, or is not a class list.
    """
    if not directory.rstrip("/"):
        raise ConfigError("data.directory is empty: name the folder of the TFRecords")
    text = read_text(path) if path else class_list_beside(directory)
    if text is None:
        raise ConfigError(_no_class_list(directory.rstrip("/"), path))
    try:
        return text, read_class_list(text)
    except ValueError as error:
        raise ConfigError(f"{path}: {error}") from error


def _no_class_list(folder: str, path: str) -> str:
    """The message where there is no class list at `path`, or in a folder if that is empty."""
    listed = "it lists the classes of the records, `identifier,name` per row"
    if path:
        return f"{path} does not exist: {listed}"
    if not storage.is_folder(folder):
        return f"data.directory: there is no folder {folder}; name that of the TFRecords"
    names = storage.list_kinds(folder)[0][:_MAX_SUBFOLDERS]
    sets = [name for name in names if storage.is_file(f"{folder}/{name}/classes.csv")]
    below = f". Name one of the sets below {folder}: {listing(sets)}" if sets else ""
    return f"{folder}/classes.csv does not exist, nor does a label map, *.pbtxt: {listed}{below}"


def load_run(model_dir: str, load_config: Callable[[str], Config]) -> Run[Config]:
    """Reads config and class list of a trained model.

    Args:
        model_dir: the folder that train wrote.
        load_config: reads the `config.yaml` at a path.

    Raises:
        ConfigError: it is not a model_dir, or its files are not usable.
    """
    return Run(load_config(run_config(model_dir)), *load_classes(model_dir))


def config_to_resume(model_dir: str | None) -> str | None:
    """Returns the config.yaml of the checkpoints in a model_dir or its `best/`; None without any.

    A run keeps to it, whether it resumes or begins again beside the best checkpoint of one that was
    discarded. An attempt that saved nothing leaves a config.yaml that binds nobody.

    Args:
        model_dir: of the run; may not exist yet, and is None where nothing is saved.
    """
    path = f"{model_dir}/config.yaml"
    if not model_dir or not storage.is_file(path):
        return None
    folders = (model_dir, f"{model_dir}/{BEST_FOLDER}")
    return path if any(list_checkpoints(folder) for folder in folders) else None


def compare_run(
    model_dir: str,
    config: Config,
    class_list_text: str,
    load_config: Callable[[str], Config],
    *,
    unlogged: tuple[str, ...] = (),
) -> None:
    """Compares a run with the `config.yaml` and `classes.csv` of its model_dir, if it has them.

    Each changed key of the config is logged; which may not change, `kept_settings` says. The class
    list may not: the checkpoints would mean other classes.

    Args:
        model_dir: of the run; may not exist yet.
        config: of the run, a dataclass.
        class_list_text: contents of classes.csv.
        load_config: reads the `config.yaml` at a path.
        unlogged: keys whose changes are not logged.

    Raises:
        ConfigError: the class list differs; names the first row that does.
    """
    missing = sorted({"config.yaml", "classes.csv"} - {*storage.list_names(model_dir)})
    if missing and list_checkpoints(model_dir):
        logger.warning(
            "%s has checkpoints but no %s: whether they belong to the present settings and classes "
            "is unknown. Restore the files if these differ",
            model_dir,
            " and no ".join(missing),
        )
    path = f"{model_dir}/classes.csv"
    before = read_text(path)
    if before is not None:
        changed = first_difference(read_class_list(before), read_class_list(class_list_text))
        if changed:
            raise ConfigError(f"{path}: {changed}; use another model_dir")
    path = f"{model_dir}/config.yaml"
    if read_text(path) is not None:
        for line in _config_changes(load_config(path), config):
            if not line.startswith(unlogged):
                logger.warning("Changed since the run began: %s", line)


def require_own_config(model_dir: str) -> None:
    """Refuses a model_dir whose `config.yaml` a user wrote: `write_run_files` would replace it.

    Args:
        model_dir: of the run; may not exist yet.

    Raises:
        ConfigError: it does not begin as those that tpudet writes.
    """
    path = f"{model_dir}/config.yaml"
    text = read_text(path)
    if text is None or text.startswith(_FIRST_LINE):
        return
    raise ConfigError(
        f"{path} does not begin with `{_FIRST_LINE}`, and training would replace it by the "
        "experiment with all its values. Move it out of the model_dir and train from there; "
        "if it is of a run and only lost that line, restore it"
    )


def write_run_files(model_dir: str, config: Any, class_list_text: str) -> None:
    """Writes `config.yaml`, and `classes.csv` unless it is there, into a model_dir.

    Evaluation, export and a restart take the config for that of the checkpoints: call it once these
    are known to fit.

    Args:
        model_dir: of the run; created if needed.
        config: of the run, a dataclass.
        class_list_text: contents of classes.csv.
    """
    storage.make_folder(model_dir)
    if read_text(f"{model_dir}/classes.csv") is None:
        write_text(f"{model_dir}/classes.csv", class_list_text)
    text = f"{_FIRST_LINE}, commit {git_commit()}\n{to_yaml(config)}"
    write_text(f"{model_dir}/config.yaml", text)


def select_checkpoint(model_dir: str, step: str) -> Checkpoint:
    """Returns one of the checkpoints of a model_dir and of its `best/`.

    Args:
        model_dir: the folder that train wrote.
        step: a step number, "latest" or "best". The latest is one of `best/` only where the
            model_dir holds no other: `best/` may be of a training that was discarded.

    Raises:
        ConfigError: there is no such checkpoint; lists those that exist.
    """
    folder = f"{model_dir}/{BEST_FOLDER}"
    kept = {found.step: found for found in list_checkpoints(folder)}
    own = {found.step: found for found in list_checkpoints(model_dir)}
    everything = kept | own
    record = read_best_record(folder)
    best = record.step if record and record.step in kept else None
    if step == "best" and best is not None:
        return kept[best]
    if step == "latest" and everything:
        return everything[max(own or kept)]
    if step.isdecimal() and int(step) in everything:
        return everything[int(step)]
    existing = ", ".join(map(str, sorted(everything))) or "none"
    which = f"; best: {best}" if best is not None else ""
    raise ConfigError(f"{model_dir} has no checkpoint of step `{step}`; it has: {existing}{which}")


def restore_model(model: keras.Model, prefix: str) -> None:
    """Sets a model's variables from a checkpoint: averaged weights if it has them, else plain ones.

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
        raise ConfigError(
            f"{prefix} does not fit the model; {len(problems)} variables differ:\n  {listed}"
        )
    for key, variable in zip(keys, model.variables, strict=True):
        variable.assign(values[key])


def _config_changes(before: Any, after: Any) -> list[str]:
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
