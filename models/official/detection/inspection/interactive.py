"""Three lines in a notebook: `tpudet.load(PATH)`, `.predict(images)`, `.draw()`."""

import itertools
import os
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, overload

import cv2
import numpy as np
from tqdm import tqdm

from tpudet.detection.inference.result_images import category_ids
from tpudet.detection.inference.saved_detector import (
    Detector,
    ImageOutput,
    load_detector,
    read_saved_detector,
)
from tpudet.detection.ops.drawing import Panel, draw_panels
from tpudet.detection.ops.numpy_masks import decode_rle, encode_rle
from tpudet.detection.preparation.sources.annotation_values import as_integers
from tpudet.detection.submission.results import ImageIdentity, coco_entries, visible_detections
from tpudet.trainkit.class_list import ClassEntry, read_class_list
from tpudet.trainkit.errors import UserError, listing
from tpudet.trainkit.files.inputs import read_input
from tpudet.trainkit.image_folder import list_images
from tpudet.trainkit.images.standardize import ImageError, decode_rgb, standardize
from tpudet.trainkit.pages.drawing import class_colour, image_grid
from tpudet.trainkit.saved_model import find_saved_model

if TYPE_CHECKING:
    import pandas as pd


class ArrayInterface(Protocol):
    """Pixels that NumPy takes for an array, such as an image of Pillow."""

    @property
    def __array_interface__(self) -> dict[str, Any]: ...


Image = str | os.PathLike[str] | bytes | np.ndarray | ArrayInterface

_GRID_COLUMNS = 3


class ImageDetections(NamedTuple):
    """The n detections of an image, in descending order of score."""

    image_id: str
    pixels: np.ndarray  # [h, w, 3] uint8 RGB, upright
    labels: np.ndarray  # [n] int32, 1-based
    scores: np.ndarray  # [n] float32
    boxes: np.ndarray  # [n, 4] float32 y1 x1 y2 x2 in pixels of the image
    masks: np.ndarray | None  # [n, h, w] bool; None from a model without masks


class Detections(Sequence[ImageDetections]):
    """The detections of several images; indexed, it gives those of one."""

    def __init__(self, images: Sequence[ImageDetections], classes: Sequence[ClassEntry]) -> None:
        self.classes = tuple(classes)
        self._images = tuple(images)

    @overload
    def __getitem__(self, index: int) -> ImageDetections: ...
    @overload
    def __getitem__(self, index: slice) -> "Detections": ...
    def __getitem__(self, index: int | slice) -> "ImageDetections | Detections":
        found = self._images[index]
        return found if isinstance(found, ImageDetections) else Detections(found, self.classes)

    def __len__(self) -> int:
        return len(self._images)

    def __repr__(self) -> str:
        count = sum(len(image.labels) for image in self._images)
        return f"Detections of {len(self)} images: {count} objects of {len(self.classes)} classes"

    def draw(self, *, min_score: float = 0.3, columns: int = _GRID_COLUMNS) -> np.ndarray:
        """Returns the images with their boxes and masks in a grid, [h, w, 3] uint8 RGB.

        Args:
            min_score: detections below it are counted in the caption, not drawn.
            columns: of the grid.

        Raises:
            UserError: there is no image.
        """
        if not self._images:
            raise UserError("there is no image to draw: predict was given none")
        return image_grid([self._draw_image(i, min_score) for i in self._images], columns)

    def to_pandas(self) -> "pd.DataFrame":
        """Returns a row for each detection.

        The columns are image_id, class_id (1-based), label (the identifier in the class list),
        name, score, and y1 x1 y2 x2 in pixels.
        """
        import pandas as pd

        labels = np.concatenate([np.zeros(0, np.int32), *(i.labels for i in self._images)])
        boxes = np.concatenate([np.zeros((0, 4), np.float32), *(i.boxes for i in self._images)])
        counts = [len(image.labels) for image in self._images]
        scores = [np.zeros(0, np.float32), *(image.scores for image in self._images)]
        return pd.DataFrame(
            {
                "image_id": np.repeat([image.image_id for image in self._images], counts),
                "class_id": labels,
                "label": [self.classes[label - 1].identifier for label in labels],
                "name": [self.classes[label - 1].name for label in labels],
                "score": np.concatenate(scores),
                **dict(zip(("y1", "x1", "y2", "x2"), boxes.T, strict=True)),
            }
        )

    def to_coco(self) -> list[dict[str, Any]]:
        """Returns entries of COCO results: `bbox` x, y, width, height in pixels.

        Category ids are those of `convert_predictions`: the identifiers of the classes if they are
        numbers, as COCO's are, else class ids, from 1. Ids of images that are all decimal become
        numbers.
        """
        categories = category_ids(self.classes, None)
        ids = [image.image_id for image in self._images]
        entries = []
        for image, image_id in zip(self._images, as_integers(ids) or ids, strict=True):
            height, width = image.pixels.shape[:2]
            scale = np.array([width, height, width, height], np.float64)
            found = visible_detections(
                image.labels, image.scores, image.boxes[:, [1, 0, 3, 2]] / scale, min_score=0.0
            )
            entries += coco_entries(
                found,
                ImageIdentity(image_id, height, width),
                categories,
                None if image.masks is None else [encode_rle(mask) for mask in image.masks],
            )
        return entries

    def _draw_image(self, image: ImageDetections, min_score: float) -> np.ndarray:
        shown = np.flatnonzero(image.scores >= min_score)
        names = [self.classes[label - 1].name for label in image.labels[shown]]
        hidden = len(image.labels) - len(shown)
        panel = Panel(
            image.boxes[shown],
            [f"{name} {s:.2f}" for name, s in zip(names, image.scores[shown], strict=True)],
            [class_colour(int(label)) for label in image.labels[shown]],
            f"{image.image_id}: {len(shown)} of score {min_score:g} or more, {hidden} below",
            () if image.masks is None else image.masks[shown],
        )
        return draw_panels(image.pixels, [panel])


