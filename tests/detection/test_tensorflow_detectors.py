"""Checkpoints under the names of tensorflow/tpu's Mask R-CNNs fill ours, whose heads then agree.

The names are those of its source, written down here once more; no checkpoint of it was at hand.
"""

import runpy
import zlib
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import tensorflow as tf

FOREIGN = SimpleNamespace(**runpy.run_path(str(Path(__file__).with_name("foreign_detectors.py"))))
FILTERS, UNITS, CLASSES = 16, 24, 91  # the last with the background
COCO = {"person": 1, "dog": 18}
NORM = ("gamma", "beta", "moving_mean", "moving_variance")
SMALL = [
    f"model.neck.num_filters={FILTERS}",
    f"model.rpn.num_filters={FILTERS}",
    f"model.box_head.num_filters={FILTERS}",
    f"model.box_head.num_units={UNITS}",
    f"model.mask_head.num_filters={FILTERS}",
    "model.rpn.max_proposals=20",
    "model.postprocess.max_detections=5",
]


def name_backbone(scope):
    """Shapes of a ResNet-50: layers are numbered as they are made, the projection first."""
    kernels, channels = [(7, 7, 3, 64)], 64
    for width, blocks in ((64, 3), (128, 4), (256, 6), (512, 3)):
        for block in range(blocks):
            kernels += [(1, 1, channels, 4 * width)] if block == 0 else []
            kernels += [(1, 1, channels, width), (3, 3, width, width), (1, 1, width, 4 * width)]
            channels = 4 * width
    shapes = {}
    for number, kernel in enumerate(kernels):
        end = f"_{number}" if number else ""
        shapes[f"{scope}conv2d{end}/kernel"] = kernel
        shapes |= {f"{scope}batch_normalization{end}/{part}": kernel[3:] for part in NORM}
    return shapes


def name_detector(scope, box_head, *, box_convs, convolves_6):
    """Shapes by name of a Mask R-CNN's checkpoint, with the optimizer's."""
    shapes = name_backbone(scope)

    def add(name, *kernel, outputs=None):
        shapes[f"{name}/kernel"] = kernel
        shapes[f"{name}/bias"] = (outputs or kernel[-1],)

    for level in range(2, 6):
        add(f"fpn/l{level}", 1, 1, 64 * 2**level, FILTERS)
        add(f"fpn/post_hoc_d{level}", 3, 3, FILTERS, FILTERS)
    if convolves_6:
        add("fpn/p6", 3, 3, FILTERS, FILTERS)
    add("rpn_head/rpn", 3, 3, FILTERS, FILTERS)
    add("rpn_head/rpn-class", 1, 1, FILTERS, 3)
    add("rpn_head/rpn-box", 1, 1, FILTERS, 3 * 4)
    for number in range(box_convs):
        add(f"{box_head}/conv_{number}", 3, 3, FILTERS, FILTERS)
    add(f"{box_head}/fc6", 7 * 7 * FILTERS, UNITS)
    add(f"{box_head}/fc7", UNITS, UNITS)
    add(f"{box_head}/class-predict", UNITS, CLASSES)
    add(f"{box_head}/box-predict", UNITS, CLASSES * 4)
    for number in range(4):
        add(f"mask_head/mask-conv-l{number}", 3, 3, FILTERS, FILTERS)
    add("mask_head/conv5-mask", 2, 2, FILTERS, FILTERS, outputs=FILTERS)
    add("mask_head/mask_fcn_logits", 1, 1, FILTERS, CLASSES)
    momenta = {f"{name}/Momentum": s for name, s in shapes.items() if "/moving_" not in name}
    return shapes | momenta | {"global_step": ()}


def draw(shapes):
    drawn = {}
    for name, shape in shapes.items():
        random = np.random.RandomState(zlib.crc32(name.encode()))
        scale = np.sqrt(2.0 / max(np.prod(shape[:-1]), 1)) if len(shape) > 1 else 0.1
        value = random.normal(1.0 if name.endswith("variance") else 0.0, scale, shape)
        drawn[name] = np.int64(7) if name == "global_step" else np.float32(value)
    return drawn


