"""Runs a function over many jobs as tasks of a Ray cluster; imported only where one is asked for.

Every node needs this toolkit in the same version, and must reach the paths that the jobs name under
the same names: a shared disk, or a bucket. The process that calls runs on a node of the cluster.
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

from tpudet.trainkit.jobs.worker_pool import Unit, WorkerPoolError

Job = TypeVar("Job")
Result = TypeVar("Result")

_POLL_SECONDS = 0.2
_CONNECT_SECONDS = 10
_CANCEL_SECONDS = 10
_MAX_RETRIES = 5  # of one job: nodes that may be taken away at any time are often lost
_NUM_ATTEMPTS = "RAY_gcs_server_port_wait_time_s"  # of connecting, whatever it is called
_CANNOT_IMPORT = "The remote function failed to import"  # so begins a RuntimeError of Ray
_QUIET: dict[str, Any] = {"logging_level": logging.ERROR, "log_to_driver": False}


def run_on_cluster(
    function: Callable[[Job, Callable[[int], Any]], Result],
    jobs: Iterable[Job],
    *,
    cluster: str,
    progress: Callable[[int], Any],
    unit: Unit = "cpu",
) -> Iterator[Result]:
    """Yields `function(job, progress)` for every job, in the order in which they end.

    A job is one task. One whose node or process is lost runs again elsewhere; what it did
    until then is not counted as progress, which comes from finished jobs only.

    Args:
        function: importable by name on every node; pure, so that it may run twice.
        jobs: picklable; drawn as nodes become free. Relative paths in them count from the directory
            of this process, on nodes that have it.
        cluster: `host:port` of a running one; `auto`: what RAY_ADDRESS names, else the one of this
            machine, else a new one on this machine's CPUs that ends with the run. A process that
            is connected already stays with its cluster.
        progress: called in this process with amounts of work done; with 0 at least every second.
        unit: what a job takes, a CPU or a GPU. Where the cluster has no GPU, a job that wants one
            takes as many CPUs as the smallest node has: one job a node, in a cluster of equals.

    Raises:
        WorkerPoolError: the cluster cannot be reached, a node lacks this toolkit, or a job was
            lost too often; and whatever `function` raises.
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
                _say(f"The cluster lost a node, {len(nodes)} left: its jobs run again elsewhere.")
            num_nodes = len(nodes)
            share, num_places = share_of_job([node["Resources"] for node in nodes], unit)
            # The second job of a place waits there; in a cluster that grows on demand it is demand.
            while len(pending) < max(2, 2 * num_places) and (job := next(source, None)) is not None:
                pending.append(task.options(**share).remote(function, job, directory))
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
        if pending:  # a job that is at work removes its temporary file before it ends
            ray.wait(pending, num_returns=len(pending), timeout=_CANCEL_SECONDS)


def share_of_job(nodes: Sequence[Mapping[str, float]], unit: Unit) -> tuple[dict[str, int], int]:
    """What a job takes, as options of a Ray task, and how many jobs there is room for.

    Args:
        nodes: the resources of each, as Ray names them.
        unit: see `run_on_cluster`.
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
    except RayTaskError as error:  # a hybrid of Ray's class and the raised one
        cause = error.cause
        if isinstance(cause, RayError) or str(cause).startswith(_CANNOT_IMPORT):
            raise WorkerPoolError(
                f"A node cannot run the jobs: {str(cause).strip().splitlines()[-1]}. "
                "Every node of the cluster needs this toolkit in the same version."
            ) from None
        raise cause from error
    except RayError as error:
        raise WorkerPoolError(
            f"A job was lost {_MAX_RETRIES + 1} times on the Ray cluster: {_first_line(error)}. "
            "Start again when the cluster is well. Finished files are kept."
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
        _say(f"No Ray cluster runs on this machine: started one on its {num_cpus} CPUs.")
    except Exception as error:  # another version of Ray or Python, a machine that is no node, ...
        raise _unreachable(address, error) from None


def _join(address: str) -> None:
    # By default Ray tries 20 times, which takes 13 minutes where something else listens.
    os.environ[_NUM_ATTEMPTS] = "1"
    try:
        ray.init(address=address, **_QUIET)
    finally:
        del os.environ[_NUM_ATTEMPTS]


def _require_listener(address: str) -> None:
    match = re.fullmatch(r"\[?([^/\[\]]+)\]?:(\d{1,5})", address)
    if match is None:
        raise WorkerPoolError(
            f"--cluster {address} must be auto or HOST:PORT, as `ray start --head` prints it."
        )
    try:
        socket.create_connection((match[1], int(match[2])), _CONNECT_SECONDS).close()
    except (OSError, OverflowError) as error:
        raise _unreachable(address, error) from None


def _unreachable(address: str, error: Exception) -> WorkerPoolError:
    return WorkerPoolError(
        f"The Ray cluster at {address} cannot be joined: {_first_line(error)}. Pass the address "
        "that `ray start --head` printed, from a machine that is a node of that cluster, or "
        "--cluster auto."
    )


def _first_line(error: Exception) -> str:
    return (str(error) or repr(error)).splitlines()[0].rstrip(".")


def _say(message: str) -> None:
    tqdm.write(message, file=sys.stderr)
