"""Submissions as text: the inverse laws, the official sample row, and what is refused."""

import io

import numpy as np
import pytest

from tpudet.detection.submission.open_images_csv import (
    format_predictions,
    parse_predictions,
    read_submission,
    write_submission,
)

# As the competition's page shows it.
OFFICIAL = (
    "ImageId,PredictionString\n"
    "fd162df2a4fdb29d,/m/05s2s 0.9 0.46 0.08 0.93 0.5 /m/0c9ph5 0.5 0.25 0.96 0.6 0.9\n"
)


def test_the_official_sample_row() -> None:
    ((image, text),) = read_submission(io.StringIO(OFFICIAL))
    parsed = parse_predictions(text)
    assert image == "fd162df2a4fdb29d"
    assert parsed.identifiers == ["/m/05s2s", "/m/0c9ph5"]
    assert parsed.scores.tolist() == [0.9, 0.5]
    assert parsed.boxes_normalized.tolist() == [[0.46, 0.08, 0.93, 0.5], [0.25, 0.96, 0.6, 0.9]]


def test_parsing_gives_back_what_was_formatted() -> None:
    rng = np.random.default_rng(0)
    identifiers = [f"/m/{k}" for k in range(9)]
    labels, scores = rng.integers(1, 10, 50), rng.random(50)
    boxes = np.hstack([rng.random((50, 2)) * 0.5, 0.5 + rng.random((50, 2)) * 0.5])
    parsed = parse_predictions(format_predictions(identifiers, labels, scores, boxes).text)
    assert parsed.identifiers == [identifiers[label - 1] for label in labels]
    np.testing.assert_allclose(parsed.scores, scores, atol=0.6e-5)
    np.testing.assert_allclose(parsed.boxes_normalized, boxes, atol=0.6e-5)
    empty = parse_predictions("")
    assert (empty.identifiers, empty.boxes_normalized.shape) == ([], (0, 4))


@pytest.mark.parametrize("header", ["ImageId", "ImageID", "imageid", "\ufeffImageId", '"ImageId"'])
def test_reading_gives_back_what_was_written(header: str) -> None:
    rows = [("b", "/m/1 0.5 0 0 1 1"), ("a", ""), ("c", "/m/2 0.5 0 0 1 1 " * 5000)]
    stream = io.StringIO(newline="")
    write_submission(stream, rows)
    text = stream.getvalue().replace("ImageId", header, 1).replace("\n", "\r\n")
    found = list(read_submission(io.StringIO(text + "\r\n", newline="")))
    assert found == [(image, predictions.strip()) for image, predictions in rows]


@pytest.mark.parametrize(
    ("text", "message"),
    [("/m/1 0.5 0 0 1", "5 words"), ("/m/1 0.5 0 zero 1 1", "'zero'"), ("x " * 13, "13 words")],
)
def test_predictions_that_are_none(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        parse_predictions(text)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "it is empty"),
        ("ImageId;PredictionString\n", "first line is 'ImageId;PredictionString'"),
        ("ImageID,Source,LabelName\n", "should be 'ImageId,PredictionString'"),
        ("ImageId,PredictionString\na,\nb\n", "line 3 is 'b'"),
        ("ImageId,PredictionString\n,/m/1 0.5 0 0 1 1\n", "line 2"),
    ],
)
def test_files_that_are_no_submission(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        list(read_submission(io.StringIO(text)))
