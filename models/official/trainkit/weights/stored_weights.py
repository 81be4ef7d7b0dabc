"""Named arrays that are read on access: the result of every reader."""

import math
import weakref
import zipfile
from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

import ml_dtypes
import numpy as np

from tpudet.trainkit.errors import UserError
from tpudet.trainkit.files import storage


class WeightsError(UserError):
    """Weights that cannot be read or do not fit the model; the message says why and what to do."""


BFLOAT16 = np.dtype(ml_dtypes.bfloat16)  # NumPy has none of its own


_MAX_COMPRESSION = 20  # of weights: those of a model before training may have many zeros


class StoredWeights(NamedTuple):
    """The weights of one file or checkpoint, under their names there.

    A tensor is read, and checked for damage, each time it is accessed, so that a large file costs
    the memory of one tensor; `WeightsError` may therefore be raised then. The dtype is the stored
    one; bfloat16 is that of ml_dtypes, and `array.astype("float32")` works for all.
    """

    tensors: Mapping[str, np.ndarray]
    format: str  # such as "safetensors"
    notes: tuple[str, ...] = ()  # sentences on what was chosen or left out
    variant: str = ""  # of networks whose tensors have the same names, see `families`


class LazyTensors(Mapping[str, np.ndarray]):
    """A mapping that reads a tensor on each access and keeps none."""

    def __init__(self, readers: Mapping[str, Callable[[], np.ndarray]]) -> None:
        self._readers = readers

    def __getitem__(self, name: str) -> np.ndarray:
        return self._readers[name]()

    def __contains__(self, name: object) -> bool:
        return name in self._readers  # Mapping's own would read the tensor

    def __iter__(self) -> Iterator[str]:
        return iter(self._readers)

    def __len__(self) -> int:
        return len(self._readers)


class ByteReader:
    """Reads pieces of a file, local or in a bucket, that stays open."""

    def __init__(self, path: str) -> None:
        self.path = path
        try:
            self.size = storage.stat(path).size
            self.file = storage.open_file(path, "rb")
        except OSError as error:
            raise self._unreadable(error) from error
        weakref.finalize(self, self.file.close)

    def read(self, offset: int, length: int) -> bytes:
        """Returns `length` bytes from `offset`.

        Raises:
            WeightsError: the file ends before, or can no longer be read.
        """
        if offset + length > self.size:
            raise WeightsError(
                f"{self.path} is cut off: it has {self.size} bytes, and its contents need at least "
                f"{offset + length}. Fetch it again."
            )
        try:
            self.file.seek(offset)
            data = self.file.read(length)
        except OSError as error:
            raise self._unreadable(error) from error
        if len(data) < length:
            raise WeightsError(f"{self.path} was cut off while it was read. Read it again.")
        return data

    def _unreadable(self, error: OSError) -> WeightsError:
        return WeightsError(f"{self.path} cannot be read: {storage.reason(error)}")


def is_inflated(num_bytes: int, stored_bytes: int, *, spare: int = 1 << 26) -> bool:
    """Whether so few stored bytes become so many that the file is a decompression bomb.

    Weights hardly compress; `spare` bytes are always allowed.
    """
    return num_bytes > max(_MAX_COMPRESSION * stored_bytes, spare)


def require_no_growth(num_bytes: int, path: str) -> None:
    """Refuses a file whose tensors have so many bytes that it must hold some many times.

    Raises:
        WeightsError: it does; the message says how many.
    """
    stored = storage.stat(path).size
    if is_inflated(num_bytes, stored):
        raise WeightsError(
            f"{path}: refused, because its {stored:,} bytes would become {num_bytes:,}: the same "
            "numbers many times, or numbers that are not stored."
        )


def read_member(archive: zipfile.ZipFile, name: str, path: str, *, spare: int = 1 << 26) -> bytes:
    """Reads a member of a zip archive whole; zipfile compares its checksum.

    Raises:
        WeightsError: it is damaged, or would become far larger than it is stored; see
            `is_inflated`.
    """
    try:
        member = archive.getinfo(name)
        if is_inflated(member.file_size, member.compress_size, spare=spare):
            raise WeightsError(
                f"{path}: refused, because {member.compress_size:,} bytes of its {name} would "
                f"become {member.file_size:,}. PyTorch and Keras do not compress weights: store "
                "them again, or fetch them from elsewhere."
            )
        return archive.read(member)
    except WeightsError:
        raise
    except Exception as error:  # zipfile fails in any way where the archive is damaged
        raise WeightsError(f"{path} is cut off or damaged: {error}. Fetch it again.") from error


def is_possible_shape(shape: tuple[int, ...]) -> bool:
    """Whether NumPy has arrays of this shape; an empty one's other sizes count too."""
    return len(shape) <= 32 and math.prod(size or 1 for size in shape) <= 1 << 40
