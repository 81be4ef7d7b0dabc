"""The compiled kernel gives the very bytes of the plain statement, ties and damaged text included.

Damaged text lies right before a page that nobody may read, so reading too far ends the process.
"""

import ctypes
import importlib
import mmap
import shutil
import subprocess
import sys
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tpudet
from tpudet.detection.submission.errors import NO_BAD_ROWS
from tpudet.detection.submission.files import align, cut, open_submission
from tpudet.detection.submission.fusion.blocks import Block, ScannedRows, SubmissionFile
from tpudet.detection.submission.fusion.kernel import load_kernel
from tpudet.detection.submission.fusion.settings import METHODS, FusionSettings
from tpudet.detection.submission.merge import relative_weights, settings_table

# It is left out only where there is no compiler: setup.py passes over one that does not compile.
load = importlib.import_module if shutil.which("cc") else pytest.importorskip
load("tpudet.detection.submission.fusion.fuse")
WEIGHTS = ([], [1.0, 0.5, 2.3], [0.0, 1.0, 1.0])


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("grid", [8, 30, 100_000])  # of 8 steps: ties everywhere
def test_equal_to_the_plain_statement(
    method: str, grid: int, write_submission: Callable[..., str]
) -> None:
    paths = [write_submission(f"{k}.csv", seed=k, grid=grid) for k in range(3)]
    by_label = {"/m/1": FusionSettings("wbf" if method == "hard" else "hard", 0.6, 0.4, 0.1)}
    with ExitStack() as stack:
        images = align([stack.enter_context(open_submission(path)) for path in paths])
    blocks = list(cut(images, 3_000))
    assert len(blocks) > 5
    for weights in WEIGHTS:
        for threshold in (0.0, 0.02, 0.3):
            table = settings_table(FusionSettings(method, 0.3, 0.5, threshold), by_label)
            settings = (relative_weights(weights, 3), table, 25)
            ours = load_kernel(False).fuse(images, *settings)
            plain = load_kernel(True).fuse(images, *settings)
            assert ours[0] == plain[0]
            assert ours[1:3] == plain[1:3]
            assert [row.tolist() for row in ours[3:]] == [row.tolist() for row in plain[3:]]
            assert ours[2] > 100
            parts = [load_kernel(False).fuse(block, *settings)[0] for block in blocks]
            assert b"".join(parts) == ours[0]


def test_many_boxes_of_one_class_agree(write_submission: Callable[..., str]) -> None:
    path = write_submission("big.csv", seed=1, grid=50, images=1, predictions=1_500, labels=1)
    with open_submission(path) as source:
        images = align([source])
    for method in METHODS:
        table = settings_table(FusionSettings(method, 0.5, 0.5, 0.02), {})
        arguments = (images, np.ones(1), table, 0)
        assert load_kernel(False).fuse(*arguments)[0] == load_kernel(True).fuse(*arguments)[0]


class GuardedPage:
    """Room for a text that ends where reading is forbidden."""

    def __init__(self) -> None:
        self.pages = mmap.mmap(-1, 2 * mmap.PAGESIZE)
        self.start = ctypes.addressof(ctypes.c_char.from_buffer(self.pages))
        libc = ctypes.CDLL(None, use_errno=True)
        libc.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
        assert libc.mprotect(self.start + mmap.PAGESIZE, mmap.PAGESIZE, 0) == 0

    def hold(self, text: bytes) -> np.ndarray:
        array = np.frombuffer(self.pages, np.uint8, len(text), mmap.PAGESIZE - len(text))
        array[:] = np.frombuffer(text, np.uint8)
        return array


def damage(text: bytes, random: np.random.Generator) -> bytes:
    """One to four bytes changed, left out, doubled or put in, and sometimes the end cut off."""
    damaged = bytearray(text)
    pieces = [
        b" ",
        b",",
        b'"',
        b"\n",
        b"\r",
        b"\t",
        b"nan",
        b"-",
        b"e9",
        b".",
        b"\0",
        b"\xff",
        b"9",
    ]
    for _ in range(random.integers(1, 5)):
        place = random.integers(0, max(len(damaged), 1))
        kind = random.integers(0, 4)
        piece = pieces[random.integers(len(pieces))]
        if kind == 0:
            damaged[place : place + 1] = bytes([random.integers(0, 256)])
        elif kind == 1:
            del damaged[place : place + random.integers(1, 9)]
        elif kind == 2:
            damaged[place:place] = damaged[place : place + random.integers(1, 30)]
        else:
            damaged[place:place] = piece
    return bytes(
        damaged[: random.integers(0, len(damaged) + 1)] if random.random() < 0.3 else damaged
    )


