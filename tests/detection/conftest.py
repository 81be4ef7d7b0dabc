"""A detector small enough to export: real variables, real detections, no training. A browser."""

import io
import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import cv2
import keras
import numpy as np
import pyarrow.parquet as pq
import pytest

from tpudet.detection.inference.export import export_saved_model
from tpudet.detection.types import Batch, Detections

ops: Any = keras.ops  # its annotations admit None nearly everywhere
CLASS_LIST = "/m/01,cat\n/m/02,dog\n/m/03,sheep\n"
STRIDE = 16
MAX_DETECTIONS = 7


class StandIn(NamedTuple):
    model: keras.Model
    predict: Callable[[Batch], Detections]


@pytest.fixture(scope="session")
def stand_in() -> StandIn:
    """One convolution that says a class, a score and a box for each cell of 16x16 px."""
    conv2d: Any = keras.layers.Conv2D  # its annotations admit names of initializers only
    convolution = conv2d(
        8,
        STRIDE,
        strides=STRIDE,
        kernel_initializer=keras.initializers.RandomNormal(0, 0.1, seed=3),
    )
    model = keras.Sequential([keras.Input((None, None, 3)), convolution])

    def predict(batch: Batch) -> Detections:
        answers = model(ops.cast(batch.images, "float32") / 255.0 - 0.5)
        rows, columns = answers.shape[1:3]
        cells = np.moveaxis(np.mgrid[:rows, :columns], 0, -1).reshape(-1, 2) * float(STRIDE)
        answers = ops.reshape(answers, (-1, rows * columns, 8))
        centres = cells + STRIDE * ops.sigmoid(answers[..., 3:5])
        sides = 4.0 * STRIDE * ops.sigmoid(answers[..., 5:7])
        boxes = ops.concatenate([centres - sides / 2, centres + sides / 2], axis=-1)
        scores, places = ops.top_k(ops.sigmoid(answers[..., 7]), MAX_DETECTIONS)
        classes = ops.cast(ops.top_k(answers[..., :3], 1)[1][..., 0], "int32") + 1
        return Detections(  # rows beyond num_detections are not zero, as a trap
            boxes=ops.take_along_axis(boxes, places[..., None], axis=1),
            scores=scores,
            classes=ops.take_along_axis(classes, places, axis=1),
            num_detections=ops.sum(ops.cast(scores > 0.55, "int32"), axis=1),
        )

    return StandIn(model, predict)


def make_photo(height: int, width: int, seed: int) -> np.ndarray:
    """[h, w, 3] uint8: soft blotches of colour, which JPEG keeps well."""
    coarse = np.random.default_rng(seed).uniform(0, 255, (5, 6, 3)).astype(np.float32)
    return (
        cv2.resize(coarse, (width, height), interpolation=cv2.INTER_CUBIC).clip(0, 255).astype("u1")
    )


@pytest.fixture(scope="session")
def photos() -> dict[str, np.ndarray]:
    """Images by id: larger and smaller than the canvas, wide, tall and square."""
    sizes = {"wide": (90, 200), "tall": (150, 70), "square": (64, 64), "small": (40, 33)}
    return {name: make_photo(*size, seed) for seed, (name, size) in enumerate(sizes.items())}


@pytest.fixture(scope="session")
def jpegs(photos: dict[str, np.ndarray]) -> dict[str, bytes]:
    return {
        name: cv2.imencode(".jpg", photo[..., ::-1])[1].tobytes() for name, photo in photos.items()
    }


