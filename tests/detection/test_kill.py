"""Training killed with SIGKILL at three moments ends as one never killed, bit for bit.

The loop is the same for detectors and for classifiers, so they are tasks of one test.
"""

import json
import os
import random
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from tpudet.trainkit.training.checkpoints import read_checkpoint

TOTAL_STEPS = 8
EVAL_EVERY = 4
SHARED = {
    "train.total_steps": str(TOTAL_STEPS),
    "train.batch_size": "3",  # no divisor of the 16 images: batches span epochs
    "train.iterations_per_loop": "2",
    "train.log_every_steps": "1",
    "train.checkpoint_every_steps": "2",
    "train.keep_checkpoints": "2",
    "evaluation.schedule.every_steps": str(EVAL_EVERY),
    "evaluation.schedule.batch_size": "4",
}
DETECTOR = {
    **SHARED,
    "data.canvas_size": "[64, 64]",
    "model.min_level": "3",  # one level and the backbone up to it: each start has to trace the step
    "model.max_level": "3",
    "evaluation.schedule.num_images": "2",
}
CLASSIFIER = {
    **SHARED,
    "data.image_size": "[32, 32]",
    "data.augmentations": "[{kind: rand_augment}, {kind: mixup}]",
    "train.learning_rate.warmup_steps": "0",
}
# oneDNN rounds the gradient of ResNet's max pooling in one of two ways, by its number of threads.
# Of some 130 processes on busy cores two differed so from the others, 1e-7 in the stem, unkilled.
SAME_ROUNDING = {"TF_ENABLE_ONEDNN_OPTS": "0"}
# Measured times, which no two runs share.
TIMES = {
    *("time", "seconds", "images_per_second", "input_wait_share", "eta_seconds", "wall_seconds"),
}


def start(
    model_dir: Path, part: str, config: str, settings: dict[str, str], backend: str
) -> subprocess.Popen:
    flags = [f"--set={key}={value}" for key, value in settings.items()]
    command = [sys.executable, "-m", "tpudet", "train", "--config", config]
    command += ["--model_dir", str(model_dir), f"--set=data.directory={part}", *flags]
    command += ["--backend", backend]
    with open(model_dir.with_suffix(".log"), "a") as log:
        return subprocess.Popen(
            command, stdout=log, stderr=subprocess.STDOUT, env=os.environ | SAME_ROUNDING
        )


def ledger(model_dir: Path) -> list[dict]:
    path = model_dir / "metrics.jsonl"
    lines = path.read_text().splitlines(keepends=True) if path.exists() else []
    return [json.loads(line) for line in lines if line.endswith("\n")]


def kill_when(process: subprocess.Popen, moment: Callable[[], bool], log: Path) -> None:
    while not moment():
        assert process.poll() is None, f"it ended before the moment:\n{log.read_text()[-3000:]}"
        time.sleep(0.001)
    process.kill()
    process.wait()


def results(model_dir: Path) -> list[dict]:
    """The ledger's train and eval lines without times and without what a run's stops add."""
    return [
        {key: value for key, value in line.items() if key not in TIMES}
        for line in ledger(model_dir)
        if line["kind"] != "state"
    ]


def files(model_dir: Path) -> list[str]:
    names = (str(path.relative_to(model_dir)) for path in model_dir.rglob("*") if path.is_file())
    return sorted(name for name in names if not name.startswith(("events.", "compile_cache/")))


@pytest.mark.parametrize(
    ("fixture", "config", "settings", "backend"),
    [
        ("sample_part", "quickstart", DETECTOR, "tensorflow"),
        pytest.param("sample_part", "quickstart", DETECTOR, "jax", marks=pytest.mark.slow),
        pytest.param(
            "class_part", "resnet18_224", CLASSIFIER, "tensorflow", marks=pytest.mark.slow
        ),
        pytest.param("class_part", "resnet18_224", CLASSIFIER, "jax", marks=pytest.mark.slow),
    ],
    ids=["detector-tensorflow", "detector-jax", "classifier-tensorflow", "classifier-jax"],
)
def test_a_run_killed_three_times_equals_one_that_was_not(
    fixture: str,
    config: str,
    settings: dict[str, str],
    backend: str,
    request: pytest.FixtureRequest,
    tmp_path: Path,
) -> None:
    undisturbed, killed = tmp_path / "undisturbed", tmp_path / "killed"
    what = (request.getfixturevalue(fixture), config, settings, backend)
    reference = start(undisturbed, *what)
    log = killed.with_suffix(".log")

    some_step = random.randint(1, 3)
    kill_when(
        start(killed, *what),
        lambda: any(
            line["kind"] == "train" and line["step"] >= some_step for line in ledger(killed)
        ),
        log,
    )
    kill_when(
        start(killed, *what),
        lambda: any(killed.glob("model.ckpt-*.temporary*")),
        log,
    )
    assert any(killed.glob("model.ckpt-*.temporary*")), "the kill left no half-written checkpoint"
    kill_when(
        start(killed, *what),
        lambda: (killed / f"model.ckpt-{EVAL_EVERY}.index").exists(),
        log,
    )
    assert not any(line["kind"] == "eval" for line in ledger(killed)), "it was evaluated already"

    assert start(killed, *what).wait() == 0, log.read_text()[-3000:]
    assert reference.wait() == 0, undisturbed.with_suffix(".log").read_text()[-3000:]

    expected, found = read_checkpoint(str(undisturbed)), read_checkpoint(str(killed))
    assert expected.keys() == found.keys()
    different = [key for key in expected if not np.array_equal(expected[key], found[key])]
    assert not different, f"killed at step {some_step}: {different[:10]}"
    assert results(killed) == results(undisturbed)
    steps = [line["step"] for line in ledger(killed) if line["kind"] == "eval"]
    assert steps == [EVAL_EVERY, TOTAL_STEPS]
    assert files(killed) == files(undisturbed)
