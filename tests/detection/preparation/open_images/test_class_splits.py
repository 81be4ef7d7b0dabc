import csv
import random
import re
from collections import defaultdict
from pathlib import Path

import numpy as np
import pytest

from tpudet.detection.commands.split_classes import main
from tpudet.detection.preparation.open_images.class_splits import count_images, split_classes
from tpudet.detection.preparation.sources.annotations import distinct_pairs
from tpudet.detection.preparation.sources.box_csv import read_boxes
from tpudet.trainkit.class_list import ClassEntry, read_class_list
from tpudet.trainkit.errors import UserError

CLASSES = tuple(ClassEntry(f"/m/{letter}", letter.upper()) for letter in "edcba")


def labels_of(groups: dict[str, tuple[ClassEntry, ...]]) -> dict[str, str]:
    return {part: "".join(entry.name for entry in group) for part, group in groups.items()}


def test_images_are_counted_once_a_class_by_identifier_or_name(tmp_path) -> None:
    path = tmp_path / "boxes.csv"
    rows = ["1,/m/a", "1,/m/a", "1,A", "2,A", "2,/m/b", "3,animal", "4,", "2,/m/b", "3,/m/b"]
    path.write_text("\n".join(["ImageID,LabelName", *rows]) + "\n")
    boxes = read_boxes(str(path), columns=("ImageID", "LabelName"))
    assert count_images(boxes, CLASSES).tolist() == [0, 0, 0, 2, 2]  # e d c b a


def test_groups_are_cut_by_ascending_count_with_ties_by_identifier() -> None:
    counts = np.array([5, 5, 0, 5, 2])  # e d c b a
    groups = split_classes(counts, CLASSES, boundaries=(0, 2, 4, 9))
    assert labels_of(groups) == {"part_0": "CA", "part_1": "BD", "part_2": "E"}
    groups = split_classes(counts, CLASSES, boundaries=(0, 2, 9), human_parts=["/m/e", "A"])
    assert labels_of(groups) == {"part_0": "CB", "part_1": "D", "human_parts": "AE"}


@pytest.mark.parametrize(
    ("boundaries", "human", "message"),
    [
        ((0, 2, 4), (), r"suit 3 to 4 classes, but there are 5 .* pass --boundaries 0,2,4,5\."),
        ((0, 2, 4, 8, 9), (), r"pass --boundaries 0,2,4,5\."),
        ((0, 100, 200), (), r"pass --boundaries 0,5\."),
        ((0, 5, 9), (), r"suit 6 to 9 classes.* pass --boundaries 0,5\."),
        ((1, 5), (), "increase from 0, such as 0,100,200,300,400,450"),
        ((0, 3, 3), (), "increase from 0"),
        ((0,), (), "two or more numbers"),
        ((0, 5), ("/m/z", "B", "/m/y"), "not classes: /m/y, /m/z"),
        ((0, 5), ("A", "B", "C", "D", "E"), r"but there are 0 to split\."),
    ],
)
def test_what_cannot_be_split(boundaries: tuple, human: tuple, message: str) -> None:
    with pytest.raises(UserError, match=message):
        split_classes(np.arange(5), CLASSES, boundaries=boundaries, human_parts=human)


def split_real(data_dir: Path, boxes: Path, output: Path, leaves: Path) -> dict[str, str]:
    from tpudet.detection.commands.build_leaf_classes_list import main as build_leaf_classes_list

    real = data_dir / "openimages"
    hierarchy = str(real / "derived/label500-hierarchy.json")
    classes = str(real / "derived/challenge-2019-classes-description-500.csv")
    assert build_leaf_classes_list([classes, hierarchy, str(leaves)]) == 0
    arguments = [str(boxes), str(leaves), "--output_dir", str(output), "--hierarchy", hierarchy]
    human = real / "class-ids-human-body-parts-and-mammal.txt"
    assert main([*arguments, "--human_parts", str(human), "--human_images", ""]) == 0
    return {path.name: path.read_text() for path in output.glob("*.csv")}


