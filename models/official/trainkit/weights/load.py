"""Loads weights of any origin into a model and reports on every variable and tensor."""

import difflib
import math
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import keras
import numpy as np

from tpudet.trainkit.backbones.batch_norm import BatchNorm
from tpudet.trainkit.weights.families import TPUDET, Family, expectations
from tpudet.trainkit.weights.name_maps import tensorflow_names
from tpudet.trainkit.weights.name_maps.recipes import (
    BACKBONE_PREFIX,
    Recipe,
    Unit,
    as_is,
    find_units,
    split_path,
)
from tpudet.trainkit.weights.recognize import Recognized, recognize
from tpudet.trainkit.weights.report import LoadReport, Missing, PartlyLoaded, ShapeSkipped
from tpudet.trainkit.weights.stored_weights import StoredWeights, WeightsError

# (path of a variable outside the backbone, names in the file) -> recipe
OtherParts = Callable[[str, Collection[str]], Recipe | None]


class _Values(NamedTuple):
    """The values in a file for the variables of a model."""

    arrays: dict[str, np.ndarray]  # by path; masked where the file has no number
    missing: list[Missing]
    shape_skipped: list[ShapeSkipped]
    used: set[str]  # names in the file


_COARSEST_LEVEL = 5  # of a whole backbone
_NOT_COMPARED = (
    "The backbone ends at the coarsest level of the pyramid: whether the weights are of its depth "
    "or variant was not compared."
)


def load_weights(
    model: keras.Layer,
    stored: StoredWeights,
    *,
    prefix: str = "",
    exclude: Sequence[str] = (),
    min_backbone_share: float,
    path: str = "",
    normalization: str | None = None,
    own: Family = TPUDET,
    other_parts: OtherParts = lambda path, names: None,
) -> LoadReport:
    """Loads the weights that a file has for a model; other variables keep their initial values.

    Everything is read and compared first: if this raises, no variable has changed.

    Args:
        model: a built detector, classifier or backbone; its backbone's paths begin with backbone/.
        stored: from `read_weights`.
        prefix: only names with this prefix count; the backbone's own is found automatically.
        exclude: regular expressions, matched from the start of our paths: not loaded.
        min_backbone_share: least share of the backbone's numbers to load, without excluded ones; 0
            takes whatever fits.
        path: of the file, for messages and as of `recognize`.
        normalization: of the model's pixels, for the report.
        own: the family of tpudet's own weights, if the run that wrote them is known.
        other_parts: names the parts beside the backbone in a file of another origin.

    Raises:
        WeightsError: unknown names, a pattern that excludes nothing, values that are not finite,
            another depth or variant, or too small a share of the backbone.
    """
    variables = {v.path: v for v in model.variables if keras.backend.is_float_dtype(v.dtype)}
    excluded = _excluded(variables, exclude)
    recognized = recognize(stored.tensors, prefix=prefix, path=path, variant=stored.variant)
    family = own if recognized.family is TPUDET else recognized.family
    ends_early = _coarsest_level(model) < _COARSEST_LEVEL
    recipes = _recipes(
        list(variables), stored.tensors, prefix, recognized, other_parts, ends_early=ends_early
    )
    shapes = {path: tuple(v.shape) for path, v in variables.items() if path not in excluded}
    values = _read({path: recipes[path] for path in shapes}, shapes, stored.tensors)
    report = LoadReport(
        loaded=tuple(values.arrays),
        missing=tuple(values.missing),
        shape_skipped=tuple(values.shape_skipped),
        partly_loaded=_partly_loaded(values.arrays),
        excluded=tuple(excluded),
        unused=tuple(name for name in stored.tensors if name not in values.used),
        family=family,
        prefix=recognized.prefix,
        backbone_share=_backbone_share(shapes, values.arrays),
        differences=expectations(family, normalization=normalization, **_construction(model)),
        notes=(*stored.notes, *recognized.notes, *([_NOT_COMPARED] if ends_early else [])),
    )
    _require_enough(report, values, path, min_backbone_share)
    if not ends_early:
        _require_same_network(recognized, recipes, stored.tensors)
    _assign(variables, values.arrays)
    return report


