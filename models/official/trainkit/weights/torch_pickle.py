"""Reads the pickle inside a PyTorch file without PyTorch and without running anything.

A pickle is a program. This reader knows the few functions that a dictionary of tensors needs and
refuses every other name before it is looked up. For those names it returns methods and strings,
whose behaviour no pickle can change.
"""

import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np

from tpudet.trainkit.errors import listing, shorten
from tpudet.trainkit.files.unpickler import BoundedUnpickler, describe
from tpudet.trainkit.weights.stored_weights import BFLOAT16, WeightsError, is_possible_shape

_STORAGE_TYPES = {
    "DoubleStorage": np.dtype("<f8"),
    "FloatStorage": np.dtype("<f4"),
    "HalfStorage": np.dtype("<f2"),
    "BFloat16Storage": BFLOAT16,
    "LongStorage": np.dtype("<i8"),
    "IntStorage": np.dtype("<i4"),
    "ShortStorage": np.dtype("<i2"),
    "CharStorage": np.dtype("i1"),
    "ByteStorage": np.dtype("u1"),
    "BoolStorage": np.dtype("?"),
    "ComplexFloatStorage": np.dtype("<c8"),
    "ComplexDoubleStorage": np.dtype("<c16"),
}
_MAX_ENTRIES = 1_000_000  # of containers, each counted as often as it is held
_MAX_DIMENSIONS = 32
_MAX_LETTERS = 500  # of a name with those of the containers around it
_SIZE_BYTES = 8  # in a tuple
_MAX_NUMBER = 1 << 100  # of sizes and strides, which PyTorch stores in 64 bits


class Storage(NamedTuple):
    """A flat array of the file that tensors are views of."""

    key: str
    dtype: np.dtype
    length: int  # numbers


class Tensor(NamedTuple):
    """A strided view of a storage; offset and strides in numbers."""

    storage: Storage
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]

    @property
    def num_bytes(self) -> int:
        return math.prod(self.shape) * self.storage.dtype.itemsize

    def of(self, numbers: np.ndarray) -> np.ndarray:
        """Copies the tensor out of all numbers of its storage."""
        if not math.prod(self.shape):
            return np.empty(self.shape, numbers.dtype)
        size = numbers.dtype.itemsize
        # Along an axis of one number the stride may be anything.
        pairs = zip(self.shape, self.strides, strict=True)
        steps = [step * size if n > 1 else 0 for n, step in pairs]
        return np.lib.stride_tricks.as_strided(numbers[self.offset :], self.shape, steps).copy()


class _Container(dict):
    """A dictionary that drops the attributes that PyTorch adds to its own."""

    def __setstate__(self, state: object) -> None:
        del state


class _TensorUnpickler(BoundedUnpickler):
    """Builds dictionaries, lists, tuples, numbers, strings and `Tensor`s, and refuses the rest."""

    def __init__(self, file: Any, path: str) -> None:
        super().__init__(file, encoding="utf-8")
        self.storages: dict[str, Storage] = {}
        self._path = path
        self._known: dict[tuple[str, str], Callable] = {
            ("collections", "OrderedDict"): self._dictionary,
            ("torch._utils", "_rebuild_tensor"): self._tensor,
            ("torch._utils", "_rebuild_tensor_v2"): self._tensor,
            ("torch._utils", "_rebuild_parameter"): self._parameter,
            ("torch", "Size"): self._size,
        }

    def find_class(self, module: str, name: str) -> Any:
        if module == "torch" and name in _STORAGE_TYPES:
            return name
        if (module, name) in self._known:
            return self._known[module, name]
        script = module.startswith("__torch__")
        reason = " (it is a TorchScript archive)" if script else ""
        called = shorten(f"{module}.{name}", 100)
        raise WeightsError(
            f"{self._path}: refused, because it calls `{called}`{reason}. Only tensors "
            "in dictionaries, lists and tuples are read: anything else in a PyTorch file may run "
            "code. If you trust the file, load it in PyTorch and store only the weights: "
            'torch.save(model.state_dict(), "weights.pth").'
        )

    def persistent_load(self, pid: Any) -> Storage:
        kind, type_name, key, _device, length, *view = pid
        if kind != "storage" or not isinstance(key, str) or not isinstance(type_name, str):
            raise ValueError(f"{describe(pid)} names no storage")
        _require_whole_numbers((length,))
        storage = Storage(key, _STORAGE_TYPES[type_name], length)
        self.storages[key] = storage
        if view and view[0] is not None:  # of files written before PyTorch 0.4
            raise ValueError("views of storages of PyTorch 0.3 are not supported")
        return storage

    def _dictionary(self, *items: Any) -> _Container:
        return _Container(self.plain_items(*items))

    def _size(self, sizes: Any) -> tuple:
        self.charge(_SIZE_BYTES * len(sizes))
        return tuple(sizes)

    def _parameter(self, data: Any, *_rest: Any) -> Any:
        return data

    def _tensor(self, storage: Any, offset: Any, sizes: Any, strides: Any, *_rest: Any) -> Tensor:
        shape = tuple(sizes)
        # First, for a product of thousands of sizes takes minutes.
        fits = isinstance(storage, Storage) and len(shape) <= _MAX_DIMENSIONS
        if fits:
            _require_whole_numbers((offset, *shape, *strides))
            end = offset + 1 + sum((n - 1) * step for n, step in zip(shape, strides, strict=True))
            fits = is_possible_shape(shape) and (not math.prod(shape) or end <= storage.length)
        if not fits:
            known = isinstance(storage, Storage)
            stored = f"of {storage.length:,} numbers" if known else describe(storage)
            raise ValueError(
                f"a tensor of shape {describe(shape)} does not fit its storage {stored}"
            )
        return Tensor(storage, offset, shape, tuple(strides))


