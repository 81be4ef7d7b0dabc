from functools import partial
from typing import Any

import numpy as np
import pytest

from tpudet.detection.modeling.fpn import FPN
from tpudet.detection.modeling.heads import RetinaNetHead
from tpudet.detection.modeling.tensorflow_names import tensorflow_detector_part, without_background
from tpudet.trainkit.backbones.batch_norm import BatchNorm

NORM = ("gamma", "beta", "moving_mean", "moving_variance")


def names_of_tensorflow(*, classes, separable):
    """Names and shapes in a checkpoint of the original code, background among the classes."""
    shapes = {}

    def conv(name, size, inputs, outputs):
        if separable:
            shapes[f"{name}/depthwise_kernel"] = (size, size, inputs, 1)
            shapes[f"{name}/pointwise_kernel"] = (1, 1, inputs, outputs)
        else:
            shapes[f"{name}/kernel"] = (size, size, inputs, outputs)
        shapes[f"{name}/bias"] = (outputs,)

    for level, channels in ((3, 24), (4, 32), (5, 40)):
        conv(f"fpn/l{level}", 1, channels, 16)
        conv(f"fpn/post_hoc_d{level}", 3, 16, 16)
    for level in (6, 7):
        conv(f"fpn/p{level}", 3, 16, 16)
    for level in range(3, 8):
        shapes |= {f"fpn/p{level}-bn/{part}": (16,) for part in NORM}
    for net, outputs in (("class", 9 * (classes + 1)), ("box", 9 * 4)):
        for index in range(2):
            name = f"retinanet/{net}_net/{net}-{index}"
            conv(name, 3, 16, 16)
            for level in range(3, 8):
                shapes |= {f"{name}-{level}/{part}": (16,) for part in NORM}
        conv(f"retinanet/{net}_net/{net}-predict", 3, 16, outputs)
    return shapes


@pytest.mark.parametrize("separable", [False, True])
def test_every_variable_has_a_name_of_its_own_and_the_shape(separable):
    parts: dict[str, Any] = {
        "min_level": 3,
        "max_level": 7,
        "num_filters": 16,
        "separable": separable,
        "make_norm": partial(BatchNorm, momentum=0.99, epsilon=1e-3),
    }
    neck = FPN(**parts)
    neck.build({level: (None, None, None, 8 * level) for level in (2, 3, 4, 5)})
    head = RetinaNetHead(
        num_classes=3, anchors_per_location=9, num_convs=2, activation="relu", **parts
    )
    head.build((None, None, None, 16))
    stored = names_of_tensorflow(classes=3, separable=separable)
    used = []
    for variable in [*neck.variables, *head.variables]:
        recipe = tensorflow_detector_part(variable.path, stored, anchors_per_location=9)
        assert recipe is not None
        (name,) = recipe.names
        used.append(name)
        assert recipe.convert(np.zeros(stored[name])).shape == tuple(variable.shape)
    assert sorted(used) == sorted(stored)


def test_background_is_channel_0_of_every_anchor():
    # Two anchors of background, cat and dog.
    np.testing.assert_array_equal(without_background(np.arange(6), 2), [1, 2, 4, 5])
    kernels = np.arange(12).reshape(1, 2, 6)
    expected = [[[1, 2, 4, 5], [7, 8, 10, 11]]]
    np.testing.assert_array_equal(without_background(kernels, 2), expected)


def test_other_necks_have_no_names_there():
    for path in ("neck/cell0/node4/kernel", "neck/lateral3/norm/gamma", "head/mask/kernel"):
        assert tensorflow_detector_part(path, [], anchors_per_location=9) is None