def _partly_loaded(arrays: Mapping[str, np.ndarray]) -> tuple[PartlyLoaded, ...]:
    return tuple(
        PartlyLoaded(path, int(np.ma.count(array)), array.size)
        for path, array in arrays.items()
        if np.ma.is_masked(array)
    )


def _assign(variables: Mapping[str, keras.Variable], arrays: Mapping[str, np.ndarray]) -> None:
    """Assigns the arrays by path; masked elements keep their initial values."""
    for path, array in arrays.items():
        variable = variables[path]
        if np.ma.is_masked(array):
            initial = variable.numpy()
            array = np.where(np.ma.getmaskarray(array), initial, np.ma.getdata(array))
        variable.assign(array)


def _excluded(paths: Iterable[str], patterns: Sequence[str]) -> list[str]:
    paths = list(paths)
    faults = []
    excluded: set[str] = set()
    for pattern in patterns:
        try:
            matched = [path for path in paths if re.match(pattern, path)]
        except re.error as error:
            faults.append(f"{pattern!r} is not a regular expression: {error}")
            continue
        if not matched:
            near = difflib.get_close_matches(pattern, paths, n=3, cutoff=0.0)
            faults.append(
                f"{pattern!r} matches no variable from the start of its path; near are "
                f"{', '.join(near)}"
            )
        excluded.update(matched)
    if faults:
        raise WeightsError(
            "The patterns of weights to exclude are wrong:\n  " + "\n  ".join(faults)
        )
    return [path for path in paths if path in excluded]


def _recipes(
    paths: Sequence[str],
    names: Collection[str],
    prefix: str,
    recognized: Recognized,
    other_parts: OtherParts,
    *,
    ends_early: bool,
) -> dict[str, Recipe | None]:
    """The recipe for every variable, with the names in the file."""
    start = recognized.prefix
    if recognized.family is TPUDET:
        return {path: as_is(start + path) for path in paths}
    units = find_units(paths)
    inside = _behind(start, names)
    if recognized.name_map is tensorflow_names.resnet and not ends_early:
        tensorflow_names.check_depth(units, inside)
    around = {place: _behind(place, names) for place in _places_around(start, prefix)}
    recipes: dict[str, Recipe | None] = {}
    for path in paths:
        split = split_path(path)
        if split is None:
            recipes[path] = _of_other_part(path, around, other_parts)
        else:
            recipe = _of_unit(recognized, units[split[0]], split[1], inside)
            recipes[path] = recipe and recipe.behind(start)
    return recipes


def _behind(prefix: str, names: Collection[str]) -> set[str]:
    return {name.removeprefix(prefix) for name in names if name.startswith(prefix)}


def _places_around(backbone: str, prefix: str) -> list[str]:
    """Prefixes that neck and head may have: those around the backbone's own, nearest first.

    Of `ema/backbone/resnet50/` they are that itself, where a classifier has its head, then
    `ema/backbone/` and `ema/`; `prefix` comes last.
    """
    parts = re.findall(r"[^/.]*[/.]", backbone)
    around = ["".join(parts[:length]) for length in range(len(parts), max(len(parts) - 3, -1), -1)]
    return list(dict.fromkeys([*(p for p in around if p.startswith(prefix)), prefix]))


def _of_other_part(
    path: str, around: Mapping[str, Collection[str]], other_parts: OtherParts
) -> Recipe | None:
    """The recipe for the first place that has all its tensors; else that for the last one."""
    found = None
    for place, names in around.items():
        recipe = other_parts(path, names)
        found = recipe and recipe.behind(place)
        if recipe and all(name in names for name in recipe.names):
            break
    return found


def _of_unit(
    recognized: Recognized, unit: Unit, part: str, names: Collection[str]
) -> Recipe | None:
    try:
        return recognized.name_map(unit, part, names)
    except (KeyError, ValueError):  # a convolution of a ResNet, and weights of an EfficientNet
        return None