def block_of(data: np.ndarray, ends: np.ndarray, files: np.ndarray, columns: Any) -> Block:
    """A block of one file; `columns` are starts and stops of ids and of prediction strings."""
    source = SubmissionFile(
        "", data, np.zeros((0, 5), np.int64), np.zeros(0, "S1"), NO_BAD_ROWS, None
    )
    zeros = np.zeros(len(columns[0]), np.int64)
    return Block(
        (source,), zeros, columns[0], columns[1], ends, files, columns[2], columns[3], zeros
    )


def run_all(data: np.ndarray, plain: bool) -> list[Any]:
    """Index, scan, print and fuse; everything that they return, comparable."""
    kernel = load_kernel(plain)
    rows, end, line = kernel.index_rows(data, 0, len(data), 2)
    rows = rows[rows[:, 5] == 0]
    n = len(rows)
    columns = np.ascontiguousarray(rows.T)
    block = block_of(data, np.arange(n + 1), np.zeros(n, np.int64), columns)
    labels = [b"/m/01", b"/m/02"]
    scanned = kernel.scan(block, labels)
    written = np.ones(n, np.uint8)
    text = kernel.print_rows(block, written, ScannedRows(*scanned[:-1]), labels, 5, 3)
    table = settings_table(FusionSettings("soft_linear", threshold=0.0), {})
    fused = kernel.fuse(block, np.ones(1), table, 0)
    arrays = [array.tolist() for array in (rows, *scanned, *fused[3:])]
    return [end, line, text, fused[:3], arrays]


def test_damaged_text_never_reads_too_far_and_both_say_the_same() -> None:
    random = np.random.default_rng(11)
    text = (
        b"a1,/m/01 0.90000 0.10000 0.20000 0.50000 0.60000 /m/02 0.5 0 0 1 1\n"
        b'"b2","/m/03 0.123456789012345678 0.1e-1 .2 0.3 0.40000"\r\n'
        b"c3,\n"
        b"d4, /m/01 1 -0.00001 0.00000 1.00002 1.00000\t/m/01 0.30000 0.10000 0.20000 0.30000 0.4"
    )
    page = GuardedPage()
    num_faults = 0
    for _ in range(3_000):
        data = page.hold(damage(text, random))
        compiled, plain = run_all(data, plain=False), run_all(data, plain=True)
        assert compiled == plain, data.tobytes()
        num_faults += any(fault for fault, _ in compiled[-1][8])
    assert num_faults > 1_000
    undamaged = run_all(page.hold(text), plain=False)
    assert not any(fault for fault, _ in undamaged[-1][8])
    assert len(undamaged[-1][0]) == 4


def test_ranges_outside_of_the_file_are_refused() -> None:
    data = np.frombuffer(b"a,b", np.uint8)
    one, two = np.array([0]), np.array([0, 1])

    def scan(ends: np.ndarray, files: int, starts: int, stops: int) -> None:
        pieces = np.array([files]), (one, one, np.array([starts]), np.array([stops]))
        load_kernel(False).scan(block_of(data, ends, *pieces), [])

    for files, starts, stops in ((0, 0, 4), (0, -1, 2), (0, 3, 2), (1, 0, 1), (-1, 0, 1)):
        with pytest.raises(ValueError, match="no bytes|no file"):
            scan(two, files, starts, stops)
    for ends in (np.array([0, 2]), np.array([1, 1]), np.array([], np.int64)):
        with pytest.raises(ValueError, match="ends must"):
            scan(ends, 0, 0, 0)


def test_without_the_compiled_kernel_the_plain_one_gives_the_same_file(
    write_submission: Callable[..., str], tmp_path: Path
) -> None:
    """The package is copied without its extension modules, as where no compiler was found."""
    sources = [write_submission(f"{k}.csv", seed=k, grid=100) for k in range(2)]
    package = Path(tpudet.__file__).parent
    copy = tmp_path / "copy/tpudet"
    ignored = shutil.ignore_patterns("*.so", "*.pyd", "*.c", "__pycache__")
    shutil.copytree(package, copy, ignore=ignored)
    call = "import sys; from tpudet.detection.commands import merge_subs as c; sys.exit(c.main())"
    command = [sys.executable, "-c", call]
    done = {
        name: subprocess.run(
            [*command, str(tmp_path / name), *sources],
            env={"PYTHONPATH": str(copy.parent) if name == "bare" else "", **variable},
            check=True,
            capture_output=True,
            text=True,
        )
        for name, variable in {
            "compiled": {},
            "plain": {"TPUDET_PLAIN_KERNEL": "1"},
            "bare": {},
        }.items()
    }
    assert (
        done["bare"].stderr.count("The compiled kernel of tpudet.detection.submission is not") == 1
    )
    assert done["compiled"].stderr == done["plain"].stderr == ""
    files = {(tmp_path / name).read_bytes() for name in done}
    assert len(files) == 1
    assert files.pop().count(b"\n") == 16
