"""add_parents.py, drop_parents.py and the rule of both."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest

from tpudet.detection.commands import add_parents, drop_parents
from tpudet.detection.submission import ancestors
from tpudet.detection.submission.ancestors import AncestorTable, ancestor_table, with_ancestors
from tpudet.detection.submission.hierarchy import Hierarchy, read_hierarchy
from tpudet.detection.submission.open_images_csv import read_submission

HEADER = "ImageId,PredictionString\n"
# A poodle is a dog and a pet, both of which are animals; a wheel hangs on nothing.
TREE = {
    "root": ["animal", "wheel"],
    "animal": ["dog", "pet", "cow"],
    "dog": ["poodle"],
    "pet": ["poodle"],
}


def tree_text(tree: dict[str, list[str]] = TREE, root: str = "root") -> str:
    def node(label: str) -> dict:
        children = [node(child) for child in tree.get(label, [])]
        return {"LabelName": label, **({"Subcategory": children} if children else {})}

    return json.dumps(node(root))


@pytest.fixture(autouse=True)
def _in_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("tree.json").write_text(tree_text())


def boxed(*predictions: str) -> str:
    """`poodle 0.9 A` and the like, as a prediction string."""
    boxes = {"A": "0.10000 0.10000 0.50000 0.50000", "B": "0.20000 0.20000 0.60000 0.60000"}
    parts = []
    for prediction in predictions:
        label, score, box = prediction.split()
        parts.append(f"{label} {float(score):.5f} {boxes[box]}")
    return " ".join(parts)


def add(text: str) -> str:
    Path("in.csv").write_text(f"{HEADER}a,{text}\n")
    assert add_parents.main(["-f", "out.csv", "in.csv", "--hierarchy", "tree.json"]) == 0
    (line,) = Path("out.csv").read_text().removeprefix(HEADER + "a,").splitlines()
    return line


ADDED = [  # predictions of an image, and what becomes of them
    (["poodle 0.9 A"], ["poodle 0.9 A", "pet 0.9 A", "dog 0.9 A", "animal 0.9 A"]),
    (["wheel 0.9 A", "ant 0.1 A"], ["wheel 0.9 A", "ant 0.1 A"]),
    # The animal of the cow is better than that of the pet, and stands where the cow's does.
    (["pet 0.3 A", "cow 0.4 A"], ["pet 0.3 A", "cow 0.4 A", "animal 0.4 A"]),
    (["cow 0.4 A", "pet 0.3 A"], ["cow 0.4 A", "animal 0.4 A", "pet 0.3 A"]),
    # Another box is another prediction.
    (["cow 0.4 A", "cow 0.3 B"], ["cow 0.4 A", "animal 0.4 A", "cow 0.3 B", "animal 0.3 B"]),
    # One that was predicted itself: the better of the two scores, each once.
    (["animal 0.2 A", "cow 0.4 A"], ["cow 0.4 A", "animal 0.4 A"]),
    (["animal 0.6 A", "cow 0.4 A"], ["animal 0.6 A", "cow 0.4 A"]),
    (["animal 0.4 A", "cow 0.4 A"], ["animal 0.4 A", "cow 0.4 A"]),
    # Leaves stay as they are, even twice.
    (["cow 0.4 A", "cow 0.5 A"], ["cow 0.4 A", "cow 0.5 A", "animal 0.5 A"]),
    ([], []),
]


@pytest.mark.parametrize(("given", "expected"), ADDED)
def test_ancestors_come_once_at_the_best_score(given: list[str], expected: list[str]) -> None:
    assert add(boxed(*given)) == boxed(*expected)


def test_boxes_that_print_alike_are_one_and_images_do_not_mix() -> None:
    box = "0.1 0.1 0.500001 0.500004"
    text = boxed("cow 0.4 A", "pet 0.3 A")
    assert add(f"cow 0.4 {box} " + boxed("pet 0.3 A")) == boxed(
        "cow 0.4 A", "animal 0.4 A", "pet 0.3 A"
    )
    Path("in.csv").write_text(f"{HEADER}a,{boxed('cow 0.4 A')}\nb,{boxed('cow 0.3 A')}\nc,{text}\n")
    assert add_parents.main(["-f", "out.csv", "in.csv", "--hierarchy", "tree.json"]) == 0
    assert Path("out.csv").read_text().count("animal") == 3


def test_labels_that_no_submission_can_hold_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    Path("tree.json").write_text(tree_text({"root": ["Human being"], "Human being": ["Man"]}))
    Path("in.csv").write_text(f"{HEADER}a,{boxed('Man 0.9 A')}\n")
    assert add_parents.main(["out.csv", "in.csv", "--hierarchy", "tree.json"]) == 2
    error = capsys.readouterr().err
    assert "1 labels of tree.json are empty, too long, or have blanks" in error
    assert "'Human being'" in error
    assert not Path("out.csv").exists()


def test_labels_that_the_hierarchy_lacks_are_counted(capsys: pytest.CaptureFixture[str]) -> None:
    add(boxed("ant 0.1 A", "cow 0.2 A", "bee 0.3 A", "ant 0.4 B"))
    out = capsys.readouterr().out
    assert "1 images, 5 predictions of the 4 read" in out
    assert "3 have labels that tree.json lacks and are unchanged: ant, bee …" in out


def test_adding_and_dropping_is_dropping_and_adding_twice_is_adding_once(
    random_submission: Callable[..., str],
) -> None:
    labels = ["animal", "dog", "pet", "poodle", "cow", "wheel", "ant"]
    source = random_submission("in.csv", 4, labels=labels, score_steps=9, box_steps=2)
    tree = ["--hierarchy", "tree.json"]
    assert add_parents.main(["added.csv", source, *tree]) == 0
    assert add_parents.main(["twice.csv", "added.csv", *tree]) == 0
    assert drop_parents.main(["dropped.csv", source, *tree]) == 0
    assert drop_parents.main(["both.csv", "added.csv", *tree]) == 0
    assert Path("added.csv").stat().st_size > 1.3 * Path(source).stat().st_size
    assert Path("twice.csv").read_bytes() == Path("added.csv").read_bytes()
    assert Path("both.csv").read_bytes() == Path("dropped.csv").read_bytes()
    assert Path("dropped.csv").stat().st_size < Path(source).stat().st_size


def test_dropping_by_a_class_list_keeps_exactly_its_labels(
    capsys: pytest.CaptureFixture[str],
) -> None:
    Path("leaves.csv").write_text("poodle,Poodle\ncow,Cow\n")
    text = boxed("animal 0.9 A", "cow 0.8 A", "ant 0.7 A")
    Path("in.csv").write_text(f"{HEADER}a,{text}\nb,{boxed('dog 0.1 B')}\n")
    assert drop_parents.main(["out.csv", "in.csv", "--classes", "leaves.csv"]) == 0
    assert Path("out.csv").read_text() == f"{HEADER}a,{boxed('cow 0.8 A')}\nb,\n"
    assert "3 have labels that leaves.csv lacks and are left out: animal, ant, dog …" in (
        capsys.readouterr().out
    )
    assert drop_parents.main(["-f", "out.csv", "in.csv", "--hierarchy", "tree.json"]) == 0
    assert Path("out.csv").read_text() == f"{HEADER}a,{boxed('cow 0.8 A', 'ant 0.7 A')}\nb,\n"


@pytest.mark.parametrize("command", [add_parents, drop_parents])
def test_without_a_flag_the_hierarchy_is_that_in_data(
    command, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("in.csv").write_text(f"{HEADER}a,{boxed('animal 0.9 A')}\n")
    assert command.main(["out.csv", "in.csv"]) == 2
    assert "no file data/challenge-2019-label500-hierarchy.json" in capsys.readouterr().err
    Path("folder").mkdir()
    Path("folder/challenge-2019-label500-hierarchy.json").write_text(tree_text())
    monkeypatch.setenv("DATA", "folder")
    assert command.main(["out.csv", "in.csv"]) == 0
    Path("tree.json").write_text("{}")
    assert command.main(["-f", "out.csv", "in.csv", "--hierarchy", "tree.json"]) == 2
    assert "tree.json: The entry outermost has no LabelName" in capsys.readouterr().err


def expand_plainly(
    hierarchy: Hierarchy, predictions: Sequence[tuple[int, str, float, tuple]]
) -> list[tuple[int, str, float, tuple]]:
    """The rule, one prediction after another."""
    expanded = []
    for image, label, score, box in predictions:
        above = hierarchy.ancestors(label) if label in hierarchy.parents else ()
        expanded += [(image, name, score, box) for name in (label, *above)]
    best: dict[tuple, int] = {}
    for place, (image, label, score, box) in enumerate(expanded):
        if hierarchy.children.get(label):
            first = best.setdefault((image, label, box), place)
            if score > expanded[first][2]:
                best[image, label, box] = place
    return [
        row
        for place, row in enumerate(expanded)
        if not hierarchy.children.get(row[1]) or best[row[0], row[1], row[3]] == place
    ]


def expand(table: AncestorTable, predictions: Sequence[tuple[int, str, float, tuple]]) -> list:
    numbers = [table.labels.index(p[1]) if p[1] in table.labels else -1 for p in predictions]
    rows, labels = with_ancestors(
        table,
        np.array([p[0] for p in predictions], np.int64),
        np.array(numbers, np.int32),
        np.array([p[2] for p in predictions], np.float64),
        np.array([p[3] for p in predictions], np.float64).reshape(-1, 4),
    )
    found = [table.labels[k] if k >= 0 else "unknown" for k in labels]
    return [
        (predictions[row][0], label, *predictions[row][2:])
        for row, label in zip(rows, found, strict=True)
    ]


@pytest.mark.parametrize("equal_hashes", [False, True])
def test_agrees_with_the_rule_stated_plainly(
    equal_hashes: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where hashes of different boxes are equal."""
    if equal_hashes:
        monkeypatch.setattr(
            ancestors, "_hashes", lambda columns: (columns[-1] % 2).astype(np.uint64)
        )
    random = np.random.default_rng(9)
    hierarchy = read_hierarchy(tree_text())
    names = [*hierarchy.labels, "unknown"]
    for first_labels in ((), ("poodle", "cow")):
        table = ancestor_table(hierarchy, first_labels)
        for count in (0, 1, 5, 200):
            predictions = [
                (
                    int(image),
                    names[random.integers(len(names))],
                    float(random.integers(5)) / 4,
                    tuple(float(side) for side in np.sort(random.integers(3, size=4)) / 2),
                )
                for image in np.sort(random.integers(4, size=count))
            ]
            assert expand(table, predictions) == expand_plainly(hierarchy, predictions)


def test_the_real_hierarchy_at_full_depth(data_dir: Path) -> None:
    """One box a label, each in an image of its own: the label and its ancestors, nothing else."""
    path = data_dir / "openimages/bbox_labels_600_hierarchy.json"
    hierarchy = read_hierarchy(path.read_text())
    rows = [
        f"i{number:03d},{boxed(f'{label} 0.5 A')}" for number, label in enumerate(hierarchy.labels)
    ]
    Path("in.csv").write_text(HEADER + "\n".join(rows) + "\n")
    assert add_parents.main(["out.csv", "in.csv", "--hierarchy", str(path)]) == 0
    with open("out.csv") as file:
        found = [tuple(text.split()[::6]) for _, text in read_submission(file)]
    assert found == [(label, *hierarchy.ancestors(label)) for label in hierarchy.labels]
    assert (len(found), sum(map(len, found))) == (601, 601 + 920)
