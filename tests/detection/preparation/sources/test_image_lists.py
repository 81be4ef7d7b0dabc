"""Which files the entries of an image list name, by the rule and by looking at every pair."""

import os
import random
import time

from tpudet.detection.preparation.sources.input_files import match_image_list, stem
from tpudet.trainkit.errors import UserError


def folders(path: str) -> list[str]:
    return [part for part in path.split("/")[:-1] if part not in ("", ".")]


def fit(entry: str, file: str, home: list[str]) -> tuple[bool, ...]:
    """Rank of an entry for a file; () if it does not fit."""
    wanted, own = folders(entry), folders(file)
    count = min(len(wanted), len(own))
    if stem(entry) != stem(file) or wanted[len(wanted) - count :] != own[len(own) - count :]:
        return ()
    place = home + own
    count = min(len(wanted), len(place))
    is_there = wanted[len(wanted) - count :] == place[len(place) - count :]
    return os.path.basename(entry) == os.path.basename(file), wanted == own, is_there


def pairwise(listed: list[str], files: list[str], home: list[str]) -> list[int] | None:
    """The rule applied to every pair; None where entries are unclear."""
    chosen = []
    for entry in listed:
        fits = [fit(entry, file, home) for file in files]
        best = max(fits)
        rows = [row for row, own in enumerate(fits) if own == best and own]
        if len(rows) > 1:
            return None
        chosen.append((rows[0] if rows else -1, best))
    owners: dict[int, tuple[tuple[bool, ...], str]] = {}
    for entry, (row, best) in zip(listed, chosen, strict=True):
        owner = owners.get(row, (best, entry))
        if row >= 0 and owner[0] == best and folders(owner[1]) != folders(entry):
            return None
        owners[row] = max(owner, (best, entry), key=lambda pair: pair[0])
    return [row if row >= 0 and owners[row][0] == best else -1 for row, best in chosen]


def test_every_list_is_matched_as_by_comparing_all_pairs() -> None:
    draw = random.Random(0)

    def path(deepest: int) -> str:
        parts = draw.choices("abc", k=draw.randint(0, deepest))
        return "/".join([*parts, draw.choice("01") + draw.choice(["", ".jpg", ".png"])])

    unclear = matched = 0
    for _ in range(5000):
        files = list({path(2): None for _ in range(draw.randint(1, 5))})
        prefix = draw.choice(["", "", "./", "/", "/data/a/"])
        listed = [prefix + path(3) for _ in range(draw.randint(1, 3))]
        expected = pairwise(listed, files, ["data", "a"])
        try:
            found = match_image_list(listed, files, "/data/a")
        except UserError:
            found = None
        assert found == expected, (listed, files)
        unclear += expected is None
        matched += expected is not None and max(expected) >= 0
    assert min(unclear, matched) > 500


def test_the_time_grows_with_the_list_where_file_names_repeat_in_every_folder() -> None:
    count = 20_000  # comparing all pairs would take half an hour
    for inner in ("", "frames/"):
        files = [f"video{number:05d}/{inner}000000.jpg" for number in range(count)]
        began = time.process_time()
        assert match_image_list(files, files, "home") == list(range(count))
        full = [f"/elsewhere/{file}" for file in files]
        assert match_image_list(full, files, "home") == list(range(count))
        assert match_image_list(["gone.jpg"] * count, files, "home") == [-1] * count
        assert time.process_time() - began < 5
