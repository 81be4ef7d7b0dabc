"""Times RetinaNet R50-FPN beside torchvision's and KerasHub's: training steps and inference.

`--masks` times Mask R-CNN R50-FPN beside torchvision's instead, with its settings.

All get the same synthetic pixels and boxes, random weights and all cores. Each measurement is a
process of its own, so that no frameworks share threads; the detectors take turns round by round, so
that other load hits each alike. The floats that the peers want are made outside of the timed part;
ours starts from uint8. KerasHub is timed in training alone: its class head starts without the
prior bias, and so with a detection at nearly every anchor.
"""

import argparse
import functools
import json
import math
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

NUM_CLASSES = 80
MASKS_FOUND = 100  # per image, the most of both
NUM_BOXES = 8  # an image
LEARNING_RATE, MOMENTUM = 1e-6, 0.9  # a step costs the same at any rate; this one cannot diverge
CORES = len(os.sched_getaffinity(0))
WARM_UP_STEPS = 2  # tracing, and buffers that grow in the first steps


class Detector(NamedTuple):
    """The functions to time; each call takes the whole batch."""

    train: Callable[[], float]  # forward, losses, backward, momentum update; returns the loss
    predict: Callable[[], float] | None  # with decoding and suppression; detections an image
    trained: Sequence[Any]  # variables
    packages: Sequence[Any]  # modules whose versions are shown


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command and returns its exit code."""
    arguments = _parse(argv)
    if arguments.worker:
        batch = synthetic_batch(arguments.batch_size, arguments.canvas)
        options = {"in_bfloat16": arguments.precision == "bfloat16", "with_masks": arguments.masks}
        detector = BUILDERS[arguments.worker](*batch, **options)
        print(json.dumps(_measure(detector, arguments.steps)))
        return 0
    network = "Mask R-CNN" if arguments.masks else "RetinaNet"
    print(
        f"{network} R50-FPN, {arguments.canvas} px, batch {arguments.batch_size}, {NUM_CLASSES} "
        f"classes, {arguments.precision}, {CORES} cores (load now {os.getloadavg()[0]:.1f}); "
        f"images/s: median (range) over {arguments.rounds} rounds of {arguments.steps} steps"
    )
    try:
        _print_table(_take_turns(arguments), arguments.batch_size)
    except subprocess.CalledProcessError as error:
        print(f"{' '.join(error.cmd)} failed:\n{error.stderr[-4000:]}", file=sys.stderr)
        return 1
    return 0


def synthetic_batch(batch_size: int, canvas: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Returns images [B, H, W, 3] uint8, boxes [B, NUM_BOXES, 4] and classes from 0; always same.

    Noise, with boxes y1 x1 y2 x2 of 1/16 to 1/2 of the canvas, float32 pixels.
    """
    random = np.random.default_rng(0)
    sides = random.uniform(canvas / 16, canvas / 2, (batch_size, NUM_BOXES, 2))
    corners = random.uniform(0, canvas - sides)
    boxes = np.concatenate([corners, corners + sides], axis=-1).astype(np.float32)
    classes = random.integers(0, NUM_CLASSES, (batch_size, NUM_BOXES), np.int32)
    return random.integers(0, 256, (batch_size, canvas, canvas, 3), np.uint8), boxes, classes


def box_masks(boxes: np.ndarray, canvas: int) -> np.ndarray:
    """Returns the pixels of each box, [B, NUM_BOXES, H, W] uint8."""
    y1, x1, y2, x2 = boxes[..., None].transpose(2, 0, 1, 3)
    pixels = np.arange(canvas) + 0.5
    rows, columns = (y1 <= pixels) & (pixels < y2), (x1 <= pixels) & (pixels < x2)
    return (rows[..., None] & columns[..., None, :]).astype(np.uint8)


