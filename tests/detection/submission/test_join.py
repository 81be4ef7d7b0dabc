"""join_subs.py: parts of the classes become one, by image id."""

from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from tpudet.detection.commands.join_subs import main
from tpudet.detection.submission.open_images_csv import read_submission

HEADER = "ImageId,PredictionString\n"
BOX = "0.10000 0.20000 0.30000 0.40000"


@pytest.fixture(autouse=True)
def _in_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_joined_by_id_and_sorted_by_score_equal_ones_as_the_files_go(
    capsys: pytest.CaptureFixture[str],
) -> None:
    Path("one.csv").write_text(
        f"{HEADER}c,/m/1 0.50000 {BOX}\na,/m/1 0.30000 {BOX} /m/2 0.50000 {BOX}\nb,\n"
    )
    Path("two.csv").write_text(
        f"ImageID,PredictionString\r\na,/m/3 0.50000 {BOX} /m/4 0.02000 {BOX} /m/5 0.9 {BOX}\r\n"
        "d,\r\nb,\r\n"
    )
    assert main(["out.csv", "one.csv", "two.csv"]) == 0
    assert Path("out.csv").read_text() == (
        f"{HEADER}a,/m/5 0.90000 {BOX} /m/2 0.50000 {BOX} /m/3 0.50000 {BOX} /m/1 0.30000 {BOX}\n"
        f"b,\nc,/m/1 0.50000 {BOX}\nd,\n"
    )
    assert capsys.readouterr().out.splitlines() == [
        "out.csv: 4 images, 5 predictions of the 6 read",  # 0.02 is not above 0.02
        "  one.csv has no usable row for 1 of the images",
        "  two.csv has no usable row for 1 of the images",
    ]
    assert main(["-f", "--min_conf", "0.3", "out.csv", "two.csv", "one.csv"]) == 0
    assert Path("out.csv").read_text() == (
        f"{HEADER}a,/m/5 0.90000 {BOX} /m/3 0.50000 {BOX} /m/2 0.50000 {BOX}\n"
        f"b,\nc,/m/1 0.50000 {BOX}\nd,\n"
    )


def test_the_join_of_parts_is_their_union(random_submission: Callable[..., str]) -> None:
    parts = [
        random_submission(f"{k}.csv", k, labels=[f"/m/{k}", f"/m/{k}x"], images=40 + k)
        for k in range(3)
    ]
    assert main(["out.csv", *parts, "--min_conf", "0"]) == 0
    union: Counter[tuple] = Counter()
    for path in (*parts, "out.csv"):
        with open(path) as file:
            for image_id, text in read_submission(file):
                tokens = text.split()
                for k in range(0, len(tokens), 6):
                    union[image_id, *tokens[k : k + 6]] += -1 if path == "out.csv" else 1
    assert sum(map(abs, union.values())) == 0
    assert len(union) > 1_000
    with open("out.csv") as file:
        assert [image_id for image_id, _ in read_submission(file)] == [
            f"i{k:03d}" for k in range(42)
        ]


def test_one_bad_row_leaves_what_the_other_file_says_of_the_image() -> None:
    Path("one.csv").write_text(f"{HEADER}a,/m/1 0.5 0 0 1\nb,/m/1 2 0 0 1 1\n")
    Path("two.csv").write_text(f"{HEADER}a,/m/2 0.50000 {BOX}\n")
    assert main(["out.csv", "one.csv", "two.csv"]) == 2
    assert main(["out.csv", "one.csv", "two.csv", "--skip_bad"]) == 0
    assert Path("out.csv").read_text() == f"{HEADER}a,/m/2 0.50000 {BOX}\n"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["one.csv", "one.csv"], "named twice: one.csv"),
        (["one.csv", "none.csv"], "no file none.csv"),
        (["one.csv", "--min_conf", "1"], "--min_conf 1.0 must be in 0..1"),
        (["one.csv", "--min_conf", "nan"], "--min_conf nan must be in 0..1"),
    ],
)
def test_wrong_arguments_are_explained(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("one.csv").write_text(f"{HEADER}a,/m/1 0.5 {BOX}\n")
    assert main(["out.csv", *arguments]) == 2
    assert message in capsys.readouterr().err
    assert not Path("out.csv").exists()
