"""Gray images, predictions and ground truth of known numbers."""

from collections.abc import Callable, Sequence
from pathlib import Path

import cv2
import numpy as np
import pytest

from tpudet.detection.commands import draw_predictions
from tpudet.detection.inference.predictions_file import ImagePredictions, write_predictions

CLASSES = "/m/01,cat\n/m/02,dog\n"
Row = tuple[int, float, float, float, float, float]  # class id, score, x1 y1 x2 y2


@pytest.fixture
def write_images(tmp_path: Path) -> Callable[..., Path]:
    """Writes `images/<id>.jpg`, each gray, 40x60 pixels."""

    def write(*image_ids: str) -> Path:
        folder = tmp_path / "images"
        folder.mkdir(exist_ok=True)
        for image_id in image_ids:
            cv2.imwrite(str(folder / f"{image_id}.jpg"), np.full((40, 60, 3), 90, np.uint8))
        return folder

    return write


@pytest.fixture
def write_found(tmp_path: Path) -> Callable[..., Path]:
    """Writes a predictions file, Parquet or a pickle, or a submission, by the name's ending."""

    def write(
        images: dict[str, Sequence[Row]], name: str = "found.parquet", classes: str = CLASSES
    ) -> Path:
        path = tmp_path / name
        if name.endswith(".csv"):
            identifiers = [line.split(",")[0] for line in classes.splitlines()]
            lines = [
                f"{image_id}," + " ".join(f"{identifiers[k - 1]} {s} {x1} {y1} {x2} {y2}"
                for k, s, x1, y1, x2, y2 in rows)
                for image_id, rows in images.items()
            ]  # fmt: skip
            path.write_text("\n".join(["ImageID,PredictionString", *lines, ""]))
            return path
        block = []
        for image_id, rows in images.items():
            table = np.array(rows, np.float32).reshape(-1, 6)
            labels = table[:, 0].astype(np.int32)
            block.append(ImagePredictions(image_id, labels, table[:, 1], table[:, 2:]))
        with path.open("wb") as file:
            write_predictions(file, name, [block], class_list_text=classes, metadata={})
        return path

    return write


@pytest.fixture
def write_truth(tmp_path: Path) -> Callable[..., Path]:
    """Writes a box CSV of 13 columns; rows are (image, label, x1, y1, x2, y2[, group])."""

    def write(*rows: tuple) -> Path:
        path = tmp_path / "truth.csv"
        lines = [
            "ImageID,Source,LabelName,Confidence,XMin,XMax,YMin,YMax,"
            "IsOccluded,IsTruncated,IsGroupOf,IsDepiction,IsInside"
        ]
        for image, label, x1, y1, x2, y2, *group in rows:
            flag = int(bool(group))
            lines.append(f"{image},xclick,{label},1,{x1},{x2},{y1},{y2},0,0,{flag},0,0")
        path.write_text("\n".join([*lines, ""]))
        return path

    return write


@pytest.fixture
def draw() -> Callable[..., int]:
    """Runs the command in this process."""

    def run(*arguments: object) -> int:
        return draw_predictions.main([str(argument) for argument in arguments])

    return run