def load_pickle(file: Any, path: str) -> tuple[Any, dict[str, Storage]]:
    """Reads one pickle of plain containers, numbers, strings and `Tensor`s from an open file.

    Returns:
        Its content, and the storages of its tensors by key.

    Raises:
        WeightsError: it holds anything else, or is damaged.
    """
    unpickler = _TensorUnpickler(file, path)
    try:
        return unpickler.load(), unpickler.storages
    except WeightsError:
        raise
    except Exception as error:  # a damaged pickle is a random program: it fails in any way
        raise WeightsError(
            f"{path} is damaged or truncated: its list of tensors cannot be read "
            f"({type(error).__name__}: {error}). Fetch it again."
        ) from error


# Where training scripts keep the weights beside other things; averaged ones first.
_AVERAGED = ("state_dict_ema", "model_ema", "ema_state_dict", "ema")
_TRAINED = ("state_dict", "model_state_dict", "model", "model_state", "net")
_BELOW = ("module", "state_dict")  # where these keep them, beside counters of their own


def choose_tensors(
    content: Any, path: str, *, prefer_averages: bool
) -> tuple[dict[str, Tensor], list[str]]:
    """Finds the weights in the content of a PyTorch file.

    Args:
        content: tensors by name, or a checkpoint that holds these under a usual key.
        path: of the file, for messages.
        prefer_averages: take `state_dict_ema`, `model_ema` or `ema` if there is one.

    Returns:
        The tensors by name, levels joined by dots, and the notes.

    Raises:
        WeightsError: there is no tensor.
    """
    if not isinstance(content, Mapping):
        content = {"": content}
    notes = []
    for key in (*(_AVERAGED if prefer_averages else ()), *_TRAINED):
        found = _below(content.get(key))
        named = any(isinstance(value, Tensor) for value in found.values())
        if named or (key in _TRAINED and _tensors_in(found, path)[0]):
            others = [describe(other) for other in content if other != key]
            if others:
                notes.append(f"of {key!r}; left out beside it: {listing(others)}")
            content = found
            break
    tensors, others = _tensors_in(content, path)
    if not tensors:
        held = listing(others) or "an empty dictionary"
        raise WeightsError(f"{path} holds no tensor, only {held}.")
    if others:
        notes.append(f"{len(others)} entries that are no tensors left out")
    return tensors, notes


def _below(content: Any) -> Mapping:
    """A dictionary of weights, or the one inside it under a key of `_BELOW`."""
    if not isinstance(content, Mapping):
        return {}
    below = (content.get(key) for key in _BELOW)
    return next((inner for inner in below if isinstance(inner, Mapping) and inner), content)


def _tensors_in(content: Any, path: str) -> tuple[dict[str, Tensor], list[str]]:
    """Tensors by dotted name, and the names of other entries."""
    tensors: dict[str, Tensor] = {}
    others: list[str] = []
    waiting, num_entries = [(content, "", 0)], 0
    while waiting:
        item, name, depth = waiting.pop()
        if len(name) > _MAX_LETTERS:  # each entry below would have its own copy
            raise WeightsError(f"{path}: a name in it is too long: {shorten(name, 100)}")
        if depth > 20:  # a list may hold itself
            raise WeightsError(f"{path}: containers are nested more than 20 deep in {name}.")
        if isinstance(item, Tensor):
            if name in tensors:
                raise WeightsError(f"{path}: two tensors in it have the name {name}.")
            tensors[name] = item
        elif isinstance(item, Mapping | list | tuple):
            num_entries += len(item)
            if num_entries > _MAX_ENTRIES:  # a few lists that hold one another many times
                raise WeightsError(f"{path} has more than {_MAX_ENTRIES:,} entries.")
            children = item.items() if isinstance(item, Mapping) else enumerate(item)
            below = [(child, f"{name}.{k}" if name else str(k), depth + 1) for k, child in children]
            waiting += reversed(below)
        else:
            others.append(name)
    return tensors, others


def _require_whole_numbers(values: tuple) -> None:
    if not all(isinstance(value, int) and 0 <= value < _MAX_NUMBER for value in values):
        raise ValueError("sizes, strides or lengths in it are not whole numbers from 0 to 2^100")
