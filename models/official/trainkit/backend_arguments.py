"""Arguments that say what computes: the backend of Keras, the hosts that share a training."""

import argparse
import os
from importlib.util import find_spec

from tpudet.trainkit.command_line import natural_number, positive_integer
from tpudet.trainkit.errors import UserError
from tpudet.trainkit.tpu_machine import refuse_pod, sign_of_tpu


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

    Args:
        arguments: with `add_backend_argument`, and with `add_hosts_arguments` where hosts have been
            joined.

    Raises:
        UserError: JAX is requested and not installed, or cannot use this machine's TPU; or the TPU
            is a pod's, and the command runs on one host.
    """
    backend = arguments.backend
    if backend == "jax":
        require_jax()
    if backend != "tensorflow":
        if "num_processes" not in arguments:
            refuse_pod(
                "The command runs on one host",
                "give --backend tensorflow, or run it on a machine of its own",
            )
        sees_tpu = find_tpu()
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


def find_tpu() -> bool:
    """Whether JAX finds a TPU, which then belongs to this process.

    Raises:
        UserError: the TPU of this machine cannot be used: a CPU would be 100 times slower.
    """
    if _sees_tpu():
        return True
    sign = "" if os.environ.get("JAX_PLATFORMS") == "cpu" else sign_of_tpu()
    if sign:
        raise UserError(
            f"{sign}, and JAX sees no TPU: libtpu, which the extra [tpu] brings, is missing or of "
            "the wrong version, the image is one for CPUs, or another process holds the TPU. Look "
            "at `tpudet check`; to train on this machine's CPU, give --backend tensorflow"
        )
    return False


def has_tpu_driver() -> bool:
    """Whether JAX is installed with a TPU's driver, or told to use a TPU."""
    is_named = os.environ.get("TPU_LIBRARY_PATH") or "tpu" in os.environ.get("JAX_PLATFORMS", "")
    return find_spec("jax") is not None and bool(is_named or find_spec("libtpu"))


def _sees_tpu() -> bool:
    if not has_tpu_driver():
        return False
    import jax

    try:
        return jax.default_backend() == "tpu"
    except RuntimeError as error:
        raise jax_start_error(error) from error


def jax_start_error(error: RuntimeError) -> UserError:
    """Returns the error of a JAX that cannot start its devices, in words.

    Args:
        error: by JAX; its own advice is to do without the devices.
    """
    line = str(error).strip().partition("\n")[0][:300]
    for advice in (" (set JAX_PLATFORMS=", " (you may need to uninstall"):
        line = line.partition(advice)[0]
    cause = "The driver of these devices is missing or of the wrong version"
    if "'tpu'" in line:
        cause = (
            "Either another process holds the TPU, such as the kernel of a notebook or an earlier "
            "run, and must end first, or libtpu is missing or of the wrong version"
        )
    return UserError(
        f"JAX cannot start: {line.rstrip('.')}. {cause}. To train without JAX, give --backend "
        "tensorflow"
    )
