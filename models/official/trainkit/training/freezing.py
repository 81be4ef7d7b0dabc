"""Freezes parts of a model by their names or by patterns on the paths of its variables."""

import difflib
import math
import re
from collections.abc import Collection, Iterable, Sequence
from typing import NamedTuple

import keras

from tpudet.trainkit.errors import UserError

# Parts of this part are also named without it: stage1 means backbone/stage1/.
BACKBONE = "backbone"


class Frozen(NamedTuple):
    """The frozen layers and variables of a model, to be shown to the user."""

    layers: tuple[str, ...]  # paths of the frozen layers, in model order
    variables: tuple[str, ...]  # paths of all their weights, statistics included
    num_parameters: int  # in those variables


def freeze(model: keras.Model, patterns: Sequence[str]) -> Frozen:
    """Freezes each layer that owns a variable selected by one of the patterns.

    A pattern of letters, digits, underscores and slashes is the path of a part, or of a part of the
    backbone, and selects all of it: `head`, `backbone`, `stem`, `stage1` (but not `stage10`).
    Any other pattern is a regular expression that matches from the start of the path (`re.match`):
    `backbone/stage[12]/`, or `.*/norm/` for every layer of that name. The innermost layer that owns
    the variable is frozen as a whole, with all layers inside it: naming a convolution's kernel
    freezes its bias and the normalisation inside it, naming a BatchNorm's gamma freezes its
    statistics. A block of which every layer is frozen drops nothing any more. Call it on a built
    model, before the optimizer is built and the decayed variables are selected.

    Args:
        model: `trainable` of the selected layers is set to False.
        patterns: paths and regular expressions; none freezes nothing.

    Returns:
        Everything that is frozen now, including layers that were not trainable before, such as
        frozen norms.

    Raises:
        UserError: lists every pattern that is not a regular expression or matches nothing, with
            the names of the parts and the closest paths.
    """
    owners = owning_layers(model)
    selected: set[str] = set()
    faults = []
    for pattern in patterns:
        try:
            matched = _matched(pattern, owners)
        except re.error as error:
            faults.append(f"{pattern!r} is not a regular expression: {error}")
            continue
        if not matched:
            faults.append(_no_match(pattern, list(owners)))
        selected.update(matched)
    if faults:
        raise UserError("these patterns cannot be frozen:\n  " + "\n  ".join(faults))
    for path in selected:
        owners[path].trainable = False
    frozen = [
        variable
        for variable in model.variables
        # Seeds are not weights; a backbone's keeps changing where some of its blocks are frozen.
        if not owners[variable.path].trainable and keras.backend.is_float_dtype(variable.dtype)
    ]
    return Frozen(
        layers=tuple(dict.fromkeys(str(owners[variable.path].path) for variable in frozen)),
        variables=tuple(variable.path for variable in frozen),
        num_parameters=sum(math.prod(variable.shape) for variable in frozen),
    )


def frozen_at_random(frozen: Frozen, loaded: Collection[str]) -> str:
    """Returns a warning if frozen variables were not loaded and so keep their random values.

    Args:
        frozen: from `freeze`.
        loaded: paths of the variables that were read from a file; empty without such a file.

    Returns:
        The warning, else an empty string.
    """
    random = [path for path in frozen.variables if path not in loaded]
    if not random:
        return ""
    return (
        f"{len(random)} of the {len(frozen.variables)} frozen variables were not loaded and keep "
        f"their initial values for good, among them {', '.join(random[:3])}. Name weights that "
        "contain them, or do not freeze them: a residual block whose last norm is frozen at its "
        "initial scale, 0, adds nothing."
    )


def owning_layers(model: keras.Model) -> dict[str, keras.Layer]:
    """Returns the innermost layer that owns each variable, by its path, in model order."""
    owners = {}
    # From the outside in, so that the innermost owner comes last.
    for layer in model._flatten_layers():
        for variable in layer.variables:
            owners[variable.path] = layer
    return {variable.path: owners[variable.path] for variable in model.variables}


def frozen_paths(model: keras.Model) -> frozenset[str]:
    """Returns the paths of the frozen variables: those of layers that are not trainable."""
    owners = owning_layers(model)
    return frozenset(path for path, layer in owners.items() if not layer.trainable)


def _matched(pattern: str, paths: Iterable[str]) -> list[str]:
    """The paths that the path of a part or a pattern selects; raises re.error."""
    if not re.fullmatch(r"[\w/]+", pattern):
        return [path for path in paths if re.match(pattern, path)]
    part = pattern.rstrip("/")
    for start in (part, f"{BACKBONE}/{part}"):
        inside = [path for path in paths if path == start or path.startswith(f"{start}/")]
        if inside:
            return inside
    return []


def _part_names(paths: Iterable[str]) -> list[str]:
    """The names that freeze whole parts, in model order."""
    names = []
    for path in paths:
        part, *rest = path.split("/")
        inside = rest[:1] if part == BACKBONE and len(rest) > 1 else []
        names += [part, *inside]
    return list(dict.fromkeys(names))


def _no_match(pattern: str, paths: list[str]) -> str:
    """A message that a pattern matches nothing, with what the user may have meant."""
    names = _part_names(paths)
    if re.fullmatch(r"\w+", pattern):
        near = difflib.get_close_matches(pattern, names, n=1)
        guess = f" (did you mean {near[0]}?)" if near else ""
        return f"{pattern!r} is not the name of a part{guess}; the parts are {', '.join(names)}"
    inside = [path for path in paths if re.search(pattern, path)]
    literal = re.sub(r"[\\^$.*+?()\[\]{}|]", "", pattern)
    near = inside or difflib.get_close_matches(literal, paths, n=3, cutoff=0.5) or paths
    hint = (
        f"{pattern!r} matches no variable from the start of its path; the closest are "
        f"{', '.join(near[:3])}; the parts are {', '.join(names)}"
    )
    return hint + (f" (put .* before it to match inside: {'.*' + pattern!r})" if inside else "")