@pytest.fixture(scope="session")
def saved_model(stand_in: StandIn, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A SavedModel of the stand-in, canvas 64x96, normalised boxes."""
    directory = tmp_path_factory.mktemp("models") / "one"
    export_saved_model(
        model=stand_in.model,
        predict=stand_in.predict,
        pixel_mean=(0.5, 0.5, 0.5),
        pixel_std=(1.0, 1.0, 1.0),
        canvas_size=(64, 96),
        class_list_text=CLASS_LIST,
        directory=str(directory),
        metadata={"version": "stand_in", "step": 12},
        boxes="normalized",
    )
    return directory


_BROWSER_FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--hide-scrollbars",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--enable-logging=stderr",
    "--host-resolver-rules=MAP * ~NOTFOUND",  # no network
)


class Visit(NamedTuple):
    """A page as a browser shows it."""

    dom: str  # after loading
    console: str  # what the page's console says
    data: dict[str, int]  # numbers that the page's script left at its root
    margin: float  # brightness of the page's own colour, 0..255
    image: np.ndarray  # [h, w, 3] uint8 RGB, the top of the page


@pytest.fixture
def browse(tmp_path: Path) -> Callable[..., Visit]:
    """Opens a page in a browser without a network; skips the test where there is none."""
    names = ("chromium", "chromium-browser", "google-chrome")
    browser = next((found for name in names if (found := shutil.which(name))), None)
    if browser is None:
        pytest.skip(f"none of {', '.join(names)} is installed: browser test")

    def run(
        page: Path,
        *,
        width: int = 1280,
        dark: bool = False,
        fragment: str = "",
        script: str = "",  # what a reader does; it leaves numbers in `data`
    ) -> Visit:
        screenshot = tmp_path / "page.png"
        if script:
            page = _with_script(page, script, tmp_path / "acted.html")
        flags = [*_BROWSER_FLAGS, f"--user-data-dir={tmp_path / 'profile'}", "--dump-dom"]
        flags += [f"--window-size={width},1600", f"--screenshot={screenshot}"]
        flags += [f"--blink-settings=preferredColorScheme={0 if dark else 1}"]
        command = [browser, *flags, page.as_uri() + fragment]
        ended = subprocess.run(command, capture_output=True, text=True, timeout=300, check=True)
        said = [line for line in ended.stderr.splitlines() if "CONSOLE" in line]
        tag = re.search(r"<html[^>]*>", ended.stdout)
        image = cv2.imread(str(screenshot), cv2.IMREAD_COLOR_RGB)
        assert tag is not None
        assert image is not None
        # Of the colours as numbers: sorting triples takes seconds for every page.
        colors = image.astype(np.int32) @ np.array([1, 2**8, 2**16], np.int32)
        assert np.count_nonzero(np.bincount(colors.ravel())) > 500, "a blank page"
        data = {key: int(value) for key, value in re.findall(r'data-(\w+)="(-?\d+)"', tag[0])}
        return Visit(ended.stdout, "\n".join(said), data, float(image[:, :8].mean()), image)

    return run


def _with_script(page: Path, script: str, copy: Path) -> Path:
    """Copies a page with a script that runs after its own, which its policy would not allow."""
    text = re.sub(r'<meta http-equiv="Content-Security-Policy"[^>]*>', "", page.read_text())
    run = f"const data = document.documentElement.dataset;\n{script}"
    copy.write_text(f'{text}<script>addEventListener("load", () => {{ {run} }})</script>')
    return copy


@pytest.fixture(scope="session")
def class_part(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Records for a classifier: of two colours 8 training and 2 validation images each."""
    from tpudet.classification.commands.images_to_tfrecords import main as images_to_tfrecords

    folder = tmp_path_factory.mktemp("classes")
    noise = np.random.default_rng(0)
    for split, count in (("train", 8), ("val", 2)):
        for label, color in (("red", (30, 40, 200)), ("blue", (200, 40, 30))):
            (folder / split / label).mkdir(parents=True)
            for index in range(count):
                image = (color + noise.integers(-25, 26, (40, 48, 3))).astype(np.uint8)
                cv2.imwrite(str(folder / split / label / f"{index}.png"), image)
    part = folder / "converted/colors"
    command = [str(folder), "--output", str(part), "--workers", "1"]
    assert images_to_tfrecords(command) == 0
    return str(part)


@pytest.fixture(scope="session")
def overflowing_counts() -> str:
    """Run lengths from 0 to 2^50 whose sum is 2^64 + 256 * 256: in int64 that of a mask."""
    total, longest, steps = (1 << 64) + 256 * 256, (1 << 34) - 1, 1  # seven letters at most
    while longest * steps * (steps + 1) // 2 < total:
        steps += 1
    # Every second run is longer by a step than the one before it; those between them are empty.
    growth = [longest] * steps
    less, rest = divmod(longest * steps * (steps + 1) // 2 - total, steps)
    growth[0] -= less
    growth[steps - rest] -= 1
    letters = ([48 + (step >> 5 * place & 31 | 32) for place in range(6)] for step in growth)
    ends = (48 + (step >> 30) for step in growth)
    return "0" + "".join(
        f"{bytes(more).decode()}{end:c}0" for more, end in zip(letters, ends, strict=True)
    )


@pytest.fixture(scope="session")
def with_shared_groups() -> Callable[[bytes], bytes]:
    """Returns a Parquet file whose footer names each row group 65 times, at the same bytes."""

    def change(content: bytes) -> bytes:
        metadata = pq.read_metadata(io.BytesIO(content))
        for _ in range(64):
            metadata.append_row_groups(pq.read_metadata(io.BytesIO(content)))
        footer = io.BytesIO()
        metadata.write_metadata_file(footer)
        length = int.from_bytes(content[-8:-4], "little")
        return content[: -8 - length] + footer.getvalue()[4:]

    return change
