"""Pickles take no more memory and time than their size allows."""

import io
import pickle
import struct

import numpy as np
import pytest

from tpudet.trainkit.files.numpy_pickle import load_numpy_pickle
from tpudet.trainkit.weights.stored_weights import WeightsError
from tpudet.trainkit.weights.torch_pickle import load_pickle

COPIES = 100  # of a megabyte or of a million entries: 100 MB at least
ENCODE, ORDERED, REBUILD = (
    b"c_codecs\nencode\n",
    b"ccollections\nOrderedDict\n",
    b"cnumpy.core.multiarray\n_reconstruct\n",
)


def text(letters: bytes) -> bytes:
    return b"X" + struct.pack("<I", len(letters)) + letters


def repeated(content: bytes, once: bytes) -> bytes:
    """A pickle that names `content` 0, and makes a list of `once` many times."""
    return b"\x80\x04" + content + b"q\x00](" + once * COPIES + b"e."


def with_shape(*sizes: bytes) -> bytes:
    """A pickle of an array of no bytes whose shape names the memo's 0."""
    shape = b"(" + b"".join(sizes) + b"t"
    state = b"(K\x01" + shape + b"cnumpy\ndtype\n" + text(b"f4") + b"\x85R\x89C\x00t"
    return REBUILD + b")R" + state + b"b"


MEGABYTE = text(b"a" * 1_000_000)
ENTRIES = b"}(" + b"".join(b"J" + struct.pack("<i", key) + b"N" for key in range(20_000)) + b"u"
ARRAY_OF_TEXT = (
    REBUILD + b")R(K\x01J@B\x0f\x00\x85cnumpy\ndtype\n" + text(b"b1") + b"\x85R\x89h\x00tb"
)
HUGE_NUMBER = b"\x8b" + struct.pack("<i", 4000) + b"\x7f" * 4000


@pytest.mark.parametrize(
    "pickled",
    [
        pytest.param(repeated(MEGABYTE, ENCODE + b"(h\x00" + text(b"latin1") + b"tR"), id="text"),
        pytest.param(repeated(MEGABYTE, ARRAY_OF_TEXT), id="text of Python 2"),
        pytest.param(repeated(ENTRIES, ORDERED + b"h\x00\x85R"), id="dictionary"),
        pytest.param(repeated(b"(" + b"N" * 1_000_000 + b"t", REBUILD + b"h\x00R"), id="arguments"),
        pytest.param(b"\x80\x04" + b"\x8f" * 400_000 + b".", id="sets"),
    ],
)
def test_a_small_pickle_may_not_copy_a_part_of_itself_many_times(pickled: bytes) -> None:
    assert len(pickled) < 1_010_000
    with pytest.raises(pickle.UnpicklingError, match="copies a part of itself many times"):
        load_numpy_pickle(io.BytesIO(pickled), max_dimensions=2)


def test_a_small_pytorch_file_may_not_either() -> None:
    pickled = repeated(b"(" + b"N" * 1_000_000 + b"t", b"ctorch\nSize\nh\x00\x85R")
    with pytest.raises(WeightsError, match="copies a part of itself many times"):
        load_pickle(io.BytesIO(pickled), "a.pt")


@pytest.mark.parametrize("protocol", [2, 5])
def test_80_mb_that_are_stored_once_each_are_read(protocol: int) -> None:
    """Protocol 2 stores bytes as text, which a call encodes."""
    stored = [np.full(1_000_000, k, np.uint8) for k in range(80)]
    found = load_numpy_pickle(io.BytesIO(pickle.dumps(stored, protocol)), max_dimensions=1)
    assert [int(part.array.sum()) for part in found] == [k * 1_000_000 for k in range(80)]


@pytest.mark.parametrize("items", [b"N", b"](K\x01K\x02e", b"(K\x01K\x02K\x03t\x85"])
def test_a_dictionary_is_made_of_pairs(items: bytes) -> None:
    pickled = b"\x80\x04" + ORDERED + items + b"\x85R."
    with pytest.raises(pickle.UnpicklingError, match="it makes a dictionary of"):
        load_numpy_pickle(io.BytesIO(pickled), max_dimensions=2)


def test_sizes_are_not_multiplied_where_they_have_thousands_of_digits() -> None:
    pickled = b"\x80\x04" + HUGE_NUMBER + b"q\x00" + with_shape(b"h\x00", b"h\x00", b"K\x00") + b"."
    with pytest.raises(pickle.UnpicklingError, match="of shape .an integer of 31,999 bits"):
        load_numpy_pickle(io.BytesIO(pickled), max_dimensions=3)


def test_a_pickle_cannot_change_the_attributes_of_a_function() -> None:
    pickled = b"\x80\x04" + ENCODE + b"}" + text(b"stolen") + b"Nsb."
    with pytest.raises(pickle.UnpicklingError, match="it changes attributes of a method"):
        load_numpy_pickle(io.BytesIO(pickled), max_dimensions=2)
