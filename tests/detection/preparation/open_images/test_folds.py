"""Folds of real boxes, and what cannot be split."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from tpudet.detection.commands.kfold_split import main


def spread(folds: np.ndarray, images: np.ndarray, classes: np.ndarray) -> np.ndarray:
    """[folds, classes]: distinct images of each class in each fold."""
    pairs = pd.DataFrame({"image": images, "class": classes}).drop_duplicates()
    return pd.crosstab(folds[pairs["image"]], pairs["class"]).to_numpy()


def split(folder: Path, source: object, *more: object) -> int:
    masks = (folder / "train_{}.csv", folder / "val_{}.csv")
    return main([str(argument) for argument in (*masks, source, *more)])


def test_real_boxes_disjoint_complete_stratified_and_the_same_each_time(
    data_dir, tmp_path, capsys
) -> None:
    source = data_dir / "openimages/val_annotations_names.csv"
    assert split(tmp_path / "a", source) == split(tmp_path / "b", source) == 0
    header, *lines = [line for line in source.read_text().splitlines() if line]
    held: list[set[str]] = []
    for fold in range(5):
        train, val = (tmp_path / f"a/{kind}_{fold}.csv" for kind in ("train", "val"))
        assert val.read_bytes() == (tmp_path / f"b/val_{fold}.csv").read_bytes()
        own = val.read_text().splitlines()
        others = train.read_text().splitlines()
        assert own[0] == others[0] == header
        images = {line.split(",")[0] for line in own[1:]}
        assert own[1:] == [line for line in lines if line.split(",")[0] in images]
        assert others[1:] == [line for line in lines if line.split(",")[0] not in images]
        held.append(images)
    assert sum(map(len, held)) == len(set.union(*held)) == 3520
    assert {abs(len(images) - 704) <= 6 for images in held} == {True}
    table = pd.read_csv(source).dropna()
    fold_of = {image: fold for fold, images in enumerate(held) for image in images}
    folds = table["ImageID"].map(fold_of).to_numpy()
    images, classes = (pd.factorize(table[name])[0] for name in ("ImageID", "LabelName"))
    fold_of_image = np.zeros(images.max() + 1, int)
    fold_of_image[images] = folds
    # How many images per class has more in its richest fold than in its poorest. Parents (Food,
    # Animal) follow their children, which are dealt first: not all can be even at once.
    differences = np.ptp(spread(fold_of_image, images, classes), axis=0)
    assert differences.shape == (497,)
    assert np.mean(differences <= 1) > 5 / 6
    assert differences.max() <= 21
    by_chance = np.random.default_rng(0).permutation(np.arange(len(fold_of_image)) % 5)
    assert differences.mean() < np.ptp(spread(by_chance, images, classes), axis=0).mean() / 3
    out = capsys.readouterr().out
    assert "3520 images and 36191 boxes of 497 classes into 5 folds of 700 to 710 images" in out


def test_a_class_list_leaves_other_rows_out(write_box_csv, tmp_path, capsys) -> None:
    rows = [(f"i{k}", "/m/a" if k < 4 else "/m/b", 0.1, 0.5, 0.1, 0.5, 0) for k in range(6)]
    source = write_box_csv(tmp_path / "boxes.csv", *rows, ("empty", "", "", "", "", "", ""))
    classes = tmp_path / "classes.csv"
    classes.write_text("/m/a,Ant\n")
    assert split(tmp_path, source, "--classes", classes, "--num_folds", 2) == 0
    lines = [(tmp_path / f"val_{fold}.csv").read_text().splitlines()[1:] for fold in (0, 1)]
    assert [sum("/m/a" in line for line in fold) for fold in lines] == [2, 2]
    images = sorted(line.split(",")[0] for fold in lines for line in fold)
    assert images == ["empty", "i0", "i1", "i2", "i3"]
    assert "2 rows of other classes left out" in capsys.readouterr().out


def test_fewer_folds_leave_no_files_of_the_others(write_box_csv, tmp_path) -> None:
    rows = [(f"i{k}", "/m/a", 0.1, 0.5, 0.1, 0.5, 0) for k in range(6)]
    source = write_box_csv(tmp_path / "boxes.csv", *rows)
    other = tmp_path / "out/val_9.csv"  # not of this command
    for number in (3, 2):
        assert split(tmp_path / "out", source, "--num_folds", number) == 0
        other.touch()
        names = {path.name for path in tmp_path.glob("out/*.csv")}
        expected = {f"{kind}_{fold}.csv" for kind in ("train", "val") for fold in range(number)}
        assert names == {*expected, "val_9.csv"}


def test_killed_anywhere_no_file_is_beside_one_of_another_division(
    write_box_csv, tmp_path, killed_at_each_change
) -> None:
    rows = [(f"i{k:02}", "/m/a", 0.1, 0.5, 0.1, 0.5, 0) for k in range(15)]
    source = write_box_csv(tmp_path / "boxes.csv", *rows)

    def files(folder: str) -> dict[str, str]:
        return {path.name: path.read_text() for path in (tmp_path / folder).glob("*.csv")}

    folds = {}
    for seed in (1, 7):
        assert split(tmp_path / str(seed), source, "--num_folds", 3, "--seed", seed) == 0
        folds[seed] = files(str(seed))
    assert not folds[1].items() & folds[7].items()
    assert split(tmp_path / "out", source, "--num_folds", 3, "--seed", 1) == 0
    seen = set()
    again = (tmp_path / "out", source, "--num_folds", 3, "--seed", 7)
    for _ in killed_at_each_change(lambda: split(*again)):
        found = files("out")
        owners = [seed for seed in folds if found.items() <= folds[seed].items()]
        assert owners, found
        seen.add((owners[0], len(found)))
        assert split(*again) == 0
        assert files("out") == folds[7]
        assert split(tmp_path / "out", source, "--num_folds", 3, "--seed", 1) == 0
    assert seen >= {(1, 6), (1, 1), (7, 1), (7, 6)}
    assert files("out") == folds[7]


@pytest.mark.parametrize(
    ("content", "more", "message"),
    [
        (None, (), "does not exist"),
        ("", (), "is empty"),
        ("ImageID;LabelName\na;b\n", (), "separated by ';'"),
        ("ImageID,Source\na,b\n", (), "lacks the column LabelName"),
        ("ImageID,LabelName\na,b\n", (), "1 images cannot be split into 5"),
        ("ImageID,LabelName\na,b\n", ("--num_folds", 1), "1 folds are not a split"),
        ("ImageID,LabelName\na,\n", (), "no box with a label"),
    ],
)
def test_unusable_inputs(tmp_path, capsys, content: str | None, more: tuple, message: str) -> None:
    source = tmp_path / "in.csv"
    if content is not None:
        source.write_text(content)
    assert split(tmp_path / "out", source, *more) == 2
    assert message in capsys.readouterr().err
    assert not list(tmp_path.glob("out/*"))


def test_masks_without_a_place_for_the_fold(tmp_path, capsys) -> None:
    source = tmp_path / "in.csv"
    source.write_text("ImageID,LabelName\na,b\n")
    assert main([f"{tmp_path}/train.csv", f"{tmp_path}/val_{{0}}.csv", str(source)]) == 2
    message = capsys.readouterr().err
    assert "OUT_TRAIN_MASK" in message
    assert "OUT_VAL_MASK" in message
    assert main([f"{tmp_path}/{{}}.csv", f"{tmp_path}/{{}}.csv", str(source)]) == 2
    assert "name two files" in capsys.readouterr().err
