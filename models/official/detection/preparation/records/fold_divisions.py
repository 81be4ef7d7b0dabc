"""Keeps folds of different divisions apart: what one validates on is trained on in the other."""

import os
import re

from tpudet.detection.preparation.records.output_check import finished_options
from tpudet.trainkit.errors import UserError, listing
from tpudet.trainkit.files import storage
from tpudet.trainkit.record_manifest import MANIFEST_SUFFIX


def check_folds_beside(output: str, *, num_folds: int, seed: int, overwrite: bool) -> None:
    """Refuses finished folds of another division of the same part; with `overwrite` names them.

    Args:
        output: converted/<part>; its folds are `<output>_fold_<N>`.
        num_folds: of the division to write.
        seed: of the division to write.
        overwrite: write a fold beside them all the same.

    Raises:
        UserError: names the folds and what to do.
    """
    divisions = {path: _division(path) for path in _fold_paths(output.rstrip("/"))}
    others = {path: found for path, found in divisions.items() if found}
    others = {path: found for path, found in others.items() if found != (num_folds, seed)}
    if not others:
        return
    other_folds, other_seed = next(iter(others.values()))
    what = (
        f"{listing(others)}: of another division, into {other_folds} folds with seed {other_seed} "
        f"instead of {num_folds} with seed {seed}. What one division validates on is trained on in "
        "the other"
    )
    if not overwrite:
        raise UserError(
            f"{what}: ask for that division, remove these folders, or pass --overwrite and write "
            "every fold again."
        )
    print(f"WARNING: {what}: write these folds again too, or remove them.")


def _fold_paths(output: str) -> list[str]:
    folder, part = os.path.split(output)
    if not storage.is_folder(folder or "."):
        return []
    names = storage.list_folder(folder or ".")
    found = [name for name in names if re.fullmatch(re.escape(part) + r"_fold_\d+", name)]
    return [os.path.join(folder, name) for name in sorted(found)]


def _division(path: str) -> tuple[int, int] | None:
    """The number and the seed of the folds of which a set is one; None if no manifest says."""
    for split in ("train", "val"):
        name = f"{split}_{os.path.basename(path)}{MANIFEST_SUFFIX}"
        options = finished_options(os.path.join(path, name))
        if options.get("folds"):
            return options["folds"], options.get("fold_seed", options.get("seed"))
    return None
