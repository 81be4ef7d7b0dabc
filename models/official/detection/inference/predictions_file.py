"""The predictions file: the detections of many images. Read and written without TensorFlow.

Parquet, one row per image, or a pickle of plain dicts and NumPy arrays; functions take open binary
files, so that any file system works. The class list and free metadata are inside the file.
"""

import io
import itertools
import json
import pickle
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import IO, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from tpudet.detection.ops.numpy_masks import Rle, check_rle
from tpudet.trainkit.class_list import read_class_list
from tpudet.trainkit.errors import UserError

_FORMAT = "tpudet predictions 1"
_SCHEMA = pa.schema(
    [
        pa.field("image_id", pa.string(), nullable=False),
        pa.field("labels", pa.list_(pa.int32()), nullable=False),
        pa.field("scores", pa.list_(pa.float32()), nullable=False),
        pa.field("boxes_normalized", pa.list_(pa.list_(pa.float32(), 4)), nullable=False),
    ]
)
_MASKS = pa.field(
    "masks", pa.list_(pa.struct([("size", pa.list_(pa.int32(), 2)), ("counts", pa.string())]))
)  # COCO RLE
# Everything that a pickled NumPy array of numbers names, in NumPy 1 and 2.
_ADMITTED = {
    ("numpy", "ndarray"),
    ("numpy", "dtype"),
    *(
        (f"numpy.{core}.{module}", name)
        for core in ("core", "_core")
        for module, name in (("multiarray", "_reconstruct"), ("numeric", "_frombuffer"))
    ),
}


class PredictionsError(UserError):
    """The file is not a predictions file, or its contents contradict each other."""


class ImagePredictions(NamedTuple):
    """The valid detections of one image, n of them by falling score."""

    image_id: str  # file name without its extension
    labels: np.ndarray  # [n] int32, 1-based row of the class list
    scores: np.ndarray  # [n] float32 in 0..1
    boxes_normalized: np.ndarray  # [n, 4] float32, x1 y1 x2 y2, fractions of the upright image
    masks: list[Rle] | None = None  # n masks of the whole image; None from a detector without masks


class Predictions(NamedTuple):
    """A whole predictions file."""

    images: list[ImagePredictions]
    class_list_text: str  # contents of classes.csv
    metadata: dict  # values of JSON; "unreadable": names of images that could not be predicted


class StoredPredictions(NamedTuple):
    """A predictions file that is read block by block, while it is open."""

    class_list_text: str
    metadata: dict
    num_images: int
    image_ids: Callable[[], list[str]]  # reads nothing else
    blocks: Callable[
        [], Iterator[Sequence[ImagePredictions]]
    ]  # unchecked: `write_predictions` does


def open_predictions(file: IO[bytes], name: str) -> StoredPredictions:
    """Reads the metadata of a predictions file; its images are read on demand.

    Args:
        file: opened for reading bytes, and kept open as long as the images are read.
        name: see `read_predictions`; a pickle is read into memory whole.

    Raises:
        PredictionsError: it is of another kind.
    """
    try:
        return (_open_pickle if name.endswith(".pkl") else _open_parquet)(file)
    except (pa.ArrowException, pickle.UnpicklingError, EOFError, ValueError) as error:
        raise PredictionsError(f"{name} is not a usable predictions file: {error}") from error


def read_predictions(file: IO[bytes], name: str) -> Predictions:
    """Reads a predictions file whole.

    Args:
        file: opened for reading bytes.
        name: its name, for messages; one that ends in `.pkl` is read as a pickle of nothing but
            dicts, lists, strings, numbers and NumPy arrays.

    Raises:
        PredictionsError: it is of another kind, or has a class that its class list lacks, a number
            that is not finite, a damaged mask, or an image twice.
    """
    stored = open_predictions(file, name)
    try:
        num_classes = len(read_class_list(stored.class_list_text))
        images = [image for block in _checked(stored.blocks(), num_classes) for image in block]
    except (pa.ArrowException, ValueError) as error:
        raise PredictionsError(f"{name} is not a usable predictions file: {error}") from error
    return Predictions(images, stored.class_list_text, stored.metadata)


