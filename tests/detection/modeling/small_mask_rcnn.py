"""A Mask R-CNN of some 60,000 parameters, and a command that runs it on KERAS_BACKEND=jax.

`test_mask_rcnn_other_backend.py` runs this file in a process of its own, since Keras has one
backend per process: weights by path come in and losses, gradients and detections go out as .npz.
"""

import functools
import runpy
import sys
from pathlib import Path
from typing import Any

import keras
import numpy as np

from tpudet.detection.modeling.fpn import FPN
from tpudet.detection.modeling.mask_rcnn import MaskRCNN
from tpudet.detection.modeling.mask_rcnn_task import CASCADE, FASTER_RCNN, MaskRCNNTask
from tpudet.detection.modeling.roi_heads import BoxHead, MaskHead
from tpudet.detection.modeling.rpn import RPNHead, propose
from tpudet.detection.modeling.two_stage_losses import box_head_losses, rpn_losses
from tpudet.detection.modeling.two_stage_postprocess import postprocess_rois
from tpudet.detection.ops.anchors import anchors_for_canvas, locations_per_level
from tpudet.detection.ops.matching import match_argmax_iou
from tpudet.detection.ops.sampling import draw_balanced, sample_rois
from tpudet.detection.types import Batch
from tpudet.trainkit.backbones.batch_norm import BatchNorm

CANVAS = (64, 128)
LEVELS: dict[str, Any] = {"min_level": 2, "max_level": 6}
STRIDES = (4, 8, 16, 32, 64)
NUM_CLASSES = 3
_MATCH = functools.partial(
    match_argmax_iou,
    match_threshold=0.7,
    unmatched_threshold=0.3,
    force_match=True,
    forced_target="object",
)
_POSTPROCESS = functools.partial(
    postprocess_rois, iou_threshold=0.5, max_candidates=80, max_detections=20
)

_SHARED = runpy.run_path(str(Path(__file__).with_name("small_retinanet.py")))
SmallBackbone = _SHARED["SmallBackbone"]


def make_anchors(canvas=CANVAS):
    return anchors_for_canvas(
        canvas_size=canvas,
        strides=STRIDES,
        num_scales=1,
        aspect_ratios=(1.0, 2.0, 0.5),
        anchor_size=4.0,
        sides=(),
        layout="centered",
    )


def build_model(
    *,
    backbone: keras.layers.Layer,
    include_mask: bool,
    cascade: bool,
    neck_norm: Any,
    make_norm: Any,
    num_classes: int,
    num_filters: int,
    num_units: int,
):
    stages = CASCADE if cascade else FASTER_RCNN
    names = [f"box_head{index}" for index in range(3)] if cascade else ["box_head"]
    box_heads = [
        BoxHead(
            num_classes=num_classes,
            class_agnostic=cascade,
            num_convs=1 if make_norm else 0,
            num_filters=num_filters,
            num_dense=1,
            num_units=num_units,
            make_norm=make_norm,
            name=name,
        )
        for name in names
    ]
    mask_head = MaskHead(
        num_classes=num_classes, num_convs=2, num_filters=num_filters, make_norm=make_norm
    )
    model = MaskRCNN(
        backbone=backbone,
        neck=FPN(
            num_filters=num_filters,
            separable=False,
            make_norm=neck_norm,
            **_SHARED["PLAIN_FPN"],
            **LEVELS,
        ),
        rpn=RPNHead(anchors_per_location=3, num_convs=1, num_filters=num_filters),
        box_heads=box_heads,
        mask_head=mask_head if include_mask else None,
        roi_levels=range(2, 6),
        box_size=7,
        mask_size=14,
        sampling_ratio=2,
        aligned=True,
        pixel_mean=(0.485, 0.456, 0.406),
        pixel_std=(0.229, 0.224, 0.225),
    )
    return model, stages


