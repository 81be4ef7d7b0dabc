"""Keeps folds of different divisions apart: what one validates on is trained on in the other."""

import os
import re
from typing import NamedTuple

from tpudet.detection.preparation.records.output_check import finished_options
from tpudet.trainkit.errors import UserError, listing
from tpudet.trainkit.files import storage
from tpudet.trainkit.record_manifest import MANIFEST_SUFFIX


class _Division(NamedTuple):
    num_folds: int
    seed: int
    digest: str | None  # of which image is in which fold; None: not known

    def differs(self, other: "_Division") -> bool:
        same = self.num_folds == other.num_folds and self.seed == other.seed
        is_known = self.digest is not None and other.digest is not None
        return not same or (is_known and self.digest != other.digest)


def check_folds_beside(
    output: str, *, num_folds: int, seed: int, digest: str | None = None, overwrite: bool
) -> None:
    """Refuses finished folds of another division of the same part; with `overwrite` names them.

    Args:
        output: converted/<part>; its folds are `<output>_fold_<N>`.
        num_folds: of the division to write.
        seed: of the division to write.
        digest: of which image is in which fold; None: the images and labels are not compared.
        overwrite: write a fold beside them all the same.

    Raises:
        UserError: names the folds and what to do.
    """
    wanted = _Division(num_folds, seed, digest)
    found = {path: _divisions(path) for path in _fold_paths(output.rstrip("/"))}
    others = {
        path: other for path, beside in found.items() for other in beside if other.differs(wanted)
    }
    if not others:
        return
    other = next(iter(others.values()))
    if (other.num_folds, other.seed) == (num_folds, seed):
        instead = ", of other images or labels"
    else:
        instead = f" instead of {num_folds} with seed {seed}"
    what = (
        f"{listing(others)}: of another division, into {other.num_folds} folds with seed "
        f"{other.seed}{instead}. What one division validates on is trained on in the other"
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


def _divisions(path: str) -> list[_Division]:
    """The divisions of the folds that the sets in a folder are of, as their manifests say."""
    divisions = []
    for split in ("train", "val"):
        name = f"{split}_{os.path.basename(path)}{MANIFEST_SUFFIX}"
        options = finished_options(os.path.join(path, name))
        if options.get("folds"):
            seed = options.get("fold_seed", options.get("seed"))
            divisions.append(_Division(options["folds"], seed, options.get("division")))
    return divisions