def write_predictions(
    file: IO[bytes],
    name: str,
    blocks: Iterable[Sequence[ImagePredictions]],
    *,
    class_list_text: str,
    metadata: Mapping[str, object],
) -> int:
    """Writes a predictions file; inverse of `read_predictions`.

    Args:
        file: opened for writing bytes.
        name: its name; one that ends in `.pkl` becomes a pickle (all images in memory at once),
            any other Parquet, a row group per block, so that memory holds one block.
        blocks: images in the order of the file, all of them with masks or none.
        class_list_text: contents of classes.csv.
        metadata: JSON values.

    Returns:
        The number of images.

    Raises:
        PredictionsError: `read_predictions` would refuse it.
    """
    num_classes = len(read_class_list(class_list_text))
    checked = _checked(blocks, num_classes)
    if name.endswith(".pkl"):
        images = [image for block in checked for image in block]
        contents = {
            "format": _FORMAT,
            "classes": class_list_text,
            "metadata": json.loads(json.dumps(dict(metadata))),
            "images": [_to_dict(image) for image in images],
        }
        pickle.dump(contents, file, protocol=5)
        return len(images)
    keys = {"format": _FORMAT, "classes": class_list_text, "metadata": json.dumps(dict(metadata))}
    with_masks, checked = _peek_masks(checked)
    schema = _SCHEMA.append(_MASKS) if with_masks else _SCHEMA
    schema = schema.with_metadata({f"tpudet.{k}": v for k, v in keys.items()})
    count = 0
    with pq.ParquetWriter(pa.PythonFile(_WriteOnly(file), "w"), schema) as writer:
        for block in checked:
            writer.write_table(_to_table(block, schema))
            count += len(block)
    return count


class _WriteOnly(io.RawIOBase):
    """The file methods that pyarrow needs; files in buckets lack `closed` and `writable`."""

    def __init__(self, file: IO[bytes]):
        self._file = file

    def writable(self) -> bool:
        return True

    def write(self, data) -> int:  # the buffer protocol has no name before Python 3.12
        self._file.write(bytes(data))
        return len(data)


class _ReadOnly(io.RawIOBase):
    """As `_WriteOnly`, for reading at any position."""

    def __init__(self, file: IO[bytes]):
        self._file = file

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def read(self, size: int | None = -1) -> bytes:
        return self._file.read(-1 if size is None else size)

    def seek(self, offset: int, whence: int = 0) -> int:
        self._file.seek(offset, whence)
        return self._file.tell()

    def tell(self) -> int:
        return self._file.tell()


class _ArraysOnly(pickle.Unpickler):
    """An unpickler to which only plain values and NumPy arrays exist."""

    def find_class(self, module: str, name: str):
        if (module, name) not in _ADMITTED:
            raise pickle.UnpicklingError(
                f"it needs {module}.{name}; only dicts, lists, text, numbers and NumPy arrays are "
                "allowed. A pickle can run any program, so do not open this one elsewhere either"
            )
        return super().find_class(module, name)


def _open_parquet(file: IO[bytes]) -> StoredPredictions:
    source = pq.ParquetFile(pa.PythonFile(_ReadOnly(file), "r"))
    stored = {k.decode(): v.decode() for k, v in (source.schema_arrow.metadata or {}).items()}
    if stored.get("tpudet.format") != _FORMAT:
        raise PredictionsError(f"its metadata does not say {_FORMAT!r}")
    if not source.schema_arrow.equals(_SCHEMA) and not source.schema_arrow.equals(
        _SCHEMA.append(_MASKS)
    ):
        raise PredictionsError(f"its columns are {source.schema_arrow.names}: not {_SCHEMA}")
    return StoredPredictions(
        stored["tpudet.classes"],
        json.loads(stored["tpudet.metadata"]),
        source.metadata.num_rows,
        lambda: source.read(columns=["image_id"]).column("image_id").to_pylist(),
        lambda: ([*_from_table(source.read_row_group(i))] for i in range(source.num_row_groups)),
    )


def _open_pickle(file: IO[bytes]) -> StoredPredictions:
    try:
        contents = _ArraysOnly(io.BytesIO(file.read())).load()
    except Exception as error:  # damaged bytes raise anything from IndexError to OverflowError
        raise PredictionsError(f"the pickle cannot be read: {error}") from error
    if not isinstance(contents, dict) or contents.get("format") != _FORMAT:
        raise PredictionsError(f"the pickle is no dict that says {_FORMAT!r}")
    try:
        images = [
            ImagePredictions(
                str(image["image_id"]),
                np.asarray(image["labels"], np.int32),
                np.asarray(image["scores"], np.float32),
                np.asarray(image["boxes_normalized"], np.float32).reshape(-1, 4),
                image.get("masks"),
            )
            for image in contents["images"]
        ]
        return StoredPredictions(
            contents["classes"],
            contents["metadata"],
            len(images),
            lambda: [image.image_id for image in images],
            lambda: iter([images]),
        )
    except (KeyError, TypeError) as error:
        raise PredictionsError(
            f"a part of the pickle is missing or of another kind: {error}"
        ) from error


