"""`tpudet.load` in a notebook: the numbers of the command, in whatever form images come."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import PIL.Image
import pytest

import tpudet
from tpudet.detection.commands.predict import main as predict
from tpudet.detection.inference.predictions_file import read_predictions
from tpudet.detection.inspection.interactive import Detections, ImageDetections, LoadedDetector
from tpudet.trainkit.class_list import ClassEntry
from tpudet.trainkit.errors import UserError


@pytest.fixture(scope="module")
def detector(saved_model: Path) -> LoadedDetector:
    return tpudet.load(saved_model.parent)


@pytest.fixture
def folder(jpegs: dict[str, bytes], tmp_path: Path) -> Path:
    directory = tmp_path / "images"
    directory.mkdir()
    for name, encoded in jpegs.items():
        (directory / f"{name}.jpg").write_bytes(encoded)
    return directory


def test_the_detections_of_the_command_in_pixels(
    detector: LoadedDetector, folder: Path, saved_model: Path, photos: dict[str, np.ndarray]
) -> None:
    """Boxes are the command's fractions times each image's size."""
    path = folder.parent / "found.parquet"
    assert predict([str(path), str(saved_model), "--images", str(folder)]) == 0
    with path.open("rb") as file:
        expected = {image.image_id: image for image in read_predictions(file, path.name).images}
    found = detector.predict(folder, batch_size=3)
    assert [image.image_id for image in found] == sorted(photos)
    assert sum(len(image.labels) for image in found) > 0
    for image in found:
        wanted, (height, width) = expected[image.image_id], photos[image.image_id].shape[:2]
        assert image.labels.tolist() == wanted.labels.tolist()
        np.testing.assert_allclose(image.scores, wanted.scores, atol=1e-5)
        pixels = wanted.boxes_normalized[:, [1, 0, 3, 2]] * [height, width, height, width]
        np.testing.assert_allclose(image.boxes, pixels, atol=0.01)
        assert image.pixels.shape == (height, width, 3)


def test_files_bytes_and_arrays_are_the_same_image(
    detector: LoadedDetector, folder: Path, jpegs: dict[str, bytes]
) -> None:
    """Pixels as those of a PNG; a JPEG file as its bytes."""
    [of_file] = detector.predict(folder / "wide.jpg")
    png = cv2.imencode(".png", of_file.pixels[..., ::-1])[1].tobytes()
    of_bytes, of_array, of_png = detector.predict([jpegs["wide"], of_file.pixels, png])
    assert [of_bytes.image_id, of_array.image_id] == ["0", "1"]
    [of_pillow] = detector.predict(PIL.Image.fromarray(of_file.pixels))
    for one, other in ((of_bytes, of_file), (of_array, of_png), (of_pillow, of_png)):
        np.testing.assert_array_equal(one.pixels, of_file.pixels)
        np.testing.assert_allclose(one.scores, other.scores, atol=1e-5)
        np.testing.assert_allclose(one.boxes, other.boxes, atol=1e-3)


def by_hand() -> Detections:
    pixels = np.full((100, 200, 3), 90, np.uint8)
    boxes = np.array([[10, 20, 50, 80], [-5, 0, 30, 30]], np.float32)
    mask = np.zeros((2, 100, 200), bool)
    mask[:, 10:50, 20:80] = True
    scores = np.array([0.9, 0.2], np.float32)
    first = ImageDetections("7", pixels, np.array([2, 1], np.int32), scores, boxes, mask)
    none = np.zeros(0, np.float32)
    second = ImageDetections(
        "8", pixels[:50], none.astype(np.int32), none, none.reshape(0, 4), mask[:0, :50]
    )
    return Detections([first, second], [ClassEntry("/m/01", "cat"), ClassEntry("/m/02", "dog")])


def test_tables_by_hand() -> None:
    table = by_hand().to_pandas()
    assert table.to_dict("list") == {
        "image_id": ["7", "7"],
        "class_id": [2, 1],
        "label": ["/m/02", "/m/01"],
        "name": ["dog", "cat"],
        "score": pytest.approx([0.9, 0.2]),
        **{"y1": [10, -5], "x1": [20, 0], "y2": [50, 30], "x2": [80, 30]},
    }
    assert by_hand()[1:].to_pandas().empty
    first, second = by_hand().to_coco()
    assert (first["image_id"], first["category_id"], first["bbox"]) == (7, 2, [20, 10, 60, 40])
    assert second["bbox"] == [0, 0, 30, 30]  # cut off at the image's edge
    assert first["segmentation"]["size"] == [100, 200]
    json.dumps(by_hand().to_coco())


def test_category_ids_are_the_identifiers_of_coco() -> None:
    """Of COCO's 80 classes, the 12th has the id 13; a list from 0 begins with 0."""
    for identifiers in (("0", "1"), ("11", "13")):
        classes = map(ClassEntry._make, zip(identifiers, ("cat", "dog"), strict=True))
        entries = Detections([by_hand()[0]], list(classes)).to_coco()
        assert [entry["category_id"] for entry in entries] == [*map(int, identifiers)][::-1]


def test_what_is_drawn() -> None:
    """The first box and its mask are drawn, the one of a low score is not."""
    detections = by_hand()
    drawn = detections.draw(min_score=0.5)
    assert drawn.dtype == np.uint8
    assert drawn.shape[2] == 3
    assert not np.array_equal(drawn, detections.draw(min_score=0.95))
    assert not np.array_equal(drawn, detections.draw(min_score=0.1))
    with pytest.raises(UserError, match="no image to draw"):
        detections[:0].draw()


def test_all_that_is_wrong_is_named(detector: LoadedDetector, folder: Path) -> None:
    (folder / "text.jpg").write_text("no image")
    floats = np.zeros((4, 4, 3), np.float32)
    with pytest.raises(UserError, match=r"(?s)3 images cannot.*text\.jpg.*gone\.png.*float32"):
        detector.predict([folder, folder / "gone.png", floats])
    with pytest.raises(UserError, match="another image has the id wide"):
        detector.predict([folder / "wide.jpg", folder / "wide.jpg"])
    others: list[Any] = [5, None, [None]]
    for images in others:
        with pytest.raises(UserError, match="(int|NoneType) is not a file, a folder, bytes of a"):
            detector.predict(images)
    with pytest.raises(UserError, match="tpudet export writes one"):
        tpudet.load(folder)


def test_importing_is_light() -> None:
    code = (
        "import sys, tpudet; tpudet.load; print(*{'numpy', 'keras', 'tensorflow'} & {*sys.modules})"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == ""