def build_task(
    *,
    canvas=CANVAS,
    include_mask=True,
    cascade=False,
    norms=False,
    momentum=0.99,
    synchronized=False,
    sum_over_replicas=lambda x: x,
    backbone=None,
    num_classes=NUM_CLASSES,
    num_filters=16,
    num_units=24,
    max_proposals=60,
    score_threshold=0.0,
):
    make_norm = functools.partial(
        BatchNorm, momentum=momentum, epsilon=1e-3, synchronized=synchronized
    )
    model, stages = build_model(
        backbone=backbone or SmallBackbone(make_norm),
        include_mask=include_mask,
        cascade=cascade,
        neck_norm=make_norm,
        make_norm=make_norm if norms else None,
        num_classes=num_classes,
        num_filters=num_filters,
        num_units=num_units,
    )
    proposals = functools.partial(
        propose,
        anchors_per_level=[3 * n for n in locations_per_level(canvas_size=canvas, strides=STRIDES)],
        iou_threshold=0.7,
        max_candidates=100,
        max_proposals=max_proposals,
        min_score=0.0,
        min_side=0.0,
    )
    return MaskRCNNTask(
        model=model,
        anchors=make_anchors(canvas),
        sum_over_replicas=sum_over_replicas,
        padding="black",
        match=_MATCH,
        draw_anchors=functools.partial(draw_balanced, count=64, max_positives=32),
        rpn_losses=functools.partial(rpn_losses, beta=1 / 9),
        propose_in_training=proposals,
        propose=functools.partial(proposals, max_proposals=max_proposals // 2),
        clip_to="canvas",
        sample_rois=functools.partial(
            sample_rois, iou_threshold=stages[0].iou_threshold, count=32, max_positives=8
        ),
        max_mask_rois=8,
        stages=stages,
        box_losses=functools.partial(box_head_losses, beta=1 / 9),
        postprocess=functools.partial(_POSTPROCESS, score_threshold=score_threshold),
    )


def draw_weights(task, seed=0):
    """Gives every variable a value far from its initial one, so that nothing cancels."""
    _SHARED["draw_values"](task.model.variables, seed)
    rng = np.random.default_rng(seed)
    for variable in sorted(task.model.variables, key=lambda v: v.path):
        shape = variable.shape
        if variable.path.endswith("kernel") and len(shape) == 2:
            variable.assign(rng.normal(0, 1 / np.sqrt(shape[0]), shape))
    task.model.draws.assign(0)


def make_batch(batch=2, seed=0):
    """Images of noise with elliptic masks; the last has no instance, the first also a crowd."""
    found = _SHARED["make_batch"](batch=batch, seed=seed)
    rows, columns = np.meshgrid(*(np.arange(side) + 0.5 for side in CANVAS), indexing="ij")
    centers = 0.5 * (found.boxes[..., :2] + found.boxes[..., 2:])[..., None, None]
    halves = 0.5 * (found.boxes[..., 2:] - found.boxes[..., :2])[..., None, None] + 1e-3
    distances = ((rows - centers[:, :, 0]) / halves[:, :, 0]) ** 2
    distances = distances + ((columns - centers[:, :, 1]) / halves[:, :, 1]) ** 2
    return Batch(*found[:8], masks=np.packbits(distances <= 1, axis=-1))


def settings_by_name():
    return {"mask_rcnn": {}, "cascade": {"cascade": True, "norms": True}}


def run_on_jax(task, batch):
    import jax

    trained = task.model.trainable_variables
    others = task.model.non_trainable_variables

    def losses(trained_values, other_values):
        values = [*zip(trained, trained_values), *zip(others, other_values)]  # noqa: B905
        with keras.StatelessScope(state_mapping=values) as scope:
            found = task.losses(batch)
        return found["loss"], (found, [scope.get_current_value(v) for v in others])

    def predict(trained_values, other_values):
        values = [*zip(trained, trained_values), *zip(others, other_values)]  # noqa: B905
        with keras.StatelessScope(state_mapping=values):
            return task.predict(batch)

    values = [v.value for v in trained], [v.value for v in others]
    found = jax.jit(predict)(*values)._asdict().items()
    results = {f"detections/{name}": value for name, value in found if value is not None}
    gradient = jax.jit(jax.value_and_grad(losses, has_aux=True))
    (_, (found, moved)), gradients = gradient(*values)
    results |= {f"losses/{name}": value for name, value in found.items()}
    results |= {f"gradients/{v.path}": g for v, g in zip(trained, gradients, strict=True)}
    results |= {f"moved/{v.path}": value for v, value in zip(others, moved, strict=True)}
    return results


def main(weights_path, results_path):
    results: dict[str, Any] = {}
    with np.load(weights_path) as weights:
        for name, settings in settings_by_name().items():
            task = build_task(**settings)
            for variable in task.model.variables:
                variable.assign(weights[f"{name}/{variable.path}"])
            found = run_on_jax(task, make_batch())
            results |= {f"{name}/{key}": np.asarray(value) for key, value in found.items()}
    np.savez(results_path, **results)


if __name__ == "__main__":
    main(*sys.argv[1:])
