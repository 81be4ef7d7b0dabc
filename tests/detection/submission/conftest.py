"""Submissions written by the tests, and ways to run a command on them."""

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from tpudet.detection.submission import writer
from tpudet.detection.submission.files import cut
from tpudet.detection.submission.fusion import kernel


@pytest.fixture
def plain_kernel(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """As where no compiler was found."""
    monkeypatch.setenv(kernel.PLAIN_VARIABLE, "1")
    kernel._load.cache_clear()
    yield
    kernel._load.cache_clear()


@pytest.fixture
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks of 2 KB in the place of 512 KB, so that small files have many."""
    monkeypatch.setattr(writer, "cut", lambda images: cut(images, 2_000))


@pytest.fixture
def random_submission(tmp_path: Path) -> Callable[..., str]:
    """Writes a canonical submission of random predictions; images may be without any."""

    def write(
        name: str,
        seed: int,
        *,
        labels: list[str],
        images: int = 60,
        most: int = 30,
        score_steps: int = 100_000,
        box_steps: int = 100_000,
    ) -> str:
        random = np.random.default_rng(seed)
        lines = ["ImageId,PredictionString"]
        for image in random.permutation(images):
            count = random.integers(most + 1)
            corners = np.sort(random.integers(box_steps + 1, size=(count, 2, 2)), axis=1)
            boxes = corners.reshape(-1, 4) / box_steps
            scores = random.integers(1, score_steps + 1, count) / score_steps
            parts = [
                f"{labels[label]} {score:.5f} " + " ".join(f"{side:.5f}" for side in box)
                for label, score, box in zip(
                    random.integers(len(labels), size=count), scores, boxes, strict=True
                )
            ]
            lines.append(f"i{image:03d}," + " ".join(parts))
        path = tmp_path / name
        path.write_text("\n".join(lines) + "\n")
        return str(path)

    return write
