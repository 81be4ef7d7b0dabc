"""Builds every shipped experiment and takes one step of it, on KERAS_BACKEND=tensorflow or jax.

A step is the losses of one image of 128x128 pixels with one object, in training, and the gradient
of every variable that the experiment trains; each must be finite. Experiments whose models are
equal take one step together. On TensorFlow the step is eager and begins at the experiment's own
initial weights. On JAX it is compiled, which takes most of the time, and begins at weights drawn by
NumPy, because JAX would compile a program to draw each shape of kernel.

    .venv/bin/python benchmarks/step_of_every_config.py
    KERAS_BACKEND=jax .venv/bin/python benchmarks/step_of_every_config.py d0 nasfpn

`--small` narrows and shortens neck and head; see `small`. Exit codes: 0 all well, 1 a step failed.
"""

import argparse
import os
import sys
import time
from collections.abc import Callable, Hashable, Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import keras
import numpy as np

from tpudet.detection.build_detector import DetectorTask, build_task
from tpudet.detection.config import ExperimentConfig, ModelConfig
from tpudet.detection.modeling.mask_rcnn_config import MaskRCNNConfig
from tpudet.detection.types import Batch
from tpudet.trainkit.config.decode import load_config
from tpudet.trainkit.config.find import find_config, list_configs
from tpudet.trainkit.training.freezing import freeze

CONFIGS = Path(__file__).parents[1] / "configs/yaml"
CANVAS = (128, 128)  # the smallest with a level 7
NUM_CLASSES = 3


class Experiment(NamedTuple):
    """A shipped file and what it says."""

    stem: str
    config: ExperimentConfig


class Step(NamedTuple):
    """The result of a step."""

    losses: dict[str, float]
    num_gradients: int
    faults: list[str]  # what is missing or not finite


def read_experiments(versions: Sequence[str] = (), change: Sequence[str] = ()) -> list[Experiment]:
    """Reads the experiments of these versions; where none is named, those of all detectors."""
    files = [Path(find_config(version).path) for version in versions]
    others = {"base", "classification"}
    files = files or [path for path in list_configs(CONFIGS) if path.parent.name not in others]
    return [
        Experiment(path.stem, load_config(ExperimentConfig, str(path), overrides=change))
        for path in files
    ]


def small(experiment: Experiment, *, shallow: bool) -> Experiment:
    """Returns the experiment with 16 filters and one repeat where it has more, by its overrides.

    Neck and head have 16 filters, the neck one cell, each tower one convolution; a two-stage
    detector has 16 units and looks at 16 regions. With `shallow` the
    backbone too is the shallowest of its kind (ResNet-50 for those of bottleneck blocks,
    EfficientNet-b0), and nothing is frozen, because patterns name blocks that are no longer there.
    Kinds of parts, losses, matching and drop-out stay.
    """
    model = experiment.config.model
    values: dict[str, Any] = {f"model.{key}": value for key, value in _small_head(model).items()}
    for name, value in (("num_filters", 16), ("num_repeats", 1)):
        if hasattr(model.neck, name):
            values |= {"model.neck.kind": model.neck.kind, f"model.neck.{name}": value}
    if shallow:
        values["train.freeze"] = []
        depth = getattr(model.backbone, "depth", 0)
        if depth > 50:
            values["model.backbone.depth"] = 50
        if getattr(model.backbone, "variant", "").startswith("b"):
            values["model.backbone.variant"] = "b0"
    change = [f"{key}={value}" for key, value in values.items()]
    return read_experiments([experiment.stem], change)[0]


def _small_head(model: ModelConfig) -> dict[str, Any]:
    if not isinstance(model, MaskRCNNConfig):
        groups = {"head.norm_groups": 4} if model.head.norm_groups else {}
        return {"head.num_filters": 16, "head.num_convs": 1} | groups
    proposals = dict.fromkeys(("max_proposals", "max_proposals_in_training"), 50)
    return {
        **{f"rpn.{key}": value for key, value in proposals.items()},
        "rpn.num_filters": 16,
        "box_head.num_units": 16,
        "box_head.regions_per_image": 16,
        "mask_head.num_filters": 16,
        "mask_head.num_convs": 1,
    }


