"""Images whose boxes were drawn as they are stored, lying: all of it is turned upright."""

import io
import json
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf
from PIL import Image, ImageOps

from tpudet.detection.commands import make_tfrecords
from tpudet.detection.data.tfrecord import parse_example
from tpudet.detection.ops.numpy_boxes import turn_boxes_upright
from tpudet.trainkit.images.standardize import turn_upright

HEIGHT, WIDTH = 48, 64
X, Y, BOX_WIDTH, BOX_HEIGHT = 20, 10, 30, 15
ORIENTATION = 0x0112


def stored_image(orientation: int) -> tuple[bytes, np.ndarray]:
    """A PNG with a red L, and its pixels as every viewer shows them."""
    pixels = np.full((HEIGHT, WIDTH, 3), 90, np.uint8)
    pixels[Y : Y + BOX_HEIGHT, X : X + 5] = (255, 0, 0)
    pixels[Y + BOX_HEIGHT - 3 : Y + BOX_HEIGHT, X : X + BOX_WIDTH] = (255, 0, 0)
    image = Image.fromarray(pixels)
    exif = Image.Exif()
    exif[ORIENTATION] = orientation
    stream = io.BytesIO()
    image.save(stream, "PNG", exif=exif)
    shown = ImageOps.exif_transpose(Image.open(io.BytesIO(stream.getvalue())))
    return stream.getvalue(), np.asarray(shown)


@pytest.mark.parametrize("orientation", [5, 6, 7, 8])
def test_pixels_boxes_and_masks_stay_together(tmp_path: Path, orientation: int) -> None:
    encoded, shown = stored_image(orientation)
    (tmp_path / "a.png").write_bytes(encoded)
    right, bottom = X + BOX_WIDTH, Y + BOX_HEIGHT
    corner = [X, Y, X + 5, Y, X + 5, bottom - 3, right, bottom - 3, right, bottom, X, bottom]
    box = {"image_id": 1, "category_id": 1, "bbox": [X, Y, BOX_WIDTH, BOX_HEIGHT]}
    crowd = {**box, "iscrowd": 1, "bbox": [0, 0, 8, 4]}  # no mask: it is its box
    content = {
        "images": [{"id": 1, "file_name": "a.png", "width": WIDTH, "height": HEIGHT}],
        "annotations": [{**box, "segmentation": [corner]}, crowd],
        "categories": [{"id": 1, "name": "letter"}],
    }
    (tmp_path / "a.json").write_text(json.dumps(content))
    command = ["--format", "coco", "--annotations", str(tmp_path / "a.json"), "--images"]
    command += [str(tmp_path), "--split", "val", "--include_masks", "--workers", "1", "--output"]
    assert make_tfrecords.main([*command, str(tmp_path / "part")]) == 0
    (serialized,) = tf.data.TFRecordDataset(str(tmp_path / "part/val_part-00000-of-00001.tfrecord"))
    example = parse_example(serialized, with_masks=True)
    assert example.masks is not None
    pixels = tf.io.decode_image(example.encoded, channels=3).numpy()
    np.testing.assert_array_equal(pixels, shown)
    assert (int(example.height), int(example.width)) == pixels.shape[:2] == (WIDTH, HEIGHT)
    is_red = pixels[..., 0] == 255
    mask, of_crowd = (tf.io.decode_png(png)[..., 0].numpy() > 0 for png in example.masks)
    np.testing.assert_array_equal(mask, is_red)
    boxes = example.boxes_normalized.numpy() * [WIDTH, HEIGHT, WIDTH, HEIGHT]
    for found, drawn in zip(boxes, (is_red, of_crowd), strict=True):
        (top, bottom), (left, right) = (np.flatnonzero(drawn.any(axis))[[0, -1]] for axis in (1, 0))
        np.testing.assert_allclose(found, [top, left, bottom + 1, right + 1], atol=1e-4)
    assert example.areas.numpy().tolist() == [is_red.sum(), 32]


@pytest.mark.parametrize("orientation", range(1, 9))
def test_boxes_turn_as_pixels_do(orientation: int) -> None:
    pixels = np.zeros((40, 80), np.uint8)
    pixels[4:12, 10:40] = 1
    ((y1, x1, y2, x2),) = turn_boxes_upright(np.array([[0.1, 0.125, 0.3, 0.5]]), orientation)
    turned = turn_upright(pixels, orientation)
    height, width = turned.shape
    expected = np.zeros_like(turned)
    rows, columns = np.round([y1 * height, y2 * height]), np.round([x1 * width, x2 * width])
    expected[slice(*rows.astype(int)), slice(*columns.astype(int))] = 1
    np.testing.assert_array_equal(turned, expected)
