"""Ids of thousands of digits, and of letters that are no text."""

import json

import pytest

from tpudet.detection.preparation.sources.annotation_values import (
    as_integers,
    sorted_classes,
)
from tpudet.detection.preparation.sources.coco import read_coco
from tpudet.trainkit.class_list import ClassEntry
from tpudet.trainkit.errors import UserError


@pytest.mark.parametrize(
    ("section", "key"),
    [
        ("images", "id"),
        ("annotations", "image_id"),
        ("annotations", "category_id"),
        ("categories", "id"),
    ],
)
def test_ids_that_are_not_utf8(tmp_path, section: str, key: str) -> None:
    content = {
        "images": [{"id": 1, "file_name": "a.jpg", "height": 10, "width": 10}],
        "annotations": [{"id": 1, "image_id": 1, "category_id": 1, "bbox": [1, 1, 5, 5]}],
        "categories": [{"id": 1, "name": "cat"}],
    }
    path = tmp_path / "boxes.json"
    content[section][0][key] = "\ud801"
    path.write_text(json.dumps(content))
    message = f"1 '{key}' in '{section}' of .* cannot be written as UTF-8"
    with pytest.raises(UserError, match=message):
        read_coco(str(path))


def test_category_ids_have_at_most_255_letters(tmp_path) -> None:
    path = tmp_path / "boxes.json"
    image = {"id": "9" * 5000, "file_name": "a.jpg"}
    for length, is_read in ((255, True), (256, False), (5000, False)):
        categories = [{"id": "9" * length, "name": "cat"}, {"id": 1, "name": "dog"}]
        content = {"images": [image], "annotations": [], "categories": categories}
        path.write_text(json.dumps(content))
        if is_read:
            found = read_coco(str(path)).classes
            assert [entry.identifier for entry in found] == ["1", "9" * length]
        else:
            with pytest.raises(UserError, match="'id' of 1 of 2 entries in 'categories' is not a"):
                read_coco(str(path))


def test_classes_are_in_the_order_of_their_numbers_whatever_their_length() -> None:
    numbers = ["9" * 5000, "0", "010", "9", "1" + "0" * 5000, "10", "b", "2", "a"]
    found = sorted_classes(ClassEntry(number, number) for number in numbers)
    expected = ["0", "2", "9", "010", "10", "9" * 5000, "1" + "0" * 5000, "a", "b"]
    assert [entry.identifier for entry in found] == expected


@pytest.mark.parametrize(
    ("ids", "numbers"),
    [
        (["1", "02"], [1, 2]),
        (["9" * 18, "0"], [10**18 - 1, 0]),
        (["1", "9" * 19], None),  # beyond 64 bits
        (["1", "9" * 5000], None),  # which int() refuses
        (["1", "-2"], None),
        (["1", "a"], None),
    ],
)
def test_ids_are_integers_together_or_not_at_all(ids, numbers) -> None:
    assert as_integers(ids) == numbers
