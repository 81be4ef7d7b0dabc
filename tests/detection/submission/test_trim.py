"""The three trims: by score, by number, by digits."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from tpudet.detection.commands import (
    trim_sub_by_num_of_predicts,
    trim_sub_by_threshold,
    trim_sub_decimal_digits,
)
from tpudet.detection.submission import trim
from tpudet.detection.submission.fusion.printed_numbers import printed_units
from tpudet.detection.submission.open_images_csv import parse_predictions, read_submission

HEADER = "ImageId,PredictionString\n"
BOX = "0.10000 0.20000 0.30000 0.40000"
LABELS = ["/m/01", "/m/02"]


@pytest.fixture(autouse=True)
def _in_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def rows_of(path: str) -> list[tuple[str, list[str]]]:
    """Image ids and predictions as text."""
    with open(path) as file:
        rows = list(read_submission(file))
    return [
        (i, [" ".join(text.split()[k : k + 6]) for k in range(0, len(text.split()), 6)])
        for i, text in rows
    ]


def submission(*rows: str) -> str:
    """Rows such as `a 0.5 0.25`: an image id and scores."""
    lines = []
    for row in rows:
        image_id, *scores = row.split()
        lines.append(f"{image_id}," + " ".join(f"/m/01 {score} {BOX}" for score in scores))
    Path("in.csv").write_text(HEADER + "".join(line + "\n" for line in lines))
    return "in.csv"


def scores_left() -> list[str]:
    return [
        " ".join([image_id, *(p.split()[1] for p in predictions)])
        for image_id, predictions in rows_of("out.csv")
    ]


def test_trimming_by_zero_changes_no_byte(random_submission: Callable[..., str]) -> None:
    source = random_submission("in.csv", 3, labels=LABELS)
    assert trim_sub_by_threshold.main(["out.csv", source, "0"]) == 0
    assert Path("out.csv").read_bytes() == Path(source).read_bytes()


def test_by_threshold_the_score_itself_stays_and_a_first_one_when_told() -> None:
    source = submission("a 0.02999 0.03 0.030001", "b 0.01 0.02", "c", "d 0.5")
    assert trim_sub_by_threshold.main(["out.csv", source, "0.03"]) == 0
    assert scores_left() == ["a 0.03000 0.03000", "b", "c", "d 0.50000"]
    assert trim_sub_by_threshold.main(["-f", "out.csv", source, "0.03", "--keep_first"]) == 0
    assert scores_left() == ["a 0.02999 0.03000 0.03000", "b 0.01000", "c", "d 0.50000"]


@pytest.mark.parametrize("value", ["1.5", "-0.1", "nan"])
def test_a_threshold_that_no_score_can_have_is_refused(
    value: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="2"):
        trim_sub_by_threshold.main(["out.csv", submission("a 1"), value])
    assert f"`{value}` is not a number from 0 to 1" in capsys.readouterr().err


FOUR_HALVES = ("b 0.5 0.9 0.5", "a 0.5", "c", "d 0.4 0.5 1.0")
BY_NUMBER = {
    8: ["b 0.50000 0.90000 0.50000", "a 0.50000", "c", "d 0.40000 0.50000 1.00000"],
    7: ["b 0.50000 0.90000 0.50000", "a 0.50000", "c", "d 0.40000 0.50000 1.00000"],
    6: ["b 0.50000 0.90000 0.50000", "a 0.50000", "c", "d 0.50000 1.00000"],
    5: ["b 0.50000 0.90000 0.50000", "a 0.50000", "c", "d 1.00000"],
    4: ["b 0.50000 0.90000 0.50000", "a", "c", "d 1.00000"],
    3: ["b 0.50000 0.90000", "a", "c", "d 1.00000"],
    2: ["b 0.90000", "a", "c", "d 1.00000"],
    1: ["b", "a", "c", "d 1.00000"],
    0: ["b", "a", "c", "d"],
}


@pytest.mark.parametrize("number", BY_NUMBER)
def test_of_equal_scores_the_earlier_in_the_file_stay(
    number: int, capsys: pytest.CaptureFixture[str]
) -> None:
    source = submission(*FOUR_HALVES)
    assert trim_sub_by_num_of_predicts.main(["out.csv", source, str(number)]) == 0
    assert scores_left() == BY_NUMBER[number]
    assert f"{min(number, 7)} predictions of the 7 read" in capsys.readouterr().out


def test_the_first_of_each_image_stays_when_told_and_counts(
    capsys: pytest.CaptureFixture[str],
) -> None:
    source = submission(*FOUR_HALVES)
    command = ["out.csv", source, "--keep_first", "-f"]
    for number, left in {
        5: ["b 0.50000 0.90000", "a 0.50000", "c", "d 0.40000 1.00000"],
        4: ["b 0.50000", "a 0.50000", "c", "d 0.40000 1.00000"],
        3: ["b 0.50000", "a 0.50000", "c", "d 0.40000"],
    }.items():
        assert trim_sub_by_num_of_predicts.main([*command, "--max_num", str(number)]) == 0
        assert scores_left() == left
    assert trim_sub_by_num_of_predicts.main([*command, "2"]) == 2
    assert "a prediction of each of 3 images: more than 2" in capsys.readouterr().err


def test_the_number_is_an_argument_or_a_flag(capsys: pytest.CaptureFixture[str]) -> None:
    source = submission(*FOUR_HALVES)
    assert trim_sub_by_num_of_predicts.main(["out.csv", source]) == 0
    assert "no more than 150000000 predictions: all are kept" in capsys.readouterr().out
    both = ["-f", "out.csv", source, "3", "--max_num"]
    assert trim_sub_by_num_of_predicts.main([*both, "3"]) == 0
    assert scores_left() == BY_NUMBER[3]
    assert trim_sub_by_num_of_predicts.main([*both, "4"]) == 2
    assert "N is 3 and --max_num 4; give one of them" in capsys.readouterr().err
    with pytest.raises(SystemExit, match="2"):
        trim_sub_by_num_of_predicts.main(["-f", "out.csv", source, "--max_num", "-1"])


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize("score_steps", [100_000, 7])
def test_by_number_exactly_the_best_stay(
    score_steps: int, random_submission: Callable[..., str]
) -> None:
    """Against sorting everything: with 7 scores nearly all are ties."""
    source = random_submission("in.csv", 5, labels=LABELS, images=200, score_steps=score_steps)
    flat = [
        (-float(prediction.split()[1]), row, place)
        for row, (_, predictions) in enumerate(rows_of(source))
        for place, prediction in enumerate(predictions)
    ]
    for number in (1, 500, len(flat) - 1):
        command = ["-f", "out.csv", source, str(number), "--threads", "2"]
        assert trim_sub_by_num_of_predicts.main(command) == 0
        best = sorted((row, place) for _, row, place in sorted(flat)[:number])
        rows = rows_of(source)
        expected: list[tuple[str, list[str]]] = [(image_id, []) for image_id, _ in rows]
        for row, place in best:
            expected[row][1].append(rows[row][1][place])
        assert rows_of("out.csv") == expected


@pytest.mark.usefixtures("small_blocks")
def test_memory_of_the_cut_does_not_grow_with_the_predictions() -> None:
    """Nine times 7,680 more in as many images, each a block: 550 KB were their scores alone."""
    import tracemalloc

    from tpudet.detection.submission.files import open_submission

    def peak(num_of_image: int) -> int:
        scores = np.random.default_rng(6).random((128, num_of_image))
        rows = [" ".join(f"{score:.5f}" for score in row) for row in scores]
        source = submission(*(f"i{number} {row}" for number, row in enumerate(rows)))
        with open_submission(source) as opened:
            tracemalloc.start()
            assert trim.find_cut(opened, 10, keep_first=False, threads=1) is not None
            _, most = tracemalloc.get_traced_memory()
            tracemalloc.stop()
        return most

    few = peak(60)
    assert few < 2 * 64 * 100_002 * 8  # a histogram of 64 stretches and 100,002 ranks, int64
    assert peak(600) - few < 200_000


def test_coordinates_are_rounded_not_cut_off() -> None:
    Path("in.csv").write_text(f"{HEADER}a,/m/01 0.98765 0.12345 0.99999 .2 1\n")
    for arguments, left in {
        "": "/m/01 0.98765 0.1235 1.0000 0.2000 1.0000",  # 0.12345 in binary is a little more
        "--digits 2": "/m/01 0.98765 0.12 1.00 0.20 1.00",
        "--digits 0 --score_digits 1": "/m/01 1.0 0 1 0 1",
        "--digits 7": "/m/01 0.98765 0.1234500 0.9999900 0.2000000 1.0000000",
    }.items():
        command = ["-f", "out.csv", "in.csv", *arguments.split()]
        assert trim_sub_decimal_digits.main(command) == 0
        assert Path("out.csv").read_text() == f"{HEADER}a,{left}\n"


def test_five_digits_change_no_byte_and_fewer_move_nothing_by_more_than_half_a_step(
    random_submission: Callable[..., str],
) -> None:
    source = random_submission("in.csv", 7, labels=LABELS)
    assert trim_sub_decimal_digits.main(["out.csv", source, "--digits", "5"]) == 0
    assert Path("out.csv").read_bytes() == Path(source).read_bytes()
    assert trim_sub_decimal_digits.main(["-f", "out.csv", source, "--digits", "3"]) == 0
    for (_, before), (_, after) in zip(rows_of(source), rows_of("out.csv"), strict=True):
        old, new = parse_predictions(" ".join(before)), parse_predictions(" ".join(after))
        assert old.identifiers == new.identifiers
        assert np.abs(old.boxes_normalized - new.boxes_normalized).max(initial=0) <= 0.0005 + 1e-12


@pytest.mark.parametrize("value", ["-1", "10"])
def test_digits_beyond_what_can_be_printed_are_refused(
    value: str, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["out.csv", submission("a 1"), f"--digits={value}", f"--score_digits={value}"]
    assert trim_sub_decimal_digits.main(command) == 2
    assert capsys.readouterr().err.count(f"digits {value} must be in 0..9") == 2


def test_units_are_those_of_the_printed_text() -> None:
    random = np.random.default_rng(8)
    halves = (2 * random.integers(0, 100_000, 20_000) + 1) / 200_000  # 0.000005, 0.000015, ..
    exact = random.integers(0, 2**10, 1_000) / 2**10
    values = np.concatenate([random.random(20_000), halves, exact, -halves[:500]])
    for decimals in (5, 3, 0):
        printed = [round(float(f"{value:.{decimals}f}") * 10**decimals) for value in values]
        assert printed_units(values, decimals).tolist() == printed
