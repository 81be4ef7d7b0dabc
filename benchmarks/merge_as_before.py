"""The baseline of fusion.py: how the predecessor merged submissions, in fresh code.

Soft-NMS in Cython with the interpreter lock held, called for each class of each image from Python
that splits and formats lines, in a pool of processes; lines are sorted and zipped.
"""

import importlib.machinery
import importlib.util
import multiprocessing
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Sequence
from pathlib import Path

import numpy as np

HEADER = "ImageId,PredictionString\n"
PREDECESSOR = '''# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
from libc.math cimport exp

def soft_nms(float[:, ::1] boxes, float sigma, float threshold):
    """Decays the rows x1 y1 x2 y2 score in place; returns how many first rows stay."""
    cdef int count = boxes.shape[0]
    cdef int i = 0
    cdef int j, k, best
    cdef float width, height, overlap, area
    while i < count:
        best = i
        for j in range(i + 1, count):
            if boxes[j, 4] > boxes[best, 4]:
                best = j
        for k in range(5):
            boxes[i, k], boxes[best, k] = boxes[best, k], boxes[i, k]
        area = (boxes[i, 2] - boxes[i, 0]) * (boxes[i, 3] - boxes[i, 1])
        j = i + 1
        while j < count:
            width = min(boxes[i, 2], boxes[j, 2]) - max(boxes[i, 0], boxes[j, 0])
            height = min(boxes[i, 3], boxes[j, 3]) - max(boxes[i, 1], boxes[j, 1])
            if width > 0 and height > 0:
                overlap = width * height / (
                    area + (boxes[j, 2] - boxes[j, 0]) * (boxes[j, 3] - boxes[j, 1])
                    - width * height)
                boxes[j, 4] *= exp(-overlap * overlap / sigma)
                if boxes[j, 4] < threshold:
                    count -= 1
                    for k in range(5):
                        boxes[j, k] = boxes[count, k]
                    continue
            j += 1
        i += 1
    return count
'''


def compile_predecessor(folder: str) -> str:
    """Compiles the predecessor's Soft-NMS; returns the library's path."""
    source = Path(folder, "predecessor.pyx")
    source.write_text(PREDECESSOR)
    compiler = shutil.which("gcc") or shutil.which("cc")
    assert compiler, "the baseline needs a C compiler"
    subprocess.run([sys.executable, "-m", "cython", "-3", str(source)], check=True)
    library = str(source.with_suffix(".so"))
    include = sysconfig.get_paths()["include"]
    subprocess.run(
        [compiler, "-O3", "-shared", "-fPIC", "-w", f"-I{include}", "-o", library,
         str(source.with_suffix(".c"))],
        check=True,
    )  # fmt: skip
    return library


def merge_as_before(library: str, sources: Sequence[str], target: str, processes: int) -> None:
    """Merges with Soft-NMS (gaussian, sigma 0.5, threshold 0.02) in a pool of processes."""
    files = [_sorted_lines(path) for path in sources]
    with (
        multiprocessing.get_context("fork").Pool(
            processes, initializer=_load, initargs=(library,)
        ) as pool,
        open(target, "w") as out,
    ):
        out.write(HEADER)
        for line in pool.imap(_merge_lines, zip(*files, strict=True), chunksize=16):
            out.write(line)


def _sorted_lines(path: str) -> list[str]:
    with open(path) as file:
        return sorted(file.read().splitlines()[1:])


def _load(library: str) -> None:
    loader = importlib.machinery.ExtensionFileLoader("predecessor", library)
    spec = importlib.util.spec_from_loader("predecessor", loader)
    assert spec
    sys.modules["predecessor"] = importlib.util.module_from_spec(spec)
    loader.exec_module(sys.modules["predecessor"])


def _merge_lines(lines: Sequence[str]) -> str:
    soft_nms = sys.modules["predecessor"].soft_nms
    classes: dict[str, list] = {}
    for line in lines:
        tokens = line.split(",")[1].split()
        for i in range(0, len(tokens), 6):
            score, *box = (float(token) for token in tokens[i + 1 : i + 6])
            classes.setdefault(tokens[i], []).append([*box, score])
    parts = []
    for label, rows in classes.items():
        boxes = np.array(rows, np.float32)
        for x1, y1, x2, y2, score in boxes[: soft_nms(boxes, 0.5, 0.02)]:
            parts.append(f"{label} {score:.5f} {x1:.5f} {y1:.5f} {x2:.5f} {y2:.5f}")
    return f"{lines[0].split(',')[0]},{' '.join(parts)}\n"
