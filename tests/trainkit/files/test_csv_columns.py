"""Columns of CSV files are counted before they are read."""

import pytest

from tpudet.trainkit.files.csv_columns import MAX_COLUMNS, too_many_columns

FEW = ",".join(f"c{number}" for number in range(MAX_COLUMNS))


@pytest.mark.parametrize("start", ["", "\ufeff", "\n \r\n", '"a\nb",', "\n\n\ufeffx,"])
def test_a_wide_header_is_refused_wherever_it_begins(start: str) -> None:
    content = (start + "," * 300_000 + "\n1\n").encode()
    assert "columns or more, and 1,000 at most are read" in too_many_columns(content)


@pytest.mark.parametrize(
    "content",
    [
        FEW.encode(),
        FEW.encode() + b"\r" + b"," * 5_000,  # of rows their reader knows
        FEW.replace("c0", '"c,,,0"').encode(),
        b"a,b\n" + FEW.encode() + b",x",
        b"",
        b"\n\n",
        b"\xff\xfe,",
        b"a" * 200_000,  # longer than the fields of Python's reader
        b'"',
    ],
)
def test_others_are_left_to_their_reader(content: bytes) -> None:
    assert not too_many_columns(content)


def test_a_header_of_megabytes_is_looked_at_in_part() -> None:
    assert "has 1,048,577 columns or more" in too_many_columns(b"," * 5_000_000)
