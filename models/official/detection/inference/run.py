"""Runs SavedModels on folders of images and writes predictions files.

Keras is not needed: the SavedModel contains its own preprocessing. Finished parts are kept in
`PREDICTIONS.parts` until all are finished, so a run that was killed resumes where it stopped. Parts
are predicted here, or by the nodes of a Ray cluster, with the same files as a result.

An image that cannot be read is left out of the predictions and named under `unreadable` in the
file's metadata.
"""

import math
import os
import socket
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from typing import Any, NamedTuple

from tqdm import tqdm

from tpudet.detection.inference.parts import (
    InferenceError,
    PredictionTask,
    find_parts_left,
    finish_task,
    remove_outdated,
    write_whole,
)
from tpudet.detection.inference.saved_detector import Detector, load_detector, read_saved_detector
from tpudet.detection.inference.stream import Part, PredictedPart, Timing, predict_parts
from tpudet.detection.inference.view_settings import ViewSettings
from tpudet.detection.inference.views import load_view_detector
from tpudet.trainkit.cpu import bfloat16_convolutions
from tpudet.trainkit.files import storage
from tpudet.trainkit.files.claims import Claim, ClaimTicket, claim_beside
from tpudet.trainkit.files.storage import is_file
from tpudet.trainkit.jobs.worker_pool import run_jobs
from tpudet.trainkit.saved_model import SavedModel

# On a cluster: loading a model takes as long as predicting thousands of images on a GPU.
_PARTS_PER_JOB = 10
_JOBS_PER_TASK = 8  # at least, if there are as many parts


class PartsJob(NamedTuple):
    """Parts of a task for one process."""

    task: int  # its place in the list
    saved: SavedModel
    views: ViewSettings | None
    parts: tuple[Part, ...]
    key: str
    claim: ClaimTicket  # on the predictions file
    batch_size: int
    workers: int
    in_bfloat16: bool


def run_tasks(
    tasks: Sequence[PredictionTask],
    *,
    batch_size: int,
    workers: int,
    cluster: str | None = None,
    overwrite: bool = False,
    on_finished: Callable[[PredictionTask, int, dict[str, str]], object],
) -> Timing:
    """Writes predictions files, one after another or, on a cluster, as its nodes are free.

    Parts that an earlier run finished are kept if they are of the same model, image list, views,
    part size and precision, and their image files have not changed since. Every predictions file is
    claimed while this runs.

    Args:
        tasks: none without images.
        batch_size: images per call of the model; canvases if there are several views.
        workers: reading threads of each process.
        cluster: address of a Ray cluster, see `trainkit.jobs.ray_pool`; every GPU, or every node
            if there are none, gets a job at a time. Nodes must reach models, images and predictions
            by the same names.
        overwrite: replace predictions files, and parts of other runs; both are refused otherwise.
        on_finished: called with a task whose file is written, the number of images predicted,
            and the reason for each image left out, by file name.

    Raises:
        InferenceError: the parts in `<predictions_path>.parts` are of another model or image list,
            or the predictions file exists.
        ClaimError: another process writes one of the predictions files.
        PredictionsError: the model gave an unknown class or a number that is not finite.
        UserError: the cluster failed.
    """
    with ExitStack() as stack:
        claims = [stack.enter_context(_claim(task, overwrite=overwrite)) for task in tasks]
        return _run_claimed(
            [(task, claim.ticket) for task, claim in zip(tasks, claims, strict=True)],
            batch_size=batch_size,
            workers=workers,
            cluster=cluster,
            overwrite=overwrite,
            on_finished=on_finished,
        )


@contextmanager
def _claim(task: PredictionTask, *, overwrite: bool) -> Iterator[Claim]:
    path = task.predictions_path
    with Claim(claim_beside(path), output=path) as claim:
        # Looked for once more: another process may have finished it since the task was planned.
        if is_file(path) and not overwrite:
            raise InferenceError(f"{path} exists: --overwrite replaces it")
        yield claim


