"""The shipped presets hold the numbers of record; a presets file is read strictly."""

from pathlib import Path

import pytest

from tpudet.detection.commands import (
    compare_submissions,
    gen_tfrecords,
    kfold_split,
    make_sample_set,
    prepare_folds,
    prepare_tfrecords,
)
from tpudet.detection.preparation.open_images.presets import default_presets_path, read_preset
from tpudet.trainkit.errors import UserError

FIVE = [f"part_{number}" for number in range(5)]


@pytest.mark.parametrize(
    ("name", "minima", "pseudo_labels"),
    [
        ("v1", {"human_parts": 100000} | dict.fromkeys(FIVE, 0), None),
        ("v2", {"human_parts": 0} | dict.fromkeys(FIVE, 0), None),
        ("v3", {"human_parts": 100000, "part_0": 338, "part_3": 8000, "part_4": 100000}, None),
        ("v4", {"human_parts": 0, "part_0": 0}, 0.9),
        ("v5", {"human_parts": 50000, "part_0": 100}, 0.9),
        ("folds", {"human_parts": 100000, "part_0": 338} | dict.fromkeys(FIVE[1:], 0), None),
    ],
)
def test_shipped_presets(name, minima, pseudo_labels) -> None:
    preset = read_preset(default_presets_path(), name)
    found = {part: settings.min_images_per_class for part, settings in preset.parts.items()}
    assert found == minima
    assert preset.settings.pseudo_label_confidence == pseudo_labels
    for part, settings in preset.parts.items():
        assert settings.num_shards == (10 if part == "human_parts" else 20)
        assert settings.boxes == ("all" if name == "v1" else "no_groups")
    assert list(preset.choose(["part_0"])) == ["part_0"]


def test_all_mistakes_are_listed_with_their_lines(tmp_path: Path) -> None:
    path = tmp_path / "presets.yaml"
    path.write_text(
        "mine:\n"
        "  descripion: x\n"
        "  part_0: {boxes: al, num_shards: 2}\n"
        "  part_10: {boxes: all, num_shards: 0}\n"
        "  part1: {boxes: all, num_shards: 1}\n"
        "other: 4\n"
        "empty:\n"
        "  description: nothing\n"
        "  max_copies: 0\n"
    )
    with pytest.raises(UserError) as caught:
        read_preset(str(path), "mine")
    message = str(caught.value)
    for part in (
        "presets.yaml:2: unknown key descripion; did you mean `description`?",
        "presets.yaml:3: boxes must be one of all, no_groups",
        "presets.yaml:4: PartPreset: num_shards must be at least 1",
        "presets.yaml:5: unknown key part1",
        "presets.yaml:6: other must be a mapping",
        "presets.yaml:8: no parts; they are called human_parts, segmentation, part_0, ...",
        "max_copies must be at least 1, got 0",
    ):
        assert part in message


def test_parts_of_any_number(tmp_path: Path) -> None:
    path = tmp_path / "presets.yaml"
    path.write_text("mine:\n  description: x\n  part_11: {boxes: all, num_shards: 3}\n")
    assert read_preset(str(path), "mine").parts["part_11"].num_shards == 3


@pytest.mark.parametrize(
    ("command", "arguments", "message"),
    [
        (prepare_folds, ["0", "--preset", "v4"], "--preset v4 adds pseudo-labels"),
        (prepare_tfrecords, ["v2", "--max_copies", "3"], "the preset copies no image of"),
        (prepare_tfrecords, ["v3"], "--train_images {data}/train does not exist"),
        (prepare_tfrecords, ["v3", "--train_images", "gone"], "--train_images gone does not exist"),
        (prepare_folds, ["0", "--train_images", "gone"], "--train_images gone does not exist"),
    ],
)
def test_arguments_that_would_be_ignored_or_are_wrong_are_named(
    tmp_path: Path, monkeypatch, capsys, command, arguments: list[str], message: str
) -> None:
    monkeypatch.setenv("DATA", str(tmp_path))
    assert command.main(arguments) == 2
    assert message.replace("{data}", str(tmp_path)) in capsys.readouterr().err


@pytest.mark.parametrize(
    ("command", "arguments"),
    [
        (make_sample_set, ["--output", "x"]),
        (kfold_split, []),
        (prepare_folds, ["0"]),
        (gen_tfrecords, ["--classes_file", "x"]),
        (compare_submissions, ["a", "b", "truth"]),
    ],
)
@pytest.mark.parametrize("seed", ["-1", "4294967296", "x"])
def test_a_seed_is_one_that_every_generator_takes(command, arguments, seed: str, capsys) -> None:
    with pytest.raises(SystemExit, match="2"):
        command.main([*arguments, f"--seed={seed}"])
    assert f"--seed: `{seed}` is not an integer from 0 to 2**32 - 1" in capsys.readouterr().err
