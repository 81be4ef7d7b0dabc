"""Prepared sets written record by record, so that every number is known."""

import json
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import cv2
import numpy as np
import pytest

from tpudet.detection.data.tfrecord import EncodedImage, encode_example
from tpudet.trainkit.class_list import ClassEntry, write_class_list
from tpudet.trainkit.records import shard_path, write_shard


class DrawnImage(NamedTuple):
    name: str
    boxes: Sequence[tuple[int, int, int, int, int]] = ()  # class id, y1 x1 y2 x2 in pixels
    height: int = 100
    width: int = 200
    crowd: bool = False
    file: str = ""  # its name; empty: that of the image and .jpg
    noise: bool = False  # an image that JPEG can hardly compress


def encode_image(drawn_image: DrawnImage) -> bytes:
    size = np.array([drawn_image.height, drawn_image.width] * 2)
    rows = np.array(drawn_image.boxes, dtype=float).reshape(-1, 5)
    pixels = np.zeros((drawn_image.height, drawn_image.width, 3), np.uint8)
    pixels += np.linspace(40, 220, drawn_image.width).astype(np.uint8)[:, None]
    if drawn_image.noise:
        pixels = np.random.default_rng(0).integers(0, 256, pixels.shape, np.uint8)
    return encode_example(
        EncodedImage(
            source_id=drawn_image.name,
            filename=drawn_image.file or f"{drawn_image.name}.jpg",
            encoded=cv2.imencode(".jpg", pixels)[1].tobytes(),
            format="jpeg",
            height=drawn_image.height,
            width=drawn_image.width,
        ),
        boxes_normalized=rows[:, 1:] / size,
        labels=rows[:, 0].astype(int).tolist(),
        texts=["" for _ in rows],
        is_crowd=[drawn_image.crowd] * len(rows),
        areas=((rows[:, 3] - rows[:, 1]) * (rows[:, 4] - rows[:, 2])).tolist(),
    )


@pytest.fixture
def write_part(tmp_path: Path) -> Callable[..., Path]:
    """Writes `converted/<part>/` of `{split: images}`; returns the folder."""

    def write(
        splits: dict[str, list[DrawnImage]],
        classes: Sequence[ClassEntry],
        *,
        part: str = "drawn",
        num_shards: int = 1,
        left_out: Sequence[dict[str, str]] = (),
    ) -> Path:
        folder = tmp_path / "converted" / part
        folder.mkdir(parents=True)
        (folder / "classes.csv").write_text(write_class_list(classes))
        for split, images in splits.items():
            shards = []
            for index, rows in enumerate(np.array_split(np.arange(len(images)), num_shards)):
                path = Path(shard_path(str(folder / f"{split}_{part}"), index, num_shards))
                write_shard(str(path), (encode_image(images[row]) for row in rows))
                size = path.stat().st_size
                shards.append({"file": path.name, "records": len(rows), "bytes": size})
            per_class = Counter(box[0] for drawn_image in images for box in drawn_image.boxes)
            manifest = {
                "split": split,
                "part": part,
                "images": len(images),
                "boxes": sum(per_class.values()),
                "boxes_per_class": {e.name: per_class[k] for k, e in enumerate(classes, 1)},
                "shards": shards,
                "repaired": [],
                "left_out": list(left_out),
                "repaired_counts": {},
                "left_out_counts": dict(Counter(entry["reason"] for entry in left_out)),
                "options": {"seed": 0},
            }
            (folder / f"{split}_{part}.manifest.json").write_text(json.dumps(manifest))
        return folder

    return write


@pytest.fixture
def drawn_image() -> type[DrawnImage]:
    return DrawnImage