def _run_claimed(
    tasks: Sequence[tuple[PredictionTask, ClaimTicket]],
    *,
    batch_size: int,
    workers: int,
    cluster: str | None,
    overwrite: bool,
    on_finished: Callable[[PredictionTask, int, dict[str, str]], object],
) -> Timing:
    left = [find_parts_left(task, discard_foreign=overwrite) for task, _ in tasks]
    for (task, _), parts in zip(tasks, left, strict=True):
        remove_outdated(task, parts)
    num_images = sum(len(task.images) for task, _ in tasks)
    done = num_images - sum(len(part.images) for parts in left for part in parts)
    jobs = [
        PartsJob(
            number,
            task.saved,
            task.views,
            block,
            task.key(),
            claim,
            batch_size,
            workers,
            task.in_bfloat16,
        )
        for number, ((task, claim), parts) in enumerate(zip(tasks, left, strict=True))
        for block in _blocks(parts, on_cluster=cluster is not None)
    ]
    unfinished = Counter(job.task for job in jobs)
    for number, (task, claim) in enumerate(tasks):
        if not unfinished[number]:  # killed between its last part and the joining
            on_finished(task, *finish_task(task, claim))
    timing = Timing()
    with tqdm(total=num_images, initial=done, unit=" images", smoothing=0.05) as bar:
        for number, spent in run_jobs(
            run_job, jobs, workers=1, progress=bar.update, cluster=cluster, unit="gpu"
        ):
            timing = timing.plus(spent)
            unfinished[number] -= 1
            if not unfinished[number]:
                task, claim = tasks[number]
                on_finished(task, *finish_task(task, claim))
    return timing


def run_job(job: PartsJob, progress: Callable[[int], Any]) -> tuple[int, Timing]:
    """Predicts the parts of a job and writes each; finished parts are skipped.

    Raises:
        InferenceError: the model differs from the one that the job was made with.
        ClaimError: another process has taken the predictions file over.
    """
    parts = [part for part in job.parts if not is_file(part.path)]
    progress(sum(len(part.images) for part in job.parts) - sum(len(part.images) for part in parts))
    if not parts:
        return job.task, Timing()
    storage.make_folder(os.path.dirname(parts[0].path))
    image_files = {part.path: part.image_files for part in parts}

    def write(found: PredictedPart) -> None:
        metadata = {"key": job.key, "unreadable": found.unreadable}
        metadata |= {"image_files": image_files[found.path]}
        write_whole(found.path, [found.predictions], job.saved, metadata, job.claim)

    with bfloat16_convolutions() if job.in_bfloat16 else nullcontext():
        timing = predict_parts(
            parts,
            _load_detector(job),
            batch_size=job.batch_size,
            workers=job.workers,
            on_progress=progress,
            write=write,
        )
    return job.task, timing


def _load_detector(job: PartsJob) -> Detector:
    if job.views is None:
        detect = load_detector(job.saved)
    else:
        detect = load_view_detector(job.saved, job.views, job.batch_size)
    # Compared once it is loaded: another export may have replaced it until then.
    if read_saved_detector(job.saved.directory).fingerprint != job.saved.fingerprint:
        raise InferenceError(
            f"{job.saved.directory} on {socket.gethostname()} is not the model that the run "
            "started with: nodes must share the folder, and it must not change meanwhile"
        )
    return detect


def _blocks(parts: Sequence[Part], *, on_cluster: bool) -> Iterator[tuple[Part, ...]]:
    """The parts of each job: all of them here, so that reading continues from part to part."""
    if not parts:
        return
    size = len(parts)
    if on_cluster:
        size = min(_PARTS_PER_JOB, math.ceil(len(parts) / _JOBS_PER_TASK))
    for start in range(0, len(parts), size):
        yield tuple(parts[start : start + size])
