"""Writes planned sets: TFRecord shards, classes.csv and the manifest. Resumable and deterministic.

During a run, `<split>_<part>.claim.json` names the process that writes the set, and
`<split>_<part>.progress/` holds the class list, the finished shards and one report for each. A
later run keeps the shards whose inputs have not changed. When all are finished, and not refused,
they are moved out, in place of those of an earlier set; the manifest is written last, and the
directory removed.
"""

import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

from tqdm import tqdm

from tpudet.detection.preparation.records.balance import format_imbalance
from tpudet.detection.preparation.records.build_shard import build_shard
from tpudet.detection.preparation.records.manifest import build_manifest, format_summary
from tpudet.detection.preparation.records.output_check import (
    begin_classes,
    check_classes,
    check_outputs,
    find_outdated,
    finished_manifest,
    is_current,
    refuse_overwriting,
    remove_leftovers,
    remove_set,
)
from tpudet.detection.preparation.records.plan import Plan
from tpudet.detection.preparation.records.required_boxes import require_boxes, require_images
from tpudet.detection.preparation.records.shard_job import (
    ShardJob,
    ShardReport,
    inputs_digest,
    report_from_json,
    report_to_json,
)
from tpudet.trainkit.class_list import write_class_list
from tpudet.trainkit.errors import UserError
from tpudet.trainkit.files import storage
from tpudet.trainkit.files.claims import Claim, ClaimError, ClaimTicket
from tpudet.trainkit.files.storage import read_text, remove_if_there, write_text
from tpudet.trainkit.jobs.worker_pool import run_jobs
from tpudet.trainkit.records import INDEX_ENDING

ALLOW_EMPTY = "Correct the annotations, or pass --allow_empty."


def check_only(plan: Plan, *, workers: int) -> dict[str, Any]:
    """Runs all checks without writing; returns the manifest that the set would get."""
    reports = _run(_check_shard, plan.jobs(write=False), plan, workers)
    return _manifest(plan, reports)


def write_set(
    plan: Plan,
    *,
    workers: int,
    cluster: str | None = None,
    overwrite: bool,
    allow_empty: bool,
    outdated: Sequence[Plan] = (),
) -> tuple[dict[str, Any], bool]:
    """Writes a set, or resumes one that was interrupted.

    The files are the same, byte for byte, for any number of workers and of interruptions.

    Args:
        plan: the set.
        workers: processes; ignored with `cluster`.
        cluster: Ray cluster whose nodes write the shards, see `worker_pool.run_jobs`.
        overwrite: replace a finished set that was made from other inputs; it stays until the new
            one is complete. The class list is replaced if no other set has it.
        allow_empty: also write a set that lost all its boxes, or all of a class, or trains on none.
        outdated: finished sets that are removed before this one gets its name, because they may
            have some of its images.

    Returns:
        The manifest, and whether anything was written; a finished set of the same inputs is kept.

    Raises:
        UserError: the output has other classes or another finished set, another run is writing it,
            no image can be used, `require_boxes` refuses the set, or writing fails.
    """
    replaced = (plan, *outdated) if overwrite else ()
    check_classes(plan, replaced=replaced)
    storage.make_folder(plan.directory)
    finished = finished_manifest(plan, overwrite=overwrite)
    if finished is not None and is_current(plan, finished):
        _remove_leftover_progress(plan)
        _renew_division(plan, finished)
        return finished, False
    if not overwrite:
        refuse_overwriting(plan, is_finished=finished is not None)
    with Claim(plan.claim_path, output=plan.prefix) as claim:
        storage.make_folder(plan.progress_directory)
        begin_classes(plan)
        function = partial(_finish_shard, plan.directory, claim.ticket)
        reports = _run(function, plan.jobs(write=True), plan, workers, cluster)
        manifest = _manifest(plan, reports)
        claim.verify()
        try:
            require_images(manifest)
            if not allow_empty:
                require_boxes(plan, manifest, ALLOW_EMPTY)
        except UserError:
            # Beside this directory the finished set could not be trained on.
            if finished is not None or not manifest["images"]:
                storage.remove_folder(plan.progress_directory)
            raise
        _publish(plan, manifest, claim, replaced=replaced)
        storage.remove_folder(plan.progress_directory)
    return manifest, True