def _read(
    recipes: Mapping[str, Recipe | None],
    shapes: Mapping[str, tuple[int, ...]],
    tensors: Mapping[str, np.ndarray],
) -> _Values:
    values = _Values({}, [], [], set())
    not_finite = []
    for path, recipe in recipes.items():
        names = recipe.names if recipe else ()
        if recipe is None or any(name not in tensors for name in names):
            values.missing.append(Missing(path, names))
            continue
        values.used.update(names)
        parts = [np.asarray(tensors[name]).astype("float32") for name in names]
        try:
            array = recipe.convert(*parts)
        except (ValueError, IndexError):  # another number of axes
            values.shape_skipped.append(ShapeSkipped(path, shapes[path], parts[0].shape))
            continue
        if array.shape != shapes[path]:
            values.shape_skipped.append(ShapeSkipped(path, shapes[path], array.shape))
        elif not np.all(np.isfinite(array)):
            not_finite.append(" and ".join(names))
        else:
            values.arrays[path] = array
    if not_finite:
        raise WeightsError(
            f"{len(not_finite)} tensors hold values that are not finite: "
            f"{', '.join(not_finite[:5])}. The run that wrote them failed, or the file is damaged."
        )
    return values


def _require_same_network(
    recognized: Recognized, recipes: Mapping[str, Recipe | None], names: Collection[str]
) -> None:
    """Refuses weights of a larger backbone, which contain all names of a smaller one."""
    taken = {name for recipe in recipes.values() if recipe for name in recipe.names}
    more = [name for name in recognized.blocks_among(names) if name not in taken]
    if more:
        raise WeightsError(
            f"The file has {len(more)} more tensors of the backbone, for example "
            f"{', '.join(more[:3])}: it is of another depth or variant than the model's. Choose "
            "model.backbone as in the weights."
        )


def _require_enough(report: LoadReport, values: _Values, path: str, limit: float) -> None:
    """Refuses too little of the backbone and, unless the limit is 0, parts of convolutions."""
    if not values.arrays or report.backbone_share < limit:
        raise WeightsError(_too_little(report, path, limit))
    if limit > 0:
        _require_whole_units(values)


def _require_whole_units(values: _Values) -> None:
    """Refuses weights that lack parts of what they have, such as the statistics of norms."""
    loaded = {split[0] for path in values.arrays if (split := split_path(path))}
    lacking = [
        missing.path
        for missing in values.missing
        if (split := split_path(missing.path)) and split[0] in loaded
    ]
    if lacking:
        raise WeightsError(
            f"The file lacks {len(lacking)} variables of convolutions and norms that it has "
            f"otherwise, for example {', '.join(lacking[:3])}: it is of another variant of the "
            "backbone, with another normalisation perhaps. Choose other weights, or name these "
            "variables in train.weights.exclude."
        )


def _backbone_share(shapes: Mapping[str, tuple[int, ...]], loaded: Collection[str]) -> float:
    """The share of the backbone's numbers that are loaded; 1 if there are none to load."""
    backbone = [path for path in shapes if path.startswith(BACKBONE_PREFIX)]
    total = sum(math.prod(shapes[path]) for path in backbone)
    found = sum(math.prod(shapes[path]) for path in backbone if path in loaded)
    return found / total if total else 1.0


def _coarsest_level(model: keras.Layer) -> int:
    return max(getattr(getattr(model, "backbone", model), "channels", [_COARSEST_LEVEL]))


def _construction(model: keras.Layer) -> dict[str, Any]:
    """Style and epsilon of the model's backbone."""
    backbone = getattr(model, "backbone", model)
    norms = [layer for layer in backbone._flatten_layers() if isinstance(layer, BatchNorm)]
    return {
        "style": getattr(backbone, "style", None),
        "batch_norm_epsilon": norms[0].epsilon if norms else None,
    }


def _too_little(report: LoadReport, path: str, limit: float) -> str:
    """Says which names were expected, and which in the file are similar."""
    lines = []
    for missing in report.missing:
        if missing.path.startswith(BACKBONE_PREFIX) and missing.wanted:
            near = difflib.get_close_matches(missing.wanted[0], report.unused, n=1, cutoff=0.6)
            hint = f"; near is {near[0]}" if near else ""
            lines.append(f"  {missing.path}: {missing.wanted[0]} is not in the file{hint}")
        if len(lines) == 5:
            break
    return (
        f"Only {report.backbone_share:.1%} of the backbone's numbers could be loaded from "
        f"{path or 'the weights'}, less than min_backbone_share = {limit:.1%}. Is it the same "
        f"kind, depth and variant of backbone?\n{report.text(limit=5)}" + "\n".join(lines)
    )
