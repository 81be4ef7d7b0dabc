"""Runs a function over many jobs in this process, in a process pool or on a Ray cluster."""

import multiprocessing
import multiprocessing.connection
import os
import signal
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from typing import Any, Literal, TypeVar

from tpudet.trainkit.errors import UserError

Job = TypeVar("Job")
Result = TypeVar("Result")

_POLL_SECONDS = 0.2
_progress_queue: Any = None  # of a worker process, set once when it starts


def run_jobs(
    function: Callable[[Job, Callable[[int], Any]], Result],
    jobs: Iterable[Job],
    *,
    workers: int,
    progress: Callable[[int], Any],
    cluster: str | None = None,
    unit: Literal["cpu", "gpu"] = "cpu",
) -> Iterator[Result]:
    """Yields `function(job, progress)` for every job, in the order in which they finish.

    One worker means this process, because a new one takes seconds to import TensorFlow. Jobs are
    drawn from the iterable as workers become free, so it may be long.

    Args:
        function: importable by name; pure, so that it makes no difference where it runs.
        jobs: picklable.
        workers: processes; ignored with `cluster`, where all CPUs are used.
        progress: called in this process with the amounts of work that `function` reports, and with
            0 at least every second. Jobs on a cluster report when they end.
        cluster: the Ray cluster, `auto` or `host:port` as for `ray_pool.run_on_cluster`; None runs
            the jobs on this machine.
        unit: the resource that a job occupies on a cluster, as for `ray_pool.run_on_cluster`.

    Raises:
        UserError: a worker process was killed, the cluster cannot be reached, or Ray is not
            installed. Exceptions of `function` are raised too.
    """
    if cluster is not None:
        run = _import_cluster_runner()
        yield from run(function, jobs, cluster=cluster, progress=progress, unit=unit)
        return
    if workers == 1:
        for job in jobs:
            yield function(job, progress)
        return
    context = multiprocessing.get_context("spawn")  # TensorFlow breaks after a fork
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
        raise UserError(
            "A worker process ended unexpectedly, perhaps out of memory. Start again with fewer "
            "--workers; finished files are kept."
        ) from None
    finally:
        pool.shutdown(cancel_futures=True)


def _import_cluster_runner() -> Callable[..., Iterator[Any]]:
    # Both are read when Ray is imported. The second keeps the nodes' logs out of the command's
    # output.
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_DEDUP_LOGS_SKIP_REGEX", ".*")
    try:
        from tpudet.trainkit.jobs.ray_pool import run_on_cluster
    except ModuleNotFoundError as error:
        if error.name != "ray":
            raise
        raise UserError(
            "--cluster needs Ray, which is not installed: pip install 'tpudet[cluster]'."
        ) from None
    return run_on_cluster


def _start_worker(queue: Any) -> None:
    global _progress_queue
    _progress_queue = queue
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent handles Ctrl-C
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    """Ends this worker when its parent is killed; it would wait forever otherwise."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        multiprocessing.connection.wait([parent.sentinel])
        os._exit(1)


def _run_in_worker(function: Callable[[Job, Callable[[int], Any]], Result], job: Job) -> Result:
    return function(job, _progress_queue.put)
