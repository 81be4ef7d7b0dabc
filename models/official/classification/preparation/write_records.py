"""Writes splits of labelled images: TFRecord shards, classes.csv and a manifest. Resumable.

While a split is written, `<split>_<part>.progress/` holds the finished shards and one report for
each; a later run keeps those whose inputs have not changed. When all are finished, and some image
can be used, they are moved out, in place of those of an earlier split; the manifest is written
last.
"""

import json
import os
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from tqdm import tqdm

from tpudet.classification.preparation.build_shard import (
    Finding,
    ShardJob,
    ShardReport,
    build_shard,
    inputs_digest,
)
from tpudet.classification.preparation.plan_splits import Plan
from tpudet.trainkit.class_list import first_difference, read_class_list, write_class_list
from tpudet.trainkit.errors import UserError, listing
from tpudet.trainkit.files import storage
from tpudet.trainkit.files.claims import Claim, ClaimTicket
from tpudet.trainkit.files.json_text import parse_json
from tpudet.trainkit.jobs.worker_pool import run_jobs
from tpudet.trainkit.record_manifest import MANIFEST_SUFFIX, read_manifest
from tpudet.trainkit.records import INDEX_ENDING

_NAMES_SHOWN = 3


def write_splits(plans: Sequence[Plan], *, workers: int, overwrite: bool) -> None:
    """Writes splits one after another and prints a summary of each.

    Args:
        plans: of one data set.
        workers: processes.
        overwrite: replace finished splits that were made from other inputs.

    Raises:
        UserError: the output has other classes or a finished split of other inputs, another run is
            writing it, no image of a split or of a class in it can be used, or writing fails.
    """
    for plan in plans:
        _check_output(plan, overwrite=overwrite)
    for plan in plans:
        if _is_current(plan):
            _renew_division(plan)
            print(f"{plan.prefix}: up to date, nothing was written")
            continue
        manifest = _write_split(plan, workers)
        print(_summary(manifest))


def _check_output(plan: Plan, *, overwrite: bool) -> None:
    """Refuses to mix class lists, and to replace a finished split without --overwrite."""
    changed = _changed_classes(plan, storage.read_text(f"{plan.output}/classes.csv"))
    if changed and not overwrite:
        raise UserError(
            f"{plan.output} has other classes: {changed}. Give another --output, or --overwrite "
            "replaces them"
        )
    finished = storage.is_file(plan.prefix + MANIFEST_SUFFIX)
    if finished and not overwrite and not _is_current(plan):
        raise UserError(
            f"{plan.prefix}{MANIFEST_SUFFIX} is of other images or options: --overwrite replaces it"
        )


def _changed_classes(plan: Plan, text: str | None) -> str | None:
    """Describes the first class in which a class list differs; None if there is no list."""
    return None if text is None else first_difference(read_class_list(text), plan.classes)


def _is_current(plan: Plan) -> bool:
    """Whether the split is finished and was made from exactly these inputs."""
    if not storage.is_file(plan.prefix + MANIFEST_SUFFIX):
        return False
    manifest = read_manifest(plan.prefix + MANIFEST_SUFFIX, per_class="images_per_class")
    entries = {entry["file"]: entry for entry in manifest["shards"]}
    jobs = plan.jobs()
    return len(entries) == len(jobs) and all(
        _is_finished(job, _published(plan.output, job), entries.get(os.path.basename(job.path), {}))
        for job in jobs
    )


def _renew_division(plan: Plan) -> None:
    """Names the division in the manifest of a split that stays as it is while others change."""
    manifest = read_manifest(plan.prefix + MANIFEST_SUFFIX, per_class="images_per_class")
    if manifest["options"].get("division") != plan.division:
        with Claim(f"{plan.prefix}.claim.json", output=plan.prefix):
            manifest["options"]["division"] = plan.division
            _write_manifest(plan, manifest)


def _published(output: str, job: ShardJob) -> str:
    """Where a shard lies once the split is finished."""
    return f"{output}/{os.path.basename(job.path)}"


def _is_finished(job: ShardJob, path: str, entry: Mapping[str, Any]) -> bool:
    return (
        storage.is_file(path)
        and storage.stat(path).size == entry.get("bytes")
        and inputs_digest(job) == entry.get("inputs")
    )


def _write_split(plan: Plan, workers: int) -> dict[str, Any]:
    classes = f"{plan.output}/classes.csv"
    storage.make_folder(plan.output)
    before = storage.read_text(classes)
    with Claim(f"{plan.prefix}.claim.json", output=plan.prefix) as claim:
        storage.make_folder(plan.progress_folder)
        jobs = plan.jobs()
        function = partial(_finish_shard, plan.output, claim.ticket)
        with tqdm(total=len(plan.files), unit="image", desc=plan.split) as bar:
            done = run_jobs(function, jobs, workers=min(workers, len(jobs)), progress=bar.update)
            reports = sorted(done, key=lambda report: report.file)
        claim.verify()
        manifest = _manifest(plan, reports)
        if not manifest["images"]:
            # Beside this folder an earlier split could not be trained on.
            storage.remove_folder(plan.progress_folder)
            raise UserError(f"no image of {plan.directory} can be used:\n{_summary(manifest)}")
        if lost := _lost_classes(plan, manifest):
            storage.remove_folder(plan.progress_folder)
            raise UserError(
                f"no image of {listing(lost)} in {plan.directory} can be used:\n"
                f"{_summary(manifest)}\nReplace these files, or remove them"
            )
        _check_classes_again(plan, classes, before)
        _publish_shards(plan, jobs, claim)
        storage.write_text(classes, write_class_list(plan.classes))
        _write_manifest(plan, manifest)
        storage.remove_folder(plan.progress_folder)
    return manifest


