"""The submission CSV, against lines written by hand."""

from pathlib import Path

import numpy as np
import pytest

from detection.submission.gen_sub import main
from detection.submission.open_images_csv import format_predictions
from detection.submission.predictions_file import ImagePredictions, write_predictions

CLASSES = '/m/01,cat\n/m/02,"dog, big"\n'


def image_of(image_id: str, rows: list[tuple]) -> ImagePredictions:
    """Rows of (label, score, x1, y1, x2, y2)."""
    table = np.array(rows, np.float64).reshape(-1, 6)
    return ImagePredictions(
        image_id,
        table[:, 0].astype(np.int32),
        table[:, 1].astype(np.float32),
        table[:, 2:].astype(np.float32),
    )


IMAGES = [
    image_of("b", [(2, 0.87654321, 0.1, 0.2, 0.3, 0.4), (1, 0.5, -0.25, 0.0, 1.5, 1.0)]),
    image_of("c", []),
    image_of("a", [(1, 0.9, 0.5, 0.5, 0.5, 0.9), (1, 0.8, 1.1, 0.1, 1.2, 0.2)]),
]
EXPECTED = """ImageId,PredictionString
a,
b,/m/02 0.87654 0.10000 0.20000 0.30000 0.40000 /m/01 0.50000 0.00000 0.00000 1.00000 1.00000
broken,
c,
"""


@pytest.fixture(params=["p.parquet", "p.pkl"])
def predictions(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    path = tmp_path / request.param
    with path.open("wb") as file:
        write_predictions(
            file,
            path.name,
            [IMAGES],
            class_list_text=CLASSES,
            metadata={"unreadable": {"broken.jpg": "empty file"}},
        )
    return path


def test_the_csv_is_the_one_written_by_hand(
    predictions: Path, capsys: pytest.CaptureFixture
) -> None:
    assert main([str(predictions)]) == 0
    assert predictions.with_name("p.csv").read_bytes().decode() == EXPECTED
    assert sorted(p.name for p in predictions.parent.iterdir()) == sorted(
        [predictions.name, "p.csv"]
    )
    assert capsys.readouterr().out.splitlines() == [
        f"{predictions.with_name('p.csv')}: 4 images, 2 predictions",
        "  2 images without any prediction",
        "  1 images that inference could not read; their rows are empty",
        "  1 predictions clipped to the image",
        "  2 predictions left out, without area inside the image",
    ]


def test_an_existing_file_is_replaced_only_when_told(
    predictions: Path, capsys: pytest.CaptureFixture
) -> None:
    out = predictions.with_name("out.csv")
    out.write_text("precious")
    with pytest.raises(SystemExit) as exit_info:
        main([str(predictions), "--out", str(out)])
    assert exit_info.value.code == 2
    assert "out.csv exists; -f replaces it" in capsys.readouterr().err
    assert out.read_text() == "precious"
    assert main([str(predictions), "--out", str(out), "-f"]) == 0
    assert out.read_text() == EXPECTED


def test_wrong_input_is_explained(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    with pytest.raises(SystemExit) as exit_info:
        main([str(tmp_path / "none.parquet")])
    assert exit_info.value.code == 2
    assert "none.parquet: PREDICTIONS is what inference.py wrote" in capsys.readouterr().err
    other = tmp_path / "other.parquet"
    other.write_text("ImageId\n")
    assert main([str(other)]) == 1
    assert "other.parquet is not a usable predictions file" in capsys.readouterr().err
    assert [p.name for p in tmp_path.iterdir()] == ["other.parquet"]


def test_a_box_whose_sides_round_to_the_same_number_is_left_out() -> None:
    found = format_predictions(
        ["/m/01"],
        np.array([1, 1]),
        np.array([0.5, 0.4]),
        np.array([[0.1, 0.1, 0.100004, 0.9], [0.1, 0.1, 0.10001, 0.9]]),
    )
    assert found == ("/m/01 0.40000 0.10000 0.10000 0.10001 0.90000", 1, 0, 1)
