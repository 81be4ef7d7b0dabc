"""Trains a small detector with each neck, with the engine of Keras' backend: `neck_runs.py PART
FOLDER`. Prints the losses as JSON. The first run writes its state to FOLDER every other step; a
later one continues from each of these states.
"""

import json
import os
import sys
from pathlib import Path

import numpy as np

from tpudet.detection.build_detector import build_detector_training
from tpudet.detection.config import ExperimentConfig
from tpudet.trainkit.config.decode import load_config
from tpudet.trainkit.record_splits import find_split
from tpudet.trainkit.training.build_engine import choose_devices
from tpudet.trainkit.training.model_dir import load_classes

NUM_STEPS = 20
STEPS_PER_STATE = 2
SETTINGS = [
    "data.canvas_size=[128, 128]",
    "model.head.num_convs=1",
    "model.head.num_filters=16",
    "train.batch_size=4",
    "train.precision=float32",
    "train.optimizer={kind: momentum}",
    "train.learning_rate={kind: step, peak: 0.01, warmup_steps: 0}",
]
NECKS = {
    "fpn": ["model.neck={kind: fpn, num_filters: 16}"],
    "nas_fpn": ["model.neck={kind: nas_fpn, num_filters: 16, num_repeats: 1}", "model.max_level=7"],
    "bifpn": ["model.neck={kind: bifpn, num_filters: 16, num_repeats: 1}"],
    "identity": ["model.neck={kind: identity}", "model.min_level=4", "model.max_level=4"],
}


def losses_of(part: str, states: Path, settings: list[str]) -> list[float]:
    overrides = [f"data.directory={part}", *SETTINGS, *settings]
    config = load_config(ExperimentConfig, "quickstart", overrides=overrides)
    _, classes = load_classes(part)
    split = find_split(part, "train", [entry.name for entry in classes])
    devices = choose_devices(config.train)
    engine = build_detector_training(
        config, classes=classes, train_split=split, devices=devices
    ).engine
    losses = []
    for step in range(NUM_STEPS):
        state = states.with_name(f"{states.name}-{step}.npz")
        if state.exists():
            engine.load(dict(np.load(state)))
            engine.restart_input()
        elif step % STEPS_PER_STATE == 0:
            np.savez(state, **engine.snapshot())  # pyright: ignore[reportArgumentType]
        losses.append(engine.train(1).losses["loss"])
    return losses


if __name__ == "__main__":
    part, folder = sys.argv[1:]
    found = {name: losses_of(part, Path(folder, name), NECKS[name]) for name in NECKS}
    print("RESULT", json.dumps(found))
    sys.stdout.flush()
    os._exit(0)  # skips the teardown of two frameworks
