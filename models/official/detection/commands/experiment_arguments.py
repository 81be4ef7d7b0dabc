"""What the commands share: the experiment's flags, VERSION to file, errors in words."""

import argparse
import os
from pathlib import Path

from tpudet.detection.config import ExperimentConfig
from tpudet.trainkit.command_line import add_override_arguments
from tpudet.trainkit.config.decode import ConfigError, load_config

_CONFIG_HELP = (
    "experiment file, or its version: the stem under configs/yaml, or what stands before its "
    "first `_`"
)


def add_experiment_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds --config, --set and --params_override."""
    parser.add_argument("--config", metavar="FILE|VERSION", required=True, help=_CONFIG_HELP)
    add_override_arguments(parser)


def add_config_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds CONFIG, --set and --params_override, for commands that show what a config means."""
    parser.add_argument("config", metavar="CONFIG", help=_CONFIG_HELP)
    add_override_arguments(parser)


def add_backend_argument(parser: argparse.ArgumentParser) -> None:
    """Adds --backend."""
    parser.add_argument(
        "--backend",
        choices=("tensorflow",),
        default="tensorflow",
        help="what does the arithmetic (tensorflow)",
    )


def choose_backend(arguments: argparse.Namespace) -> None:
    """Sets the backend of --backend; Keras reads it when it is first imported."""
    os.environ["KERAS_BACKEND"] = arguments.backend


def experiment_config(arguments: argparse.Namespace) -> ExperimentConfig:
    """Reads the experiment that the arguments of one of the functions above describe."""
    return load_config(
        ExperimentConfig,
        find_config(arguments.config),
        overrides=arguments.overrides,
        params_override=arguments.params_override,
    )


def find_config(name: str, directory: Path | None = None) -> str:
    """Returns the path of the experiment file that `name` means.

    Args:
        name: a path that ends in .yaml or .yml, or a VERSION: exactly one file's stem, or the part
            of it before its first `_`.
        directory: where versions are looked for, with all below it; None means `config_folder()`.

    Raises:
        ConfigError: no file or several; lists the candidates.
    """
    if name.endswith((".yaml", ".yml")):
        return name
    directory = directory or config_folder()
    files = sorted(directory.rglob("*.yaml"))
    exact = [path for path in files if path.stem == name]
    found = exact or [path for path in files if path.stem.partition("_")[0] == name]
    if len(found) == 1:
        return str(found[0])
    listed = "\n  ".join(str(path.relative_to(directory)) for path in found or files)
    what = f"{len(found)} files" if found else "no file"
    raise ConfigError(
        f"VERSION `{name}` names {what} under {directory}. "
        + (f"Candidates:\n  {listed}" if listed else "There is no .yaml file there.")
    )


def config_folder() -> Path:
    """Returns configs/yaml in the working directory, else that of the source tree."""
    places = (Path.cwd() / "configs/yaml", Path(__file__).parents[3] / "configs/yaml")
    return next((place for place in places if place.is_dir()), places[0])
