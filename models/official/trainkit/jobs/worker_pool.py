"""Runs a function over many jobs: here, in a process pool or on a cluster; with progress."""

import multiprocessing
import multiprocessing.connection
import os
import signal
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from typing import Any, Literal, TypeVar

Job = TypeVar("Job")
Result = TypeVar("Result")

Unit = Literal["cpu", "gpu"]
_POLL_SECONDS = 0.2
_progress_queue: Any = None  # of a worker process, set once when it starts
from tpudet.trainkit.errors import UserError


class WorkerPoolError(UserError):
    """Processes or a cluster's nodes cannot do the jobs; says what to do."""


def run_jobs(
    function: Callable[[Job, Callable[[int], Any]], Result],
    jobs: Iterable[Job],
    *,
    workers: int,
    progress: Callable[[int], Any],
    cluster: str | None = None,
    unit: Unit = "cpu",
) -> Iterator[Result]:
    """Yields `function(job, progress)` for every job, in the order in which they end.

    With one worker all happens in this process: a new one takes seconds to import TensorFlow.
    Jobs are drawn from the iterable as workers become free, so it may be long.

    Args:
        function: importable by name; pure, so that where it runs makes no difference.
        jobs: picklable.
        workers: processes; not used with `cluster`, whose CPUs are all used.
        progress: called in this process with amounts of work done; with 0 at least every second.
            `function` calls it too; what a cluster's jobs report arrives when they end.
        cluster: of Ray, `auto` or `host:port` as `ray_pool.run_on_cluster` says; None: here.
        unit: what a job takes of a cluster, as `ray_pool.run_on_cluster` says.

    Raises:
        WorkerPoolError: a worker process was killed, the cluster cannot be reached or Ray is not
            installed; and whatever `function` raises.
    """
    if cluster is not None:
        engine = _cluster_engine()
        yield from engine(function, jobs, cluster=cluster, progress=progress, unit=unit)
        return
    if workers == 1:
        for job in jobs:
            yield function(job, progress)
        return
    context = multiprocessing.get_context("spawn")  # TensorFlow does not survive a fork
    queue = context.SimpleQueue()
    pool = ProcessPoolExecutor(workers, context, _start_worker, (queue,))
    pending: set[Future[Result]] = set()
    source = iter(jobs)
    try:
        while True:
            while len(pending) < 2 * workers and (job := next(source, None)) is not None:
                pending.add(pool.submit(_run_in_worker, function, job))
            if not pending:
                return
            done, pending = wait(pending, _POLL_SECONDS, FIRST_COMPLETED)
            while not queue.empty():
                progress(queue.get())
            progress(0)
            for future in done:
                yield future.result()
    except BrokenProcessPool:
        raise WorkerPoolError(
            "A worker process ended unexpectedly, perhaps for lack of memory: start again with "
            "fewer --workers. Finished files are kept."
        ) from None
    finally:
        pool.shutdown(cancel_futures=True)


def _cluster_engine() -> Callable[..., Iterator[Any]]:
    # Both are read when Ray is imported. The second silences the nodes' logs, which Ray would print
    # among the command's own output.
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_DEDUP_LOGS_SKIP_REGEX", ".*")
    try:
        from tpudet.trainkit.jobs.ray_pool import run_on_cluster
    except ModuleNotFoundError as error:
        if error.name != "ray":
            raise
        raise WorkerPoolError(
            "--cluster needs Ray, which is not installed here: pip install 'tpudet[cluster]'."
        ) from None
    return run_on_cluster


def _start_worker(queue: Any) -> None:
    global _progress_queue
    _progress_queue = queue
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    """A killed parent leaves its workers waiting for ever; this ends them at once."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        multiprocessing.connection.wait([parent.sentinel])
        os._exit(1)


def _run_in_worker(function: Callable[[Job, Callable[[int], Any]], Result], job: Job) -> Result:
    return function(job, _progress_queue.put)