def test_real_boxes_split_the_leaves(data_dir, tmp_path, capsys) -> None:
    """The boxes carry names, the human list MIDs, and both parents in it are no leaves."""
    boxes = data_dir / "openimages/val_annotations_names.csv"
    leaves = tmp_path / "leaves.csv"
    texts = split_real(data_dir, boxes, tmp_path / "a", leaves)
    told = capsys.readouterr().out
    assert "part_0 100, part_1 100, part_2 100, part_3 100, part_4 32, human_parts 11." in told
    assert "Human parts that are not classes: /m/02p0tk3, /m/04rky." in told
    groups = [read_class_list(texts[f"classes_part_{k}.csv"]) for k in range(5)]
    human = read_class_list(texts["classes_human_parts.csv"])
    everything = [entry for group in (*groups, human) for entry in group]
    assert len(set(everything)) == len(everything) == 443
    assert set(everything) == set(read_class_list(leaves.read_text()))

    # Plain Python, from the rows of the file.
    images = defaultdict(set)
    rows = list(csv.DictReader(boxes.read_text().splitlines()))
    for line in rows:
        images[line["LabelName"]].add(line["ImageID"])
    keys = [[(len(images[e.name]), e.identifier) for e in group] for group in groups]
    assert sum(keys, []) == sorted(sum(keys, []))
    statistics = list(csv.DictReader(texts["classes_stats.csv"].splitlines()))
    assert {r["names"]: int(r["count"]) for r in statistics} == {
        e.name: len(images[e.name]) for e in everything
    }
    assert [r["count"] for r in statistics[:4]] == ["0", "0", "0", "1"]  # in the first group
    assert [e.identifier for e in groups[0][:4]] == [r["classes"] for r in statistics[:4]]
    names = {entry.name for entry in human}
    expected = [",".join(line.values()) for line in rows if line["LabelName"] in names]
    assert texts["train_human_parts.csv"].splitlines()[1:] == expected
    others = sum(bool(line["LabelName"]) for line in rows) - sum(
        line["LabelName"] in {e.name for e in everything} for line in rows
    )
    assert f"{others} of 36192 rows have other labels. 1 rows have no label." in told


def test_killed_anywhere_no_class_is_in_two_groups(tmp_path, killed_at_each_change) -> None:
    """Cut at 1 and at 2, the groups differ; no kill leaves the first of one beside the second."""
    boxes, classes = tmp_path / "boxes.csv", tmp_path / "classes.csv"
    boxes.write_text("ImageID,LabelName\n1,/m/a\n2,/m/a\n3,/m/a\n1,/m/b\n2,/m/b\n1,/m/c\n")
    classes.write_text("/m/a,A\n/m/b,B\n/m/c,C\n")

    def split(cut: int) -> int:
        arguments = [str(boxes), str(classes), "--output_dir", str(tmp_path / "out")]
        return main([*arguments, "--boundaries", f"0,{cut},3", "--human_parts", ""])

    assert split(1) == 0
    stops = 0
    for _ in killed_at_each_change(lambda: split(2)):
        stops += 1
        paths = list((tmp_path / "out").glob("classes_part_*.csv"))
        found = [line for path in paths for line in path.read_text().splitlines()]
        assert len(found) == len(set(found))
        assert len(found) == 3 or len(paths) < 2
        assert split(2) == split(1) == 0
    assert stops > 6  # three files are removed, and three renamed


def test_shuffled_rows_give_the_same_groups(data_dir, tmp_path) -> None:
    boxes = data_dir / "openimages/val_annotations_names.csv"
    texts = split_real(data_dir, boxes, tmp_path / "a", tmp_path / "leaves.csv")
    header, *lines = boxes.read_text().splitlines()
    random.Random(1).shuffle(lines)
    shuffled = tmp_path / "shuffled.csv"
    shuffled.write_text("\n".join([header, *lines]) + "\n")
    again = split_real(data_dir, shuffled, tmp_path / "b", tmp_path / "leaves.csv")
    own = texts.pop("train_human_parts.csv"), again.pop("train_human_parts.csv")
    assert again == texts
    assert own[0] != own[1]  # in the order of the rows
    assert sorted(own[0].splitlines()) == sorted(own[1].splitlines())


@pytest.fixture
def small(tmp_path) -> list[str]:
    rows = ["1,/m/a,.10", "1,/m/b,0.2", "2.jpg,A,0.30", "3,/m/a,1", "3,/m/parent,1", "4,/m/c,0"]
    (tmp_path / "boxes.csv").write_text("\n".join(["ImageID,LabelName,XMin", *rows]) + "\n")
    (tmp_path / "classes.csv").write_text("/m/a,A\n/m/b,B\n/m/c,C\n")
    (tmp_path / "human.txt").write_text("/m/a\r\n\r\n/m/parent\r\nB\r\n")
    names = ("boxes.csv", "classes.csv", "human.txt")
    boxes, classes, human = (str(tmp_path / name) for name in names)
    return [boxes, classes, "--output_dir", str(tmp_path / "out"), "--human_parts", human]


