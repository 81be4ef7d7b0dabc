"""docs/architecture.md follows an image, a config value and a row through files that exist."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SECTIONS = (ROOT / "docs/architecture.md").read_text().split("\n## ")


def listed_files(title: str) -> list[str]:
    section = next(text for text in SECTIONS if text.startswith(f"{title}\n"))
    return re.findall(r"^\d+\. `(.+)`$", section, re.M)


@pytest.mark.parametrize(
    ("title", "at_most"),
    [
        ("Follow one image", 20),
        ("Follow one config value", 15),
        ("Follow one row of a submission", 8),
    ],
)
def test_the_way_is_short_and_each_file_is_entered_once(title: str, at_most: int) -> None:
    files = listed_files(title)
    assert 5 < len(files) <= at_most
    assert len(set(files)) == len(files)
    missing = [file for file in files if not (ROOT / "models/official" / file).is_file()]
    assert not missing


def test_the_way_of_an_image_enters_at_most_eight_folders() -> None:
    assert len({Path(file).parent for file in listed_files("Follow one image")}) <= 8


@pytest.mark.parametrize("package", ["trainkit", "detection", "classification"])
def test_the_tree_names_every_folder_of_a_package_and_no_other(package: str) -> None:
    """A package's lines are those that stand deeper than its own name."""
    (lines,) = re.findall(rf"^  {package}/\n((?: {{4}}.*\n)+)", SECTIONS[0], re.M)
    named = {name for line in lines.splitlines() for name in names_of(line)}
    folders = (ROOT / "models/official" / package).iterdir()
    assert named == {folder.name for folder in folders if (folder / "__init__.py").exists()}


def names_of(line: str) -> list[str]:
    """The folders that a line of the tree begins with: one, or several two spaces apart."""
    start = re.match(r" {4}((?:\w+/ {0,2})+)", line)
    return re.findall(r"\w+(?=/)", start[1]) if start else []
