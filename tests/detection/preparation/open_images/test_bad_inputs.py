"""Faults in the challenge's files are told by the command that meets them; exit code 2."""

import json
import os
from pathlib import Path

import pytest

from tpudet.detection.commands import prepare_datasets, prepare_folds, prepare_tfrecords
from tpudet.trainkit.files import storage

TRAIN = "challenge-2019-train-detection-bbox.csv"
CLASSES = "challenge-2019-classes-description-500.csv"
HIERARCHY = "challenge-2019-label500-hierarchy.json"
HUMAN_PARTS = "class-ids-human-body-parts-and-mammal.txt"
SMALL = ["--num_shards", "2", "--workers", "1"]


def without_column(text: str) -> str:
    return text.replace("IsGroupOf", "IsCrowd")


def semicolons(text: str) -> str:
    return text.replace(",", ";")


def nothing(text: str) -> str:
    return ""


def header_only(text: str) -> str:
    return text.split("\n")[0] + "\n"


def without_dog(text: str) -> str:
    return text.replace('{"LabelName": "/m/c18"}, ', "")


def unknown_mid(text: str) -> str:
    return text + "/m/nonsense\n"


def twice(text: str) -> str:
    return text + text.split("\n")[0] + "\n"


@pytest.mark.parametrize(
    ("option", "file", "change", "message"),
    [
        ("train_boxes", TRAIN, without_column, "lacks the column IsGroupOf"),
        ("train_boxes", TRAIN, semicolons, "separated by ';'"),
        ("train_boxes", TRAIN, nothing, "is empty"),
        ("train_boxes", TRAIN, header_only, "has a header and no row"),
        ("hierarchy", HIERARCHY, without_dog, "The hierarchy lacks 1 of 92 classes: /m/c18 (Dog)"),
        ("hierarchy", HIERARCHY, semicolons, "is not JSON"),
        ("human_parts", HUMAN_PARTS, unknown_mid, "BBOXES: /m/nonsense"),
        ("classes", CLASSES, twice, "'/m/c01' is also in row 1"),
    ],
)
def test_a_faulty_file(option, file, change, message, places, boundaries, tmp_path, capsys) -> None:
    path = tmp_path / file
    path.write_text(change((places.data / file).read_text()))
    assert prepare_datasets.main([*boundaries, f"--{option}", str(path)]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.startswith("tpudet prepare_datasets: ")
    check_nothing_is_half_made(tmp_path / "output/prepared")


def check_nothing_is_half_made(prepared: Path) -> None:
    """Whatever is there belongs to a step that has ended."""
    finished = set()
    for path in prepared.glob("*.step.json"):
        fields = json.loads(path.read_text())
        assert fields["finished"]
        finished |= {path.name, path.name.removesuffix(".step.json")}
        if path.name.startswith("classes_stats"):
            finished |= {name.name for name in prepared.glob("classes_*.csv")}
            finished.add("train_human_parts.csv")
    assert {path.name for path in prepared.glob("*")} <= finished


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--boundaries", "0,40,50"], "--boundaries 0,40,50 suit 41 to 50 classes, but there"),
        (["--boundaries", "0,9,9"], "must be two or more numbers that increase from 0"),
        (["--human_images", "/nowhere/ids.txt"], "Missing: --human_images /nowhere/ids.txt."),
        (
            ["--image_dir", "/nowhere", "--blacklist", "/nowhere/list.txt"],
            "Missing: --image_dir /nowhere, --blacklist /nowhere/list.txt. Set DATA",
        ),
    ],
)
def test_faulty_arguments(arguments, message, places, boundaries, tmp_path, capsys) -> None:
    assert prepare_datasets.main([*boundaries, *arguments]) == 2
    assert message in capsys.readouterr().err
    check_nothing_is_half_made(tmp_path / "output/prepared")


