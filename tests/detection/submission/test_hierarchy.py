import json
import time

import pytest

from tpudet.detection.submission.hierarchy import read_hierarchy

# toy is a kind of thing and of gift; doll is written below one of its places only.
TREE = {
    "LabelName": "root",
    "Subcategory": [
        {
            "LabelName": "thing",
            "Subcategory": [
                {"LabelName": "toy", "Subcategory": [{"LabelName": "doll"}]},
                {"LabelName": "wheel"},
            ],
            "Part": [{"LabelName": "handle"}],
        },
        {"LabelName": "gift", "Subcategory": [{"LabelName": "toy"}]},
    ],
}


def test_a_label_under_several_parents() -> None:
    hierarchy = read_hierarchy(json.dumps(TREE))
    assert hierarchy.labels == ("thing", "toy", "doll", "wheel", "gift")
    assert hierarchy.parents["toy"] == ("thing", "gift")
    assert hierarchy.parents["thing"] == ()
    assert hierarchy.leaves() == ("doll", "wheel")
    assert set(hierarchy.ancestors("doll")) == {"toy", "thing", "gift"}
    assert hierarchy.ancestors("doll")[0] == "toy"
    assert hierarchy.descendants("gift") == ("doll", "toy")
    assert hierarchy.descendants("wheel") == ()
    with pytest.raises(KeyError):
        hierarchy.ancestors("root")


def test_an_ancestor_comes_after_all_between(data_dir) -> None:
    text = (data_dir / "openimages/bbox_labels_600_hierarchy.json").read_text()
    hierarchy = read_hierarchy(text)
    assert len(hierarchy.labels) == 601
    for label in hierarchy.labels:
        for order, steps in (
            (hierarchy.ancestors(label), hierarchy.parents),
            (hierarchy.descendants(label)[::-1], hierarchy.children),
        ):
            assert len(set(order)) == len(order)
            ranks = {other: rank for rank, other in enumerate(order)}
            assert all(ranks[a] < ranks[b] for a in order for b in steps[a])
        # the two directions say the same
        assert all(label in hierarchy.descendants(other) for other in hierarchy.ancestors(label))
    ancestors = {label: set(hierarchy.ancestors(label)) for label in hierarchy.labels}
    pairs = sum(len(found) for found in ancestors.values())
    assert pairs == sum(len(hierarchy.descendants(label)) for label in hierarchy.labels)
    assert _ancestors_in_the_tree(json.loads(text)) == ancestors


def _ancestors_in_the_tree(tree: dict) -> dict[str, set[str]]:
    """Every label's ancestors by its places in the tree alone."""
    found: dict[str, set[str]] = {}
    paths = [(node, frozenset()) for node in tree["Subcategory"]]
    while paths:
        node, above = paths.pop()
        found.setdefault(node["LabelName"], set()).update(above)
        below = above | {node["LabelName"]}
        paths += [(child, below) for child in node.get("Subcategory", [])]
    return found


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "not JSON"),
        ("[]", "entry outermost has no LabelName: \\[\\]"),
        ('{"LabelName": "r"}', "no label below the root, 'r'"),
        ('{"LabelName": "r", "Subcategory": {"a": 1}}', "Subcategory of r is not a list"),
        ('{"LabelName": "r", "Subcategory": [{"Name": "a"}]}', "entry below r has no LabelName"),
        (
            '{"LabelName": "r", "Subcategory": [{"LabelName": "a", "Subcategory": '
            '[{"LabelName": "b", "Subcategory": [{"LabelName": "a"}]}]}]}',
            "is a kind of itself",
        ),
    ],
)
def test_what_is_no_hierarchy(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        read_hierarchy(text)


def test_a_long_chain_of_shallow_entries_is_read() -> None:
    pairs = [{"LabelName": f"{k}", "Subcategory": [{"LabelName": f"{k + 1}"}]} for k in range(1100)]
    hierarchy = read_hierarchy(json.dumps({"LabelName": "root", "Subcategory": pairs}))
    assert hierarchy.ancestors("1100") == tuple(map(str, range(1099, -1, -1)))
    assert hierarchy.descendants("0") == tuple(map(str, range(1100, 0, -1)))


def test_a_hierarchy_whose_expansion_would_take_hours_is_refused() -> None:
    """Of 5,000 labels each has all before it as ancestors, 12,497,500 in all."""
    pairs = [{"LabelName": f"{k}", "Subcategory": [{"LabelName": f"{k + 1}"}]} for k in range(5000)]
    with pytest.raises(ValueError, match="its 5,001 labels takes more than 2,097,152 steps"):
        read_hierarchy(json.dumps({"LabelName": "root", "Subcategory": pairs}))


def test_a_long_label_costs_its_length_once_and_is_cut_in_messages() -> None:
    """100,000 children below a label of 5 MB copied it for each."""
    children = [{"LabelName": f"{k}"} for k in range(20_000)]
    tree = {"LabelName": "x" * 5_000_000, "Subcategory": children}
    start = time.perf_counter()
    hierarchy = read_hierarchy(json.dumps({"LabelName": "root", "Subcategory": [tree]}))
    assert time.perf_counter() - start < 5
    assert len(hierarchy.labels) == 20_001
    children.append({})
    with pytest.raises(ValueError, match="4,999,805 more characters") as error:
        read_hierarchy(json.dumps({"LabelName": "root", "Subcategory": [tree]}))
    assert len(str(error.value)) < 400
