"""Annotations -> TFRecord shards, classes.csv and manifest; resumable, and the same each time.

While a run is under way `<split>_<part>.progress/` holds a claim and one report a finished shard.
A run that finds such reports keeps the shards whose inputs are unchanged. The manifest comes last
and replaces that directory: it says that the set is whole.
"""

import json
import os
import uuid
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from tqdm import tqdm

from tpudet.detection.preparation.records.existing_files import (
    check_classes,
    finished_manifest,
    is_current,
    refuse_existing,
    remove_leftovers,
    remove_set,
)
from tpudet.detection.preparation.records.manifest import build_manifest
from tpudet.detection.preparation.records.plan import Plan
from tpudet.detection.preparation.records.shard import run_shard
from tpudet.detection.preparation.records.shard_jobs import (
    ShardJob,
    ShardReport,
    inputs_digest,
    report_from_json,
    report_to_json,
)
from tpudet.detection.preparation.sources.annotations import PreparationError
from tpudet.trainkit.class_list import write_class_list
from tpudet.trainkit.files import storage
from tpudet.trainkit.files.claims import Claim, remove_dead_claim
from tpudet.trainkit.files.storage import read_text, remove_if_there, write_text
from tpudet.trainkit.jobs.worker_pool import run_jobs


def check_only(plan: Plan, *, workers: int) -> dict[str, Any]:
    """Runs all checks and writes nothing; returns the manifest as it would be."""
    reports = _run(_check_shard, plan.jobs(write=False), plan, workers, lambda: None)
    return _manifest(plan, reports)


def write_tfrecords(
    plan: Plan, *, workers: int, cluster: str | None = None, overwrite: bool
) -> tuple[dict[str, Any], bool]:
    """Writes the set, or finishes one that was begun.

    The files are the same, byte for byte, whatever `workers` is and however often the run was
    killed and started again.

    Args:
        plan: what and where.
        workers: processes; not used with `cluster`.
        cluster: the Ray cluster whose nodes write the shards, as `worker_pool.run_jobs` says.
        overwrite: replace a finished set that was made from other inputs.

    Returns:
        The manifest, and whether anything had to be written: a finished set of the same inputs is
        left as it is.

    Raises:
        PreparationError: other classes or another finished set are there, another run is at work,
            no image can be used, or writing fails.
    """
    check_classes(plan)
    storage.make_folder(plan.directory)
    finished = finished_manifest(plan)
    claim_path = os.path.join(plan.progress_directory, "claim.json")
    if finished is not None and is_current(plan, finished):
        if storage.is_folder(plan.progress_directory) and remove_dead_claim(claim_path):
            storage.remove_folder(plan.progress_directory)
        return finished, False
    if not overwrite:
        refuse_existing(plan, is_finished=finished is not None)
    storage.make_folder(plan.progress_directory)
    with Claim(claim_path) as claim:
        if finished is not None:
            storage.remove(plan.manifest_path)
        remove_leftovers(plan)
        function = partial(_finish_shard, plan.progress_directory, claim.token)
        reports = _run(function, plan.jobs(write=True), plan, workers, claim.refresh, cluster)
        manifest = _manifest(plan, reports)
        claim.verify()
        remove_leftovers(plan)  # of nodes that a cluster lost
        if manifest["images"] == 0:
            remove_set(plan)
            reasons = [f"{count} {reason}" for reason, count in manifest["left_out_counts"].items()]
            raise PreparationError(
                f"No image can be used, nothing was written. Left out: {'; '.join(reasons)}."
            )
        _publish(plan, manifest)
    storage.remove_folder(plan.progress_directory)
    return manifest, True


def _publish(plan: Plan, manifest: dict[str, Any]) -> None:
    classes = os.path.join(plan.directory, "classes.csv")
    # Another split of the part may be written at the same time. What a kill leaves has a name that
    # the next run of this split uses again, so it does not stay.
    write_text(classes, write_class_list(plan.annotations.classes), owner=plan.split)
    text = json.dumps(manifest, indent=1, ensure_ascii=False) + "\n"
    write_text(plan.manifest_path, text)


def _manifest(plan: Plan, reports: list[ShardReport]) -> dict[str, Any]:
    return build_manifest(
        split=plan.split,
        part=plan.part,
        annotations=plan.annotations,
        reports=reports,
        copies=plan.copies_by_file(),
        options=plan.options,
    )


def _run(
    function: Callable[[ShardJob, Callable[[int], Any]], ShardReport],
    jobs: Iterator[ShardJob],
    plan: Plan,
    workers: int,
    sign_of_life: Callable[[], Any],
    cluster: str | None = None,
) -> list[ShardReport]:
    num_images = len(plan.order)
    with tqdm(total=num_images, unit="image", desc=plan.split, mininterval=0.5) as bar:

        def progress(amount: int) -> None:
            if amount:
                bar.update(amount)
            sign_of_life()

        workers = min(workers, plan.num_shards)
        reports = list(
            run_jobs(function, jobs, workers=workers, progress=progress, cluster=cluster)
        )
        bar.update(num_images - bar.n)
    return sorted(reports, key=lambda report: report.file)


def _check_shard(job: ShardJob, progress: Callable[[int], Any]) -> ShardReport:
    return run_shard(job, "", progress)


def _finish_shard(
    progress_directory: str, token: str, job: ShardJob, progress: Callable[[int], Any]
) -> ShardReport:
    """The report of a shard that is finished already, else that of running it."""
    sidecar = os.path.join(progress_directory, f"{os.path.basename(job.path)}.json")
    try:
        report = _finished_report(sidecar, job)
        if report is not None:
            progress(report.images)
            return report
        remove_if_there(sidecar)  # it would vouch for the file that is written now
        attempt = f"{token}-{uuid.uuid4().hex}"
        report = run_shard(job, attempt, progress)
        write_text(sidecar, report_to_json(report), owner=attempt)
    except OSError as error:  # it does not survive the way out of a worker process
        raise PreparationError(f"{sidecar} cannot be written: {storage.reason(error)}") from None
    return report


def _finished_report(sidecar: str, job: ShardJob) -> ShardReport | None:
    """The report on a shard that is there, whole and of the same inputs; else None."""
    text = read_text(sidecar)
    if text is None or not storage.exists(job.path):
        return None
    report = report_from_json(text)
    is_whole = storage.stat(job.path).size == report.bytes
    return report if is_whole and report.inputs == inputs_digest(job) else None
