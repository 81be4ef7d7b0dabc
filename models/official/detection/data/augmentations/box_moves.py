"""Operations that move what is in a picture; its boxes and masks move with it.

What comes in from outside is `FILL` in the picture and 0 in masks. Boxes become the smallest ones
around their moved corners, and what is left of them within the picture; a box that leaves it is
0 0 0 0 then. Each move draws its direction, one way or the other, from its seed.
"""

import math
from collections.abc import Callable

import tensorflow as tf

from tpudet.detection.data.boxes import flip_boxes, has_area
from tpudet.detection.data.sample import Scene
from tpudet.trainkit.images.pixel_operations import FILL
from tpudet.trainkit.types import Tensor


def flip(scene: Scene) -> Scene:
    """Mirrors left and right. Its own inverse."""
    width = tf.cast(tf.shape(scene.picture)[1], tf.float32)
    return scene._replace(
        picture=tf.reverse(scene.picture, [1]),
        boxes=flip_boxes(scene.boxes, width),
        masks=None if scene.masks is None else tf.reverse(scene.masks, [2]),
    )


def translate(scene: Scene, distance: Tensor | float, seed: Tensor, *, axis: int) -> Scene:
    """Moves by whole pixels along one axis, forth or back; a copy, so cheaper than `warp`.

    Args:
        scene: the picture, its boxes and masks.
        distance: pixels, at least 0; rounded.
        seed: [2], of the direction.
        axis: 0 moves down or up, 1 right or left.
    """
    signed = tf.round(draw_sign(seed) * distance)
    shifts = (signed, 0.0) if axis == 0 else (0.0, signed)
    down, right = (tf.cast(shift, tf.int32) for shift in shifts)
    height, width = tf.unstack(tf.shape(scene.picture)[:2])
    # On rows of bytes, see `canvas.pad_picture`.
    rows = tf.reshape(scene.picture, [1, height, width * 3])
    moved = _shifted(rows, down, 3 * right, FILL)
    return scene._replace(
        picture=tf.reshape(moved, tf.shape(scene.picture)),
        boxes=clip_to_picture(scene.boxes + tf.tile(tf.stack(shifts), [2]), scene.picture),
        masks=None if scene.masks is None else _shifted(scene.masks, down, right, 0),
    )


def shear(scene: Scene, share: Tensor | float, seed: Tensor, *, axis: int) -> Scene:
    """Slants the picture; its upper left corner stays where it is.

    Args:
        scene: the picture, its boxes and masks.
        share: pixels of movement along `axis` a pixel of the other axis.
        seed: [2], of the direction.
        axis: 0 moves columns, 1 moves rows.
    """
    slope = draw_sign(seed) * share
    if axis == 0:
        return warp(scene, tf.stack([1.0, 0.0, 0.0, slope, 1.0, 0.0]))
    return warp(scene, tf.stack([1.0, slope, 0.0, 0.0, 1.0, 0.0]))


def rotate(scene: Scene, degrees: Tensor | float, seed: Tensor) -> Scene:
    """Turns about the middle of the picture.

    Args:
        scene: the picture, its boxes and masks.
        degrees: how far.
        seed: [2], of the direction.
    """
    # Counter-clockwise is forth, as in Pillow.
    angle = -draw_sign(seed) * degrees * (math.pi / 180.0)
    cosine, sine = tf.cos(angle), tf.sin(angle)
    height, width = tf.unstack(tf.cast(tf.shape(scene.picture)[:2], tf.float32) / 2.0)
    to_left = width - cosine * width - sine * height
    to_top = height + sine * width - cosine * height
    return warp(scene, tf.stack([cosine, sine, to_left, -sine, cosine, to_top]))


def warp(scene: Scene, matrix: Tensor) -> Scene:
    """Takes each pixel from its place in the old picture, nearest pixel: Pillow's `AFFINE`.

    Args:
        scene: the picture, its boxes and masks.
        matrix: [6] float32, `a b c d e f`: point (x, y) of the new picture is (ax + by + c,
            dx + ey + f) of the old one, in coordinates where pixel 0 lies from 0 to 1.
    """
    a, b, c, d, e, f = tf.unstack(matrix)
    # TensorFlow counts from the middle of pixel 0.
    indices = tf.stack([a, b, c + 0.5 * (a + b - 1.0), d, e, f + 0.5 * (d + e - 1.0), 0.0, 0.0])
    size = tf.shape(scene.picture)[:2]

    def warped(images: Tensor, fill: int) -> Tensor:
        return tf.raw_ops.ImageProjectiveTransformV3(
            images=images,
            transforms=indices[None],
            output_shape=size,
            fill_value=float(fill),
            interpolation="NEAREST",
            fill_mode="CONSTANT",
        )

    return scene._replace(
        picture=warped(scene.picture[None], FILL)[0],
        boxes=clip_to_picture(_corners_moved(scene.boxes, matrix), scene.picture),
        masks=None if scene.masks is None else warped(scene.masks[..., None], 0)[..., 0],
    )