class LoadedDetector:
    """A detector in memory.

    Args:
        path: of a SavedModel, or of a folder with some, whose newest is taken.

    Raises:
        UserError: there is none, or it is damaged.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        saved = read_saved_detector(find_saved_model(os.fspath(path)))
        self.path = saved.directory
        self.classes = read_class_list(saved.class_list_text)
        self._detect: Detector = load_detector(saved)

    def __repr__(self) -> str:
        return f"LoadedDetector({self.path!r}): {len(self.classes)} classes"

    def predict(self, images: Image | Sequence[Image], *, batch_size: int = 8) -> Detections:
        """Detects in images.

        Args:
            images: one or several; each a file, a folder of images, the bytes of a file, or
                [h, w, 3] uint8 RGB, an array or what NumPy makes one of, as of Pillow's images. The
                id of a file is its name without the extension, of others their place in the list.
            batch_size: images per call of the model.

        Raises:
            UserError: an image is missing or cannot be read, with all of their names; an array has
                another shape or type; something else was given; two files have one id.
        """
        is_one = isinstance(images, (str, os.PathLike, bytes)) or not isinstance(images, Iterable)
        is_one = is_one or _is_array(images)
        found: list[ImageDetections] = []
        named = list(_encoded_images([images] if is_one else images))  # type: ignore[list-item]
        with tqdm(total=len(named), unit=" images", delay=3) as bar:
            for start in range(0, len(named), batch_size):
                batch = named[start : start + batch_size]
                outputs = self._detect([encoded for _, encoded in batch])
                found += map(_in_pixels, batch, outputs)
                bar.update(len(batch))
        return Detections(found, self.classes)


def _encoded_images(images: Sequence[Image]) -> Iterator[tuple[str, bytes]]:
    """Yields an id for each image and bytes that TensorFlow decodes."""
    problems, taken = [], set()
    for place, image in enumerate(itertools.chain.from_iterable(map(_files, images))):
        try:
            if _is_array(image):
                yield str(place), _encode(np.asarray(image))
            elif isinstance(image, bytes):
                yield str(place), standardize(image).encoded
            elif not isinstance(image, (str, os.PathLike)):
                raise UserError(
                    f"{type(image).__name__} is not a file, a folder, bytes of a file, or an array"
                )
            else:
                path = os.fspath(image)
                image_id = os.path.splitext(os.path.basename(path))[0]
                if image_id in taken:
                    raise UserError(f"another image has the id {image_id}, too")
                taken.add(image_id)
                yield image_id, standardize(read_input(path, "images")).encoded
        except (ImageError, UserError) as error:
            name = image if isinstance(image, (str, os.PathLike)) else f"image {place}"
            problems.append(f"{name}: {error}")
    if problems:
        raise UserError(f"{len(problems)} images cannot be used: {listing(problems)}")


def _files(image: Image) -> list[Image]:
    if isinstance(image, (str, os.PathLike)) and os.path.isdir(image):
        return [file.path for file in list_images(os.fspath(image), None)]
    return [image]


def _is_array(image: object) -> bool:
    return hasattr(image, "__array__") or hasattr(image, "__array_interface__")


def _encode(image: np.ndarray) -> bytes:
    if image.ndim != 3 or image.shape[2] != 3 or image.dtype != np.uint8 or not image.size:
        raise UserError(
            f"an array of shape {image.shape} and type {image.dtype}; an image is [h, w, 3] uint8, "
            "RGB"
        )
    # Uncompressed: it only crosses into the graph, which decodes.
    pixels = cv2.cvtColor(image, cv2.COLOR_RGB2BGR)
    return cv2.imencode(".png", pixels, [cv2.IMWRITE_PNG_COMPRESSION, 0])[1].tobytes()


def _in_pixels(image: tuple[str, bytes], output: ImageOutput) -> ImageDetections:
    pixels = decode_rgb(image[1])
    height, width = pixels.shape[:2]
    boxes = output.boxes_normalized[:, [1, 0, 3, 2]] * np.array(
        [height, width, height, width], np.float32
    )
    masks = None
    if output.masks is not None:
        masks = np.zeros((len(boxes), height, width), bool)
        for row, mask in enumerate(output.masks):
            masks[row] = decode_rle(mask)
    return ImageDetections(image[0], pixels, output.labels, output.scores, boxes, masks)
