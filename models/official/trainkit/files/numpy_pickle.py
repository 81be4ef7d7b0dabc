"""Reads pickles of plain values and NumPy arrays without executing anything.

A pickle is a program, and even `numpy.dtype` can be given a state that makes NumPy follow pointers
out of the file. So nothing of NumPy is called from a pickle: the names that a pickled array needs
stand for methods of `_Unpickler`, which check every value before they build an array themselves.
"""

import math
import pickle
import re
from collections.abc import Callable
from typing import IO, Any

import numpy as np

from tpudet.trainkit.errors import shorten
from tpudet.trainkit.files.unpickler import BoundedUnpickler, describe

_MAX_SIZE = 1 << 48  # of an array: products of numbers of a million digits take minutes
_DTYPES = re.compile(r"b1|[iu][1248]|f[248]")


def load_numpy_pickle(file: IO[bytes], *, max_dimensions: int, encoding: str = "ASCII") -> Any:
    """Reads one pickle; arrays in it are `PickledArray`s.

    Args:
        file: open at its start.
        max_dimensions: of the arrays.
        encoding: of text that Python 2 wrote; with "latin1" its arrays can be read.

    Raises:
        pickle.UnpicklingError: it needs anything else than plain values and arrays of numbers.
        Exception: it is damaged; random bytes raise anything from IndexError to OverflowError.
    """
    return _Unpickler(file, max_dimensions=max_dimensions, encoding=encoding).load()


class PickledArray:
    """An array of a pickle; None while its values are not known."""

    array: np.ndarray | None = None

    def __init__(self, max_dimensions: int, charge: Callable[[int], None]) -> None:
        self._max_dimensions = max_dimensions
        self._charge = charge  # counts copied bytes

    def __setstate__(self, state: Any) -> None:
        _version, shape, dtype, is_fortran, values = state
        if isinstance(values, str):  # of Python 2
            self._charge(len(values))
            values = values.encode("latin1")
        self.fill(values, dtype, shape, "F" if is_fortran else "C")

    def fill(self, values: Any, dtype: Any, shape: Any, order: Any) -> None:
        """Builds the array from checked bytes."""
        is_plain = isinstance(values, bytes | bytearray) and isinstance(dtype, _Dtype)
        if not is_plain or not isinstance(shape, tuple) or order not in ("C", "F"):
            raise pickle.UnpicklingError("it has an array that is not stored as numbers")
        sizes = [size for size in shape if type(size) is int and 0 <= size < _MAX_SIZE]
        if len(sizes) < len(shape) or len(sizes) > self._max_dimensions:
            raise pickle.UnpicklingError(f"it has an array of shape {describe(shape)}")
        if math.prod(sizes) * dtype.dtype.itemsize != len(values):
            raise pickle.UnpicklingError(
                f"it has an array of shape {describe(shape)} in {len(values)} bytes"
            )
        self.array = np.frombuffer(values, dtype.dtype).reshape(sizes, order=order)


class _Dtype:
    """The dtype of an array, as stored in a pickle."""

    def __init__(self, code: Any) -> None:
        if not isinstance(code, str) or not _DTYPES.fullmatch(code):
            raise pickle.UnpicklingError(
                f"it has an array of {describe(code)}; only booleans, integers and floats are "
                "allowed"
            )
        self.dtype = np.dtype(code)

    def __setstate__(self, state: Any) -> None:
        order = state[1] if isinstance(state, tuple) and len(state) > 1 else None
        plain = (3, order, None, None, None, -1, -1, 0)
        if order not in ("<", ">", "|", "=") or state != plain:
            raise pickle.UnpicklingError(f"it has an array whose numbers are {describe(state)}")
        self.dtype = self.dtype.newbyteorder(order)


class _Unpickler(BoundedUnpickler):
    """An unpickler to which only plain values and NumPy arrays of numbers exist.

    Methods stand for the names of NumPy because a pickle can change the attributes of a function,
    but not those of a method.
    """

    def __init__(self, file: IO[bytes], *, max_dimensions: int, encoding: str) -> None:
        super().__init__(file, encoding=encoding)
        self._max_dimensions = max_dimensions

    def find_class(self, module: str, name: str) -> Any:
        found = {
            "collections.OrderedDict": self._dictionary,
            "_codecs.encode": self._encode,  # how protocol 2 stores bytes
            "numpy.dtype": self._dtype,
            "numpy.ndarray": "numpy.ndarray",  # an argument of `_reconstruct`
            **{
                f"numpy.{core}.{part}": method  # of NumPy 1 and 2
                for core in ("core", "_core")
                for part, method in (
                    ("multiarray._reconstruct", self._reconstruct),
                    ("numeric._frombuffer", self._from_buffer),
                )
            },
        }.get(f"{module}.{name}")
        if found is None:
            raise pickle.UnpicklingError(
                f"it needs {shorten(f'{module}.{name}', 100)}; only dicts, lists, text, numbers "
                "and NumPy arrays are allowed. A pickle can run any program, so do not open this "
                "one elsewhere either"
            )
        return found

    def _dictionary(self, *items: Any) -> dict:
        return dict(self.plain_items(*items))

    def _encode(self, text: Any, encoding: Any) -> bytes:
        if not isinstance(text, str) or encoding != "latin1":
            raise pickle.UnpicklingError(f"it has bytes in {describe(encoding)}")
        self.charge(len(text))
        return text.encode("latin1")

    def _dtype(self, code: Any, _align: Any = False, _copy: Any = False) -> _Dtype:
        return _Dtype(code)

    def _reconstruct(self, *_subtype_shape_code: Any) -> PickledArray:
        return PickledArray(self._max_dimensions, self.charge)

    def _from_buffer(
        self, values: Any, dtype: Any, shape: Any, order: Any = "C", axes: Any = None
    ) -> PickledArray:
        array = PickledArray(self._max_dimensions, self.charge)
        array.fill(values, dtype, shape, "C" if order == "K" else order)
        if order == "K" and array.array is not None:  # axes in the order that they have in memory
            # Types first: tuples of tuples take for ever to compare.
            is_plain = isinstance(axes, tuple) and all(type(axis) is int for axis in axes)
            if not is_plain or sorted(axes) != list(range(array.array.ndim)):
                raise pickle.UnpicklingError(f"it has an array whose axes are {describe(axes)}")
            array.array = array.array.transpose(axes)
        return array
