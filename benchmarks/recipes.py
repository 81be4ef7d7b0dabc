"""Compares losses, anchor assignments and schedules by the AP of short trainings.

Trains every recipe with every seed, one after the other, as `tpudet train` does, and prints one row
of a Markdown table per recipe. Started again, it resumes: what has ended is only read.
"""

import argparse
import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

ASSIGNMENT = "model.matching={{kind: {}}}"
CLASS_LOSS = "model.class_loss={{kind: {}}}"
BOX_LOSS = "model.box_loss={{kind: {}}}"


def recipe(assignment: str, class_loss: str, box_loss: str, *more: str) -> tuple[str, ...]:
    """Returns the values to set for one choice of each kind."""
    return (
        ASSIGNMENT.format(assignment),
        CLASS_LOSS.format(class_loss),
        BOX_LOSS.format(box_loss),
        *more,
    )


ONE_CYCLE = "train.learning_rate={kind: one_cycle, peak: 1.0e-3}"
RECIPES = {
    "IoU, focal, Huber": recipe("argmax_iou", "focal", "huber"),
    "IoU, focal, GIoU": recipe("argmax_iou", "focal", "giou"),
    "ATSS, focal, GIoU": recipe("atss", "focal", "giou"),
    "ATSS, focal, CIoU": recipe("atss", "focal", "ciou"),
    "ATSS, focal, GIoU, one-cycle": recipe("atss", "focal", "giou", ONE_CYCLE),
    "ATSS, quality focal, GIoU": recipe("atss", "quality_focal", "giou"),
    "ATSS, quality focal, GIoU, one-cycle": recipe("atss", "quality_focal", "giou", ONE_CYCLE),
}


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command and returns its exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--data_dir", required=True, help="prepared set with splits train and val")
    parser.add_argument("--output", required=True, type=Path, help="folder of the model_dirs")
    parser.add_argument("--config", default="lite0_fpn_320")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1])
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--set", action="append", default=[], help="for every recipe")
    arguments = parser.parse_args(argv)
    shared = [
        *arguments.set,
        f"data.directory={arguments.data_dir}",
        f"train.total_steps={arguments.steps}",
        f"evaluation.schedule.every_steps={arguments.steps}",
    ]
    seeds = " | ".join(f"seed {seed}" for seed in arguments.seeds)
    print(f"| recipe, val AP / AP50 | {seeds} | mean |")
    print("|---" * (len(arguments.seeds) + 2) + "|")
    for name, values in RECIPES.items():
        scores = []
        for seed in arguments.seeds:
            model_dir = arguments.output / f"{name.replace(', ', '_').replace(' ', '-')}-{seed}"
            train(arguments.config, model_dir, [*shared, *values, f"train.seed={seed}"])
            scores.append(final_scores(model_dir))
        scores.append(tuple(sum(column) / len(scores) for column in zip(*scores, strict=True)))
        cells = " | ".join(f"{average:.3f} / {at_50:.3f}" for average, at_50 in scores)
        print(f"| {name} | {cells} |", flush=True)
    return 0


def train(config: str, model_dir: Path, values: Sequence[str]) -> None:
    """Trains to the end; does nothing where an earlier start has."""
    command = [sys.executable, "-m", "tpudet", "train", "--config", config]
    command += ["--model_dir", str(model_dir)]
    command += [text for value in values for text in ("--set", value)]
    subprocess.run(command, check=True, stdout=sys.stderr)


def final_scores(model_dir: Path) -> tuple[float, float]:
    """Returns AP and AP50 of the last evaluation in the run's ledger."""
    lines = map(json.loads, (model_dir / "metrics.jsonl").read_text().splitlines())
    last = [line for line in lines if line["kind"] == "eval"][-1]
    return last["AP"], last["AP50"]


if __name__ == "__main__":
    sys.exit(main())
