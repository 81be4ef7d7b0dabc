"""Checks an output directory for an identical, unfinished or conflicting data set."""

import os
import re
from collections.abc import Mapping, Sequence
from typing import Any

from tpudet.detection.preparation.records.plan import Plan
from tpudet.detection.preparation.records.shard_job import inputs_digest
from tpudet.trainkit.class_list import write_class_list
from tpudet.trainkit.errors import UserError, listing
from tpudet.trainkit.files import storage
from tpudet.trainkit.files.claims import remove_dead_claim
from tpudet.trainkit.record_manifest import MANIFEST_SUFFIX, PROGRESS_SUFFIX, read_manifest
from tpudet.trainkit.records import INDEX_ENDING


def check_classes(plan: Plan, *, replaced: Sequence[Plan] = ()) -> None:
    """Raises if the class list cannot be written or differs from the one in the directory.

    Args:
        plan: the set to write.
        replaced: with it, the sets that may be rewritten, so that another list may replace that
            of the directory if it has no set but these; none: no list is replaced.

    Raises:
        UserError: names the first row that differs and what to do.
    """
    path = os.path.join(plan.directory, "classes.csv")
    try:
        wanted = write_class_list(plan.annotations.classes)
    except ValueError as error:
        raise UserError(str(error)) from error
    present = storage.read_text(path)
    if present in (None, wanted):
        return
    kept = _other_sets(plan.directory, [plan, *replaced])
    if not replaced:
        advice = ", or pass --overwrite if all splits there are to be replaced"
        raise _other_classes(path, present or "", wanted, advice)
    if kept:
        advice = f", or remove the splits that are not replaced: {listing(kept, 3)}"
        raise _other_classes(path, present or "", wanted, advice)


def has_other_classes(plan: Plan) -> bool:
    """Whether the directory of a set has a class list that differs from the set's."""
    present = storage.read_text(os.path.join(plan.directory, "classes.csv"))
    return present not in (None, write_class_list(plan.annotations.classes))


def _other_sets(directory: str, plans: Sequence[Plan]) -> list[str]:
    """The names of manifests and shards in a directory that are none of these plans'."""
    own = tuple(os.path.basename(plan.prefix) + end for plan in plans for end in ("-", "."))
    return [
        name
        for name in storage.list_folder(directory)
        if (name.endswith(MANIFEST_SUFFIX) or ".tfrec" in name) and not name.startswith(own)
    ]


def _other_classes(path: str, present: str, wanted: str, advice: str = "") -> UserError:
    rows = zip(present.splitlines() + [""], wanted.splitlines() + [""], strict=False)
    number, (old, new) = next((n, pair) for n, pair in enumerate(rows, 1) if pair[0] != pair[1])
    return UserError(
        f"{path} holds other classes than these annotations: row {number} is '{old}' there and "
        f"'{new}' here. All splits of a part share one list: take that file as the class list here "
        f"too, write to another folder{advice}."
    )


def begin_classes(plan: Plan) -> None:
    """Records the class list of a run that begins; called with the set's claim held.

    `classes.csv` is written at the end of a run. Of two splits that are written at the same time
    the later one finds the list of the earlier one here.

    Raises:
        UserError: another split of this part is being written with other classes.
    """
    wanted = write_class_list(plan.annotations.classes)
    storage.write_text(os.path.join(plan.progress_directory, "classes.csv"), wanted)
    for name in storage.list_folder(plan.directory):
        stem, suffix = os.path.splitext(name)
        prefix = os.path.join(plan.directory, stem)
        if suffix != PROGRESS_SUFFIX or prefix == plan.prefix:
            continue
        path = os.path.join(prefix + suffix, "classes.csv")
        text = storage.read_text(path)
        if text not in (None, wanted) and not remove_dead_claim(f"{prefix}.claim.json"):
            raise _other_classes(path, text or "", wanted)


def finished_manifest(plan: Plan, *, overwrite: bool) -> dict[str, Any] | None:
    """Returns the manifest of a finished set, None if there is none.

    Raises:
        UserError: it is damaged. With `overwrite` it counts as one of a set without shards.
    """
    if not storage.exists(plan.manifest_path):
        return None
    try:
        return read_manifest(plan.manifest_path)
    except UserError:
        if overwrite:
            return {"shards": []}
        raise


def is_current(plan: Plan, manifest: Mapping[str, Any]) -> bool:
    """Whether every shard exists and was made from exactly these inputs."""
    shards = {entry["file"]: entry for entry in manifest["shards"]}
    if len(shards) != plan.num_shards:
        return False
    for job in plan.jobs(write=True):
        name = os.path.basename(job.path)
        path, entry = os.path.join(plan.directory, name), shards.get(name)
        if entry is None or not storage.exists(path):
            return False
        if storage.stat(path).size != entry["bytes"]:
            return False
        if entry.get("inputs") != inputs_digest(job):
            return False
    return True


