"""Runs side by side: what differs, and nothing else."""

import json
from pathlib import Path
from typing import Any

from tpudet.detection.commands import list_runs
from tpudet.trainkit.training.run_comparison import compare_runs
from tpudet.trainkit.training.run_log import FILE_NAME


def write_run(model_dir: Path, config: str, values: dict[int, dict[str, Any]]) -> str:
    model_dir.mkdir(parents=True)
    (model_dir / "config.yaml").write_text(config)
    lines = [
        {"kind": "eval", "step": step, "time": 0.0, "seconds": 1.0, **metrics}
        for step, metrics in values.items()
    ]
    (model_dir / FILE_NAME).write_text("".join(json.dumps(line) + "\n" for line in lines))
    return str(model_dir)


def test_settings_that_differ_and_the_best_evaluation_of_each(tmp_path, capsys) -> None:
    shared = "data: {canvas_size: [64, 64]}\n"
    first = write_run(
        tmp_path / "a-set",
        shared + "train: {batch_size: 8, ema_decay: null}\n",
        {
            10: {"AP": 0.5, "AP50": 0.7, "APs": -1.0, "AP/cat": 0.5},
            20: {"AP": 0.4, "AP50": 0.8, "APs": -1.0, "AP/cat": 0.4},
        },
    )
    second = write_run(tmp_path / "b-set", shared + "train: {batch_size: 16}\n", {})
    assert compare_runs([first, second], metric="AP") == [
        ["", "a-set", "b-set"],
        ["train.batch_size", "8", "16"],
        ["train.ema_decay", "None", "-"],
        ["best AP at step", "10", "-"],
        ["AP", "0.5000", "-"],
        ["AP50", "0.7000", "-"],
        ["APs", "-", "-"],
    ]
    assert list_runs.main([str(tmp_path), "--compare", "--metric", "AP50"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split() for line in lines[:2]] == [
        ["a-set", "b-set"],
        ["train.batch_size", "8", "16"],
    ]
    assert ["best", "AP50", "at", "step", "20", "-"] in [line.split() for line in lines]
    assert list_runs.main([str(tmp_path), "--compare", "--goodput"]) == 2
    assert "give one of them" in capsys.readouterr().err


def test_metrics_of_different_rules_are_told_apart(tmp_path: Path) -> None:
    """AP at IoU 0.5 beside COCO's; the same rules are not named."""
    runs = {"a": "val by coco", "b": "val by open_images", "c": "val by coco"}
    first, second, third = (
        write_run(tmp_path / name, "", {10: {"AP": 0.5, "measured": measured}})
        for name, measured in runs.items()
    )
    assert compare_runs([first, second], metric="AP") == [
        ["", "a", "b"],
        ["best AP at step", "10", "10"],
        ["measured on", "val by coco", "val by open_images"],
        ["AP", "0.5000", "0.5000"],
    ]
    assert [row[0] for row in compare_runs([first, third], metric="AP")[1:]] == [
        "best AP at step",
        "AP",
    ]


def test_settings_that_differ_look_different(tmp_path: Path) -> None:
    config = (
        "data:\n  augmentations: [{{kind: flip}}, {{kind: mixup, probability: {}}}]\n"
        "  directory: gs://bucket/of/many/folders/with/long/names/{}\n"
    )
    model_dirs = [
        write_run(tmp_path / "a-set", config.format(0.5, "first"), {}),
        write_run(tmp_path / "b-set", config.format(0.9, "second"), {}),
    ]
    folder = "gs://bucket/of/many/folders/with/long/names"
    assert compare_runs(model_dirs, metric="AP")[1:] == [
        ["data.augmentations[1].probability", "0.5", "0.9"],
        ["data.directory", f"{folder}/first", f"{folder}/second"],
    ]


def test_aliases_of_aliases_are_not_written_out(tmp_path: Path) -> None:
    """Ten values in each of ten levels: 400 bytes that stand for 10^10 values."""
    aliases = "l0: &l0 [1]\n" + "".join(
        f"l{level}: &l{level} [{', '.join([f'*l{level - 1}'] * 10)}]\n" for level in range(1, 11)
    )
    model_dirs = [
        write_run(tmp_path / "a-set", aliases, {}),
        write_run(tmp_path / "b-set", "train: {batch_size: 8}\n", {}),
    ]
    assert compare_runs(model_dirs, metric="AP")[1:] == [["train.batch_size", "-", "8"]]
