"""A SavedModel and a folder of images -> a predictions file.

It needs no Keras: the SavedModel brings its own preprocessing. Finished parts of the work lie in
`PREDICTIONS.parts` until all are there, so a run that was killed goes on where it was. Parts are
worked off here, or by the nodes of a Ray cluster, to the same files.

An image that cannot be read is left out of the predictions and named under `unreadable` in the
file's metadata.
"""

import math
import os
import socket
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from tqdm import tqdm

from tpudet.detection.inference.parts import (
    InferenceError,
    Work,
    find_parts_left,
    join_work,
    write_whole,
)
from tpudet.detection.inference.saved_detector import (
    Detector,
    SavedDetector,
    load_detector,
    read_saved_detector,
)
from tpudet.detection.inference.stream import FoundPart, Part, Timing, predict_parts
from tpudet.detection.inference.views import Augmentation, load_augmented_detector
from tpudet.trainkit.files import storage
from tpudet.trainkit.files.storage import is_file
from tpudet.trainkit.jobs.worker_pool import run_jobs

# Of a cluster: loading a model takes as long as predicting thousands of images on a GPU.
_PARTS_A_TASK = 10
_TASKS_A_WORK = 8  # at least, where there are as many parts


class PartsJob(NamedTuple):
    """Parts of one work for one process."""

    work: int  # its number
    saved: SavedDetector
    augmentation: Augmentation | None
    parts: tuple[Part, ...]
    key: str
    batch_size: int
    workers: int


def run_works(
    works: Sequence[Work],
    *,
    batch_size: int,
    workers: int,
    cluster: str | None = None,
    discard_foreign_parts: bool = False,
    on_finished: Callable[[Work, int, dict[str, str]], object],
) -> Timing:
    """Makes predictions files, one after another or, on a cluster, as its nodes are free.

    Parts that an earlier run finished are kept where they come from the same model, image list,
    views and part size. Others are refused, or thrown away with `discard_foreign_parts`.

    Args:
        works: with images each.
        batch_size: images a call of the model; canvases with augmentation.
        workers: threads that read, of each process.
        cluster: of Ray, see `tpudet.trainkit.jobs.ray_pool`; every GPU gets a task at a time, or every node
            where there are none. Nodes must reach models, images and predictions by the same names.
        discard_foreign_parts: see above.
        on_finished: is told the number of images predicted, and the reason for each image left out
            by file name, of a work whose file is whole.

    Raises:
        InferenceError: the parts in `<predictions_path>.parts` are of another model or image list.
        PredictionsError: the model gave a class or a number that cannot be.
        WorkerPoolError: the cluster cannot do it.
    """
    left = [find_parts_left(work, discard_foreign=discard_foreign_parts) for work in works]
    num_images = sum(len(work.images) for work in works)
    done = num_images - sum(len(part.images) for parts in left for part in parts)
    jobs = [
        PartsJob(number, work.saved, work.augmentation, block, work.key(), batch_size, workers)
        for number, (work, parts) in enumerate(zip(works, left, strict=True))
        for block in _blocks(parts, on_cluster=cluster is not None)
    ]
    unfinished = Counter(job.work for job in jobs)
    for number, work in enumerate(works):
        if not unfinished[number]:  # killed between its last part and the joining
            on_finished(work, *join_work(work))
    timing = Timing()
    with tqdm(total=num_images, initial=done, unit=" images", smoothing=0.05) as bar:
        for number, spent in run_jobs(
            run_job, jobs, workers=1, progress=bar.update, cluster=cluster, unit="gpu"
        ):
            timing = timing.plus(spent)
            unfinished[number] -= 1
            if not unfinished[number]:
                on_finished(works[number], *join_work(works[number]))
    return timing


def run_job(job: PartsJob, progress: Callable[[int], Any]) -> tuple[int, Timing]:
    """Predicts the parts of a job and writes each; parts that are there already are passed over.

    Raises:
        InferenceError: another model lies in the directory than where the job was made.
    """
    parts = [part for part in job.parts if not is_file(part.path)]
    progress(sum(len(part.images) for part in job.parts) - sum(len(part.images) for part in parts))
    if not parts:
        return job.work, Timing()
    storage.make_folder(os.path.dirname(parts[0].path))

    def write(found: FoundPart) -> None:
        metadata = {"key": job.key, "unreadable": found.unreadable}
        write_whole(found.path, [found.predictions], job.saved, metadata)

    timing = predict_parts(
        parts,
        _detector(job),
        batch_size=job.batch_size,
        workers=job.workers,
        on_progress=progress,
        write=write,
    )
    return job.work, timing


def _detector(job: PartsJob) -> Detector:
    if read_saved_detector(job.saved.directory).fingerprint != job.saved.fingerprint:
        raise InferenceError(
            f"{job.saved.directory} on {socket.gethostname()} is not the model that the run began "
            "with: nodes must share the folder, and nobody may export into it meanwhile"
        )
    if job.augmentation is None:
        return load_detector(job.saved)
    return load_augmented_detector(job.saved, job.augmentation, job.batch_size)


def _blocks(parts: Sequence[Part], *, on_cluster: bool) -> Iterator[tuple[Part, ...]]:
    """The parts of each job: here all, so that reading goes on from part to part."""
    if not parts:
        return
    size = len(parts)
    if on_cluster:
        size = min(_PARTS_A_TASK, math.ceil(len(parts) / _TASKS_A_WORK))
    for start in range(0, len(parts), size):
        yield tuple(parts[start : start + size])
