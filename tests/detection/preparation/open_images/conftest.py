"""coco_tiny as an Open Images challenge: its boxes and images under the challenge's names."""

import csv
import json
from pathlib import Path
from typing import NamedTuple

import pytest

from tpudet.detection.commands import prepare_datasets

COLUMNS = "ImageID,Source,LabelName,Confidence,XMin,XMax,YMin,YMax,IsOccluded,IsTruncated,IsGroupOf"
COLUMNS += ",IsDepiction,IsInside"
MAMMALS = ("cat", "dog", "horse", "sheep", "cow", "elephant", "bear", "zebra", "giraffe")
# Of the 70 other classes, by the number of training images: 26 have none, and every group has
# training and validation images.
BOUNDARIES = "0,40,50,58,66,70"


class Challenge(NamedTuple):
    """Where the exported files are, and what was put into them."""

    data: Path  # the value of $DATA
    mids: dict[int, str]  # by COCO category
    splits: dict[str, dict]  # train, validation: the COCO JSON

    @property
    def blacklisted(self) -> str:
        """The validation image whose boxes come first."""
        return f"{self.splits['validation']['annotations'][0]['image_id']:012d}"


def mid(category: int) -> str:
    return f"/m/c{category:02d}"


def flags(annotation: dict) -> list[int]:
    """IsOccluded, IsTruncated, IsGroupOf, IsDepiction, IsInside; every tenth box is one of each."""
    last = annotation["id"] % 10
    return [-1, 0, annotation["iscrowd"], {0: 1, 1: -1}.get(last, 0), {2: 1, 3: -1}.get(last, 0)]


def write_boxes(path: Path, content: dict) -> None:
    images = {image["id"]: image for image in content["images"]}
    with path.open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(COLUMNS.split(","))
        for annotation in content["annotations"]:
            image = images[annotation["image_id"]]
            x, y, width, height = annotation["bbox"]
            sides = image["width"], image["height"]
            box = [x / sides[0], (x + width) / sides[0], y / sides[1], (y + height) / sides[1]]
            name = Path(image["file_name"]).stem
            head = [name, "xclick", mid(annotation["category_id"]), 1]
            writer.writerow([*head, *map(repr, box), *flags(annotation)])


def write_classes(data: Path, categories: list[dict]) -> None:
    """The classes and, as in the challenge, their parents; the hierarchy; the human parts."""
    groups: dict[str, list[dict]] = {}
    for category in categories:
        groups.setdefault(category["supercategory"], []).append(category)
    rows = [f"{mid(category['id'])},{category['name'].title()}\n" for category in categories]
    rows[40:40] = [f"/m/g_{name},Any {name}\n" for name in groups]
    (data / "challenge-2019-classes-description-500.csv").write_text("".join(rows))
    children = [
        {
            "LabelName": f"/m/g_{name}",
            "Subcategory": [{"LabelName": mid(category["id"])} for category in members],
        }
        for name, members in groups.items()
    ]
    hierarchy = {"LabelName": "/m/0bl9f", "Subcategory": children}
    (data / "challenge-2019-label500-hierarchy.json").write_text(json.dumps(hierarchy))
    human = [mid(category["id"]) for category in categories if category["name"] in MAMMALS]
    listed = "".join(f"{label}\n" for label in ["/m/g_animal", mid(1), *human])
    (data / "class-ids-human-body-parts-and-mammal.txt").write_text(listed)


def export_challenge(coco: Path, data: Path) -> Challenge:
    data.mkdir()
    splits, mids = {}, {}
    for split, folder in (("train", "train2017"), ("validation", "val2017")):
        content = json.loads((coco / f"annotations/instances_{folder}.json").read_text())
        splits[split] = content
        mids |= {category["id"]: mid(category["id"]) for category in content["categories"]}
        write_boxes(data / f"challenge-2019-{split}-detection-bbox.csv", content)
        (data / split).mkdir()
        for image in content["images"]:
            name = Path(image["file_name"]).name
            (data / split / name).symlink_to(coco / folder / name)
    write_classes(data, splits["train"]["categories"])
    # What was the validation's serves as test images too: under names that train does not have.
    (data / "test").symlink_to(data / "validation")
    return Challenge(data, mids, splits)


@pytest.fixture(scope="session")
def challenge(data_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Challenge:
    folder = tmp_path_factory.mktemp("challenge")
    return export_challenge(data_dir / "coco_tiny", folder / "data")


@pytest.fixture(scope="session")
def boundaries() -> list[str]:
    return ["--boundaries", BOUNDARIES]


@pytest.fixture(scope="session")
def storage(
    challenge: Challenge, boundaries: list[str], tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """$STORAGE after prepare_datasets; tests add to it, and change nothing."""
    folder = tmp_path_factory.mktemp("storage") / "output"
    blacklist = folder.parent / "blacklist.txt"
    blacklist.write_text(f"blacklist.txt\n{challenge.blacklisted}.jpg\n")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DATA", str(challenge.data))
        patch.setenv("STORAGE", str(folder))
        arguments = [*boundaries, "--num_samples", "3", "--blacklist", str(blacklist)]
        assert prepare_datasets.main(arguments) == 0
    return folder


@pytest.fixture(scope="session")
def prepared(storage: Path) -> Path:
    return storage / "prepared"


@pytest.fixture
def places(challenge: Challenge, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Challenge:
    """$DATA and $STORAGE, the latter empty and the test's own."""
    monkeypatch.setenv("DATA", str(challenge.data))
    monkeypatch.setenv("STORAGE", str(tmp_path / "output"))
    return challenge
