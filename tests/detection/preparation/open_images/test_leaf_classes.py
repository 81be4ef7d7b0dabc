import json

import pytest

from tpudet.detection.commands.build_leaf_classes_list import main
from tpudet.detection.preparation.open_images.leaf_classes import leaf_classes
from tpudet.detection.submission.hierarchy import read_hierarchy
from tpudet.trainkit.class_list import ClassEntry, read_class_list

TREE = {
    "LabelName": "root",
    "Subcategory": [
        {"LabelName": "animal", "Subcategory": [{"LabelName": "dog"}, {"LabelName": "cat"}]},
        {"LabelName": "car"},
    ],
}


def test_the_500_classes_have_443_leaves(data_dir, tmp_path, capsys) -> None:
    derived = data_dir / "openimages/derived"
    classes = derived / "challenge-2019-classes-description-500.csv"
    hierarchy = derived / "label500-hierarchy.json"
    output = tmp_path / "prepared/leaves.csv"
    assert main([str(classes), str(hierarchy), str(output)]) == 0
    assert "443 of 500 classes are leaves" in capsys.readouterr().out
    leaves = read_class_list(output.read_text())
    assert len(leaves) == 443
    # By the text of the file alone: what has a Subcategory anywhere is no leaf.
    open_nodes, parents = [json.loads(hierarchy.read_text())], set()
    while open_nodes:
        node = open_nodes.pop()
        open_nodes += node.get("Subcategory", [])
        if node.get("Subcategory"):
            parents.add(node["LabelName"])
    entries = read_class_list(classes.read_text())
    assert leaves == tuple(entry for entry in entries if entry.identifier not in parents)
    # The hierarchy of all 601 labels says the same of these 500.
    whole = read_hierarchy((data_dir / "openimages/bbox_labels_600_hierarchy.json").read_text())
    assert leaf_classes(entries, whole) == leaves


def test_a_parent_without_a_class_below_is_a_leaf() -> None:
    entries = [ClassEntry("animal", "Animal"), ClassEntry("car", "Car")]
    hierarchy = read_hierarchy(json.dumps(TREE))
    assert leaf_classes(entries, hierarchy) == tuple(entries)
    entries.append(ClassEntry("cat", "Cat"))
    assert leaf_classes(entries, hierarchy) == tuple(entries[1:])


@pytest.mark.parametrize(
    ("classes", "hierarchy", "message"),
    [
        ("dog,Dog\nowl,Owl\n", json.dumps(TREE), "lacks 1 of 2 classes: owl (Owl)"),
        ("dog,Dog\n", "{", "hierarchy.json: It is not JSON"),
        ("dog\n", json.dumps(TREE), "CLASSES"),
        (None, json.dumps(TREE), "classes.csv does not exist"),
    ],
)
def test_bad_input_is_one_message_and_leaves_nothing(
    tmp_path, capsys, classes: str | None, hierarchy: str, message: str
) -> None:
    if classes is not None:
        (tmp_path / "classes.csv").write_text(classes)
    (tmp_path / "hierarchy.json").write_text(hierarchy)
    before = sorted(entry.name for entry in tmp_path.iterdir())
    arguments = [str(tmp_path / name) for name in ("classes.csv", "hierarchy.json", "out.csv")]
    assert main(arguments) == 2
    assert message in capsys.readouterr().err
    assert sorted(entry.name for entry in tmp_path.iterdir()) == before
