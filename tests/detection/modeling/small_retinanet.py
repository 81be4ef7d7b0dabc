"""A RetinaNet of some 40,000 parameters, and a command that runs it on KERAS_BACKEND=jax.

`test_other_backend.py` runs this file in a process of its own, since Keras has one backend a
process: weights by path come in and losses, gradients and detections go out as .npz.
"""

import functools
import sys
from typing import Any

import keras
import numpy as np

from tpudet.detection.modeling.bifpn import BiFPN
from tpudet.detection.modeling.fpn import FPN
from tpudet.detection.modeling.heads import RetinaNetHead
from tpudet.detection.modeling.losses import (
    focal_loss,
    huber_box_loss,
    l1_box_loss,
    overlap_box_loss,
    quality_focal_loss,
    smooth_l1_box_loss,
    varifocal_loss,
)
from tpudet.detection.modeling.nas_fpn import NASFPN
from tpudet.detection.modeling.postprocess import postprocess
from tpudet.detection.modeling.retinanet import RetinaNet, RetinaNetTask
from tpudet.detection.ops.anchors import anchors_for_canvas, locations_per_level
from tpudet.detection.ops.atss import match_atss
from tpudet.detection.ops.boxes import image_regions
from tpudet.detection.ops.matching import match_argmax_iou
from tpudet.detection.types import Batch, RawPredictions
from tpudet.trainkit.backbones.batch_norm import BatchNorm
from tpudet.trainkit.backbones.layers import ConvNorm

NORM = functools.partial(BatchNorm, momentum=0.99, epsilon=1e-3)

CANVAS = (64, 128)
LEVELS: dict[str, Any] = {"min_level": 4, "max_level": 6}
STRIDES = (16, 32, 64)
PLAIN_FPN: dict[str, Any] = {
    "coarse_levels": "convolution",
    "coarse_input": "pyramid",
    "coarse_relu": True,
    "symmetric_padding": False,
    "lateral_norms": False,
    "last_backbone_level": 5,
}

_ATSS = functools.partial(
    match_atss,
    locations_per_level=locations_per_level(canvas_size=CANVAS, strides=STRIDES),
    candidates_per_level=4,
)
DEFAULTS: dict[str, Any] = {
    "match": functools.partial(
        match_argmax_iou,
        match_threshold=0.5,
        unmatched_threshold=0.5,
        force_match=True,
        forced_target="object",
    ),
    "class_loss": functools.partial(focal_loss, alpha=0.25, gamma=1.5, label_smoothing=0.0),
    "box_loss": functools.partial(huber_box_loss, delta=0.1),
    "box_loss_weight": 50.0,
    "loss_normalization": "batch",
    "padding": "black",
    "postprocess": functools.partial(
        postprocess,
        score_threshold=0.0,
        iou_threshold=0.5,
        max_candidates=5000,
        max_detections=40,
    ),
}
# The alternatives to the defaults.
LOSSES: dict[str, dict[str, Any]] = {
    "smoothed": {
        "class_loss": functools.partial(focal_loss, alpha=0.25, gamma=1.5, label_smoothing=0.1),
        "box_loss": functools.partial(smooth_l1_box_loss, beta=0.1),
    },
    "quality_focal": {
        "class_loss": functools.partial(quality_focal_loss, beta=2.0),
        "box_loss": functools.partial(overlap_box_loss, kind="iou"),
    },
    "varifocal": {
        "class_loss": functools.partial(varifocal_loss, alpha=0.75, gamma=2.0),
        "box_loss": functools.partial(overlap_box_loss, kind="diou"),
    },
    # As torchvision's detectors and MLPerf's.
    "torchvision": {
        "match": functools.partial(
            match_argmax_iou,
            match_threshold=0.5,
            unmatched_threshold=0.4,
            force_match=True,
            forced_target="argmax",
        ),
        "box_loss": l1_box_loss,
        "loss_normalization": "image",
    },
    "atss_giou": {"match": _ATSS, "box_loss": functools.partial(overlap_box_loss, kind="giou")},
    "atss_ciou": {"match": _ATSS, "box_loss": functools.partial(overlap_box_loss, kind="ciou")},
}

# The alternatives to the feature pyramid network.
_NECK: dict[str, Any] = {
    "min_level": 3,
    "max_level": 7,
    "num_filters": 6,
    "num_repeats": 1,
    "make_norm": NORM,
}
_FPN: dict[str, Any] = PLAIN_FPN | {
    "min_level": 4,
    "max_level": 7,
    "num_filters": 6,
    "separable": False,
    "symmetric_padding": True,
    "make_norm": None,
}
NECKS = {
    "fpn_without_norm": functools.partial(FPN, **_FPN | {"coarse_input": "backbone"}),
    "fpn_without_relu": functools.partial(FPN, **_FPN | {"coarse_relu": False}),
    "fpn_lateral_norms": functools.partial(
        FPN,
        **_FPN
        | {
            "coarse_levels": "subsample",
            "lateral_norms": True,
            "make_norm": functools.partial(NORM, synchronized=False),
        },
    ),
    "nas_fpn": functools.partial(NASFPN, separable=True, drop_block=None, seed=0, **_NECK),
    "bifpn": functools.partial(BiFPN, **_NECK),
}


