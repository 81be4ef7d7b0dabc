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
Unit = Literal["cpu", "gpu"]  # of the resources of a cluster

_POLL_SECONDS = 0.2
_CLEAN_UP_SECONDS = 2  # for a worker that is stopped, to remove its temporary file

# Of a worker process:
_work_done: Any = None  # a number shared with the parent, set once when the worker starts
_at_rest = threading.Event()  # no job is running
_is_interrupted = False


def run_jobs(
    function: Callable[[Job, Callable[[int], Any]], Result],
    jobs: Iterable[Job],
    *,
    workers: int,
    progress: Callable[[int], Any],
    cluster: str | None = None,
    unit: Unit = "cpu",
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
    yield from _run_in_pool(function, jobs, workers, progress)


def _run_in_pool(
    function: Callable[[Job, Callable[[int], Any]], Result],
    jobs: Iterable[Job],
    workers: int,
    progress: Callable[[int], Any],
) -> Iterator[Result]:
    context = multiprocessing.get_context("spawn")  # TensorFlow breaks after a fork
    # A number never fills up, as a queue does that nobody reads.
    work_done = context.Value("q", 0)
    stop_reader, stop_writer = context.Pipe(duplex=False)
    pool = ProcessPoolExecutor(workers, context, _start_worker, (work_done, stop_reader))
    pending: set[Future[Result]] = set()
    source = iter(jobs)
    reported = 0
    try:
        while True:
            while len(pending) < 2 * workers and (job := next(source, None)) is not None:
                pending.add(pool.submit(_run_in_worker, function, job))
            if not pending:
                return
            done, pending = wait(pending, _POLL_SECONDS, FIRST_COMPLETED)
            # Read without its lock, which a killed worker may hold for ever.
            amount = work_done.get_obj().value - reported
            reported += amount
            progress(amount)
            for future in done:
                yield future.result()
    except BrokenProcessPool:
        raise UserError(
            "A worker process ended unexpectedly, perhaps out of memory. Start again with fewer "
            "--workers; finished files are kept."
        ) from None
    finally:
        stop_writer.close()  # stops the workers, as the end of this process does
        pool.shutdown(cancel_futures=True)
        stop_reader.close()


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


def _start_worker(work_done: Any, stop_reader: Any) -> None:
    global _work_done
    _work_done = work_done
    _at_rest.set()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent handles Ctrl-C
    signal.signal(signal.SIGTERM, _interrupt)
    threading.Thread(target=_end_when_told, args=(stop_reader,), daemon=True).start()


def _end_when_told(stop_reader: Any) -> None:
    """Ends this worker when its parent stops the pool or is killed; it would wait forever."""
    parent = multiprocessing.parent_process()
    sentinels = [parent.sentinel] if parent is not None else []
    multiprocessing.connection.wait([stop_reader, *sentinels])
    # A real signal, which also wakes a main thread that sleeps or waits for the disk.
    signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGTERM)
    _at_rest.wait(_CLEAN_UP_SECONDS)
    os._exit(1)


def _interrupt(number: int, frame: object) -> None:
    """Handles SIGTERM in the main thread: a job removes its temporary file before it ends."""
    global _is_interrupted
    if _at_rest.is_set():
        os._exit(128 + number)
    if not _is_interrupted:
        _is_interrupted = True
        threading.Timer(_CLEAN_UP_SECONDS, os._exit, (128 + number,)).start()
        raise KeyboardInterrupt


def _run_in_worker(function: Callable[[Job, Callable[[int], Any]], Result], job: Job) -> Result:
    _at_rest.clear()
    try:
        return function(job, _report)
    except KeyboardInterrupt:
        os._exit(1)
    finally:
        _at_rest.set()


def _report(amount: int) -> None:
    with _work_done.get_lock():
        _work_done.value += amount
