"""Submissions small enough for the plain path, random or full of ties."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

WriteSubmission = Callable[..., str]


@pytest.fixture
def write_submission(tmp_path: Path) -> WriteSubmission:
    """Writes a random submission; `grid` steps of scores and coordinates, so few mean ties."""

    def write(
        name: str, *, seed: int, grid: int, images: int = 12, predictions: int = 40, labels: int = 3
    ) -> str:
        random = np.random.default_rng(seed)
        lines = ["ImageId,PredictionString"]
        for number in random.permutation(images + 3)[:images]:
            corners = np.round(random.random((predictions, 2, 2)) * grid) / grid
            table = np.concatenate(
                [
                    np.round(random.random((predictions, 1)) * grid) / grid,
                    np.sort(corners, axis=1).reshape(-1, 4),
                ],
                axis=1,
            )
            classes = random.integers(labels, size=predictions)
            parts = (
                f"/m/{label} " + " ".join(f"{value:.5f}" for value in row)
                for label, row in zip(classes, table, strict=True)
            )
            lines.append(f"image{number:03d}," + " ".join(parts))
        path = tmp_path / name
        path.write_text("\n".join(lines) + "\n")
        return str(path)

    return write
