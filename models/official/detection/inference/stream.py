"""Predicts a list of images part by part, with reading, detection and writing overlapped.

Threads read and check files; two calls of the model run at a time, so that one decodes its images
while the network runs on those of the other; one thread writes finished parts. The order of images,
and which of them share a call, do not depend on any of this.
"""

import itertools
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import NamedTuple

import tensorflow as tf

from tpudet.detection.inference.predictions_file import ImagePredictions
from tpudet.detection.inference.saved_detector import Detector, ImageOutput
from tpudet.trainkit.image_folder import ImageFile, read_ahead

# One call in the network, one in decoding and transfer; a third waits for either.
CALLS_AT_ONCE = 2
_PARTS_WAITING = 2  # to be written, before the model waits for the disk


class Part(NamedTuple):
    """Images whose predictions become one file."""

    path: str
    images: Sequence[ImageFile]
    image_files: str = ""  # digest of their files; empty: they are not compared


class PredictedPart(NamedTuple):
    """The predictions of a part."""

    path: str
    predictions: list[ImagePredictions]  # in the order of the part's images
    unreadable: dict[str, str]  # the reason for each image left out, by file name


class Timing(NamedTuple):
    """The seconds that a run waited for each stage."""

    images: int = 0
    reading: float = 0.0
    model: float = 0.0
    writing: float = 0.0

    def plus(self, other: "Timing") -> "Timing":
        """Both runs together."""
        seconds = (a + b for a, b in zip(self[1:], other[1:], strict=True))
        return Timing(self.images + other.images, *seconds)

    def describe(self, seconds: float) -> str:
        """Returns a line for the user; `seconds` is the time from start to end."""
        total = max(self.reading + self.model + self.writing, 1e-9)
        shares = [f"{100 * part / total:.0f} %" for part in self[1:]]
        return (
            f"{self.images} images in {seconds:.1f} s: {self.images / max(seconds, 1e-9):.1f} "
            f"images/s; waited {shares[0]} of the time for reading and checking files, "
            f"{shares[1]} for the model (decoding included), {shares[2]} for writing"
        )


class _Batch(NamedTuple):
    part: Part
    images: list[tuple[ImageFile, bytes]]
    unreadable: dict[str, str]
    is_last: bool  # of its part


_Outputs = list[ImageOutput | str]  # or the reason why an image has none


def predict_parts(
    parts: Sequence[Part],
    detect: Detector,
    *,
    batch_size: int,
    workers: int,
    on_progress: Callable[[int], object],
    write: Callable[[PredictedPart], object],
) -> Timing:
    """Predicts parts in their order and passes each to `write` as soon as it is complete.

    A batch never has images of two parts, so the numbers of a part do not depend on the others.
    Parts that are complete when an error is raised are still written.

    Args:
        parts: none of them empty.
        detect: of `load_detector`; called from two threads.
        batch_size: images per call; the last call of a part may have fewer.
        workers: reading threads.
        on_progress: called with the number of images done since the last call.
        write: called in a thread, one part at a time.
    """
    spent = {"reading": 0.0, "model": 0.0, "writing": 0.0}
    running: deque[tuple[_Batch, Future[_Outputs]]] = deque()
    with (
        ThreadPoolExecutor(1, "write") as writer,
        ThreadPoolExecutor(CALLS_AT_ONCE, "model") as callers,
    ):
        results = _Results(writer, write, spent)

        def finish_first() -> None:
            batch, call = running.popleft()
            results.add(batch, _wait(call, spent, "model"))
            on_progress(len(batch.images) + len(batch.unreadable))

        batches = _batches(parts, batch_size, workers)
        try:
            while (batch := _next(batches, spent)) is not None:
                running.append((batch, callers.submit(_detect_each, batch.images, detect)))
                while running and (len(running) > CALLS_AT_ONCE or running[0][1].done()):
                    finish_first()
            while running:
                finish_first()
            results.wait()
        finally:
            batches.close()
            for _, call in running:
                call.cancel()
    return Timing(sum(len(part.images) for part in parts), **spent)


class _Results:
    """Collects the outputs of batches, and writes each part in a thread once it is complete."""

    def __init__(
        self,
        writer: ThreadPoolExecutor,
        write: Callable[[PredictedPart], object],
        spent: dict[str, float],
    ) -> None:
        self._writer = writer
        self._write = write
        self._spent = spent
        self._written: deque[Future[object]] = deque()
        self._part = PredictedPart("", [], {})

    def add(self, batch: _Batch, outputs: _Outputs) -> None:
        """Adds the outputs of a batch; batches come in their order."""
        for (image, _), output in zip(batch.images, outputs, strict=True):
            if isinstance(output, str):
                self._part.unreadable[image.name] = output
            else:
                self._part.predictions.append(ImagePredictions(image.image_id, *output))
        self._part.unreadable.update(batch.unreadable)
        if batch.is_last:
            part = self._part._replace(path=batch.part.path)
            self._written.append(self._writer.submit(self._write, part))
            self.wait(_PARTS_WAITING)
            self._part = PredictedPart("", [], {})

    def wait(self, left: int = 0) -> None:
        """Waits until at most `left` parts remain to be written."""
        while len(self._written) > left:
            _wait(self._written.popleft(), self._spent, "writing")


def _batches(parts: Sequence[Part], batch_size: int, workers: int) -> Iterator[_Batch]:
    """Groups images as they are read; the readers continue into the next part."""
    images = itertools.chain.from_iterable(part.images for part in parts)
    read = read_ahead(images, workers=workers, ahead=2 * batch_size + workers)
    for part in parts:
        waiting: list[tuple[ImageFile, bytes]] = []
        unreadable: dict[str, str] = {}
        for number, (image, encoded) in enumerate(itertools.islice(read, len(part.images)), 1):
            if isinstance(encoded, str):
                unreadable[image.name] = encoded
            else:
                waiting.append((image, encoded))
            is_last = number == len(part.images)
            if is_last or len(waiting) == batch_size:
                yield _Batch(part, waiting, unreadable, is_last)
                waiting, unreadable = [], {}


def _next(batches: Iterator[_Batch], spent: dict[str, float]) -> _Batch | None:
    start = time.monotonic()
    batch = next(batches, None)
    spent["reading"] += time.monotonic() - start
    return batch


def _wait(future: Future, spent: dict[str, float], stage: str):
    start = time.monotonic()
    try:
        return future.result()
    finally:
        spent[stage] += time.monotonic() - start


def _detect_each(images: Sequence[tuple[ImageFile, bytes]], detect: Detector) -> _Outputs:
    """Detects in a batch; an image that TensorFlow refuses gets the reason instead."""
    if not images:
        return []
    try:
        return [*detect([encoded for _, encoded in images])]
    except tf.errors.InvalidArgumentError as error:
        if len(images) == 1:
            return [f"TensorFlow cannot decode it: {error.message}"]
        return [output for image in images for output in _detect_each([image], detect)]
