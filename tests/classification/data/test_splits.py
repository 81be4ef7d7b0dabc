"""Which splits a run may train on, and evaluate on."""

import shutil
from pathlib import Path

import pytest

from tpudet.cli import main


def plan_run(run: Path, part: Path, *sets: str, mode: str = "train_and_eval") -> int:
    """The exit code of a dry run on other splits than those of `run`."""
    command = ["train", "--config", str(run / "config.yaml"), "--model_dir", str(run / "new")]
    values = [f"--set={text}" for text in (f"data.directory={part}", *sets)]
    return main([*command, "--mode", mode, "--dry_run", *values])


@pytest.mark.parametrize(
    ("train_split", "eval_split", "message"),
    [
        ("train+val", "val", "data.train_split train+val and data.eval_split val share records"),
        ("train", "train+val", "share records, which would be trained on and evaluated on: train_"),
        ("train+train", "val", "train+train have records twice: name each split once"),
    ],
)
def test_records_are_not_both_trained_on_and_evaluated_on(
    train_split: str, eval_split: str, message: str, trained_run: Path, colors_part: Path, capsys
) -> None:
    splits = (f"data.train_split={train_split}", f"data.eval_split={eval_split}")
    assert plan_run(trained_run, colors_part, *splits) == 2
    assert message in capsys.readouterr().err


def test_all_records_may_be_trained_on_without_an_evaluation(
    trained_run: Path, colors_part: Path
) -> None:
    assert plan_run(trained_run, colors_part, "data.train_split=train+val", mode="train") == 0


def test_one_split_is_not_evaluated_under_two_names(
    trained_run: Path, colors_part: Path, tmp_path: Path, capsys
) -> None:
    """Other programs' `validation` is found as val too."""
    shutil.copy(colors_part / "classes.csv", tmp_path)
    for name in ("train", "validation"):
        (shard, *_) = sorted(colors_part.glob("train_*-of-*.tfrecord"))
        shutil.copy(shard, tmp_path / f"{name}-00000-of-00001")
    assert plan_run(trained_run, tmp_path, "data.train_split=train+validation") == 2
    assert "share records" in capsys.readouterr().err


@pytest.mark.parametrize("loss", ["softmax", "sigmoid"])
def test_a_split_without_labels_is_neither_trained_on_nor_scored(
    loss: str, trained_run: Path, colors_part: Path, tmp_path: Path, capsys
) -> None:
    """Images of no class folders, beside splits that have labels."""
    divided = tmp_path / "divided"
    shutil.copytree(colors_part.parent / "divided", divided)
    for path in sorted(divided.glob("test/*/*")):
        path.rename(divided / "test" / path.name)
    for folder in sorted(divided.glob("test/*/")):
        if folder.is_dir():
            folder.rmdir()
    part = tmp_path / "colors"
    assert main(["images_to_tfrecords", str(divided), "--output", str(part)]) == 0
    for splits in ("data.train_split=train+test", "data.eval_split=val+test"):
        assert plan_run(trained_run, part, splits, f"model.loss={{kind: {loss}}}") == 2
        assert "no image of the split test has a label" in capsys.readouterr().err
    command = ["evaluate", "--model_dir", str(trained_run), f"--set=data.directory={part}"]
    assert main([*command, "--split", "val+test"]) == 2
    assert "no image of the split test has a label" in capsys.readouterr().err


def test_a_dry_run_on_a_set_without_the_split_to_evaluate_fails_as_the_run_would(
    trained_run: Path, colors_part: Path, capsys
) -> None:
    for options in ([], ["--dry_run"]):
        command = ["train", "--config", str(trained_run / "config.yaml"), "--model_dir"]
        command += [str(trained_run / "new"), f"--set=data.directory={colors_part}", *options]
        assert main([*command, "--set=data.eval_split=valid"]) == 2
        assert "split `valid` of " in capsys.readouterr().err
    assert main([*command, "--set=evaluation.schedule.best_metric=top5"]) == 2
    assert "top5, which needs more than" in capsys.readouterr().err


def test_the_best_checkpoint_of_several_classes_may_be_that_of_micro_f1(
    trained_run: Path, colors_part: Path, capsys
) -> None:
    best = "evaluation.schedule.best_metric=micro_f1"
    assert plan_run(trained_run, colors_part, best, "model.loss={kind: sigmoid}") == 0
    assert plan_run(trained_run, colors_part, best) == 2
    assert "is micro_f1, which needs model.loss sigmoid" in capsys.readouterr().err