def kinds(experiment: Experiment) -> tuple[Hashable, ...]:
    """Returns the kinds of its parts, whatever their numbers."""
    model = experiment.config.model
    neck, backbone = model.neck, model.backbone
    basic_blocks = getattr(backbone, "depth", 50) < 50
    lite = getattr(backbone, "variant", "").startswith("lite")
    return (
        ("backbone", backbone.kind, basic_blocks, lite),
        ("neck", neck.kind, getattr(neck, "separable", False)),
        ("DropBlock", bool(getattr(neck, "drop_block", None))),
        ("drop-connect", bool(getattr(backbone, "drop_connect_rate", 0.0))),
        *_kinds_of_head(model),
    )


def _kinds_of_head(model: ModelConfig) -> tuple[Hashable, ...]:
    if isinstance(model, MaskRCNNConfig):
        return (("detector", model.kind),)
    return (
        ("head", model.head.separable, model.head.activation),
        ("class loss", model.class_loss.kind),
        ("box loss", model.box_loss.kind),
        ("matching", model.matching.kind),
    )


def sizes(experiment: Experiment) -> tuple[Hashable, ...]:
    """Returns which backbone and which stages it has, and what it freezes."""
    config, model = experiment.config, experiment.config.model
    backbone = model.backbone
    which = getattr(backbone, "depth", None) or getattr(backbone, "variant", None)
    stages = (model.predicts_masks, getattr(model, "cascade", False), model.batch_norm is None)
    return (
        ("size", backbone.kind, which),
        ("freeze", config.train.freeze),
        ("stages", model.kind, *stages),
    )


def few_with_all(
    experiments: Iterable[Experiment], features: Callable[[Experiment], Iterable[Hashable]]
) -> list[Experiment]:
    """Returns experiments that together have every feature; each adds as many as one can."""
    missing = {experiment: set(features(experiment)) for experiment in experiments}
    found = []
    while missing:
        best = max(missing, key=lambda experiment: len(missing[experiment]))
        found.append(best)
        new = missing[best]
        left = {experiment: others - new for experiment, others in missing.items()}
        missing = {experiment: others for experiment, others in left.items() if others}
    return found


def take_step(config: ExperimentConfig) -> Step:
    """Builds the experiment's model, freezes what it freezes, and takes a step."""
    on_jax = keras.backend.backend() == "jax"
    step = _step_on_jax if on_jax else _step_on_tensorflow
    losses, gradients = step(config)
    faults = [f"{name} is {value}" for name, value in losses.items() if not np.isfinite(value)]
    faults += [f"{path} has no gradient" for path, value in gradients.items() if value is None]
    faults += [
        f"the gradient of {path} is not finite"
        for path, value in gradients.items()
        if value is not None and not np.isfinite(np.asarray(value)).all()
    ]
    return Step(losses, len(gradients), faults)


def _build(config: ExperimentConfig) -> DetectorTask:
    task = build_task(config, num_classes=NUM_CLASSES, canvas_size=CANVAS)
    freeze(task.model, config.train.freeze)
    return task


def _step_on_tensorflow(config: ExperimentConfig) -> tuple[dict[str, float], dict[str, Any]]:
    import tensorflow as tf

    task = _build(config)
    batch = Batch(*(None if field is None else tf.constant(field) for field in _batch()))
    trained = task.model.trainable_variables
    with tf.GradientTape() as tape:
        losses = task.losses(batch)
    gradients: Any = tape.gradient(losses["loss"], [v.value for v in trained])
    by_path = {v.path: value for v, value in zip(trained, gradients, strict=True)}
    return {name: float(value) for name, value in losses.items()}, by_path