def in_each_box(scene: Scene, chosen: Tensor, change: Callable[[Scene, Tensor], Scene]) -> Scene:
    """Changes what lies within some of the boxes, one after another; the boxes stay.

    Masks change within the box only, those of all objects alike.

    Args:
        scene: the picture, its boxes and masks.
        chosen: [m] int64, rows of the boxes.
        change: from the part of the scene in a box, without boxes, and the box's row to a part of
            the same size.
    """
    size = tf.shape(scene.picture)[:2]
    corners = tf.cast(tf.round(tf.reshape(scene.boxes, [-1, 2, 2])), tf.int32)
    has_masks = scene.masks is not None

    def change_one(place: Tensor, layers: list[Tensor]) -> tuple[Tensor, list[Tensor]]:
        row = chosen[place]
        begin, end = corners[row, 0], tf.minimum(corners[row, 1], size)

        def changed() -> list[Tensor]:
            parts = [_cut(layer, begin, end) for layer in layers]
            part = Scene(
                picture=parts[0][0],
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
        lambda place, _: place < count, change_one, (tf.constant(0), _as_layers(scene))
    )
    return scene._replace(picture=layers[0][0], masks=layers[1][..., 0] if has_masks else None)


def draw_sign(seed: Tensor) -> Tensor:
    """Returns 1 or -1, [] float32, with equal chances; `seed` [2]."""
    return tf.sign(tf.random.stateless_uniform([], seed, alg="philox") - 0.5 + 1e-9)


def clip_to_picture(boxes: Tensor, picture: Tensor) -> Tensor:
    """Cuts boxes [n, 4] at the borders of the picture [h, w, 3].

    Where too little is left (`has_area`) all four numbers become 0: a line on the border, or a
    sliver, would become a box again when it is turned.
    """
    limits = tf.tile(tf.cast(tf.shape(picture)[:2], tf.float32), [2])
    clipped = tf.clip_by_value(boxes, 0.0, limits)
    return tf.where(has_area(clipped)[:, None], clipped, 0.0)


def _corners_moved(boxes: Tensor, matrix: Tensor) -> Tensor:
    """Returns the smallest boxes around the corners, each taken by the inverse of `matrix`."""
    a, b, c, d, e, f = tf.unstack(matrix)
    determinant = a * e - b * d
    ys = tf.gather(boxes, [0, 0, 2, 2], axis=1) - f
    xs = tf.gather(boxes, [1, 3, 1, 3], axis=1) - c
    new_xs = (e * xs - b * ys) / determinant
    new_ys = (a * ys - d * xs) / determinant
    ends = [tf.reduce_min(new_ys, 1), tf.reduce_min(new_xs, 1)]
    ends += [tf.reduce_max(new_ys, 1), tf.reduce_max(new_xs, 1)]
    return tf.stack(ends, axis=1)


def _shifted(layers: Tensor, down: Tensor, right: Tensor, fill: int) -> Tensor:
    """Moves [k, rows, columns] within its size."""
    shifts = tf.stack([down, right])
    before, after = tf.maximum(shifts, 0), tf.maximum(-shifts, 0)
    paddings = tf.pad(tf.stack([before, after], axis=1), [[1, 0], [0, 0]])
    padded = tf.pad(layers, paddings, constant_values=tf.cast(fill, layers.dtype))
    return tf.slice(padded, tf.concat([[0], after], 0), tf.shape(layers))


def _as_layers(scene: Scene) -> list[Tensor]:
    """The picture [1, h, w, 3] and, where there are some, the masks [n, h, w, 1]."""
    masks = [] if scene.masks is None else [scene.masks[..., None]]
    return [scene.picture[None], *masks]


def _cut(layer: Tensor, begin: Tensor, end: Tensor) -> Tensor:
    return layer[:, begin[0] : end[0], begin[1] : end[1]]


def _paste(layer: Tensor, part: Tensor, begin: Tensor, end: Tensor) -> Tensor:
    """Puts a part back: the inverse of `_cut`."""
    beside = layer[:, begin[0] : end[0]]
    band = tf.concat([beside[:, :, : begin[1]], part, beside[:, :, end[1] :]], axis=2)
    return tf.concat([layer[:, : begin[0]], band, layer[:, end[0] :]], axis=1)
