import numpy as np
import pytest
import tensorflow as tf

from tpudet.detection.ops.boxes import iou_matrix
from tpudet.detection.ops.overlaps import OVERLAPS, paired_iou

# Equal; crossing; apart; touching.
FIRST = [[10, 20, 50, 80], [10, 20, 50, 80], [0, 0, 10, 10], [0, 0, 10, 10]]
SECOND = [[10, 20, 50, 80], [20, 30, 70, 60], [30, 40, 50, 45], [0, 10, 10, 20]]


def random_pairs(count, seed=0):
    corners = np.random.default_rng(seed).uniform(0, 60, (2, count, 2, 2))
    return np.concatenate([corners.min(-2), corners.max(-2)], axis=-1)


def value_and_gradient(kind, first, second):
    first = tf.constant(first, tf.float32)
    with tf.GradientTape() as tape:
        tape.watch(first)
        value = OVERLAPS[kind](first, tf.constant(second, tf.float32))
    return value.numpy(), np.array(tape.gradient(value, first))


def overlap_by_definition(kind, first, second):
    """One pair in float64, in pixels, as the papers write it; the trade-off of CIoU too."""

    def sides(box):
        return box[2:] - box[:2]

    low, high = np.maximum(first[:2], second[:2]), np.minimum(first[2:], second[2:])
    shared = np.prod(np.maximum(high - low, 0))
    union = np.prod(sides(first)) + np.prod(sides(second)) - shared
    around = np.maximum(first[2:], second[2:]) - np.minimum(first[:2], second[:2])
    iou = shared / union
    distance = np.sum((first[:2] + first[2:] - second[:2] - second[2:]) ** 2) / 4
    diou = iou - distance / np.sum(around**2)
    angles = [np.arctan(sides(box)[1] / sides(box)[0]) for box in (first, second)]
    unlike = 4 / np.pi**2 * (angles[0] - angles[1]) ** 2
    found = {
        "iou": iou,
        "giou": iou - (np.prod(around) - union) / np.prod(around),
        "diou": diou,
        "ciou": diou - unlike**2 / (1 - iou + unlike),
    }
    return found[kind]


# 1 less the overlap of FIRST with SECOND: IoU by hand (900 / 3000 share), the others printed by
# generalized_box_iou_loss, distance_box_iou_loss and complete_box_iou_loss of torchvision 0.29.1 in
# float64, of the same boxes as x1 y1 x2 y2; and the gradient of CIoU's second row.
TORCHVISION_LOSSES = {
    "iou": [0, 0.7, 1, 1],
    "giou": [0, 0.866667, 1.911111, 1],
    "diou": [0, 0.734722, 1.581492, 1.2],
    "ciou": [0, 0.742794, 1.594019, 1.2],
}
TORCHVISION_CIOU_GRADIENT = [-0.007084, -0.003008, -0.009504, 0.004396]


@pytest.mark.parametrize(("kind", "losses"), TORCHVISION_LOSSES.items())
def test_losses_are_those_of_torchvision(kind, losses):
    value, _ = value_and_gradient(kind, FIRST, SECOND)
    np.testing.assert_allclose(1 - value, losses, atol=2e-6)


def test_ciou_gradient_is_that_of_torchvision():
    _, gradient = value_and_gradient("ciou", FIRST, SECOND)
    np.testing.assert_allclose(-gradient[1], TORCHVISION_CIOU_GRADIENT, atol=2e-6)


@pytest.mark.parametrize("kind", OVERLAPS)
def test_values_and_gradients_are_those_of_the_definition(kind):
    first, second = random_pairs(40)
    value, gradient = value_and_gradient(kind, first, second)
    for row, (one, other) in enumerate(zip(first, second, strict=True)):
        np.testing.assert_allclose(value[row], overlap_by_definition(kind, one, other), atol=1e-5)
        if kind == "ciou":  # its trade-off factor has no gradient; see torchvision's
            continue
        for side, step in enumerate(np.eye(4) * 1e-5):
            up, down = (overlap_by_definition(kind, one + s * step, other) for s in (1, -1))
            np.testing.assert_allclose(gradient[row, side], (up - down) / 2e-5, atol=1e-4)


def test_iou_of_pairs_is_the_diagonal_of_all():
    first, second = random_pairs(20, seed=1).astype(np.float32)
    expected = np.diagonal(iou_matrix(first, second))
    np.testing.assert_allclose(paired_iou(first, second), expected, atol=1e-6)


@pytest.mark.parametrize("kind", OVERLAPS)
@pytest.mark.parametrize(
    "first",
    [[5, 5, 5, 5], [5, 5, 5, 9], [0, 0, 1e-20, 1e-20], [1e20, 0, 2e20, 5], [0, 0, 3e4, 1e-3]],
)
@pytest.mark.parametrize("second", [[5, 5, 5, 5], [0, 0, 20, 10], [600, 600, 640, 601]])
def test_finite_without_area_and_far_apart(kind, first, second):
    value, gradient = value_and_gradient(kind, [first], [second])
    assert -1.0 - 1.0 * (kind == "ciou") <= value[0] <= 1.0
    assert np.all(np.isfinite(gradient))


@pytest.mark.parametrize("kind", OVERLAPS)
def test_the_unit_does_not_matter(kind):
    first, second = random_pairs(20, seed=2)
    value, gradient = value_and_gradient(kind, first, second)
    scaled_value, scaled_gradient = value_and_gradient(kind, first * 1e12, second * 1e12)
    np.testing.assert_allclose(scaled_value, value, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(scaled_gradient * 1e12, gradient, rtol=1e-3, atol=1e-6)