def _present_files(plan: Plan) -> list[str]:
    """Returns this set's shards and their indices, for any shard count, and temporary files."""
    pattern = re.compile(
        re.escape(os.path.basename(plan.prefix)) + r"-\d{5}-of-\d{5}\.tfrecord(\..*)?"
    )
    names = storage.list_folder(plan.directory)
    return [os.path.join(plan.directory, name) for name in names if pattern.fullmatch(name)]


def refuse_overwriting(plan: Plan, *, is_finished: bool) -> None:
    """Raises if writing would replace a finished set, or shards that no unfinished run left.

    Raises:
        UserError: names the existing file and what to do.
    """
    present = _present_files(plan)
    begun = storage.exists(plan.progress_directory)
    if is_finished or (present and not begun):
        what = plan.manifest_path if is_finished else present[0]
        raise UserError(
            f"{what} already exists and was made from other annotations, images or options. "
            "Pass --overwrite to replace that set, or write to another --output."
        )


def check_outputs(plans: Sequence[Plan], *, overwrite: bool) -> None:
    """Raises if any of several sets could not be written, before the first one is.

    Raises:
        UserError: as `check_classes` and `refuse_overwriting`; or a set of another division of the
            images would stay.
    """
    _refuse_other_division(plans)
    if len(plans) == 1:  # `write_set` checks it
        return
    for plan in plans:
        check_classes(plan, replaced=plans if overwrite else ())
        if overwrite or not storage.is_folder(plan.directory):
            continue
        finished = finished_manifest(plan, overwrite=False)
        if finished is None or not is_current(plan, finished):
            refuse_overwriting(plan, is_finished=finished is not None)


def _refuse_other_division(plans: Sequence[Plan]) -> None:
    """Raises if a set beside these has some of their images, by a division now or earlier."""
    own = {plan.manifest_path: plan for plan in plans}
    for directory in dict.fromkeys(plan.directory for plan in plans):
        written = [plan for plan in plans if plan.directory == directory]
        names = storage.list_folder(directory) if storage.is_folder(directory) else []
        for path in (os.path.join(directory, name) for name in names):
            if not path.endswith(MANIFEST_SUFFIX) or path in own:
                continue
            kept = finished_options(path)
            if _takes_same_images(written, kept):
                raise UserError(
                    f"{path} is of an earlier {_describe_division(kept)}, so some of its images "
                    f"would be in {' or '.join(plan.split for plan in written)} too. Remove "
                    f"{path.removesuffix(MANIFEST_SUFFIX)}*, or write to another --output."
                )


def _takes_same_images(written: Sequence[Plan], kept: Mapping[str, Any]) -> bool:
    """Whether sets to write take images of one that stays, where either is of a division."""
    plan = written[0]
    kept_splits, is_kept_divided = _splits(kept), _is_divided(kept)
    if is_kept_divided and len(written) > 1:
        return True
    keys = ("format", "annotations", "image_list")
    if any(plan.options.get(key) != kept.get(key) for key in keys):
        return False
    if is_kept_divided:
        undivided = plan.split
    elif kept_splits and _is_divided(plan.options):
        undivided = next(iter(kept_splits))
    else:
        return False
    # A data.yaml has splits of its own, of which a division takes those to train with.
    return kept["format"] != "yolo" or undivided in ("train", "val")


def _splits(options: Mapping[str, Any]) -> Mapping[str, float]:
    splits = options.get("split")
    return splits if isinstance(splits, Mapping) else {}


def _is_divided(options: Mapping[str, Any]) -> bool:
    return bool(options.get("folds")) or len(_splits(options)) > 1


def _describe_division(options: Mapping[str, Any]) -> str:
    """How a finished set came to its images."""
    if options.get("folds"):
        return f"division into {options['folds']} folds"
    splits = _splits(options)
    parts = [f"{name}={part}" for name, part in splits.items()] if len(splits) > 1 else splits
    return f"--split {','.join(parts)}"


def finished_options(manifest_path: str) -> Mapping[str, Any]:
    """Returns the options of a finished set; none of a missing or damaged one, which none reads."""
    try:
        return read_manifest(manifest_path)["options"] if storage.exists(manifest_path) else {}
    except UserError:
        return {}


def find_outdated(plans: Sequence[Plan]) -> list[Plan]:
    """Returns those whose finished sets are of other inputs, and so of another division."""
    finished = [(plan, finished_manifest(plan, overwrite=True)) for plan in plans]
    return [plan for plan, found in finished if found is not None and not is_current(plan, found)]


def remove_set(plan: Plan) -> None:
    """Removes a finished set."""
    # The manifest last: without it the shards would count as those of another program.
    for path in (*_present_files(plan), plan.manifest_path):
        storage.remove(path)


def remove_leftovers(plan: Plan) -> None:
    """Removes shards of another shard count, and incomplete files of a killed run."""
    wanted = {name + ending for name in plan.shard_names() for ending in ("", INDEX_ENDING)}
    for path in _present_files(plan):
        if os.path.basename(path) not in wanted:
            storage.remove(path)