def test_human_boxes_are_of_their_classes_and_of_listed_images(tmp_path, small, capsys) -> None:
    listed = tmp_path / "images.txt"
    listed.write_text("2\n1\n4\n9\n")
    gen = ["--gen_classes_stats", "--gen_human_parts", "--gen_six_levels"]  # as the predecessor's
    assert main([*small, *gen, "--boundaries", "0,1", "--human_images", str(listed)]) == 0
    assert (tmp_path / "out/train_human_parts.csv").read_text() == (
        "ImageID,LabelName,XMin\n1,/m/a,.10\n1,/m/b,0.2\n2.jpg,A,0.30\n"
    )
    assert (tmp_path / "out/classes_human_parts.csv").read_text() == "/m/b,B\n/m/a,A\n"
    told = capsys.readouterr().out
    assert "3 boxes of human parts in 2 images. 2 of 4 images of" in told
    assert "not classes: /m/parent." in told


def test_without_human_parts(tmp_path, small) -> None:
    assert main([*small[:-1], "", "--boundaries", "0,1,3"]) == 0
    names = sorted(path.name for path in (tmp_path / "out").glob("*.csv"))
    assert names == ["classes_part_0.csv", "classes_part_1.csv", "classes_stats.csv"]
    assert (tmp_path / "out/classes_stats.csv").read_text() == (
        "classes,names,count\n/m/b,B,1\n/m/c,C,1\n/m/a,A,3\n"
    )


def test_fewer_parts_leave_no_lists_of_the_others(tmp_path, small) -> None:
    out = tmp_path / "out"
    assert main([*small, "--boundaries", "0,1"]) == 0
    assert (out / "train_human_parts.csv").exists()
    without = [*small[:-1], "", "--boundaries"]
    assert main([*without, "0,1,2,3"]) == 0
    assert not list(out.glob("*human_parts.csv"))
    assert main([*without, "0,3"]) == 0
    names = sorted(path.name for path in out.glob("*.csv"))
    assert names == ["classes_part_0.csv", "classes_stats.csv"]


@pytest.mark.parametrize(
    ("file", "text", "message"),
    [
        ("boxes.csv", "ImageID,XMin\na,0\n", "BBOXES .* lacks the column LabelName"),
        ("boxes.csv", "ImageID;LabelName\na;b\n", "separated by ';'"),
        ("boxes.csv", "", "boxes.csv is empty"),
        ("boxes.csv", "ImageID,LabelName\n", "has a header and no row"),
        ("boxes.csv", "ImageID,LabelName\n1,/m/x\n", "No class of CLASSES .* occurs in BBOXES"),
        ("boxes.csv", "ImageID,LabelName\n1,/m/c\n1,/m/parent\n", "no box of a human part"),
        ("classes.csv", "/m/a,A,1\n", "CLASSES .*row 1"),
        ("classes.csv", "", "CLASSES .*it is empty"),
        ("human.txt", "/m/a\n/m/zz\n/m/yy\n", "--human_parts .*: /m/zz, /m/yy"),
        ("human.txt", "/m/parent\n", "names none of the 3 CLASSES"),
        ("human.txt", "/m/a\n/m/b\n/m/c\n", "but there are 0 to split"),
    ],
)
def test_bad_input_is_one_message_and_leaves_nothing(
    tmp_path, small, capsys, file: str, text: str, message: str
) -> None:
    (tmp_path / file).write_text(text)
    assert main([*small, "--boundaries", "0,1"]) == 2
    error = capsys.readouterr().err
    assert re.search(f"(?s){message}", error), error
    assert not list((tmp_path / "out").iterdir())


def test_distinct_pairs_agree_with_a_set() -> None:
    rng = np.random.default_rng(2)
    images, classes = rng.integers(0, 50, 2000).astype(np.int32), rng.integers(0, 7, 2000)
    pairs = sorted(set(zip(images.tolist(), classes.tolist(), strict=True)))
    found = distinct_pairs(images, classes)
    assert list(zip(*(column.tolist() for column in found), strict=True)) == pairs
    none = np.zeros(0, np.int64)
    assert [len(column) for column in distinct_pairs(none, none)] == [0, 0]
    large = distinct_pairs(np.array([2_000_000_000, 3], np.int32), np.array([499, 0], np.int16))
    assert [column.tolist() for column in large] == [[3, 2_000_000_000], [0, 499]]