def write_sets(
    plans: Sequence[Plan],
    *,
    workers: int,
    cluster: str | None,
    overwrite: bool,
    allow_empty: bool,
) -> None:
    """Writes sets one after another as `write_set` does, and prints a summary of each.

    Raises:
        UserError: as `write_set`. If several sets are to be written and one of them conflicts with
            an existing set, none is written; nor is any beside a set of another division.
    """
    check_outputs(plans, overwrite=overwrite)
    # A kill between new train and old val would leave images in both.
    found = find_outdated(plans) if overwrite and len(plans) > 1 else []
    outdated = {plan.prefix: plan for plan in found}
    for plan in plans:
        outdated.pop(plan.prefix, None)
        beside = [other for other in outdated.values() if other.directory == plan.directory]
        if plan.balance is not None:
            print(format_imbalance(plan.balance, plan.annotations.classes, with_table=False))
        manifest, written = write_set(
            plan,
            workers=workers,
            cluster=cluster,
            overwrite=overwrite,
            allow_empty=allow_empty,
            outdated=beside,
        )
        for other in beside if written else ():
            del outdated[other.prefix]
        print(format_summary(manifest))
        state = "written" if written else "up to date, nothing was written"
        print(f"{plan.num_shards} file(s) {plan.prefix}-*: {state}. Manifest: {plan.manifest_path}")


def _remove_leftover_progress(plan: Plan) -> None:
    """Removes what a run left that was killed after it had finished the set."""
    if storage.is_folder(plan.progress_directory) or storage.exists(plan.claim_path):
        with suppress(ClaimError), Claim(plan.claim_path, output=plan.prefix):
            if storage.is_folder(plan.progress_directory):
                storage.remove_folder(plan.progress_directory)


def _publish(
    plan: Plan, manifest: dict[str, Any], claim: Claim, *, replaced: Sequence[Plan]
) -> None:
    """Gives the shards their final names and writes the class list and the manifest.

    The other sets among those that are replaced are removed before.
    """
    check_classes(plan, replaced=replaced)
    for other in replaced:
        if other.prefix != plan.prefix:
            remove_set(other)
    remove_if_there(plan.manifest_path)
    # Those of a run that was killed here, or of an earlier version, have them already.
    unnamed = set(storage.list_folder(plan.progress_directory))
    for shard in plan.shard_names():
        claim.verify()
        for name in (shard + INDEX_ENDING, shard):
            if name in unnamed:
                source = os.path.join(plan.progress_directory, name)
                storage.rename(source, os.path.join(plan.directory, name))
    remove_leftovers(plan)
    classes = os.path.join(plan.directory, "classes.csv")
    write_text(classes, write_class_list(plan.annotations.classes))
    _write_manifest(plan, manifest)


def _renew_division(plan: Plan, manifest: dict[str, Any]) -> None:
    """Names the division in the manifest of a fold that stays as it is while others change."""
    division = plan.options.get("division")
    if manifest["options"].get("division") != division:
        with Claim(plan.claim_path, output=plan.prefix):
            manifest["options"]["division"] = division
            _write_manifest(plan, manifest)


def _write_manifest(plan: Plan, manifest: Mapping[str, Any]) -> None:
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
    cluster: str | None = None,
) -> list[ShardReport]:
    num_images = len(plan.order)
    with tqdm(total=num_images, unit="image", desc=plan.split) as bar:

        def progress(amount: int) -> None:
            if amount:
                bar.update(amount)

        workers = min(workers, plan.num_shards)
        reports = list(
            run_jobs(function, jobs, workers=workers, progress=progress, cluster=cluster)
        )
        bar.update(num_images - bar.n)
    return sorted(reports, key=lambda report: report.file)


def _check_shard(job: ShardJob, progress: Callable[[int], Any]) -> ShardReport:
    return build_shard(job, progress)


def _finish_shard(
    directory: str, ticket: ClaimTicket, job: ShardJob, progress: Callable[[int], Any]
) -> ShardReport:
    """Returns the report of a shard, which is built unless it is already finished."""
    sidecar = f"{job.path}.json"
    published = os.path.join(directory, os.path.basename(job.path))
    try:
        report = _finished_report(sidecar, job, published)
        if report is not None:
            progress(report.images)
            return report
        remove_if_there(sidecar)  # it describes the file that is about to be replaced
        report = build_shard(job, progress, verify=ticket.verify)
        write_text(sidecar, report_to_json(report))
    except OSError as error:  # errors with a path cannot leave a worker process
        raise UserError(f"{sidecar} cannot be written: {storage.reason(error)}") from None
    return report


def _finished_report(sidecar: str, job: ShardJob, published: str) -> ShardReport | None:
    """Returns the report of a complete shard of the same inputs, None if there is none."""
    text = read_text(sidecar)
    # While a report is there, its shard is in one of the two places, and the newest in the first.
    path = job.path if storage.exists(job.path) else published
    if text is None or not storage.exists(path):
        return None
    try:
        report = report_from_json(text)
    except (ValueError, TypeError, KeyError):  # cut short by a power failure
        return None
    is_complete = storage.stat(path).size == report.bytes
    return report if is_complete and report.inputs == inputs_digest(job) else None
