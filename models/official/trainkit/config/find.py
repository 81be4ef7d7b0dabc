"""Finds experiment files by VERSION, and reads them with the files that their `base:` keys name."""

import difflib
import logging
import os
from collections.abc import Iterator, Mapping
from importlib.resources import files
from pathlib import Path
from typing import Any, NamedTuple

from tpudet.trainkit.config.layers import merge, override_tree
from tpudet.trainkit.config.yaml_tree import (
    Branch,
    ConfigError,
    Leaf,
    parse_tree,
    read_file,
    show,
)
from tpudet.trainkit.files.storage import read_text

_CONFIGS = "configs/yaml"
_VERSION_TABLE = "versions.yaml"
_BASE_FOLDER = "base"  # of files that only others build on
_NUM_SUGGESTIONS = 5
DEFAULT_TASK = "detection"  # its experiments name no task

logger = logging.getLogger(__name__)


class FoundConfig(NamedTuple):
    """The file that a VERSION names, and what that version sets in it."""

    path: str
    overrides: tuple[str, ...] = ()  # KEY=VALUE

    def __str__(self) -> str:
        return " ".join([self.path, *(f"--set '{override}'" for override in self.overrides)])


def config_folder() -> Path:
    """Returns configs/yaml of the working directory, else the one that comes with the package."""
    own = Path.cwd() / _CONFIGS
    return own if own.is_dir() else packaged_configs() / Path(_CONFIGS).name


def packaged_configs() -> Path:
    """Returns the folder configs/ that comes with the package."""
    return Path(str(files("tpudet.configs")))


def list_configs(directory: Path) -> list[Path]:
    """Returns the experiment files below `directory`, sorted."""
    return sorted(path for path in directory.rglob("*.yaml") if path.name != _VERSION_TABLE)


def find_config(name: str, directory: Path | None = None) -> FoundConfig:
    """Returns the experiment that `name` means.

    Args:
        name: a path that ends in .yaml or .yml, or a VERSION: the stem of a file, the part of it
            before its first `_`, or likewise a name in a versions.yaml.
        directory: where versions are looked up, with all folders below; None: `config_folder()`.

    Raises:
        ConfigError: no experiment has this name, or several have.
    """
    if name.endswith((".yaml", ".yml")):
        return FoundConfig(name)
    directory = directory or config_folder()
    stems = [(path.stem, FoundConfig(str(path))) for path in list_configs(directory)]
    versions = _read_versions(directory, dict(stems))
    for known in (stems, versions):
        named = [item for item in known if item[0] == name]
        named = named or [item for item in known if _number(item[0]) == name]
        if len(named) == 1:
            return named[0][1]
        if named:
            paths = [f"{key} ({Path(it.path).relative_to(directory)})" for key, it in named]
            listed = "\n  ".join(paths)
            raise ConfigError(f"VERSION `{name}` could mean {len(named)} experiments:\n  {listed}")
    raise ConfigError(_unknown(name, directory, [*stems, *versions]))


def _number(name: str) -> str:
    return name.partition("_")[0]


def _unknown(name: str, directory: Path, known: list[tuple[str, FoundConfig]]) -> str:
    names = [
        spelling
        for key, found in known
        if Path(found.path).parent.name != _BASE_FOLDER
        for spelling in (key, _number(key))
    ]
    if not names:
        return f"VERSION `{name}` names no file: there is no experiment below {directory}"
    near = difflib.get_close_matches(name, dict.fromkeys(names), _NUM_SUGGESTIONS, cutoff=0.0)
    return (
        f"VERSION `{name}` names no file below {directory}. The nearest are {', '.join(near)}. "
        "A path must end in .yaml"
    )


def _read_versions(
    directory: Path, stems: Mapping[str, FoundConfig]
) -> list[tuple[str, FoundConfig]]:
    """Reads every versions.yaml: the stem of a file, below it names and the KEY=VALUE they set."""
    versions: dict[str, FoundConfig] = {}
    for table in sorted(directory.rglob(_VERSION_TABLE)):
        for stem, names in _branch(parse_tree(read_file(str(table)), table.name)):
            if stem not in stems:
                raise ConfigError(f"{names.place}: there is no file {stem}.yaml")
            for name, overrides in _branch(names):
                if not isinstance(overrides, Leaf) or not isinstance(overrides.value, list):
                    raise ConfigError(f"{overrides.place}: {name} must be a list of KEY=VALUE")
                if name in versions:
                    raise ConfigError(f"{overrides.place}: {name} is listed twice")
                versions[name] = FoundConfig(stems[stem].path, tuple(map(str, overrides.value)))
    return list(versions.items())