def build_ours(
    images: Any, boxes: Any, classes: Any, *, in_bfloat16: bool, with_masks: bool
) -> Detector:
    """Builds this project's detector and the engine that trains it, as the experiment does."""
    import keras
    import tensorflow as tf

    from tpudet.detection import build_detector, config
    from tpudet.trainkit.config.decode import load_config
    from tpudet.trainkit.training import devices, optimizers, tensorflow_engine

    batch_size, canvas = images.shape[:2]
    name = "mask_rcnn/torchvision-mask_r50_fpn" if with_masks else "retinanet/r50_fpn_640"
    yaml = Path(__file__).parents[1] / f"configs/yaml/{name}.yaml"
    overrides = [f"data.canvas_size=[{canvas}, {canvas}]", f"train.batch_size={batch_size}"]
    if with_masks:
        overrides += ["train.freeze=[]", "model.backbone.batch_norm.frozen=false"]
        overrides += ["model.postprocess.score_threshold=0.0"]  # finds as many as it may
    setting = load_config(config.ExperimentConfig, str(yaml), overrides=overrides)
    cpu = devices.choose_tensorflow_devices("cpu")
    keras.config.set_dtype_policy("mixed_bfloat16" if in_bfloat16 else "float32")
    with cpu.scope():
        task = build_detector.build_task(
            setting, num_classes=NUM_CLASSES, canvas_size=(canvas, canvas)
        )
        optimizer = optimizers.Momentum(
            lambda step: LEARNING_RATE, momentum=MOMENTUM, nesterov=False
        )
    batch = _our_batch(images, boxes, classes, setting.data.max_instances, with_masks=with_masks)
    engine = tensorflow_engine.TensorFlowEngine(
        task=task,
        optimizer=optimizer,
        devices=cpu,
        make_dataset=lambda start_record: tf.data.Dataset.from_tensors(batch).repeat(),
        batch_size=batch_size,
        decayed=optimizers.decayed_variables(task.model),
        l2_weight_decay=setting.train.optimizer.weight_decay,
        gradient_clip_norm=setting.train.gradient_clip_norm,
    )
    predict = tf.function(lambda pixels: task.predict(batch._replace(images=pixels)))
    return Detector(
        train=lambda: engine.train(1).losses["loss"],
        predict=lambda: float(np.mean(predict(tf.constant(images)).num_detections)),
        trained=task.model.trainable_variables,
        packages=(tf, keras),
    )


def _our_batch(
    images: Any, boxes: Any, classes: Any, max_instances: int, *, with_masks: bool
) -> Any:
    from tpudet.detection.types import Batch

    batch_size, num_boxes = classes.shape
    padding, pairs = ((0, 0), (0, max_instances - num_boxes)), np.ones((batch_size, 2), np.float32)
    masks = np.packbits(box_masks(boxes, images.shape[1]), axis=-1) if with_masks else None
    return Batch(
        images=images,
        boxes=np.pad(boxes, (*padding, (0, 0))),
        classes=np.pad(classes + 1, padding),
        is_crowd=np.zeros((batch_size, max_instances), np.bool_),
        records=np.arange(batch_size, dtype=np.int64),
        original_sizes=pairs * images.shape[1],
        scales=pairs,
        offsets=pairs * 0,
        masks=None if masks is None else np.pad(masks, (*padding, (0, 0), (0, 0))),
    )