class SmallBackbone(keras.layers.Layer):
    """Strided convolutions, so that a test compiles in seconds: full, depthwise and separable."""

    def __init__(self, make_norm=NORM, name="backbone"):
        super().__init__(name=name)
        self.channels = {level: 8 * level for level in (1, 2, 3, 4, 5)}
        self.convs = {
            level: ConvNorm(
                filters,
                3,
                strides=2,
                activation="relu" if level % 2 else "silu",
                kind="separable" if level == 4 else "full",
                explicit_padding=level == 2,
                make_norm=make_norm,
                name=f"conv{level}",
            )
            for level, filters in self.channels.items()
        }

    def build(self, input_shape):
        for conv in self.convs.values():
            conv.build(input_shape)
            input_shape = (None, None, None, conv.filters)

    def call(self, images, training=False):
        features = {}
        for level, conv in self.convs.items():
            images = features[level] = conv(images, training=training)
        return features


def build_task(
    *,
    num_classes=3,
    centerness=False,
    synchronized=False,
    sum_over_replicas=lambda x: x,
    **settings,
):
    parts: dict[str, Any] = {
        "num_filters": 16,
        "separable": False,
        "make_norm": functools.partial(
            BatchNorm, synchronized=synchronized, momentum=0.99, epsilon=1e-3
        ),
        **LEVELS,
    }
    model = RetinaNet(
        backbone=SmallBackbone(parts["make_norm"]),
        neck=FPN(**PLAIN_FPN, **parts),
        head=RetinaNetHead(
            num_classes=num_classes,
            anchors_per_location=9,
            num_convs=1,
            activation="relu",
            norm_groups=None,
            norm_epsilon=1e-5,
            level_scales=False,
            centerness=centerness,
            **parts,
        ),
        pixel_mean=(0.485, 0.456, 0.406),
        pixel_std=(0.229, 0.224, 0.225),
    )
    return RetinaNetTask(
        model=model,
        anchors=make_anchors(),
        sum_over_replicas=sum_over_replicas,
        **{**DEFAULTS, **settings},
    )


def make_anchors():
    return anchors_for_canvas(
        canvas_size=CANVAS,
        strides=STRIDES,
        num_scales=3,
        aspect_ratios=(1.0, 2.0, 0.5),
        anchor_size=3.0,
        sides=(),
        layout="centered",
    )


def make_answers(batch=2, num_classes=3, seed=0):
    """Answers as of a network under way."""
    rng = np.random.default_rng(seed)
    count = len(make_anchors())
    return RawPredictions(
        rng.normal(-2, 2, (batch, count, num_classes)).astype(np.float32),
        rng.normal(0, 0.3, (batch, count, 4)).astype(np.float32),
        rng.normal(0, 1, (batch, count)).astype(np.float32),
    )


def losses_of(answers, batch, **settings):
    """The losses of a network that answers so, whatever the images."""
    model: Any = lambda images, training: answers  # noqa: E731
    model.pixel_mean = (0.5, 0.5, 0.5)
    task = RetinaNetTask(
        model=model,
        anchors=make_anchors(),
        sum_over_replicas=lambda x: x,
        **{**DEFAULTS, **settings},
    )
    return task.losses(batch)


def best_of_levels(answers, batch):
    """Detections with no more than 30 candidates a level, in pixels of the image."""
    counts = locations_per_level(canvas_size=CANVAS, strides=STRIDES)
    found = postprocess(
        answers,
        make_anchors(),
        image_regions(batch),
        score_threshold=0.0,
        iou_threshold=0.5,
        max_candidates=5000,
        max_candidates_per_level=30,
        anchors_per_level=[9 * count for count in counts],
        max_detections=40,
    )
    return {f"best_of_levels/{key}": v for key, v in found._asdict().items() if v is not None}


