"""Name map for necks and heads of the detectors in tensorflow/tpu, which have our layouts.

Pyramid and head compute the same there, except for the classes: channel 0 of every anchor is the
background, which our heads do not have. Box deltas have the same order; so have anchors if the
aspect ratios are 1, 2, 0.5, as there. The names inside NAS-FPN differ and are not mapped.
"""

import re
from collections.abc import Collection

import numpy as np

from tpudet.trainkit.weights.name_maps.recipes import Recipe, as_is

_NORM_PART = r"gamma|beta|moving_mean|moving_variance"
_CONV_PART = r"kernel|depthwise_kernel|bias"

# From our paths to their names; {0}, {1} ... are the groups.
_NAMES = (
    (rf"neck/lateral(\d)/({_CONV_PART})", "fpn/l{0}/{1}"),
    (rf"neck/conv([2-5])/({_CONV_PART})", "fpn/post_hoc_d{0}/{1}"),
    (rf"neck/conv([67])/({_CONV_PART})", "fpn/p{0}/{1}"),
    (rf"neck/norm(\d)/({_NORM_PART})", "fpn/p{0}-bn/{1}"),
    (rf"head/(class|box)_tower/conv(\d)/({_CONV_PART})", "retinanet/{0}_net/{0}-{1}/{2}"),
    (
        rf"head/(class|box)_tower/norm(\d)_level(\d)/({_NORM_PART})",
        "retinanet/{0}_net/{0}-{1}-{2}/{3}",
    ),
    (rf"head/(class|box)_predict/({_CONV_PART})", "retinanet/{0}_net/{0}-predict/{1}"),
)


def tensorflow_detector_part(
    path: str, names: Collection[str], *, anchors_per_location: int
) -> Recipe | None:
    """Returns how to make a variable of neck or head from a checkpoint of tensorflow/tpu.

    Args:
        path: of our variable, such as "head/class_tower/conv0/kernel".
        names: in the checkpoint.
        anchors_per_location: scales times aspect ratios, the same in both.

    Returns:
        The recipe; None for a part that those detectors do not have.
    """
    for pattern, template in _NAMES:
        match = re.fullmatch(pattern, path)
        if match is None:
            continue
        name = template.format(*match.groups())
        # TensorFlow calls the second kernel of a separable convolution pointwise_kernel.
        pointwise = re.sub("kernel$", "pointwise_kernel", name)
        if name not in names and pointwise in names:
            name = pointwise
        if path in ("head/class_predict/kernel", "head/class_predict/bias"):
            return Recipe((name,), lambda value: without_background(value, anchors_per_location))
        return as_is(name)
    return None


def without_background(values: np.ndarray, anchors_per_location: int) -> np.ndarray:
    """Removes the first class of every anchor from [..., anchors * classes].

    Raises:
        ValueError: channels that are no multiple of the anchors.
    """
    by_anchor = values.reshape(*values.shape[:-1], anchors_per_location, -1)
    return by_anchor[..., 1:].reshape(*values.shape[:-1], -1)