def _lost_classes(plan: Plan, manifest: Mapping[str, Any]) -> list[str]:
    """Returns the classes all of whose images were left out, with the numbers of these."""
    given = Counter(label for _, labels in plan.files for label in labels)
    return [
        f"{entry.name} ({given[number]})"
        for number, entry in enumerate(plan.classes, start=1)
        if given[number] and not manifest["images_per_class"][entry.name]
    ]


def _write_manifest(plan: Plan, manifest: Mapping[str, Any]) -> None:
    text = json.dumps(manifest, indent=1, ensure_ascii=False) + "\n"
    storage.write_text(plan.prefix + MANIFEST_SUFFIX, text)


def _publish_shards(plan: Plan, jobs: Sequence[ShardJob], claim: Claim) -> None:
    """Gives the shards their final names, and removes those of an earlier split."""
    storage.remove_if_there(plan.prefix + MANIFEST_SUFFIX)
    # Those of a run that was killed here, or of an earlier version, have them already.
    unnamed = set(storage.list_folder(plan.progress_folder))
    for job in jobs:
        claim.verify()
        for ending in (INDEX_ENDING, ""):
            if os.path.basename(job.path) + ending in unnamed:
                storage.rename(job.path + ending, _published(plan.output, job) + ending)
    _remove_other_shards(plan, {os.path.basename(job.path) for job in jobs})


def _check_classes_again(plan: Plan, path: str, before: str | None) -> None:
    """Raises UserError if another split has been written meanwhile with other classes."""
    text = storage.read_text(path)
    changed = _changed_classes(plan, text)
    if changed and text != before:
        raise UserError(
            f"{path} was written by another run meanwhile, and has other classes: {changed}. All "
            "splits of a part share one list: give another --output"
        )


def _finish_shard(
    output: str, ticket: ClaimTicket, job: ShardJob, progress: Callable[[int], Any]
) -> ShardReport:
    """Returns the report of a shard, which is built unless it is already finished."""
    sidecar = f"{job.path}.json"
    try:
        fields = _read_json(sidecar)
        # While a report is there, its shard is in one of the two places, the newest in the first.
        path = job.path if storage.is_file(job.path) else _published(output, job)
        if fields and _is_finished(job, path, fields):
            progress(len(job.files))
            findings = [Finding(*finding) for finding in fields.pop("findings")]
            return ShardReport(**fields, findings=findings)
        report = build_shard(job, progress, ticket.verify)
        storage.write_text(sidecar, json.dumps(report._asdict(), ensure_ascii=False))
    except OSError as error:  # errors with a path cannot leave a worker process
        raise UserError(f"{job.path} cannot be written: {storage.reason(error)}") from None
    return report


def _read_json(path: str) -> dict[str, Any]:
    try:
        return parse_json(storage.read_text(path) or "{}")
    except ValueError:  # cut short by a power failure
        return {}


def _remove_other_shards(plan: Plan, names: set[str]) -> None:
    """Removes shards of an earlier writing in another number of files."""
    start = os.path.basename(plan.prefix) + "-"
    for name in storage.list_folder(plan.output):
        shard = name.removesuffix(INDEX_ENDING)
        if name.startswith(start) and shard.endswith(".tfrecord") and shard not in names:
            storage.remove(os.path.join(plan.output, name))


def _manifest(plan: Plan, reports: Sequence[ShardReport]) -> dict[str, Any]:
    """Builds the manifest: a function of the inputs alone, without times or host names."""
    counts: Counter[str] = Counter()
    for report in reports:
        counts.update(report.per_class)
    findings = [Finding(name, "is no image by its name", repaired=False) for name in plan.unread]
    findings += [finding for report in reports for finding in report.findings]
    by_kind = {
        "repaired": [finding for finding in findings if finding.repaired],
        "left_out": [finding for finding in findings if not finding.repaired],
    }
    return {
        "split": plan.split,
        "part": os.path.basename(plan.output),
        "images": sum(report.records for report in reports),
        "images_per_class": {entry.name: counts[entry.name] for entry in plan.classes},
        "shards": [
            {"file": r.file, "records": r.records, "bytes": r.bytes, "inputs": r.inputs}
            for r in reports
        ],
        **{
            kind: [{"file": finding.file, "reason": finding.reason} for finding in found]
            for kind, found in by_kind.items()
        },
        **{
            f"{kind}_counts": dict(Counter(finding.reason for finding in found).most_common())
            for kind, found in by_kind.items()
        },
        "options": {"presize": plan.presize, "fold": plan.fold, "division": plan.division},
    }


def _summary(manifest: Mapping[str, Any]) -> str:
    per_class = manifest["images_per_class"].values()
    lines = [
        f"{manifest['split']}_{manifest['part']}: {manifest['images']} images in "
        f"{len(manifest['shards'])} files, {min(per_class)} to {max(per_class)} per class"
    ]
    for kind, title in (("left_out", "left out"), ("repaired", "repaired")):
        for reason, count in manifest[f"{kind}_counts"].items():
            shown = [entry["file"] for entry in manifest[kind] if entry["reason"] == reason]
            lines.append(f"  {title}: {count} {reason}: {listing(shown, limit=_NAMES_SHOWN)}")
    return "\n".join(lines)