def test_missing_images(places, boundaries, tmp_path, capsys) -> None:
    folders = {}
    for split in ("train", "validation"):
        folders[split] = tmp_path / split
        folders[split].mkdir()
        kept = sorted((places.data / split).iterdir())[:-20]  # all but 20
        for path in kept:
            (folders[split] / path.name).symlink_to(path.resolve())
    images = ["--image_dir", str(folders["validation"])]
    assert prepare_datasets.main([*boundaries, *images]) == 2
    assert_lists_missing(capsys.readouterr().err, places.data / "validation")
    assert not (tmp_path / "output/prepared/val_human_parts.json").exists()

    assert prepare_datasets.main(boundaries) == 0
    command = ["v2", *SMALL, "--parts", "part_4", "--train_images", str(folders["train"])]
    assert prepare_tfrecords.main(command) == 2
    assert_lists_missing(capsys.readouterr().err, places.data / "train")
    assert not (tmp_path / "output/converted").exists()
    assert prepare_tfrecords.main([*command, "--skip_missing"]) == 0
    folder = tmp_path / "output/converted/v2_part_4"
    manifest = json.loads((folder / "train_v2_part_4.manifest.json").read_text())
    assert manifest["left_out_counts"]["missing file"] == len(manifest["left_out"])


def assert_lists_missing(error: str, folder: Path) -> None:
    """At most ten of those that are missing are named, and none that is there."""
    names = {path.name for path in sorted(folder.iterdir())[-20:]}
    present = {path.name for path in folder.iterdir()} - names
    assert sum(name in error for name in names) in range(3, 11)
    assert not any(name in error for name in present)


@pytest.mark.parametrize("name", ["train_no_groups.csv", "classes_part_1.csv", "val_part_2.json"])
def test_a_full_disk(name, places, boundaries, tmp_path, capsys, monkeypatch) -> None:
    if not os.path.exists("/dev/full"):
        pytest.skip("there is no /dev/full here")
    real = storage.create_temporary

    def create_on_full_disk(target: str) -> tuple[str, int]:
        path, descriptor = real(target)
        if os.path.basename(target) == name:
            full = os.open("/dev/full", os.O_WRONLY)
            os.dup2(full, descriptor)
            os.close(full)
        return path, descriptor

    with monkeypatch.context() as patch:
        patch.setattr(storage, "create_temporary", create_on_full_disk)
        assert prepare_datasets.main(boundaries) == 2
    assert "No space left" in capsys.readouterr().err
    prepared = tmp_path / "output/prepared"
    assert not (prepared / name).exists()
    assert not list(prepared.rglob("*.temporary"))
    assert not list(prepared.rglob("*.claim.json"))
    assert prepare_datasets.main(boundaries) == 0
    assert (prepared / name).exists()


def test_two_runs_at_once(places, boundaries, tmp_path, capsys, hold_claim) -> None:
    prepared = tmp_path / "output/prepared"
    prepared.mkdir(parents=True)
    with hold_claim(prepared / "classes_leaf.csv.claim.json") as process:
        assert prepare_datasets.main(boundaries) == 2
        message = f"classes_leaf.csv is being written by process {process} on"
        assert message in capsys.readouterr().err
        assert not (prepared / "classes_leaf.csv").exists()
    assert prepare_datasets.main(boundaries) == 0
    assert not list(prepared.glob("*.claim.json"))


@pytest.mark.parametrize(
    ("command", "arguments", "message"),
    [
        (prepare_tfrecords, ["v9"], "has no preset v9. It has\n  v1"),
        (prepare_tfrecords, ["v3", "--parts", "part_1"], "this preset has no part_1; it has human"),
        (prepare_tfrecords, ["v4"], "pass --predictions FILE"),
        (prepare_tfrecords, ["v1", "--predictions", "x"], "has no pseudo-labels"),
        (prepare_tfrecords, ["v2"], "tpudet prepare_datasets"),
        (prepare_tfrecords, ["v2", "--presets", "/nowhere.yaml"], "/nowhere.yaml: cannot be read"),
        (prepare_folds, ["5"], "FOLD 5 must be in 0..4"),
        (prepare_folds, ["0"], "train_human_parts_no_groups.csv"),
    ],
)
def test_commands_that_cannot_begin(command, arguments, message, places, tmp_path, capsys) -> None:
    assert command.main(arguments) == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "output").exists()
