"""Geometric augmentations: they move the content of an image with its boxes and masks.

Pixels from outside the image are `FILL`, and 0 in masks. A moved box is the smallest around its
moved corners, clipped to the image, and 0 0 0 0 if it left the image. Each function draws its
direction, forward or backward, from its seed.
"""

from collections.abc import Callable

import tensorflow as tf

from tpudet.detection.data.boxes import flip_boxes, has_area
from tpudet.detection.data.sample import AnnotatedImage
from tpudet.trainkit.images.moves import (
    draw_sign,
    rotation_matrix,
    shear_matrix,
    shift_image,
    shift_layers,
    warp_layers,
)
from tpudet.trainkit.images.pixel_operations import FILL
from tpudet.trainkit.types import Tensor


def flip(annotated: AnnotatedImage) -> AnnotatedImage:
    """Mirrors left and right. Its own inverse."""
    width = tf.cast(tf.shape(annotated.image)[1], tf.float32)
    return annotated._replace(
        image=tf.reverse(annotated.image, [1]),
        boxes=flip_boxes(annotated.boxes, width),
        masks=None if annotated.masks is None else tf.reverse(annotated.masks, [2]),
    )


def translate(
    annotated: AnnotatedImage, distance: Tensor | float, seed: Tensor, *, axis: int
) -> AnnotatedImage:
    """Moves by whole pixels along one axis; a copy, so cheaper than `warp`.

    Args:
        annotated: the image, its boxes and masks.
        distance: pixels, at least 0; rounded.
        seed: [2], of the direction.
        axis: 0 moves down or up, 1 right or left.
    """
    signed = tf.round(draw_sign(seed) * distance)
    shifts = (signed, 0.0) if axis == 0 else (0.0, signed)
    down, right = (tf.cast(shift, tf.int32) for shift in shifts)
    return annotated._replace(
        image=shift_image(annotated.image, down, right, FILL),
        boxes=clip_to_image(annotated.boxes + tf.tile(tf.stack(shifts), [2]), annotated.image),
        masks=None if annotated.masks is None else shift_layers(annotated.masks, down, right, 0),
    )


def shear(
    annotated: AnnotatedImage, share: Tensor | float, seed: Tensor, *, axis: int
) -> AnnotatedImage:
    """Shears the image; its upper left corner stays where it is.

    Args:
        annotated: the image, its boxes and masks.
        share: pixels along `axis` per pixel of the other axis.
        seed: [2], of the direction.
        axis: 0 moves columns, 1 moves rows.
    """
    return warp(annotated, shear_matrix(draw_sign(seed) * share, axis=axis))


def rotate(annotated: AnnotatedImage, degrees: Tensor | float, seed: Tensor) -> AnnotatedImage:
    """Rotates about the middle of the image.

    Args:
        annotated: the image, its boxes and masks.
        degrees: angle.
        seed: [2], of the direction.
    """
    size = tf.shape(annotated.image)[:2]
    return warp(annotated, rotation_matrix(size, draw_sign(seed) * degrees))


def warp(annotated: AnnotatedImage, matrix: Tensor) -> AnnotatedImage:
    """Applies an affine map, see `warp_layers`.

    Args:
        annotated: the image, its boxes and masks.
        matrix: [6] float32.
    """
    masks = annotated.masks
    return annotated._replace(
        image=warp_layers(annotated.image[None], matrix, FILL)[0],
        boxes=clip_to_image(_corners_moved(annotated.boxes, matrix), annotated.image),
        masks=None if masks is None else warp_layers(masks[..., None], matrix, 0)[..., 0],
    )


def in_each_box(
    annotated: AnnotatedImage,
    chosen: Tensor,
    change: Callable[[AnnotatedImage, Tensor], AnnotatedImage],
) -> AnnotatedImage:
    """Changes the inside of some of the boxes, one after another; the boxes stay.

    Within a box the masks of all objects change alike.

    Args:
        annotated: the image, its boxes and masks.
        chosen: [m] int64, rows of the boxes.
        change: (the part of the image inside a box, without boxes; the box's row) -> a part of the
            same size.
    """
    size = tf.shape(annotated.image)[:2]
    corners = tf.cast(tf.round(tf.reshape(annotated.boxes, [-1, 2, 2])), tf.int32)
    has_masks = annotated.masks is not None

    def change_one(place: Tensor, layers: list[Tensor]) -> tuple[Tensor, list[Tensor]]:
        row = chosen[place]
        begin, end = corners[row, 0], tf.minimum(corners[row, 1], size)

        def changed() -> list[Tensor]:
            parts = [_cut(layer, begin, end) for layer in layers]
            part = AnnotatedImage(
                image=parts[0][0],
                boxes=tf.zeros([0, 4]),
                is_crowd=tf.zeros([0], tf.bool),
                masks=parts[1][..., 0] if has_masks else None,
            )
            pasted = [
                _paste(layer, new, begin, end)
                for layer, new in zip(layers, _as_layers(change(part, row)), strict=True)
            ]
            return [
                tf.ensure_shape(new, old.shape) for new, old in zip(pasted, layers, strict=True)
            ]

        is_empty = tf.reduce_any(end <= begin)
        return place + 1, tf.cond(is_empty, lambda: layers, changed)

    count = tf.size(chosen)
    _, layers = tf.while_loop(
        lambda place, _: place < count, change_one, (tf.constant(0), _as_layers(annotated))
    )
    return annotated._replace(image=layers[0][0], masks=layers[1][..., 0] if has_masks else None)


def clip_to_image(boxes: Tensor, image: Tensor) -> Tensor:
    """Clips boxes [n, 4] to the image [h, w, 3].

    Where too little is left (`has_area`) all four numbers become 0: a line on the border, or a
    sliver, would become a box again when rotated.
    """
    limits = tf.tile(tf.cast(tf.shape(image)[:2], tf.float32), [2])
    clipped = tf.clip_by_value(boxes, 0.0, limits)
    return tf.where(has_area(clipped)[:, None], clipped, 0.0)


def _corners_moved(boxes: Tensor, matrix: Tensor) -> Tensor:
    """Returns the smallest boxes around the corners, moved by the inverse of `matrix`."""
    a, b, c, d, e, f = tf.unstack(matrix)
    determinant = a * e - b * d
    ys = tf.gather(boxes, [0, 0, 2, 2], axis=1) - f
    xs = tf.gather(boxes, [1, 3, 1, 3], axis=1) - c
    new_xs = (e * xs - b * ys) / determinant
    new_ys = (a * ys - d * xs) / determinant
    ends = [tf.reduce_min(new_ys, 1), tf.reduce_min(new_xs, 1)]
    ends += [tf.reduce_max(new_ys, 1), tf.reduce_max(new_xs, 1)]
    return tf.stack(ends, axis=1)


def _as_layers(annotated: AnnotatedImage) -> list[Tensor]:
    """Returns the image [1, h, w, 3] and, if there are any, the masks [n, h, w, 1]."""
    masks = [] if annotated.masks is None else [annotated.masks[..., None]]
    return [annotated.image[None], *masks]


def _cut(layer: Tensor, begin: Tensor, end: Tensor) -> Tensor:
    return layer[:, begin[0] : end[0], begin[1] : end[1]]


def _paste(layer: Tensor, part: Tensor, begin: Tensor, end: Tensor) -> Tensor:
    """Puts a part back. Inverse of `_cut`."""
    beside = layer[:, begin[0] : end[0]]
    band = tf.concat([beside[:, :, : begin[1]], part, beside[:, :, end[1] :]], axis=2)
    return tf.concat([layer[:, : begin[0]], band, layer[:, end[0] :]], axis=1)