def _branch(tree: Branch | Leaf) -> Iterator[tuple[str, Branch | Leaf]]:
    if not isinstance(tree, Branch):
        raise ConfigError(f"{tree.place}: expected a mapping, got {show(tree)}")
    yield from tree.children.items()


def load_config_tree(name: str) -> Branch:
    """Reads the experiment that `name` means to `find_config`, and logs which one it is.

    Raises:
        ConfigError: as `find_config` and `load_tree`.
    """
    found = find_config(name)
    if found.path != name:
        logger.info("VERSION %s: %s", name, found)
    return _load_found(found, ())


def run_config(model_dir: str) -> str:
    """Returns the path of the experiment that a run left in its model_dir.

    Raises:
        ConfigError: it is not a model_dir.
    """
    path = f"{model_dir}/config.yaml"
    if read_text(path) is None:
        raise ConfigError(f"{model_dir} is not a model_dir: it has no config.yaml")
    return path


def find_task(name: str) -> str:
    """Returns the task of an experiment: its key `task`, "detection" without one.

    Args:
        name: as `find_config` reads it.

    Raises:
        ConfigError: as `load_config_tree`.
    """
    task = load_config_tree(name).children.get("task")
    return str(task.value) if isinstance(task, Leaf) else DEFAULT_TASK


def read_value(path: str, *keys: str) -> Any:
    """Returns one plain value of an experiment file; None where it has none.

    Args:
        path: as for `load_tree`.
        *keys: of the sections around it, and its own.

    Raises:
        ConfigError: as `load_tree`.
    """
    found: Branch | Leaf | None = load_tree(path)
    for key in keys:
        found = found.children.get(key) if isinstance(found, Branch) else None
    return found.value if isinstance(found, Leaf) else None


def load_tree(path: str, seen: tuple[str, ...] = ()) -> Branch:
    """Reads one YAML file and, beneath it, the file that its `base:` key names.

    `base:` takes a path, absolute or from the folder of the file, or a VERSION.

    Args:
        path: the file; its name may have any ending.
        seen: the files that led here.

    Raises:
        ConfigError: a file cannot be read, or `base:` names no file, or leads back to its own.
    """
    if any(os.path.normpath(path) == os.path.normpath(other) for other in seen):
        raise ConfigError(f"{path}: `base:` files form a loop: {' -> '.join((*seen, path))}")
    named_by = f" (named by `base:` in {seen[-1]})" if seen else ""
    tree = parse_tree(read_file(path, named_by), path.rsplit("/", 1)[-1])
    base = tree.children.get("base")
    if base is None:
        return tree
    if not isinstance(base, Leaf) or not isinstance(base.value, str) or not base.value:
        raise ConfigError(f"{base.place}: `base` must be one file name, got {show(base)}")
    own = {key: value for key, value in tree.children.items() if key != "base"}
    below = _load_found(_find_base(base.value, path, base.place), (*seen, path))
    return merge(below, Branch(own, tree.place))


def _load_found(found: FoundConfig, seen: tuple[str, ...]) -> Branch:
    tree = load_tree(found.path, seen)
    if not tree.children:
        raise ConfigError(
            f"{found.path} is empty, and would stand for the defaults of all keys; begin it with "
            "`base: quickstart`"
        )
    return merge(tree, override_tree(found.overrides)) if found.overrides else tree


def _find_base(name: str, path: str, place: str) -> FoundConfig:
    """Finds a base that the file at `path` names at `place`."""
    if "/" not in name and not name.endswith((".yaml", ".yml")):
        try:
            return find_config(name)
        except ConfigError as error:
            raise ConfigError(f"{place}: base: {error}") from error
    if "://" in name:
        return FoundConfig(name)
    joined = os.path.join(os.path.dirname(path), name)
    scheme, separator, inside = joined.rpartition("://")
    # Buckets have no `..`. On a disk the system resolves it, which knows about links.
    return FoundConfig(f"{scheme}://{os.path.normpath(inside)}" if separator else joined)
