"""Reads the HDF5 files of Keras: the legacy .h5, and .weights.h5, also inside a .keras file.

Names are those of the layers, as in `conv1_conv/kernel`, in either layout.
"""

import re
from collections import Counter
from collections.abc import Iterator
from functools import partial
from typing import Any

import h5py
import numpy as np

from tpudet.trainkit.errors import listing
from tpudet.trainkit.weights.stored_weights import (
    BFLOAT16,
    LazyTensors,
    StoredWeights,
    WeightsError,
    is_inflated,
    require_no_growth,
)

WEIGHTS_IN_ARCHIVE = "model.weights.h5"  # the member of a .keras file

# .weights.h5 numbers the variables of a layer in the order in which the layer makes them.
_VARIABLES = {
    "conv2d": ("kernel", "bias"),
    "depthwise_conv2d": ("kernel", "bias"),
    "dense": ("kernel", "bias"),
    "batch_normalization": ("gamma", "beta", "moving_mean", "moving_variance"),
    "normalization": ("mean", "variance", "count"),
}
_MAX_DEPTH = 100  # of groups
_CONTAINER = "layers"  # a group that names no layer


def read_keras(opened: Any, path: str, format: str = "") -> StoredWeights:
    """Reads any of the layouts.

    Args:
        opened: a binary file that can seek.
        path: of the file, for messages.
        format: its name for messages; that of the layout if empty.

    Raises:
        WeightsError: cut off, damaged, or no file of Keras.
    """
    try:
        file = h5py.File(opened, "r")
        group = _open(file, "model_weights") if "model_weights" in file else file
        is_legacy = bool(_attribute_names(group, "layer_names"))
        names = _legacy_names(group) if is_legacy else _numbered_names(file)
        num_bytes = sum(dataset.nbytes for dataset in names.values())
        is_named = is_legacy or bool(file.visititems(_layer_name))
    except WeightsError as error:
        raise WeightsError(f"{path}: refused, because {error}") from error
    except Exception as error:  # datasets where groups should be, or none, fail in any way
        raise WeightsError(
            f"{path} is damaged or cut off, or another kind of HDF5 file: {error}. Fetch it again."
        ) from error
    if not names:
        raise WeightsError(
            f"{path} is an HDF5 file without weights of Keras; it holds {listing(file, 5) or '-'}"
        )
    if not is_named:
        raise WeightsError(
            f"{path} does not store the names of its layers, as in files of Keras 2 and early "
            "Keras 3, which have only layer types and numbers. Load it into its model with that "
            "Keras and save it as .h5, or as .weights.h5 by a newer Keras."
        )
    require_no_growth(num_bytes, path)
    optimizer = [name for name in file if name in ("optimizer", "optimizer_weights")]
    return StoredWeights(
        LazyTensors({name: partial(_read, dataset, path) for name, dataset in names.items()}),
        format or ("Keras, legacy .h5" if is_legacy else "Keras, .weights.h5"),
        ("the optimizer's variables left out",) if optimizer else (),
    )


def _attribute_names(group: Any, attribute: str) -> list[str]:
    """A list of names from the attributes; a long one is spread over `name0`, `name1`, ..."""
    values = list(group.attrs.get(attribute, ()))
    number = 0
    while f"{attribute}{number}" in group.attrs:
        values += list(group.attrs[f"{attribute}{number}"])
        number += 1
    return [value.decode() if isinstance(value, bytes) else str(value) for value in values]


def _legacy_names(group: Any) -> dict[str, Any]:
    """Datasets by `layer/variable`; by `layer/layer/variable` if that is ambiguous."""
    datasets, seen = [], set[int]()
    for layer in _attribute_names(group, "layer_names"):
        inner = _open(group, layer)
        _require_new(inner, seen)
        for name in _attribute_names(inner, "weight_names"):
            dataset = _open(inner, name)
            _require_new(dataset, seen)
            datasets.append((layer, name.removesuffix(":0"), dataset))
    uses = Counter(name for _, name, _ in datasets)
    return {
        name if uses[name] == 1 and "/" in name else f"{layer}/{name}": dataset
        for layer, name, dataset in datasets
    }


