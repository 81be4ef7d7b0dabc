"""Numbers in text: the compiled parser against Python's float, the printer against `%.Nf`."""

import importlib
import shutil

import numpy as np
import pytest

from tpudet.detection.submission.errors import NO_BAD_ROWS
from tpudet.detection.submission.fusion import plain_text
from tpudet.detection.submission.fusion.blocks import Block, ScannedRows, SubmissionFile
from tpudet.detection.submission.fusion.kernel import load_kernel

# It is left out only where there is no compiler: setup.py passes over one that does not compile.
load = importlib.import_module if shutil.which("cc") else pytest.importorskip
prediction_text = load("tpudet.detection.submission.fusion.prediction_text")


def printed(values: np.ndarray, decimals: int) -> list[str]:
    """The kernel's text, five values (a score and a box) a row of one image each."""
    rows = np.ascontiguousarray(values.reshape(-1, 5))
    n = len(rows)
    zeros, ends = np.zeros(n, np.int64), np.arange(n + 1)
    data = np.frombuffer(b"i", np.uint8)
    source = SubmissionFile(
        "", data, np.zeros((0, 5), np.int64), np.zeros(0, "S1"), NO_BAD_ROWS, None
    )
    block = Block((source,), zeros, zeros, zeros + 1, ends, *[zeros] * 4)
    label = np.zeros(n, np.int32)
    scores, boxes = rows[:, 0].copy(), rows[:, 1:].copy()
    scanned = ScannedRows(ends, label, zeros, label, label, scores, boxes)
    written = np.ones(n, np.uint8)
    text = load_kernel(False).print_rows(block, written, scanned, [b"/m/1"], decimals, decimals)
    return [token for line in text.decode().splitlines() for token in line.split(" ")[1:]]


def random_tokens(seed: int, count: int) -> list[bytes]:
    """Decimal numbers of 1 to 25 digits, with or without sign, point and exponent."""
    random = np.random.default_rng(seed)
    tokens = []
    for _ in range(count):
        digits = "".join(map(str, random.integers(0, 10, random.integers(1, 26))))
        point = random.integers(0, len(digits) + 1)
        token = random.choice(["", "", "-", "+"]) + digits[:point]
        token += random.choice(["", "."] if point == len(digits) else ["."]) + digits[point:]
        token += random.choice(["", "", f"e{random.integers(-40, 41)}"])
        tokens.append(token.encode())
    return tokens


def test_numbers_are_read_as_python_reads_them() -> None:
    tokens = [
        *random_tokens(0, 20_000),
        *(b"%d.%05d" % divmod(k, 100_000) for k in range(0, 200_000, 7)),
        *(b"0.%d" % (10**16 + 97 * k) for k in range(2_000)),  # 17 significant digits
        b"9007199254740992", b"9007199254740993", b"0.1e-400", b"1e400", b"5.", b".5", b"-0",
        b"0.3000000000000000166533453693773481063544750213623046875",
    ]  # fmt: skip
    found = prediction_text.parse_numbers(tokens)
    assert [value.hex() for value in found] == [float(token).hex() for token in tokens]
    assert found == [plain_text.parse_number(token) for token in tokens]


def test_what_is_no_number_is_refused_by_both() -> None:
    tokens = [
        b"", b".", b"-", b"+", b"e5", b"1e", b"1e+", b"nan", b"inf", b"-inf", b"0x10", b"1_000",
        b"1,5", b"0.5f", b"1.2.3", b"--1", b"1-", b"0.12345a", b"0.1234", b"0 .123", b"1" * 64,
        b"0.\xb1\xb2\xb3\xb4\xb5", b"0.:;<=>", b"/0.123",
        *(b"0.1%c345 " % byte for byte in range(256) if not 48 <= byte < 58),
    ]  # fmt: skip
    expected = [None] * 18 + [0.1234] + [None] * 251
    assert prediction_text.parse_numbers(tokens) == expected
    assert [plain_text.parse_number(token) for token in tokens] == expected


@pytest.mark.parametrize("decimals", range(10))
def test_numbers_are_printed_as_printf_prints_them(decimals: int) -> None:
    random = np.random.default_rng(decimals)
    halves = (np.arange(5_000) + 0.5) / 10**decimals  # nearly ties, a few of them exact
    values = np.concatenate(
        [
            random.random(10_000),
            random.uniform(-1, 2, 5_000),
            random.uniform(-1e6, 1e6, 5_000),
            halves,
            np.nextafter(halves, 0),
            np.nextafter(halves, 9),
            np.arange(5_000) / 4096,  # exact ties up to 11 decimals
            [0.0, -0.0, 1e-9, -1e-9, 5e-324, 0.999995, 9.999995, 99.5, 1e6, -1e6],
        ]
    )
    assert printed(values, decimals) == [f"{value:.{decimals}f}" for value in values.tolist()]


def test_ties_go_to_even() -> None:
    values = np.array([1 / 64, 3 / 64, 0.5, 1.5, 2.5])  # 1562.5 and 4687.5 units of the 5th place
    assert printed(values, 5) == ["0.01562", "0.04688", "0.50000", "1.50000", "2.50000"]
    assert printed(values, 0) == ["0", "0", "0", "2", "2"]


def test_what_cannot_be_printed_is_refused() -> None:
    for value in (np.nan, np.inf, 1.1e6):
        with pytest.raises(ValueError, match="cannot be printed"):
            printed(np.full(5, value), 5)
    with pytest.raises(ValueError, match="0 to 9 decimals"):
        printed(np.zeros(5), 10)
