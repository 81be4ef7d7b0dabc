"""Runs a function over many jobs as tasks on a Ray cluster; imported only if one is requested.

Every node needs the same version of this toolkit and must reach the paths in the jobs under the
same names, on a shared disk or in a bucket. The calling process runs on a node of the cluster.
"""

import contextlib
import logging
import os
import re
import socket
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

import ray
from ray.exceptions import RayError, RayTaskError
from tqdm import tqdm

from tpudet.trainkit.errors import UserError
from tpudet.trainkit.jobs.worker_pool import Unit

Job = TypeVar("Job")
Result = TypeVar("Result")

_POLL_SECONDS = 0.2
_CONNECT_SECONDS = 10
_CANCEL_SECONDS = 10
_MAX_RETRIES = 5  # per job: preemptible nodes are lost often
_NUM_ATTEMPTS = "RAY_gcs_server_port_wait_time_s"  # counts connection attempts, not seconds
_CANNOT_IMPORT = "The remote function failed to import"  # start of a RuntimeError of Ray
_QUIET: dict[str, Any] = {"logging_level": logging.ERROR, "log_to_driver": False}


def run_on_cluster(
    function: Callable[[Job, Callable[[int], Any]], Result],
    jobs: Iterable[Job],
    *,
    cluster: str,
    progress: Callable[[int], Any],
    unit: Unit = "cpu",
) -> Iterator[Result]:
    """Yields `function(job, progress)` for every job, in the order in which they finish.

    Each job is one task. If its node or process is lost, it runs again elsewhere. Only finished
    jobs count as progress.

    Args:
        function: importable by name on every node; pure, because it may run twice.
        jobs: picklable; drawn as nodes become free. Relative paths in them are relative to the
            working directory of this process, on nodes that have that directory.
        cluster: `host:port` of a running cluster. `auto` means the one that RAY_ADDRESS names,
            else the one on this machine, else a new one on this machine's CPUs that ends with the
            run. A process that is already connected keeps its cluster.
        progress: called in this process with amounts of work done, and with 0 at least every
            second.
        unit: the resource that a job occupies. On a cluster without GPUs, a job that wants one
            occupies as many CPUs as the smallest node has: one job per node if all are equal.

    Raises:
        UserError: the cluster cannot be reached, a node lacks this toolkit, or a job was lost too
            often. Exceptions of `function` are raised too.
    """
    connects = not ray.is_initialized()
    if connects:
        _connect(cluster)
    try:
        yield from _run_tasks(function, jobs, progress, unit)
    finally:
        if connects:
            ray.shutdown()


def _run_tasks(
    function: Callable[[Job, Callable[[int], Any]], Result],
    jobs: Iterable[Job],
    progress: Callable[[int], Any],
    unit: Unit,
) -> Iterator[Result]:
    task: Any = ray.remote(max_retries=_MAX_RETRIES)(_run_in_task)
    directory = os.getcwd()
    source = iter(jobs)
    pending: list[Any] = []
    num_nodes = 0
    try:
        while True:
            nodes = [node for node in ray.nodes() if node["Alive"]]
            if len(nodes) < num_nodes:
                _print_message(
                    f"The cluster lost a node, {len(nodes)} left; its jobs run again elsewhere."
                )
            num_nodes = len(nodes)
            resources, num_slots = plan_slots([node["Resources"] for node in nodes], unit)
            # Queue a second job per slot, so that a cluster that grows on demand sees demand.
            while len(pending) < max(2, 2 * num_slots) and (job := next(source, None)) is not None:
                pending.append(task.options(**resources).remote(function, job, directory))
            if not pending:
                return
            done, pending = ray.wait(pending, num_returns=1, timeout=_POLL_SECONDS)
            progress(0)
            for reference in done:
                result, amount = _outcome(reference)
                progress(amount)
                yield result
    finally:
        for reference in pending:
            ray.cancel(reference)
        if pending:  # a running job removes its temporary file before it ends
            ray.wait(pending, num_returns=len(pending), timeout=_CANCEL_SECONDS)


def plan_slots(nodes: Sequence[Mapping[str, float]], unit: Unit) -> tuple[dict[str, int], int]:
    """Returns the resources of a job, as options of a Ray task, and how many jobs can run at once.

    Args:
        nodes: the resources of each node, as Ray names them.
        unit: as for `run_on_cluster`.
    """
    cpus = [int(node.get("CPU", 0)) for node in nodes if node.get("CPU", 0) >= 1]
    gpus = sum(int(node.get("GPU", 0)) for node in nodes)
    if unit == "gpu" and gpus:
        return {"num_cpus": 1, "num_gpus": 1}, gpus
    taken = min(cpus, default=1) if unit == "gpu" else 1
    return {"num_cpus": taken}, sum(number // taken for number in cpus)


def _run_in_task(
    function: Callable[[Job, Callable[[int], Any]], Result], job: Job, directory: str
) -> tuple[Result, int]:
    with contextlib.suppress(OSError):
        os.chdir(directory)
    amounts: list[int] = []
    return function(job, amounts.append), sum(amounts)


def _outcome(reference: Any) -> Any:
    try:
        return ray.get(reference)
    except RayTaskError as error:  # also an instance of the raised class
        cause = error.cause
        if isinstance(cause, RayError) or str(cause).startswith(_CANNOT_IMPORT):
            raise UserError(
                f"A node cannot run the jobs: {str(cause).strip().splitlines()[-1]}. "
                "Every node of the cluster needs this toolkit in the same version."
            ) from None
        raise cause from error
    except RayError as error:
        raise UserError(
            f"A job was lost {_MAX_RETRIES + 1} times on the Ray cluster: {_first_line(error)}. "
            "Start again when the cluster is healthy; finished files are kept."
        ) from None


def _connect(cluster: str) -> None:
    address = os.environ.get("RAY_ADDRESS", cluster) if cluster == "auto" else cluster
    if address != "auto":
        _require_listener(address)
    try:
        _join(address)
    except ConnectionError as error:
        if address != "auto":
            raise _unreachable(address, error) from None
        ray.init(address="local", include_dashboard=False, **_QUIET)
        num_cpus = int(ray.cluster_resources()["CPU"])
        _print_message(
            f"No Ray cluster is running on this machine; started one on its {num_cpus} CPUs."
        )
    except Exception as error:  # such as another version of Ray or Python
        raise _unreachable(address, error) from None


def _join(address: str) -> None:
    # By default Ray tries 20 times, which takes 13 minutes if another program uses the port.
    os.environ[_NUM_ATTEMPTS] = "1"
    try:
        ray.init(address=address, **_QUIET)
    finally:
        del os.environ[_NUM_ATTEMPTS]


def _require_listener(address: str) -> None:
    match = re.fullmatch(r"\[?([^/\[\]]+)\]?:(\d{1,5})", address)
    if match is None:
        raise UserError(
            f"--cluster {address} must be auto or HOST:PORT, as `ray start --head` prints it."
        )
    try:
        socket.create_connection((match[1], int(match[2])), _CONNECT_SECONDS).close()
    except (OSError, OverflowError) as error:
        raise _unreachable(address, error) from None


def _unreachable(address: str, error: Exception) -> UserError:
    return UserError(
        f"The Ray cluster at {address} cannot be joined: {_first_line(error)}. Pass the address "
        "that `ray start --head` printed, from a machine that is a node of that cluster, or "
        "--cluster auto."
    )


def _first_line(error: Exception) -> str:
    return (str(error) or repr(error)).splitlines()[0].rstrip(".")


def _print_message(message: str) -> None:
    tqdm.write(message, file=sys.stderr)
