import random
from pathlib import Path

import pytest

from tpudet.detection.commands.filter_dataset import main
from tpudet.detection.preparation.open_images.filter_boxes import filter_boxes
from tpudet.detection.preparation.sources.box_csv import ALL_COLUMNS
from tpudet.trainkit.errors import UserError

# IsOccluded, IsTruncated, IsGroupOf, IsDepiction, IsInside
FLAGS = [
    "0,0,0,0,0",
    "1,1,1,0,0",
    "0,0,1,1,1",
    "-1,-1,-1,-1,-1",
    "0,0,0,1,0",
    "0,0,0,-1,1",
    "0,0,,,",
]


def write_source(path: Path) -> list[str]:
    lines = [
        f"i{number},xclick,/m/{number % 3},1,0.10{number},0.5000,.25,1e0,{flags}"
        for number, flags in enumerate(FLAGS)
    ]
    path.write_text("\n".join([",".join(ALL_COLUMNS), *lines]) + "\n")
    return lines


@pytest.mark.parametrize(
    ("options", "kept", "removed"),
    [
        ({}, [0, 3, 4, 5, 6], {"IsGroupOf": 2}),
        ({"remove_depicted": True}, [0, 3, 5, 6], {"IsGroupOf": 2, "IsDepiction": 1}),
        ({"remove_inside": True}, [0, 3, 4, 6], {"IsGroupOf": 2, "IsInside": 1}),
        (
            {"remove_depicted": True, "remove_inside": True},
            [0, 3, 6],
            {"IsGroupOf": 2, "IsDepiction": 1, "IsInside": 1},
        ),
        (
            {"remove_groups": False, "remove_depicted": True, "remove_inside": True},
            [0, 1, 3, 6],
            {"IsDepiction": 2, "IsInside": 1},
        ),
        ({"remove_groups": False}, [0, 1, 2, 3, 4, 5, 6], {}),
    ],
)
def test_rows_that_go_are_counted_and_the_others_unchanged(
    tmp_path, options: dict[str, bool], kept: list[int], removed: dict[str, int]
) -> None:
    source, output = tmp_path / "in.csv", tmp_path / "out.csv"
    lines = write_source(source)
    counts = filter_boxes(str(output), str(source), **options)
    assert output.read_text().splitlines() == [",".join(ALL_COLUMNS), *(lines[k] for k in kept)]
    assert (counts.rows, counts.kept, dict(counts.removed)) == (7, len(kept), removed)
    if "IsGroupOf" in removed:
        assert counts.unknown["IsGroupOf"] == 2  # -1 and blank


def test_other_columns_in_another_order_stay(tmp_path) -> None:
    source, output = tmp_path / "in.csv", tmp_path / "out.csv"
    source.write_text("IsGroupOf,note,ImageID\n0,b  c,i1\n1,x,i2\n-1,0.50,i3\n")
    filter_boxes(str(output), str(source))
    assert output.read_text() == "IsGroupOf,note,ImageID\n0,b  c,i1\n-1,0.50,i3\n"


def test_a_large_file_against_plain_python(tmp_path) -> None:
    draw = random.Random(5)
    lines = [
        f"i{number // 7},xclick,/m/{draw.randrange(9)},1,{draw.random()},{draw.random()},0,1,"
        + ",".join(draw.choice(("0", "1", "-1")) for _ in range(5))
        for number in range(300_000)  # 20 MB, so two pieces of the reader
    ]
    source, output = tmp_path / "in.csv", tmp_path / "out.csv"
    source.write_text("\n".join([",".join(ALL_COLUMNS), *lines]) + "\n")
    counts = filter_boxes(str(output), str(source), remove_inside=True)
    expected = [line for line in lines if "1" not in line.split(",")[10::2]]
    assert output.read_text().splitlines()[1:] == expected
    assert counts.kept == len(expected) == counts.rows - sum(counts.removed.values())


def test_command_says_what_went_and_does_not_do_it_twice(tmp_path, capsys) -> None:
    source, output = tmp_path / "in.csv", tmp_path / "made/out.csv"
    write_source(source)
    assert main([str(output), str(source), "--remove_depicted"]) == 0
    told = "4 of 7 boxes kept, including 2 of unknown IsGroupOf, 3 of unknown IsDepiction; "
    assert told + "removed 2 IsGroupOf, 1 IsDepiction." in capsys.readouterr().out
    assert main([str(output), str(source), "--remove_depicted"]) == 0
    assert "up to date" in capsys.readouterr().out
    assert main([str(output), str(source), "--no-remove_groups"]) == 0  # other options: made anew
    assert len(output.read_text().splitlines()) == 8


@pytest.mark.parametrize(
    ("flags", "count"),
    [
        (["--remove_groups=True"], 5),
        (["--remove_groups=False"], 7),
        (["--remove_groups=False", "--remove_depicted=True", "--remove_inside=False"], 5),
        (["--remove_groups"], 5),
    ],
)
def test_switches_are_typed_as_for_the_predecessor(tmp_path, flags, count: int) -> None:
    source, output = tmp_path / "in.csv", tmp_path / "out.csv"
    write_source(source)
    assert main([*flags, str(output), str(source)]) == 0
    assert len(output.read_text().splitlines()) == 1 + count


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("ImageID,LabelName\na,b\n", "lacks the column IsGroupOf"),
        ("ImageID;IsGroupOf\na;0\n", "separated by ';'"),
        ("", "is empty"),
        ("ImageID,IsGroupOf\n", "has a header and no row"),
        ("ImageID,IsGroupOf\na,0\nb,2\n", "IsGroupOf of line 3 is '2'"),
        ("ImageID,IsGroupOf\na,1\nb,1\n", "none of the 2 boxes would be left"),
    ],
)
def test_bad_input_is_one_message_and_leaves_nothing(tmp_path, capsys, text, message) -> None:
    source = tmp_path / "in.csv"
    source.write_text(text)
    assert main([str(tmp_path / "out.csv"), str(source)]) == 2
    assert message in capsys.readouterr().err
    assert [entry.name for entry in tmp_path.iterdir()] == ["in.csv"]


def test_line_numbers_go_on_over_the_pieces_of_a_large_file(tmp_path) -> None:
    source = tmp_path / "in.csv"
    source.write_text("ImageID,IsGroupOf\n" + "a,0\n" * 5_000_000 + "a,7\n")  # 20 MB
    with pytest.raises(UserError, match="IsGroupOf of line 5000002 is '7'"):
        filter_boxes(str(tmp_path / "out.csv"), str(source))


def test_source_and_output_must_differ(tmp_path, capsys) -> None:
    source = tmp_path / "in.csv"
    write_source(source)
    before = source.read_bytes()
    assert main([str(source), str(source), "--overwrite"]) == 2
    assert "the same file" in capsys.readouterr().err
    assert source.read_bytes() == before