def _numbered_names(file: Any) -> dict[str, Any]:
    """Datasets by the names of the layers around them; by their groups if names repeat."""
    datasets = [
        (groups, number, dataset)
        for groups, number, dataset in _numbered_datasets(file)
        if groups[:1] != ("optimizer",)
    ]
    names = [_layer_path(file, groups, number) for groups, number, _ in datasets]
    if len(set(names)) < len(names):
        names = ["/".join((*groups, number)) for groups, number, _ in datasets]
    return dict(zip(names, (dataset for _, _, dataset in datasets), strict=True))


def _numbered_datasets(file: Any) -> Iterator[tuple[tuple[str, ...], str, Any]]:
    """Groups down to a layer, the number of its variable, and the dataset, in the file's order."""
    waiting, seen = [((), file)], set[int]()
    while waiting:
        groups, group = waiting.pop()
        _require_new(group, seen)
        if len(groups) > _MAX_DEPTH:
            raise WeightsError(f"its groups are nested more than {_MAX_DEPTH} deep.")
        variables = _open(group, "vars") if "vars" in group else {}
        if variables:
            _require_new(variables, seen)
        for number in sorted(filter(str.isdecimal, variables), key=int):
            dataset = _open(variables, number)
            _require_new(dataset, seen)
            if dataset.dtype.kind != "O":
                yield groups, number, dataset
        below = [(name, _open(group, str(name))) for name in group if name != "vars"]
        waiting += [
            ((*groups, name), child)
            for name, child in reversed(below)
            if isinstance(child, h5py.Group)
        ]


def _require_new(item: Any, seen: set[int]) -> None:
    """Refuses what is named again, which may hold itself, or stand for millions of names."""
    address = h5py.h5o.get_info(item.id).addr
    if address in seen:
        raise WeightsError(f"its {item.name} has a second name or holds itself.")
    seen.add(address)


def _open(group: Any, path: str) -> Any:
    """Opens what is stored below a group itself; a link could lead to any file of this machine.

    Raises:
        WeightsError: there is a link, or a dataset is stored elsewhere or is far larger than what
            is stored of it.
    """
    for name in filter(None, path.split("/")):
        link = group.get(name, getlink=True)
        if link is not None and not isinstance(link, h5py.HardLink):
            raise WeightsError(f"its {name} is a link, which may lead to another file.")
        group = group[name]
    if isinstance(group, h5py.Dataset):
        if group.external or group.is_virtual:
            raise WeightsError(f"its {group.name} is stored in another file.")
        stored = group.id.get_storage_size()
        if is_inflated(group.nbytes, stored):
            raise WeightsError(
                f"{stored:,} bytes of its {group.name} would become {group.nbytes:,}."
            )
    return group


def _layer_path(file: Any, groups: tuple[str, ...], number: str) -> str:
    parts = []
    for depth, group in enumerate(groups, start=1):
        if group != _CONTAINER:
            path = "/".join((*groups[:depth], "vars"))
            parts.append((_layer_name(path, file[path]) if path in file else None) or group)
    kind = re.sub(r"_\d+$", "", groups[-1]) if groups else ""
    known = _VARIABLES.get(kind, ())
    count = len(file["/".join(groups) or "/"]["vars"])
    # Without gamma or without beta the numbers of BatchNorm say nothing, so they stay.
    is_clear = int(number) < len(known) and (kind != "batch_normalization" or count == len(known))
    return "/".join([*parts, known[int(number)] if is_clear else number])


def _layer_name(path: str, item: Any) -> str | None:
    """The name of the layer whose variables are in the group `item` at `path`."""
    name = item.attrs.get("name") if path.rpartition("/")[2] == "vars" else None
    return name.decode() if isinstance(name, bytes) else name


def _read(dataset: Any, path: str) -> np.ndarray:
    try:
        if dataset.dtype.kind not in "biufcV":
            raise TypeError(f"{dataset.dtype} is not a type of numbers")
        array = np.asarray(dataset[()])
        if dataset.attrs.get("dtype") == "bfloat16":
            array = array.view(BFLOAT16)
        if array.dtype.kind not in "biufc" and array.dtype != BFLOAT16:
            raise TypeError(f"{array.dtype} is not a type of numbers")
    except Exception as error:  # as above
        raise WeightsError(f"{path} is damaged or cut off at {dataset.name}: {error}") from error
    return array
