"""Reading, the model and writing are at work at once; order and grouping do not depend on that."""

import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tpudet.detection.inference.stream import Part, PredictedPart, Timing, predict_parts
from tpudet.trainkit import image_folder
from tpudet.trainkit.image_folder import ImageFile

PATIENCE = 20  # seconds; what is waited for happens at once, or never


def parts_of(folder: Path, encoded: bytes, sizes: Sequence[int]) -> list[Part]:
    """Parts of so many images, numbered through."""
    parts, number = [], 0
    for size in sizes:
        images = []
        for _ in range(size):
            path = folder / f"{number:03d}.jpg"
            path.write_bytes(encoded)
            images.append(ImageFile(path.stem, str(path)))
            number += 1
        parts.append(Part(f"part-{len(parts)}", images))
    return parts


def found_nothing(encoded: Sequence[bytes]) -> list[Any]:
    return [(np.ones(1, np.int32), np.ones(1, np.float32), np.zeros((1, 4)))] * len(encoded)


def test_order_and_batches(jpegs: dict[str, bytes], tmp_path: Path) -> None:
    parts = parts_of(tmp_path, jpegs["small"], [5, 1, 3])
    Path(parts[0].images[1].path).write_bytes(b"")
    Path(parts[1].images[0].path).write_bytes(b"no image")
    sizes: list[int] = []
    progress: list[int] = []
    written: list[PredictedPart] = []

    def detect(encoded: Sequence[bytes]) -> list[Any]:
        sizes.append(len(encoded))
        return found_nothing(encoded)

    timing = predict_parts(
        parts, detect, batch_size=2, workers=3, on_progress=progress.append, write=written.append
    )
    assert sorted(sizes) == [1, 2, 2, 2]  # 2 + 2 of the first part, 2 + 1 of the last
    assert [part.path for part in written] == ["part-0", "part-1", "part-2"]
    assert [[i.image_id for i in part.predictions] for part in written] == [
        ["000", "002", "003", "004"],
        [],
        ["006", "007", "008"],
    ]
    assert [sorted(part.unreadable) for part in written] == [["001.jpg"], ["005.jpg"], []]
    assert sum(progress) == timing.images == 9


def test_reading_the_model_and_writing_overlap(
    jpegs: dict[str, bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each stage waits here for another one, so a run that did them in turn would never end."""
    parts = parts_of(tmp_path, jpegs["small"], [1, 1, 1, 1])
    all_read, third_call, first_written = (threading.Event() for _ in range(3))
    both_at_work = threading.Barrier(2, timeout=PATIENCE)
    read_image = image_folder._read_image
    num_calls = 0

    def watched_read(path: str) -> bytes | str:
        encoded = read_image(path)
        if path.endswith("003.jpg"):
            all_read.set()
        return encoded

    def detect(encoded: Sequence[bytes]) -> list[Any]:
        nonlocal num_calls
        num_calls += 1
        number = num_calls
        assert all_read.wait(PATIENCE)  # the readers continue into the parts that follow
        if number <= 2:
            both_at_work.wait()  # one call decodes while the other is in the network
        if number == 3:
            third_call.set()
        return found_nothing(encoded)

    def write(part: PredictedPart) -> None:
        if not first_written.is_set():
            assert third_call.wait(PATIENCE)  # the model continues while a part is written
            first_written.set()

    monkeypatch.setattr(image_folder, "_read_image", watched_read)
    predict_parts(parts, detect, batch_size=1, workers=1, on_progress=id, write=write)
    assert first_written.is_set()


@pytest.mark.parametrize("stage", ["reading", "model", "writing"])
def test_time_is_put_down_to_the_slow_stage(
    stage: str, jpegs: dict[str, bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    parts = parts_of(tmp_path, jpegs["small"], [1] * 10)
    read_image = image_folder._read_image
    slow = {"reading": 0.0, "model": 0.0, "writing": 0.0} | {stage: 0.05}

    def slow_read(path: str) -> bytes | str:
        time.sleep(slow["reading"])
        return read_image(path)

    def detect(encoded: Sequence[bytes]) -> list[Any]:
        time.sleep(slow["model"])
        return found_nothing(encoded)

    monkeypatch.setattr(image_folder, "_read_image", slow_read)
    timing = predict_parts(
        parts,
        detect,
        batch_size=1,
        workers=1,
        on_progress=id,
        write=lambda _: time.sleep(slow["writing"]),
    )
    shares = timing._asdict()
    assert shares.pop("images") == 10
    assert max(shares, key=lambda name: shares[name]) == stage
    assert shares[stage] > 0.1  # 10 x 0.05 s, by two calls at once 0.25 s


def test_parts_that_are_whole_are_written_when_the_next_one_fails(
    jpegs: dict[str, bytes], tmp_path: Path
) -> None:
    parts = parts_of(tmp_path, jpegs["small"], [1, 1, 1])
    written: list[str] = []
    first_done = threading.Event()

    def detect(encoded: Sequence[bytes]) -> list[Any]:
        if first_done.is_set():
            raise MemoryError("no more")
        first_done.set()
        return found_nothing(encoded)

    with pytest.raises(MemoryError, match="no more"):
        predict_parts(
            parts,
            detect,
            batch_size=1,
            workers=1,
            on_progress=id,
            write=lambda part: written.append(part.path),
        )
    assert written == ["part-0"]


def test_the_line_says_what_was_waited_for() -> None:
    timing = Timing(100, reading=1.0, model=6.0, writing=1.0).plus(Timing(100, 0.0, 1.0, 1.0))
    assert timing == (200, 1.0, 7.0, 2.0)
    assert timing.describe(20.0) == (
        "200 images in 20.0 s: 10.0 images/s; waited 10 % of the time for reading and checking "
        "files, 70 % for the model (decoding included), 20 % for writing"
    )
    assert "0 images in 0.0 s: 0.0 images/s" in Timing().describe(0.0)
