"""Moves the content of images: shifts by whole pixels and affine maps, as in Pillow."""

import math

import tensorflow as tf

from tpudet.trainkit.types import Tensor

COCO_LONGER_SIDE = 640.0  # pixels; the distances of published augmentations were chosen for it


def pixel_unit(image: Tensor) -> Tensor:
    """Returns the length that stands for a pixel of a COCO image, [] float32: longer side / 640."""
    return tf.cast(tf.reduce_max(tf.shape(image)[:2]), tf.float32) / COCO_LONGER_SIDE


def draw_sign(seed: Tensor) -> Tensor:
    """Returns 1 or -1, [] float32, equally likely; `seed` [2]."""
    return tf.sign(tf.random.stateless_uniform([], seed, alg="philox") - 0.5 + 1e-9)


def shift_layers(layers: Tensor, down: Tensor, right: Tensor, fill: int) -> Tensor:
    """Moves the content of [k, rows, columns]; its size stays.

    Args:
        layers: any integers.
        down: [] int32, rows.
        right: [] int32, columns.
        fill: value of what comes from outside.
    """
    shifts = tf.stack([down, right])
    before, after = tf.maximum(shifts, 0), tf.maximum(-shifts, 0)
    paddings = tf.pad(tf.stack([before, after], axis=1), [[1, 0], [0, 0]])
    padded = tf.pad(layers, paddings, constant_values=tf.cast(fill, layers.dtype))
    return tf.slice(padded, tf.concat([[0], after], 0), tf.shape(layers))


def shift_image(image: Tensor, down: Tensor, right: Tensor, fill: int) -> Tensor:
    """Moves the content of an image [h, w, 3] uint8, see `shift_layers`; cheaper than a map."""
    height, width = tf.unstack(tf.shape(image)[:2])
    # On rows of bytes, see `canvas.pad_image`.
    rows = tf.reshape(image, [1, height, width * 3])
    return tf.reshape(shift_layers(rows, down, 3 * right, fill), tf.shape(image))


def shear_matrix(slope: Tensor, *, axis: int) -> Tensor:
    """Returns the map for `warp_layers` that shears; the upper left corner stays.

    Args:
        slope: [] float32, pixels along `axis` per pixel of the other axis.
        axis: 0 moves columns, 1 moves rows.
    """
    entries = [1.0, 0.0, 0.0, slope, 1.0, 0.0] if axis == 0 else [1.0, slope, 0.0, 0.0, 1.0, 0.0]
    return tf.stack(entries)


def rotation_matrix(size: Tensor, degrees: Tensor) -> Tensor:
    """Returns the map for `warp_layers` that turns an image about its middle.

    Args:
        size: [2] int32, height and width of the image.
        degrees: [] float32, counter-clockwise, as in Pillow.
    """
    angle = -degrees * (math.pi / 180.0)
    cosine, sine = tf.cos(angle), tf.sin(angle)
    height, width = tf.unstack(tf.cast(size, tf.float32) / 2.0)
    to_left = width - cosine * width - sine * height
    to_top = height + sine * width - cosine * height
    return tf.stack([cosine, sine, to_left, -sine, cosine, to_top])


def warp_layers(layers: Tensor, matrix: Tensor, fill: int) -> Tensor:
    """Applies an affine map to [k, h, w, c] with nearest-pixel sampling, as Pillow's `AFFINE`.

    Args:
        layers: uint8.
        matrix: [6] float32, `a b c d e f`: point (x, y) of the new image is (ax + by + c,
            dx + ey + f) of the old one, in coordinates where pixel 0 lies from 0 to 1.
        fill: value of what comes from outside.
    """
    a, b, c, d, e, f = tf.unstack(matrix)
    # TensorFlow counts from the middle of pixel 0.
    indices = tf.stack([a, b, c + 0.5 * (a + b - 1.0), d, e, f + 0.5 * (d + e - 1.0), 0.0, 0.0])
    return tf.raw_ops.ImageProjectiveTransformV3(
        images=layers,
        transforms=indices[None],
        output_shape=tf.shape(layers)[1:3],
        fill_value=float(fill),
        interpolation="NEAREST",
        fill_mode="CONSTANT",
    )