def _step_on_jax(config: ExperimentConfig) -> tuple[dict[str, float], dict[str, Any]]:
    import jax

    # So that no variable is drawn; without any of them `_drawn` may give all.
    with keras.StatelessScope(initialize_variables=False):
        task = _build(config)
    batch = _batch()
    trained, others = task.model.trainable_variables, task.model.non_trainable_variables

    def losses(values: list[Any], other_values: list[Any]) -> Any:
        state = [*zip(trained, values, strict=True), *zip(others, other_values, strict=True)]
        with keras.StatelessScope(state_mapping=state, initialize_variables=False):
            found = task.losses(batch)
        return found["loss"], found

    rng = np.random.default_rng(0)
    values = [[_drawn(v, rng) for v in variables] for variables in (trained, others)]
    (_, found), gradients = jax.jit(jax.value_and_grad(losses, has_aux=True))(*values)
    by_path = {v.path: value for v, value in zip(trained, gradients, strict=True)}
    return {name: float(value) for name, value in found.items()}, by_path


def _drawn(variable: Any, rng: np.random.Generator) -> np.ndarray:
    """Kernels keep the size of what they are given; scales are 1, seeds, shifts and means 0."""
    shape, name = variable.shape, variable.path.rpartition("/")[2]
    if name.endswith("kernel"):
        fan_in = np.prod(shape[:3]) if len(shape) == 4 else shape[0]
        return rng.normal(0, fan_in**-0.5, shape).astype(variable.dtype)
    is_one = variable.dtype.startswith("float") and name not in ("bias", "beta", "moving_mean")
    return np.full(shape, int(is_one), variable.dtype)


def _batch() -> Batch:
    noise = np.random.default_rng(0).integers(0, 256, (1, *CANVAS, 3)).astype(np.uint8)
    mask = np.zeros((1, 2, *CANVAS), np.uint8)
    mask[0, 0, 10:70, 20:60] = 1
    return Batch(
        images=noise,
        boxes=np.array([[[10, 20, 70, 90], [0, 0, 0, 0]]], np.float32),
        classes=np.array([[3, 0]], np.int32),
        is_crowd=np.zeros((1, 2), bool),
        records=np.arange(1),
        original_sizes=np.array([CANVAS], np.float32),
        scales=np.ones((1, 2), np.float32),
        offsets=np.zeros((1, 2), np.float32),
        masks=np.packbits(mask, axis=-1),
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Prints a line for each step; returns the exit code."""
    parser = argparse.ArgumentParser(
        description="Builds every shipped experiment and takes one step of it."
    )
    parser.add_argument("versions", nargs="*", metavar="VERSION", help="(all)")
    parser.add_argument("--small", action="store_true", help="shallow, with 16 filters; seconds")
    arguments = parser.parse_args(argv)
    experiments = read_experiments(arguments.versions)
    if arguments.small:
        experiments = [small(experiment, shallow=True) for experiment in experiments]
    distinct = few_with_all(experiments, lambda e: [(e.config.model, e.config.train.freeze)])
    failed = 0
    for number, (stem, config) in enumerate(distinct, 1):
        started = time.perf_counter()
        try:
            step = take_step(config)
        except Exception as error:  # what one file does wrong must not hide the next one
            step = Step({}, 0, [f"{type(error).__name__}: {error}"])
        failed += bool(step.faults)
        losses = ", ".join(f"{name} {value:.4f}" for name, value in step.losses.items())
        said = "; ".join(step.faults[:5]) if step.faults else f"{step.num_gradients} gradients"
        took = f"{time.perf_counter() - started:.1f} s"
        place = f"{number}/{len(distinct)}"
        print(f"{stem}: {said}; {losses}; {took}; {place}", flush=True)
    backend = keras.backend.backend()
    print(f"{len(distinct) - failed} of {len(distinct)} steps are well on {backend}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