def _to_table(images: Sequence[ImagePredictions], schema: pa.Schema) -> pa.Table:
    ends = np.cumsum([0, *(len(image.labels) for image in images)]).astype(np.int32)
    boxes = np.concatenate([np.zeros((0, 4)), *(image.boxes_normalized for image in images)])
    labels = np.concatenate([np.zeros(0), *(image.labels for image in images)])
    scores = np.concatenate([np.zeros(0), *(image.scores for image in images)])
    rows = pa.FixedSizeListArray.from_arrays(pa.array(boxes.ravel(), pa.float32()), 4)
    columns = [
        pa.array([image.image_id for image in images], pa.string()),
        pa.ListArray.from_arrays(ends, pa.array(labels.astype(np.int32))),
        pa.ListArray.from_arrays(ends, pa.array(scores.astype(np.float32))),
        pa.ListArray.from_arrays(ends, rows),
    ]
    if _MASKS.name in schema.names:
        columns.append(pa.array([image.masks for image in images], _MASKS.type))
    return pa.Table.from_arrays(columns, schema=schema)


def _from_table(table: pa.Table) -> Iterator[ImagePredictions]:
    for batch in table.to_batches():
        ids = batch.column("image_id").to_pylist()
        ends = batch.column("labels").offsets.to_numpy()
        labels, scores = (batch.column(name).flatten().to_numpy() for name in ("labels", "scores"))
        boxes = batch.column("boxes_normalized").flatten().flatten().to_numpy().reshape(-1, 4)
        if not len(labels) == len(scores) == len(boxes):
            raise PredictionsError("labels, scores and boxes differ in number")
        masks = [None] * len(ids)
        if _MASKS.name in batch.schema.names:
            masks = batch.column(_MASKS.name).to_pylist()
        ends = ends - ends[0]
        for image_id, start, stop, rles in zip(ids, ends[:-1], ends[1:], masks, strict=True):
            part = slice(start, stop)
            yield ImagePredictions(image_id, labels[part], scores[part], boxes[part], rles)


def _to_dict(image: ImagePredictions) -> dict:
    return {k: v for k, v in image._asdict().items() if k != "masks" or v is not None}


def _peek_masks(
    blocks: Iterable[Sequence[ImagePredictions]],
) -> tuple[bool, Iterator[Sequence[ImagePredictions]]]:
    """Whether the first image has masks, and the blocks again."""
    rest = iter(blocks)
    first = []
    for block in rest:
        first.append(block)
        if block:
            break
    with_masks = bool(first and first[-1]) and first[-1][0].masks is not None
    return with_masks, itertools.chain(first, rest)


def _checked(
    blocks: Iterable[Sequence[ImagePredictions]], num_classes: int
) -> Iterator[Sequence[ImagePredictions]]:
    """Yields the blocks; refuses repeated images and wrong values."""
    seen: set[str] = set()
    with_masks: set[bool] = set()
    for block in blocks:
        for image in block:
            problem = _problem(image, num_classes)
            with_masks.add(image.masks is not None)
            if image.image_id in seen:
                problem = "appears twice"
            elif len(with_masks) > 1:
                problem = "differs from the others in having masks or not"
            if problem:
                raise PredictionsError(f"image {image.image_id!r} {problem}")
            seen.add(image.image_id)
        yield block


def _problem(image: ImagePredictions, num_classes: int) -> str:
    """What is wrong with the predictions of an image; empty if they are usable."""
    shapes = image.labels.shape, image.scores.shape, image.boxes_normalized.shape
    n = len(image.labels)
    if shapes != ((n,), (n,), (n, 4)):
        return f"has labels, scores and boxes of shapes {shapes}"
    if n and not (image.labels.min() >= 1 and image.labels.max() <= num_classes):
        wrong = sorted({int(k) for k in image.labels if not 1 <= k <= num_classes})
        return f"has class ids {wrong}; those of the class list are 1 to {num_classes}"
    if not (np.isfinite(image.scores).all() and np.isfinite(image.boxes_normalized).all()):
        return "has scores or boxes that are not finite"
    if image.masks is None:
        return ""
    if len(image.masks) != n:
        return f"has {len(image.masks)} masks for {n} boxes"
    try:
        for mask in image.masks:
            height, width = mask["size"]
            check_rle(mask["counts"], height=height, width=width)
    except (KeyError, TypeError, ValueError) as error:
        return f"has a mask that {error}"
    return ""
