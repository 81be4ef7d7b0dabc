"""Flips upside down and quarter turns of training images, for objects without an upright side."""

from typing import NamedTuple

import tensorflow as tf

from tpudet.detection.data.boxes import flip_boxes, has_area
from tpudet.detection.data.sample import Sample
from tpudet.trainkit.types import Tensor


class Turn(NamedTuple):
    """The flip and the quarter turns of a placed image."""

    upside_down: Tensor  # [] bool: mirrored top to bottom, before it is turned
    quarters: Tensor  # [] int32, 0 to 3: times 90 degrees counterclockwise


def draw_turn(seed: Tensor, *, vertical_flip: bool, quarter_turns: bool) -> Turn:
    """Draws a flip (p = 0.5) and a number of quarter turns (uniform), where they are allowed."""
    draws = tf.random.stateless_uniform([2], seed, alg="philox")
    quarters = tf.cast(tf.floor(draws[1] * 4.0), tf.int32)
    return Turn(tf.logical_and(vertical_flip, draws[0] < 0.5), quarters * int(quarter_turns))


def canvas_before(turn: Turn, canvas_size: tuple[int, int]) -> tuple[Tensor, Tensor]:
    """Returns height and width, [] int32, of the canvas that becomes `canvas_size` by the turn."""
    height, width = canvas_size
    lies = turn.quarters % 2 == 1
    return tf.where(lies, width, height), tf.where(lies, height, width)


def turn_sample(sample: Sample, turn: Turn) -> Sample:
    """Turns image, boxes and masks; sizes, scale and offset stay those before the turn."""
    height, width = (tf.cast(side, tf.float32) for side in tf.unstack(tf.shape(sample.image)[:2]))
    image, masks = _turn_pixels(sample.image, turn), sample.masks
    if masks is not None:
        masks = tf.transpose(_turn_pixels(tf.transpose(masks, [1, 2, 0]), turn), [2, 0, 1])
    boxes = tf.cond(
        turn.upside_down, lambda: _upside_down(sample.boxes, height), lambda: sample.boxes
    )
    turned = tf.switch_case(
        turn.quarters,
        [
            lambda: boxes,
            lambda: _quarter(boxes, width),
            lambda: _upside_down(flip_boxes(boxes, width), height),
            lambda: _upside_down(flip_boxes(_quarter(boxes, width), height), width),
        ],
    )
    turned = tf.where(has_area(sample.boxes)[:, None], turned, 0.0)
    return sample._replace(image=image, boxes=turned, masks=masks)


def _turn_pixels(pixels: Tensor, turn: Turn) -> Tensor:
    """Turns [h, w, c]; c may be 0, as without objects, which `tf.image.rot90` refuses."""
    channels = pixels.shape[-1]
    pixels = tf.cond(turn.upside_down, lambda: tf.reverse(pixels, [0]), lambda: pixels)
    turned = tf.switch_case(
        turn.quarters,
        [
            lambda: pixels,
            lambda: tf.reverse(tf.transpose(pixels, [1, 0, 2]), [0]),
            lambda: tf.reverse(pixels, [0, 1]),
            lambda: tf.reverse(tf.transpose(pixels, [1, 0, 2]), [1]),
        ],
    )
    return tf.ensure_shape(turned, [None, None, channels])


def _upside_down(boxes: Tensor, height: Tensor) -> Tensor:
    y1, x1, y2, x2 = tf.unstack(boxes, axis=-1)
    return tf.stack([height - y2, x1, height - y1, x2], axis=-1)


def _quarter(boxes: Tensor, width: Tensor) -> Tensor:
    """A quarter turn counterclockwise: the right edge becomes the upper one."""
    y1, x1, y2, x2 = tf.unstack(boxes, axis=-1)
    return tf.stack([width - x2, y1, width - x1, y2], axis=-1)