def build_torchvision(
    images: Any, boxes: Any, classes: Any, *, in_bfloat16: bool, with_masks: bool
) -> Detector:
    """Builds retinanet_resnet50_fpn or maskrcnn_resnet50_fpn; without weights nothing is frozen.

    In bfloat16 it runs as PyTorch advises for CPUs: autocast, and channels last.
    """
    import torch  # pyright: ignore[reportMissingImports]
    import torchvision  # pyright: ignore[reportMissingImports]

    torch.set_num_threads(CORES)
    sides = {"min_size": images.shape[1], "max_size": images.shape[1]}
    no_weights = {"weights": None, "weights_backbone": None}
    if with_masks:
        model = torchvision.models.detection.maskrcnn_resnet50_fpn(
            num_classes=NUM_CLASSES + 1, **sides, **no_weights
        )
    else:
        model = torchvision.models.detection.retinanet_resnet50_fpn(
            num_classes=NUM_CLASSES,
            detections_per_img=100,  # as ours; the thresholds, 0.05 and 0.5, are both's defaults
            **sides,
            **no_weights,
        )
    if in_bfloat16:
        model = model.to(memory_format=torch.channels_last)
    precision = functools.partial(torch.autocast, "cpu", dtype=torch.bfloat16, enabled=in_bfloat16)
    optimizer = torch.optim.SGD(model.parameters(), lr=LEARNING_RATE, momentum=MOMENTUM)
    tensors = list(torch.from_numpy(images).permute(0, 3, 1, 2).contiguous().float() / 255)
    corners = torch.from_numpy(boxes)[..., [1, 0, 3, 2]]
    labels = torch.from_numpy(classes).long()
    if with_masks:
        labels += 1  # 0 is the background
    targets = [{"boxes": b, "labels": n} for b, n in zip(corners, labels, strict=True)]
    if with_masks:
        masks = torch.from_numpy(box_masks(boxes, images.shape[1]))
        targets = [target | {"masks": one} for target, one in zip(targets, masks, strict=True)]

    def train() -> float:
        model.train()
        optimizer.zero_grad()
        with precision():
            loss = sum(model(tensors, targets).values())
        loss.backward()
        optimizer.step()
        return loss.item()

    def predict() -> float:
        model.eval()
        with torch.inference_mode(), precision():
            count = float(np.mean([len(found["scores"]) for found in model(tensors)]))
        # The highest threshold at which these weights find about as many as ours: masks take time,
        # and with a threshold of 0 so would the suppression of 80,000 boxes an image. The warm-up
        # finds it.
        if with_masks and count < 0.9 * MASKS_FOUND and model.roi_heads.score_thresh > 1e-6:
            model.roi_heads.score_thresh *= 0.7
            return predict()
        return count

    return Detector(train, predict, list(model.parameters()), (torch, torchvision))


def build_kerashub(
    images: Any, boxes: Any, classes: Any, *, in_bfloat16: bool, with_masks: bool
) -> Detector:
    """Builds KerasHub's RetinaNetObjectDetector on the TensorFlow backend; it has no masks."""
    assert not with_masks
    import keras
    import keras_hub  # pyright: ignore[reportMissingImports]
    import tensorflow as tf

    keras.config.set_dtype_policy("mixed_bfloat16" if in_bfloat16 else "float32")
    models, shape = keras_hub.models, images.shape[1:]
    filters, blocks, strides = [64, 128, 256, 512], [3, 4, 6, 3], [1, 2, 2, 2]
    encoder = models.ResNetBackbone([64], [7], filters, blocks, strides, "bottleneck_block")
    backbone = models.RetinaNetBackbone(encoder, 3, 7, use_p5=False, image_shape=shape)
    model = models.RetinaNetObjectDetector(backbone, NUM_CLASSES)
    model.compile(optimizer=keras.optimizers.SGD(LEARNING_RATE, momentum=MOMENTUM))
    pixels = images.astype(np.float32) / 255
    truth = {"boxes": boxes, "labels": classes.astype(np.float32)}

    def train() -> float:  # KerasHub's own train_on_batch does not take a dictionary as truth
        return keras.Model.train_on_batch(model, pixels, truth, return_dict=True)["loss"]

    return Detector(train, None, model.trainable_variables, (keras_hub, keras, tf))


BUILDERS = {"ours": build_ours, "torchvision": build_torchvision, "kerashub": build_kerashub}


def _measure(detector: Detector, steps: int) -> dict[str, Any]:
    """Returns seconds a call, and what shows that the same work was done."""
    training, loss = _time(detector.train, steps)
    if not math.isfinite(loss):
        raise ValueError(f"the loss is {loss}; such steps are not worth timing")
    inference, found = _time(detector.predict, steps) if detector.predict else (None, None)
    return {
        "training": training,
        "inference": inference,
        "found": found,
        "parameters": sum(math.prod(variable.shape) for variable in detector.trained),
        "versions": [f"{module.__name__} {module.__version__}" for module in detector.packages],
    }