def make_neck(name):
    """The neck, with drawn weights, and a function of it whose gradient reaches every variable."""
    rng = np.random.default_rng(0)
    # Of a canvas of 128x256 pixels, the smallest with a level 7 to enlarge.
    channels = {3: 5, 4: 6, 5: 7}
    features = {
        level: rng.normal(size=(2, 128 // 2**level, 256 // 2**level, n)).astype(np.float32)
        for level, n in channels.items()
    }
    factors = {
        level: rng.normal(size=(2, 128 // 2**level, 256 // 2**level, 6)).astype(np.float32)
        for level in range(3, 8)
    }
    neck: Any = NECKS[name]()
    neck.build({level: value.shape for level, value in features.items()})
    draw_values(neck.variables)

    def weighted_sum():
        found: Any = neck(features, training=True)
        return keras.ops.sum(
            keras.ops.stack([keras.ops.sum(found[level] * factors[level]) for level in found])
        )

    return neck, weighted_sum


def draw_weights(task, seed=0):
    """Gives every variable a value far from its initial one, so that nothing cancels."""
    draw_values(task.model.variables, seed)


def draw_values(variables, seed=0):
    rng = np.random.default_rng(seed)
    for variable in sorted(variables, key=lambda v: v.path):
        shape = variable.shape
        if variable.path.endswith("kernel"):
            value = rng.normal(0, 1 / np.sqrt(np.prod(shape[:3])), shape)
        elif "bias" in variable.path or "beta" in variable.path or "mean" in variable.path:
            value = rng.normal(0, 0.3, shape)
        else:
            value = rng.uniform(0.5, 1.5, shape)
        variable.assign(value.astype(np.float32))


def make_batch(batch=2, seed=0):
    """Images of noise; the last has no instance, the first also a crowd and one without area."""
    rng = np.random.default_rng(seed)
    tops = rng.uniform(0, 1, (batch, 4, 2)) * [30, 90]
    sizes = rng.uniform(8, 34, (batch, 4, 2))
    boxes = np.concatenate([tops, tops + sizes], axis=-1).astype(np.float32)
    classes = rng.integers(1, 4, (batch, 4)).astype(np.int32)
    is_crowd = np.zeros((batch, 4), bool)
    is_crowd[0, 1] = True
    boxes[0, 2, 2:] = boxes[0, 2, :2]
    classes[-1], boxes[-1] = 0, 0
    return Batch(
        images=rng.integers(0, 256, (batch, *CANVAS, 3)).astype(np.uint8),
        boxes=boxes,
        classes=classes,
        is_crowd=is_crowd,
        records=np.arange(batch),
        original_sizes=np.tile(np.array(CANVAS, np.float32), (batch, 1)),
        scales=np.ones((batch, 2), np.float32),
        offsets=np.zeros((batch, 2), np.float32),
    )


def losses_and_gradients_on_jax(batch):
    import jax

    results = {}
    for name, settings in LOSSES.items():

        def loss(answers, settings=settings):
            found = losses_of(answers, batch, **settings)
            return found["loss"], found

        gradient = jax.jit(jax.value_and_grad(loss, has_aux=True))
        (_, found), gradients = gradient(make_answers())
        results |= {f"{name}/{key}": value for key, value in found.items()}
        results |= {f"{name}/{key}": value for key, value in gradients._asdict().items()}
    return results


def necks_on_jax():
    import jax

    results = {}
    for name in NECKS:
        neck, weighted_sum = make_neck(name)
        trained, others = neck.trainable_variables, neck.non_trainable_variables

        def moved_sum(values, trained=trained, others=others, weighted_sum=weighted_sum):
            with keras.StatelessScope(state_mapping=list(zip(trained, values))) as scope:  # noqa: B905
                total = weighted_sum()
            return total, [scope.get_current_value(v) for v in others]

        gradient = jax.jit(jax.value_and_grad(moved_sum, has_aux=True))
        (total, moved), gradients = gradient([v.value for v in trained])
        results[f"{name}/total"] = total
        results |= {
            f"{name}/gradients/{v.path}": g for v, g in zip(trained, gradients, strict=True)
        }
        results |= {f"{name}/moved/{v.path}": x for v, x in zip(others, moved, strict=True)}
    return results


def main(weights_path, results_path):
    import jax

    task, batch = build_task(), make_batch()
    with np.load(weights_path) as weights:
        for variable in task.model.variables:
            variable.assign(weights[variable.path])
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
    detections = jax.jit(predict)(*values)
    gradient = jax.jit(jax.value_and_grad(losses, has_aux=True))
    (_, (found, moved)), gradients = gradient(*values)
    results: dict[str, Any] = {f"losses/{name}": value for name, value in found.items()}
    results |= {
        f"detections/{name}": value
        for name, value in detections._asdict().items()
        if value is not None
    }
    results |= {f"gradients/{v.path}": g for v, g in zip(trained, gradients, strict=True)}
    results |= {f"moved/{v.path}": value for v, value in zip(others, moved, strict=True)}
    results |= losses_and_gradients_on_jax(batch) | necks_on_jax()
    results |= jax.jit(lambda answers: best_of_levels(answers, batch))(make_answers())
    arrays: dict[str, Any] = {name: np.asarray(value) for name, value in results.items()}
    np.savez(results_path, **arrays)


if __name__ == "__main__":
    main(*sys.argv[1:])