def load(values, prefix, overrides):
    names = sorted(values)
    tf.raw_ops.SaveV2(
        prefix=str(prefix),
        tensor_names=names,
        shape_and_slices=[""] * len(names),
        tensors=[values[name] for name in names],
    )
    pretrained = FOREIGN.open_file(prefix)
    detector = FOREIGN.build_detector(
        "tpu-mask_r50_fpn",
        pretrained.family,
        class_names=["dog", "widget", "person"],
        canvas_size=(128, 160),
        overrides=[*SMALL, *overrides],
    )
    return detector, FOREIGN.load(detector, pretrained)


def dense(values, name, features):
    return features @ values[f"{name}/kernel"] + values[f"{name}/bias"]


def conv(values, name, features):
    found = tf.nn.conv2d(features, values[f"{name}/kernel"], 1, "SAME") + values[f"{name}/bias"]
    return np.asarray(found)


def relu(features):
    return np.maximum(features, 0.0)


@pytest.mark.parametrize(
    ("scope", "box_head", "settings", "overrides"),
    [
        ("resnet50/", "box_head", {"box_convs": 0, "convolves_6": False}, []),
        (
            "backbone/resnet50/",
            "fast_rcnn_head",
            {"box_convs": 2, "convolves_6": True},
            ["model.box_head.num_convs=2", "model.neck.coarse_levels=convolution"],
        ),
    ],
    ids=["mask_rcnn", "detection"],
)
def test_every_tensor_is_taken_and_the_heads_agree(scope, box_head, settings, overrides, tmp_path):
    values = draw(name_detector(scope, box_head, **settings))
    detector, report = load(values, tmp_path / "model.ckpt-7", overrides)
    assert report.family.name == "tensorflow/tpu detection ResNet"
    assert report.missing == report.shape_skipped == report.differences == report.unused == ()
    assert {path for path, *_ in report.partly_loaded} == {
        f"{layer}/{part}"
        for layer in ("box_head/class_predict", "box_head/box_predict", "mask_head/mask_predict")
        for part in ("kernel", "bias")
    }
    assert report.notes[1:] == (
        "2 of 3 classes have the names of COCO's and take their weights; widget start fresh.",
    )

    model, random = detector.task.model, np.random.RandomState(0)
    features = random.normal(size=(2, 6, 5, FILTERS)).astype(np.float32)
    raw = model.rpn({2: features})
    shared = relu(conv(values, "rpn_head/rpn", features))
    for found, layer, size in ((raw.class_logits, "class", 1), (raw.box_deltas, "box", 4)):
        expected = conv(values, f"rpn_head/rpn-{layer}", shared).reshape(2, -1, size)
        np.testing.assert_allclose(found, expected, rtol=0, atol=1e-5)

    pooled = random.normal(size=(1, 3, 7, 7, FILTERS)).astype(np.float32)
    found = model.box_heads[0](pooled)
    inside = pooled[0]
    for number in range(settings["box_convs"]):
        inside = relu(conv(values, f"{box_head}/conv_{number}", inside))
    inside = inside.reshape(3, -1)
    for layer in ("fc6", "fc7"):
        inside = relu(dense(values, f"{box_head}/{layer}", inside))
    logits = dense(values, f"{box_head}/class-predict", inside)
    ours, theirs = [0, 1, 3], [0, COCO["dog"], COCO["person"]]
    np.testing.assert_allclose(found.class_logits[0].numpy()[:, ours], logits[:, theirs], atol=1e-5)
    deltas = dense(values, f"{box_head}/box-predict", inside).reshape(3, CLASSES, 4)
    box_deltas = found.box_deltas[0].numpy()[:, [0, 2]]
    np.testing.assert_allclose(box_deltas, deltas[:, theirs[1:]], atol=1e-5)

    pooled = random.normal(size=(1, 2, 14, 14, FILTERS)).astype(np.float32)
    inside = pooled[0]
    for number in range(4):
        inside = relu(conv(values, f"mask_head/mask-conv-l{number}", inside))
    kernel = values["mask_head/conv5-mask/kernel"]
    shape = tf.constant([2, 28, 28, FILTERS])
    inside = tf.nn.conv2d_transpose(inside, kernel, shape, 2, "VALID")
    inside = relu(np.asarray(inside) + values["mask_head/conv5-mask/bias"])
    masks = conv(values, "mask_head/mask_fcn_logits", inside)
    found = model.mask_head(pooled, np.array([[1, 3]]))
    for row, label in enumerate(theirs[1:]):
        np.testing.assert_allclose(found[0, row], masks[row, :, :, label], rtol=0, atol=1e-5)