def _time(call: Callable[[], float], steps: int) -> tuple[float, float]:
    """Returns the median seconds a call after the warm-up, and what the last call returned."""
    seconds, result = [], 0.0
    for _ in range(WARM_UP_STEPS + steps):
        start = time.perf_counter()
        result = call()
        seconds.append(time.perf_counter() - start)
    return statistics.median(seconds[WARM_UP_STEPS:]), result


_SHARED_FLAGS = ("precision", "steps", "batch_size", "canvas")


def _take_turns(arguments: argparse.Namespace) -> dict[str, list[dict[str, Any]]]:
    from tqdm import tqdm  # the peers' environments lack it

    pythons = arguments.pythons
    results: dict[str, list[dict[str, Any]]] = {name: [] for name in pythons}
    flags = [f"--{flag}={getattr(arguments, flag)}" for flag in _SHARED_FLAGS]
    flags += ["--masks"] if arguments.masks else []
    environment = os.environ | {"KERAS_BACKEND": "tensorflow", "CUDA_VISIBLE_DEVICES": "-1"}
    for name in tqdm([*pythons] * arguments.rounds, unit="process"):
        command = [pythons[name], __file__, f"--worker={name}", *flags]
        done = subprocess.run(command, capture_output=True, text=True, env=environment, check=True)
        results[name].append(json.loads(done.stdout.splitlines()[-1]))
    return results


def _print_table(results: dict[str, list[dict[str, Any]]], batch_size: int) -> None:
    print(f"{'':12}{'training':>22}{'ours/it':>9}{'inference':>22}{'ours/it':>9}{'found':>7}  size")
    for name, rounds in results.items():
        row = name.ljust(12)
        for kind in ("training", "inference"):
            if rounds[0][kind] is None:
                row += f"{'-':>22}{'-':>9}"
                continue
            speeds = [batch_size / result[kind] for result in rounds]
            middle = statistics.median(speeds)
            row += f"{f'{middle:.3f} ({min(speeds):.3f}-{max(speeds):.3f})':>22}"
            ours = [batch_size / result[kind] for result in results.get("ours", ())]
            row += f"{statistics.median(ours) / middle:9.2f}" if ours else f"{'-':>9}"
        last = rounds[-1]
        found = "-" if last["found"] is None else f"{last['found']:.1f}"
        print(f"{row}{found:>7}  {last['parameters'] / 1e6:.2f}M, {', '.join(last['versions'])}")


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="benchmarks/detectors.py", description=__doc__)
    parser.add_argument("--torchvision_python", default="", help="interpreter that has torchvision")
    parser.add_argument("--kerashub_python", default="", help="interpreter that has keras_hub")
    parser.add_argument("--precision", choices=("float32", "bfloat16"), default="float32")
    for flag, default in (("rounds", 3), ("steps", 3), ("batch_size", 4), ("canvas", 512)):
        parser.add_argument(f"--{flag}", type=int, default=default, help=f"default {default}")
    parser.add_argument("--masks", action="store_true", help="Mask R-CNN instead of RetinaNet")
    parser.add_argument("--only", nargs="+", choices=tuple(BUILDERS), help="leave the others out")
    parser.add_argument("--worker", choices=tuple(BUILDERS), help=argparse.SUPPRESS)
    arguments = parser.parse_args(argv)
    if min(arguments.rounds, arguments.steps, arguments.batch_size, arguments.canvas) < 1:
        parser.error("--rounds, --steps, --batch_size and --canvas must be 1 or more")
    if arguments.canvas % 128:
        parser.error(f"--canvas is {arguments.canvas}; it must be a multiple of 128")
    peers = {"torchvision": arguments.torchvision_python, "kerashub": arguments.kerashub_python}
    pythons = {"ours": sys.executable} | {name: path for name, path in peers.items() if path}
    chosen = arguments.only or pythons
    if arguments.masks and "kerashub" in chosen:
        parser.error("KerasHub has no Mask R-CNN to compare --masks with")
    if lacking := set(chosen) - set(pythons):
        parser.error(f"also needed: {' '.join(f'--{name}_python' for name in sorted(lacking))}")
    arguments.pythons = {name: path for name, path in pythons.items() if name in chosen}
    return arguments


if __name__ == "__main__":
    sys.exit(main())
