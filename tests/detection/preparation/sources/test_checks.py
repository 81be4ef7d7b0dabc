import numpy as np
import pandas as pd
import pytest

from tpudet.detection.preparation.sources.checks import (
    ImageRejected,
    check_boxes,
    check_image,
    check_labels,
)

FILES = pd.Series(["a.jpg", "b.jpg"])
FRAMES = np.array([[100.0, 200.0], [np.nan, np.nan]])


def table(rows: list[tuple]) -> pd.DataFrame:
    columns = pd.Index(["image", "label", "y1", "x1", "y2", "x2", "is_crowd", "area"])
    boxes = pd.DataFrame(rows, columns=columns)
    return boxes.astype({"label": "category"} | dict.fromkeys(("y1", "x1", "y2", "x2"), float))


@pytest.mark.parametrize(
    ("corners", "expected", "reason", "repaired"),
    [
        ((10, 20, 30, 40), (10, 20, 30, 40), None, None),
        ((0, 0, 100, 200), (0, 0, 100, 200), None, None),
        ((30, 20, 10, 40), (10, 20, 30, 40), "swapped", True),
        ((30, 40, 10, 20), (10, 20, 30, 40), "swapped", True),
        ((-5, -1, 30, 40), (0, 0, 30, 40), "clipped", True),
        ((10, 20, 101, 201), (10, 20, 100, 200), "clipped", True),
        ((10, 20, 100.00005, 40), (10, 20, 100, 40), None, None),  # rounding
        ((10, 20, 10, 40), None, "zero-size", False),
        ((10, 20, 30, 20), None, "zero-size", False),
        ((10, 20, 30, 20.0001), None, "zero-size", False),  # none left as float32 fractions
        ((-20, 20, -5, 40), None, "wholly outside", False),
        ((10, 200, 30, 240), None, "wholly outside", False),
        ((10, float("nan"), 30, 40), None, "NaN", False),
        ((10, 20, float("inf"), 40), None, "NaN", False),
    ],
)
def test_each_box_fault(corners, expected, reason, repaired) -> None:
    checked = check_boxes(table([(0, "cat", *corners, False, 1.0)]), FILES, FRAMES)
    rows = checked.boxes[["y1", "x1", "y2", "x2"]].to_numpy().tolist()
    assert rows == ([] if expected is None else [list(expected)])
    if reason is None:
        assert checked.findings == []
    else:
        (finding,) = checked.findings
        assert reason in finding.reason
        assert (finding.file, finding.repaired) == ("a.jpg", repaired)
        assert "cat" in finding.detail


def test_only_equal_boxes_of_one_image_class_and_kind_are_duplicates() -> None:
    box = (10, 20, 30, 40)
    rows = [
        (0, "cat", *box, False, 1.0),
        (0, "dog", *box, False, 1.0),
        (0, "cat", *box, True, 1.0),
        (1, "cat", *box, False, 1.0),
        (0, "cat", 10, 20, 30, 40.5, False, 1.0),
        (0, "cat", *box, False, 1.0),
        (0, "cat", 30, 40, 10, 20, False, 1.0),  # the same once its corners are in order
    ]
    checked = check_boxes(table(rows), FILES, FRAMES)
    assert checked.boxes.index.tolist() == [0, 1, 2, 3, 4]
    duplicates = [finding for finding in checked.findings if "duplicate" in finding.reason]
    assert len(duplicates) == 2


def test_borders_of_an_image_of_unknown_size_are_left_for_later() -> None:
    rows = [(1, "cat", -5, 20, 3000, 4000, False, 1.0), (1, "cat", 7, 20, 7, 40, False, 1.0)]
    checked = check_boxes(table(rows), FILES, FRAMES)
    assert checked.boxes[["y1", "y2"]].to_numpy().tolist() == [[-5, 3000]]
    assert [finding.reason for finding in checked.findings] == ["zero-size box"]


def test_unknown_classes_are_left_out_by_name() -> None:
    rows = [(0, name, 10, 20, 30, 40, False, 1.0) for name in ("dog", "unicorn", "cat")]
    checked = check_labels(table(rows), FILES, {"cat": 1, "dog": 2})
    assert checked.boxes["class_id"].tolist() == [2, 1]
    (finding,) = checked.findings
    assert finding.reason == "unknown class"
    assert "unicorn" in finding.detail


@pytest.mark.parametrize(
    ("declared", "orientation", "reasons"),
    [
        ((64.0, 48.0), 1, ["turned upright by"]),  # height, width of the upright image
        ((48.0, 64.0), 6, ["turned upright by", "boxes drawn on the image as stored: turned"]),
        ((np.nan, np.nan), 1, ["turned upright by"]),
    ],
)
def test_the_declared_frame_says_where_boxes_were_drawn(
    encoded_image, declared, orientation, reasons
) -> None:
    from PIL import Image

    exif = Image.Exif()
    exif[0x0112] = 6
    encoded = encoded_image(exif=exif)
    found = check_image(encoded, file="a.jpg", height=declared[0], width=declared[1])
    assert (found.image.height, found.image.width) == (64, 48)
    assert found.orientation == orientation
    for finding, reason in zip(found.findings, reasons, strict=True):
        assert finding.reason.startswith(reason)


def test_a_size_that_fits_neither_way_is_named(encoded_image) -> None:
    with pytest.raises(ImageRejected, match="declared size differs") as caught:
        check_image(encoded_image(), file="a.jpg", height=50, width=64)
    assert caught.value.detail == "declared 64x50, file 64x48"


def test_a_png_named_jpg_is_said(encoded_image) -> None:
    found = check_image(encoded_image(kind="PNG"), file="a.JPG", height=48, width=64)
    assert found.image.format == "png"
    assert [finding.reason for finding in found.findings] == ["PNG file named .jpg: read as PNG"]
