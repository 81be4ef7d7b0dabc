"""The columns of a CSV file of any origin, counted before all of them are read into memory."""

import csv
import io

# Each that is read costs kilobytes, even if it is empty, and to pandas 0.2 ms and more; tables that
# the toolkit knows have 20 at most.
MAX_COLUMNS = 1000
_MAX_LETTERS = 1 << 20  # of a header that are looked at


def too_many_columns(content: bytes) -> str:
    """Says how many columns a CSV has, separated by commas; empty for 1,000 or fewer.

    What is not a CSV has no columns here, for its reader knows better what is wrong.
    """
    lines = io.TextIOWrapper(io.BytesIO(content), "utf-8-sig", errors="replace", newline="")
    try:
        for row in csv.reader(iter(lambda: lines.readline(_MAX_LETTERS), "")):
            if len(row) > MAX_COLUMNS:
                return (
                    f"has {len(row):,} columns or more, and {MAX_COLUMNS:,} at most are read: "
                    "write it with those that are needed"
                )
            if "".join(row).strip() or len(row) > 1:  # readers skip blank lines
                break
    except csv.Error:
        pass
    return ""
