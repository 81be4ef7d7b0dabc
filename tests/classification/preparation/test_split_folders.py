"""split_folders: sizes, the same choice for a seed, links, and what it refuses."""

from pathlib import Path

import pytest

from tpudet.classification.commands.split_folders import main
from tpudet.classification.preparation import split_folders as module
from tpudet.classification.preparation.split_folders import split_sizes

FRACTIONS = {"train": 0.8, "val": 0.1, "test": 0.1}


@pytest.mark.parametrize(
    ("count", "sizes"),
    [(10, (8, 1, 1)), (60, (48, 6, 6)), (61, (49, 6, 6)), (15, (12, 2, 1)), (0, (0, 0, 0))],
)
def test_each_split_is_off_by_less_than_one(count: int, sizes: tuple[int, int, int]) -> None:
    assert tuple(split_sizes(count, FRACTIONS).values()) == sizes


def names(folder: Path) -> dict[str, list[str]]:
    return {
        split: sorted(f"{path.parent.name}/{path.name}" for path in folder.glob(f"{split}/*/*"))
        for split in FRACTIONS
    }


def test_every_image_is_in_one_split_by_the_seed_alone(class_folders: Path, tmp_path: Path) -> None:
    for name, seed in (("a", "3"), ("b", "3"), ("c", "4")):
        command = [str(class_folders), "--output", str(tmp_path / name), "--seed", seed]
        assert main([*command, "--method", "link" if name == "b" else "copy"]) == 0
    first = names(tmp_path / "a")
    assert first == names(tmp_path / "b") != names(tmp_path / "c")
    assert {split: len(found) for split, found in first.items()} == {
        "train": 24,
        "val": 3,
        "test": 3,
    }
    everything = sorted(name for found in first.values() for name in found)
    assert everything == sorted(f"{p.parent.name}/{p.name}" for p in class_folders.glob("*/*"))
    name = first["val"][0]
    linked = tmp_path / "b/val" / name
    assert linked.is_symlink()
    assert linked.read_bytes() == (class_folders / name).read_bytes()


@pytest.mark.parametrize(
    ("prepare", "message"),
    [
        ("exists", "exists: remove it or give another --output"),
        ("inside", "is inside"),
        ("few", "too few images for one in each of train, val, test: classes few (2)"),
        ("empty", "class folders without any image: empty"),
        ("divided", "is divided already: it has the folders train"),
    ],
)
def test_what_it_refuses(
    prepare: str, message: str, class_folders: Path, tmp_path: Path, capsys
) -> None:
    source, output = tmp_path / "source", tmp_path / "output"
    source.mkdir()
    for label in ("blue", "few"):
        (source / label).mkdir()
        for path in sorted(class_folders.glob("blue/*"))[: 2 if label == "few" else 10]:
            (source / label / path.name).write_bytes(path.read_bytes())
    if prepare != "few":
        (source / "few").rename(tmp_path / "few")
    if prepare == "exists":
        output.mkdir()
    elif prepare == "inside":
        output = source / "output"
    elif prepare in ("empty", "divided"):
        (source / {"empty": "empty", "divided": "train"}[prepare]).mkdir()
    assert main([str(source), "--output", str(output)]) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize("change", ["claim", "output"])
def test_what_another_process_changes_meanwhile_is_not_replaced(
    change: str, class_folders: Path, tmp_path: Path, capsys, monkeypatch: pytest.MonkeyPatch
) -> None:
    output, place, list_labelled = tmp_path / "out", module._place, module.list_labelled

    def lose_the_claim(*arguments) -> None:
        (tmp_path / ".out.claim.json").unlink(missing_ok=True)
        place(*arguments)

    def list_while_another_ends(source: str):
        (output / "train").mkdir(parents=True)
        return list_labelled(source)

    if change == "claim":
        monkeypatch.setattr(module, "_place", lose_the_claim)
    else:
        monkeypatch.setattr(module, "list_labelled", list_while_another_ends)
    assert main([str(class_folders), "--output", str(output)]) == 2
    message = {"claim": "is no longer claimed", "output": "exists: remove it"}[change]
    assert message in capsys.readouterr().err
    assert [path.name for path in tmp_path.glob("*out*/*")] == ["train"] * (change == "output")


def test_fractions_must_add_up_to_one(tmp_path: Path, capsys) -> None:
    with pytest.raises(SystemExit):
        main([str(tmp_path), "--output", "x", "--fractions", "train=0.8,val=0.1"])
    assert "shares above 0 that add up to 1" in capsys.readouterr().err
