"""prepare_datasets.sh over coco_tiny: what it makes, against plain loops over the COCO JSON."""

import csv
import json
import os
import signal
import subprocess
import sys
import time
from collections import defaultdict
from pathlib import Path

import pytest

from tpudet.detection.commands import prepare_datasets

ROOT = Path(__file__).parents[4]
HUMAN = {1, 17, 18, 19, 20, 21, 22, 23, 24, 25}  # person and the mammals
PARTS = ("human_parts", "part_0", "part_1", "part_2", "part_3", "part_4")
TRAIN = "challenge-2019-train-detection-bbox.csv"
VALIDATION = "challenge-2019-validation-detection-bbox.csv"


def read_rows(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def group_of(prepared: Path, part: str) -> list[str]:
    text = (prepared / f"classes_{part}.csv").read_text()
    return [line.split(",")[0] for line in text.splitlines()]


def images_of_classes(content: dict) -> dict[int, set[int]]:
    images: dict[int, set[int]] = defaultdict(set)
    for annotation in content["annotations"]:
        images[annotation["category_id"]].add(annotation["image_id"])
    return images


def test_classes_are_grouped_by_their_images(challenge, prepared) -> None:
    leaves = (prepared / "classes_leaf.csv").read_text().splitlines()
    assert [line.split(",")[0] for line in leaves] == list(challenge.mids.values())  # not 12 groups
    images = images_of_classes(challenge.splits["train"])
    statistics = read_rows(prepared / "classes_stats.csv")
    assert {row["classes"]: int(row["count"]) for row in statistics} == {
        label: len(images[category]) for category, label in challenge.mids.items()
    }
    groups = {part: group_of(prepared, part) for part in PARTS}
    assert [len(group) for group in groups.values()] == [10, 40, 10, 8, 8, 4]
    assert set(groups["human_parts"]) == {challenge.mids[category] for category in HUMAN}
    others = [label for part in PARTS[1:] for label in groups[part]]
    count = {label: len(images[category]) for category, label in challenge.mids.items()}
    assert others == sorted(set(count) - set(groups["human_parts"]), key=lambda k: (count[k], k))


def test_filters_remove_what_is_flagged(challenge, prepared) -> None:
    def rows_left(split: str, flags: set[str], categories: set[int] | None = None) -> list[dict]:
        rows = read_rows(challenge.data / f"challenge-2019-{split}-detection-bbox.csv")
        known = {challenge.mids[category] for category in categories or challenge.mids}
        kept = [row for row in rows if all(row[flag] != "1" for flag in flags)]
        return [row for row in kept if row["LabelName"] in known]

    suffixes = {
        "_no_groups": {"IsGroupOf"},
        "_no_groups_no_inside": {"IsGroupOf", "IsInside"},
        "_no_groups_no_depictions_no_inside": {"IsGroupOf", "IsInside", "IsDepiction"},
    }
    sizes = []
    for suffix, flags in suffixes.items():
        kept = rows_left("train", flags)
        assert read_rows(prepared / f"train{suffix}.csv") == kept
        human = rows_left("train", flags, HUMAN)
        assert read_rows(prepared / f"train_human_parts{suffix}.csv") == human
        sizes.append(len(kept))
    assert read_rows(prepared / "train_human_parts.csv") == rows_left("train", set(), HUMAN)
    assert read_rows(prepared / "val_no_groups.csv") == rows_left("validation", {"IsGroupOf"})
    assert sizes[0] == 470 - 5  # crowds
    assert sizes[0] > sizes[1] > sizes[2] > 300


@pytest.mark.parametrize("part", PARTS)
def test_validation_sets(part, challenge, prepared) -> None:
    rows = read_rows(prepared / "val_no_groups.csv")
    group = group_of(prepared, part)
    chosen = set()
    for label in group:
        with_label = dict.fromkeys(row["ImageID"] for row in rows if row["LabelName"] == label)
        with_label.pop(challenge.blacklisted, None)
        chosen |= set(list(with_label)[:3])
    expected = [row for row in rows if row["ImageID"] in chosen and row["LabelName"] in group]
    assert read_rows(prepared / f"val_{part}.csv") == expected
    content = json.loads((prepared / f"val_{part}.json").read_text())
    assert {image["file_name"] for image in content["images"]} == {f"{k}.jpg" for k in chosen}
    assert len(content["annotations"]) == len(expected)


def test_what_is_up_to_date_is_skipped(places, boundaries, tmp_path, capsys) -> None:
    def run(*more: str) -> str:
        assert prepare_datasets.main([*boundaries, *more]) == 0
        return capsys.readouterr().out

    listed = run("--dry_run")
    assert "[1/21] Filter boxes into val_no_groups.csv: to do (not made yet)" in listed
    assert "val_part_4.json: to do (depends on step 20)" in listed
    assert not (tmp_path / "output").exists()
    first = run()
    assert f"There is no {places.data}/train-image-ids-with-human-parts" in first
    assert "21 of 21 steps run" in first
    times = {path: path.stat().st_mtime_ns for path in (tmp_path / "output").rglob("*")}
    assert "0 of 21 steps run" in run()
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "output").rglob("*")} == times

    listed = run("--num_samples", "4", "--dry_run")
    assert listed.count("to do (has other options)") == 6
    assert listed.count("to do (depends on step") == 6
    # Only human parts and part 0 have more than 4 images of a class: two JSON files change.
    assert "8 of 21 steps run" in run("--num_samples", "4")
    assert "0 of 21 steps run" in run("--num_samples", "4")
    (tmp_path / "output/prepared/train_no_groups.csv").unlink()
    assert "1 of 21 steps run" in run("--num_samples", "4")


def test_human_images_limit_the_rows(places, boundaries, tmp_path, capsys) -> None:
    human = {places.mids[category] for category in HUMAN}
    rows = [row for row in read_rows(places.data / TRAIN) if row["LabelName"] in human]
    listed = sorted({row["ImageID"] for row in rows})[::2]
    (tmp_path / "ids.txt").write_text("".join(f"{name}\n" for name in listed))
    arguments = [*boundaries, "--human_images", str(tmp_path / "ids.txt")]
    assert prepare_datasets.main(arguments) == 0
    expected = [row for row in rows if row["ImageID"] in listed]
    assert read_rows(tmp_path / "output/prepared/train_human_parts.csv") == expected
    assert 0 < len(expected) < len(rows)


def test_killed_in_the_middle(challenge, boundaries, tmp_path, monkeypatch) -> None:
    """With the same relative paths, so that the step files can be compared too."""
    (tmp_path / "data").symlink_to(challenge.data)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DATA", "data")
    monkeypatch.setenv("STORAGE", "output")
    assert prepare_datasets.main(boundaries) == 0
    undisturbed = contents(tmp_path / "output")
    (tmp_path / "output").rename(tmp_path / "undisturbed")

    seen = tmp_path / "output/prepared/classes_leaf.csv"
    environment = os.environ | {"PYTHON": sys.executable}
    command = [ROOT / "scripts/prepare_datasets.sh", *boundaries]
    with subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL) as process:
        end = time.monotonic() + 120
        while not seen.exists():
            assert time.monotonic() < end
            assert process.poll() is None
            time.sleep(0.001)
        process.send_signal(signal.SIGKILL)
    left = contents(tmp_path / "output")
    assert 0 < len(left) < len(undisturbed)
    assert "prepared/val_part_4.json" not in left
    assert prepare_datasets.main(boundaries) == 0
    assert contents(tmp_path / "output") == undisturbed


def contents(folder: Path) -> dict[str, bytes]:
    files = [path for path in folder.rglob("*") if path.is_file()]
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}
