"""Arguments that say what computes: the backend of Keras, the hosts that share a training."""

import argparse
import os
from importlib.util import find_spec

from tpudet.trainkit.command_line import natural_number, positive_integer
from tpudet.trainkit.errors import UserError

# Variables of the environment of Cloud TPUs, Kaggle's and Colab's.
_TPU_VARIABLES = ("TPU_ACCELERATOR_TYPE", "TPU_WORKER_HOSTNAMES", "TPU_NAME", "COLAB_TPU_ADDR")


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
        UserError: JAX is requested and not installed, or does not see this machine's TPU.
    """
    backend = arguments.backend
    if backend == "jax":
        require_jax()
    sees_tpu = backend != "tensorflow" and _sees_tpu()
    if backend != "tensorflow" and not sees_tpu:
        _refuse_cpu_by_the_name_of_tpu()
    if backend == "auto":
        backend = "jax" if sees_tpu else "tensorflow"
    os.environ["KERAS_BACKEND"] = backend


def add_tensorflow_argument(parser: argparse.ArgumentParser) -> None:
    """Adds --backend to a command that only TensorFlow can do, so that it can say why."""
    parser.add_argument(
        "--backend",
        type=_only_tensorflow,
        default="tensorflow",
        help="only tensorflow: SavedModels are graphs of TensorFlow, whatever trained them",
    )


def _only_tensorflow(text: str) -> str:
    if text not in ("auto", "tensorflow"):
        raise argparse.ArgumentTypeError(
            f"`{text}` cannot export or run a SavedModel, which is a graph of TensorFlow. "
            "Checkpoints that JAX has trained are exported and run without --backend"
        )
    return "tensorflow"


def require_jax() -> None:
    """Raises UserError if JAX is not installed; names the extra."""
    if find_spec("jax") is None:
        raise UserError(
            "--backend jax needs JAX, which is not installed: pip install 'tpudet[jax]', or "
            "'tpudet[tpu]' on a TPU machine"
        )


def add_hosts_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds --coordinator_address, --num_processes and --process_id.

    They default to the environment variables of the same names; an empty one counts as unset.
    """
    group = parser.add_argument_group(
        "several hosts",
        "Each runs the same command with --backend jax. On a TPU pod none of these is needed: its "
        "hosts find each other.",
    )
    group.add_argument(
        "--coordinator_address",
        metavar="HOST:PORT",
        default=os.environ.get("JAX_COORDINATOR_ADDRESS") or None,
        help="a free port of the host of process 0 (JAX_COORDINATOR_ADDRESS)",
    )
    group.add_argument(
        "--num_processes",
        metavar="N",
        type=positive_integer,
        default=os.environ.get("JAX_NUM_PROCESSES") or None,
        help="how many hosts (JAX_NUM_PROCESSES)",
    )
    group.add_argument(
        "--process_id",
        metavar="I",
        type=natural_number,
        default=os.environ.get("JAX_PROCESS_ID") or None,
        help="number of this host, from 0, which writes the files (JAX_PROCESS_ID)",
    )


def _refuse_cpu_by_the_name_of_tpu() -> None:
    """Raises UserError where the environment speaks of a TPU: a CPU would be 100 times slower."""
    if os.environ.get("JAX_PLATFORMS") == "cpu":
        return
    named = [name for name in _TPU_VARIABLES if os.environ.get(name)]
    if named:
        raise UserError(
            f"{named[0]} is set, as on a TPU machine, and JAX sees no TPU: libtpu is missing or of "
            "the wrong version, the image is one for CPUs, or another process holds the TPU. Look "
            "at `tpudet check`; to train on this machine's CPU, give --backend tensorflow"
        )


def _sees_tpu() -> bool:
    """Whether JAX is installed with a TPU's driver and finds one."""
    if find_spec("jax") is None or find_spec("libtpu") is None:
        return False
    import jax

    return jax.default_backend() == "tpu"
