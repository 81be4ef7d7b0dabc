"""The arguments that several commands share: the experiment's, and the backend's."""

import argparse
import os
from importlib.util import find_spec

from tpudet.detection.config import ExperimentConfig
from tpudet.trainkit.command_line import add_override_arguments
from tpudet.trainkit.config.decode import load_config
from tpudet.trainkit.errors import UserError

_CONFIG_HELP = (
    "experiment file, or a VERSION: the name of a file under configs/yaml without .yaml, its part "
    "before the first `_`, or a version of the predecessor"
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
        choices=("auto", "tensorflow", "jax"),
        default="auto",
        help="auto: jax if it sees a TPU, else tensorflow (%(default)s)",
    )


def choose_backend(arguments: argparse.Namespace) -> None:
    """Sets the backend of --backend; Keras reads it when it is first imported.

    Raises:
        UserError: JAX is asked for and not installed.
    """
    backend = arguments.backend
    if backend == "auto":
        backend = "jax" if _sees_tpu() else "tensorflow"
    if backend == "jax" and find_spec("jax") is None:
        raise UserError(
            "--backend jax needs JAX, which is not installed: pip install 'tpudet[jax]', or "
            "'tpudet[tpu]' on a TPU machine"
        )
    os.environ["KERAS_BACKEND"] = backend


def _sees_tpu() -> bool:
    """Whether JAX is installed with a TPU's driver and finds one."""
    if find_spec("jax") is None or find_spec("libtpu") is None:
        return False
    import jax

    return jax.default_backend() == "tpu"


def experiment_config(arguments: argparse.Namespace) -> ExperimentConfig:
    """Reads the experiment that the arguments of one of the functions above describe."""
    return load_config(
        ExperimentConfig,
        arguments.config,
        overrides=arguments.overrides,
        params_override=arguments.params_override,
    )
