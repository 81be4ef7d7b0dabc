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
from typing import Any, NamedTuple

import numpy as np
from tqdm import tqdm

from tpudet.classification.preparation.build_shard import (
    Finding,
    ShardJob,
    ShardReport,
    build_shard,
    inputs_digest,
)
from tpudet.classification.preparation.class_folders import (
    check_labels,
    find_splits,
    list_classes,
    list_split,
)
from tpudet.trainkit.class_list import (
    ClassEntry,
    class_ids,
    first_difference,
    read_class_list,
    read_classes,
    write_class_list,
)
from tpudet.trainkit.errors import UserError
from tpudet.trainkit.files import storage
from tpudet.trainkit.files.claims import Claim, ClaimTicket
from tpudet.trainkit.files.json_text import parse_json
from tpudet.trainkit.jobs.worker_pool import run_jobs
from tpudet.trainkit.record_manifest import MANIFEST_SUFFIX, PROGRESS_SUFFIX, read_manifest
from tpudet.trainkit.records import INDEX_ENDING, shard_path

TARGET_SHARD_BYTES = 100 * 10**6
_SIZE_SAMPLE = 256  # images whose file sizes give the estimate for all
_NAMES_SHOWN = 3


class Plan(NamedTuple):
    """One split to write."""

    split: str
    directory: str  # of the images
    files: list[tuple[str, tuple[int, ...]]]  # names and class ids, in the order of the records
    classes: tuple[ClassEntry, ...]
    output: str  # converted/<part>
    num_shards: int
    presize: int | None
    dicom: bool = False  # whether the files are DICOM, of which a record holds the stored values
    fold: tuple[int, int] | None = None  # the fold of the images, from 0, and how many there are
    division: str | None = None  # digest of the folds of all images

    @property
    def prefix(self) -> str:
        """Path of the shards up to their numbers."""
        return f"{self.output}/{self.split}_{os.path.basename(self.output)}"

    @property
    def progress_folder(self) -> str:
        """Folder that exists while the split is unfinished; holds its shards until then."""
        return self.prefix + PROGRESS_SUFFIX

    def jobs(self) -> list[ShardJob]:
        """Returns the shards in order; their lengths differ by at most one record."""
        name = os.path.basename(self.prefix)
        bounds = np.arange(self.num_shards + 1) * len(self.files) // self.num_shards
        return [
            ShardJob(
                shard_path(f"{self.progress_folder}/{name}", index, self.num_shards),
                self.directory,
                tuple(self.files[bounds[index] : bounds[index + 1]]),
                self.classes,
                self.presize,
                self.dicom,
                self.fold,
            )
            for index in range(self.num_shards)
        ]


def plan_splits(
    source: str,
    output: str,
    *,
    classes_file: str | None,
    num_shards: int | None,
    presize: int | None,
    seed: int,
) -> list[Plan]:
    """Lists the images of each split and decides their order and their division into shards.

    Images of train are in an order drawn from the seed, so that every shard is a fair sample.

    Args:
        source: has the folders train, val or validation, and test; see `class_folders`.
        output: converted/<part>; its last component is the name of the part.
        classes_file: class list; None: the class folders of train, sorted.
        num_shards: files per split; None: about 100 MB each.
        presize: larger images are reduced to this shorter side, pixels.
        seed: of the order.

    Raises:
        UserError: a split cannot be used, or has classes that the list lacks.
    """
    output = output.rstrip("/")
    if not os.path.basename(output).strip("."):
        raise UserError(f"--output {output} must end with the name of the part")
    folders = find_splits(source.rstrip("/"))
    files = {split: list_split(folder) for split, folder in folders.items()}
    classes = read_classes(classes_file) if classes_file else list_classes(files["train"])
    if len(classes) < 1 or not all(file.label for file in files["train"]):
        raise UserError(f"the images of {folders['train']} are in no class folders")
    for split, found in files.items():
        check_labels(split, found, classes)
    order = np.random.default_rng(seed).permutation(len(files["train"]))
    files["train"] = [files["train"][index] for index in order]
    ids, plans = class_ids(classes), []
    for split, found in files.items():
        labelled = [(name, (ids[label],) if label else ()) for name, label in found]
        shards = num_shards or default_shards(folders[split], [name for name, _ in found])
        if shards > len(found):
            raise UserError(f"--num_shards {shards}: {split} has only {len(found)} images")
        plans.append(Plan(split, folders[split], labelled, classes, output, shards, presize))
    return plans


def default_shards(directory: str, files: Sequence[str]) -> int:
    """Returns a number of shards of about 100 MB for the files of a split."""
    sample = files[:: max(1, len(files) // _SIZE_SAMPLE)]
    sizes = [storage.stat(os.path.join(directory, file)).size for file in sample]
    total = float(np.mean(sizes)) * len(files)
    return int(np.clip(round(total / TARGET_SHARD_BYTES), 1, len(files)))


def write_splits(plans: Sequence[Plan], *, workers: int, overwrite: bool) -> None:
    """Writes splits one after another and prints a summary of each.

    Args:
        plans: of one data set.
        workers: processes.
        overwrite: replace finished splits that were made from other inputs.

    Raises:
        UserError: the output has other classes or a finished split of other inputs, another run is
            writing it, no image of a split can be used, or writing fails.
    """
    for plan in plans:
        _check_output(plan, overwrite=overwrite)
    for plan in plans:
        if _is_current(plan):
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
        _check_classes_again(plan, classes, before)
        _publish_shards(plan, jobs, claim)
        storage.write_text(classes, write_class_list(plan.classes))
        text = json.dumps(manifest, indent=1, ensure_ascii=False) + "\n"
        storage.write_text(plan.prefix + MANIFEST_SUFFIX, text)
        storage.remove_folder(plan.progress_folder)
    return manifest


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
    findings = [finding for report in reports for finding in report.findings]
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
            more = ", ..." if count > _NAMES_SHOWN else ""
            lines.append(f"  {title}: {count} {reason}: {', '.join(shown[:_NAMES_SHOWN])}{more}")
    return "\n".join(lines)
