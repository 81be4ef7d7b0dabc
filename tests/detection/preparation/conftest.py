"""Small annotated data sets, written as a tool would, and reading records back."""

import io
import itertools
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
import tensorflow as tf
from PIL import Image

from tpudet.detection.data.tfrecord import parse_example
from tpudet.detection.preparation.sources.box_csv import ALL_COLUMNS
from tpudet.trainkit.files import storage
from tpudet.trainkit.records import find_shards


class ReadBack(NamedTuple):
    source_id: str
    encoded: bytes
    height: int
    width: int
    boxes: np.ndarray  # [n, 4] pixels
    labels: list[int]
    is_crowd: list[bool]
    areas: list[float]


def encode(width: int = 64, height: int = 48, kind: str = "JPEG", **options: object) -> bytes:
    y, x = np.mgrid[:height, :width]
    pixels = np.stack([x * 255 // width, y * 255 // height, (x + y) % 256], axis=-1)
    stream = io.BytesIO()
    Image.fromarray(pixels.astype(np.uint8)).save(stream, kind, **options)
    return stream.getvalue()


@pytest.fixture
def encoded_image() -> Callable[..., bytes]:
    return encode


@pytest.fixture
def read_back() -> Callable[[Path, str], list[ReadBack]]:
    """Every record of a set, in the order of the files, through the project's own parser."""

    def read(directory: Path, split: str) -> list[ReadBack]:
        shards = find_shards(str(directory / f"{split}_{directory.name}"))
        result = []
        for example in tf.data.TFRecordDataset(shards).map(parse_example):
            height, width = int(example.height), int(example.width)
            result.append(
                ReadBack(
                    source_id=example.source_id.numpy().decode(),
                    encoded=example.encoded.numpy(),
                    height=height,
                    width=width,
                    boxes=example.boxes_normalized.numpy() * np.tile([height, width], 2),
                    labels=example.labels.numpy().tolist(),
                    is_crowd=example.is_crowd.numpy().tolist(),
                    areas=example.areas.numpy().tolist(),
                )
            )
        return result

    return read


@pytest.fixture
def write_coco(tmp_path: Path) -> Callable[..., tuple[Path, Path]]:
    """Writes images `{name: bytes}` and COCO boxes `{name: [(category, x, y, w, h), ...]}`."""

    def write(
        encoded_images: dict[str, bytes | None],
        boxes: dict[str, list[tuple]],
        sizes: dict[str, tuple[int, int] | None] | None = None,
    ) -> tuple[Path, Path]:
        folder = tmp_path / "photos"
        folder.mkdir(exist_ok=True)
        images, annotations = [], []
        for number, (name, encoded) in enumerate(encoded_images.items(), start=1):
            if encoded is not None:
                (folder / name).write_bytes(encoded)
            size = (sizes or {}).get(name, (64, 48))
            declared = {} if size is None else {"width": size[0], "height": size[1]}
            images.append({"id": number, "file_name": name} | declared)
            for category, *box in boxes.get(name, []):
                annotations.append({"image_id": number, "category_id": category, "bbox": box})
        categories = [{"id": 7, "name": "dog"}, {"id": 3, "name": "cat"}]
        path = tmp_path / "instances.json"
        content = {"images": images, "annotations": annotations, "categories": categories}
        path.write_text(json.dumps(content))
        return path, folder

    return write


@pytest.fixture
def write_box_csv() -> Callable[..., str]:
    """Writes rows (image, label, x1, x2, y1, y2, is group) in the 13 columns of Open Images."""

    def write(path: Path, *rows: tuple) -> str:
        lines = [",".join(ALL_COLUMNS)]
        for image, label, *corners, group in rows:
            numbers = ",".join(str(corner) for corner in corners)
            lines.append(f"{image},xclick,{label},1,{numbers},0,0,{group},0,0")
        path.write_text("\n".join(lines) + "\n")
        return str(path)

    return write


class Killed(BaseException):
    """Ends a command at one of its changes."""


@pytest.fixture
def killed_at_each_change(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Iterator[None]]:
    """Runs a command again and again, killed at its first, second, … change of a file's name.

    Between two runs the block of the loop finds what the first has left. The last run is whole.
    """

    def run(command: Callable[[], int]) -> Iterator[None]:
        for stop in itertools.count(1):
            changes = itertools.count(1)
            with monkeypatch.context() as patch:
                for name in ("rename", "remove", "remove_folder"):
                    change = _killed_at(stop, changes, getattr(storage, name))
                    patch.setattr(storage, name, change)
                try:
                    assert command() == 0
                    return
                except Killed:
                    pass
            yield

    return run


def _killed_at(
    stop: int, changes: Iterator[int], change: Callable[..., None]
) -> Callable[..., None]:
    def replaced(*paths: str) -> None:
        if next(changes) == stop:
            raise Killed
        change(*paths)

    return replaced
