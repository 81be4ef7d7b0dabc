"""Freezing parts of a model by patterns on the paths of its variables."""

import difflib
import re
from collections.abc import Sequence
from typing import NamedTuple

import keras


class Frozen(NamedTuple):
    """What `freeze` selected, to be shown to the user."""

    layers: tuple[str, ...]  # paths of the layers that stand still, in model order
    variables: tuple[str, ...]  # paths of all their variables, statistics included
    num_parameters: int  # numbers in those variables


def freeze(model: keras.Model, patterns: Sequence[str]) -> Frozen:
    """Freezes each layer that owns a variable whose path a pattern matches.

    A pattern is a regular expression that matches from the start of the path (`re.match`):
    `backbone/` freezes the backbone, `.*/batch_norm/` every layer of that name. The whole layer
    stands still, the innermost one that owns the variable: naming a convolution's kernel freezes
    its bias, naming a BatchNorm's gamma freezes its statistics, and a layer that owns the
    variables of both freezes both. Call it on a built model, before the optimizer and the decayed
    variables are chosen.

    Args:
        model: its layers' `trainable` is set to False where selected, else left alone.
        patterns: regular expressions; none freezes nothing.

    Raises:
        ValueError: lists every pattern that is not a regular expression or matches nothing, with
            the paths that come near.
    """
    owners = owning_layers(model)
    selected: set[str] = set()
    faults = []
    for pattern in patterns:
        try:
            matched = [path for path in owners if re.match(pattern, path)]
        except re.error as error:
            faults.append(f"{pattern!r} is not a regular expression: {error}")
            continue
        if not matched:
            faults.append(_no_match(pattern, list(owners)))
        selected.update(matched)
    if faults:
        raise ValueError("the patterns of what to freeze are wrong:\n  " + "\n  ".join(faults))
    frozen_layers = {id(owners[path]): owners[path] for path in owners if path in selected}
    for layer in frozen_layers.values():
        layer.trainable = False
    still = [variable for variable in model.variables if id(owners[variable.path]) in frozen_layers]
    return Frozen(
        layers=tuple(str(layer.path) for layer in frozen_layers.values()),
        variables=tuple(variable.path for variable in still),
        num_parameters=sum(variable.value.shape.num_elements() for variable in still),
    )


def owning_layers(model: keras.Model) -> dict[str, keras.Layer]:
    """Returns for each variable's path the innermost layer that owns it, in model order."""
    owners = {}
    # From the outside in, so that the innermost owner is written last.
    for layer in model._flatten_layers():
        for variable in layer.variables:
            owners[variable.path] = layer
    return {variable.path: owners[variable.path] for variable in model.variables}


def frozen_paths(model: keras.Model) -> frozenset[str]:
    """Returns the paths of the variables that stand still: their layer is not trainable."""
    owners = owning_layers(model)
    return frozenset(path for path, layer in owners.items() if not layer.trainable)


def _no_match(pattern: str, paths: list[str]) -> str:
    """Says that a pattern matches nothing, and what the user may have meant."""
    inside = [path for path in paths if re.search(pattern, path)]
    literal = re.sub(r"[\\^$.*+?()\[\]{}|]", "", pattern)
    near = inside or difflib.get_close_matches(literal, paths, n=3, cutoff=0.5) or paths
    hint = (
        f"{pattern!r} matches no variable from the start of its path; "
        f"near are {', '.join(near[:3])}"
    )
    return hint + (f" (put .* before it to match inside: {'.*' + pattern!r})" if inside else "")
