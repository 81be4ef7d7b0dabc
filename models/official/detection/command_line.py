"""What the commands share: the experiment's flags, VERSION to file, errors in words."""

import argparse
import logging
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import tensorflow as tf

from detection.config import ExperimentConfig
from trainkit.config import ConfigError, load_config
from trainkit.training.checkpoints import CheckpointMismatchError, UnreadableCheckpointError
from trainkit.weights.errors import WeightsError

# Wrong usage or wrong input; 1 is left to what nobody foresaw, 75 means stopped by a signal.
EXIT_WRONG_USAGE = 2

_CONFIG_HELP = (
    "experiment file, or its version: the stem under configs/yaml, or what stands before its "
    "first `_`"
)

# What a user can put right; anything else is a fault of the program and keeps its traceback.
USER_ERRORS = (
    ConfigError,
    CheckpointMismatchError,
    UnreadableCheckpointError,
    FileNotFoundError,
    FileExistsError,
    WeightsError,
)


def add_experiment_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds --config, --set and --params_override."""
    parser.add_argument("--config", metavar="FILE|VERSION", required=True, help=_CONFIG_HELP)
    _add_override_arguments(parser)


def add_config_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds CONFIG, --set and --params_override, for commands that show what a config means."""
    parser.add_argument("config", metavar="CONFIG", help=_CONFIG_HELP)
    _add_override_arguments(parser)


def _add_override_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--set",
        metavar="KEY=VALUE",
        action="append",
        default=[],
        dest="overrides",
        help="set one value, e.g. train.total_steps=500; may be repeated and wins over all else",
    )
    parser.add_argument(
        "--params_override",
        metavar="YAML|FILE",
        default="",
        help="set several values: a YAML mapping or a file with one",
    )


def add_backend_argument(parser: argparse.ArgumentParser) -> None:
    """Adds --backend."""
    parser.add_argument(
        "--backend",
        choices=("tensorflow",),
        default="tensorflow",
        help="what does the arithmetic (tensorflow)",
    )


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


def run_command(body: Callable[[], int], *, prefix: str) -> int:
    """Runs a command's body; a mistake of the user becomes one message and exit code 2.

    Args:
        body: returns the exit code.
        prefix: the command's name, put before the message.
    """
    try:
        return body()
    except USER_ERRORS as error:
        print(f"{prefix}: {error}", file=sys.stderr)
        return EXIT_WRONG_USAGE


@contextmanager
def writing(path: str) -> Iterator[None]:
    """Turns what hinders the writing of `path` inside into a message for the user.

    Raises:
        ConfigError: a folder that is not there, no permission, a full disk.
    """
    try:
        yield
    except tf.errors.OpError as error:
        raise ConfigError(f"{path} cannot be written: {error.message}") from error


def start_logging(log_file: str = "") -> None:
    """Sends the log to standard output, and appends it to a local file where one is named."""
    handlers: list[logging.Handler] = [logging.StreamHandler(sys.stdout)]
    if log_file:
        os.makedirs(os.path.dirname(log_file) or ".", exist_ok=True)
        handlers.append(logging.FileHandler(log_file))
    logging.basicConfig(
        level=logging.INFO,
        format="%(asctime)s %(message)s",
        datefmt="%Y-%m-%d %H:%M:%S",
        handlers=handlers,
        force=True,
    )
