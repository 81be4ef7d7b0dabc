"""RandAugment with boxes and masks, and the operations that it shares with AutoAugment.

`trainkit.images.rand_augment` states its strengths. AutoAugment's own scale removes colour at level
0 and solarizes least at level 10.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import NamedTuple

import tensorflow as tf

from tpudet.detection.data.augmentations import box_moves
from tpudet.detection.data.augmentations.pixels import box_cutout, cutout
from tpudet.detection.data.sample import AnnotatedImage, is_object
from tpudet.trainkit.images import pixel_operations
from tpudet.trainkit.images.moves import pixel_unit
from tpudet.trainkit.images.rand_augment import NAMES, draw_operations
from tpudet.trainkit.types import Tensor

# (annotated, amount [] float32, unit [] float32, seed [2]) -> annotated. The amount is in degrees
# for rotate; in pixels, times the unit, for translate and for half the side of cutout; in pixels
# per pixel for shear; a share of the box's sides for box_cutout; bits for posterize; levels for
# solarize and solarize_add; a factor for brightness, color, contrast and sharpness. The other
# operations have no amount.
Change = Callable[[AnnotatedImage, Tensor, Tensor, Tensor], AnnotatedImage]


def _recolor(change: Callable[..., Tensor]) -> Change:
    return lambda annotated, amount, unit, seed: annotated._replace(
        image=change(annotated.image, amount)
    )


def _translate(axis: int) -> Change:
    return lambda annotated, amount, unit, seed: box_moves.translate(
        annotated, amount * unit, seed, axis=axis
    )


def _shear(axis: int) -> Change:
    return lambda annotated, amount, unit, seed: box_moves.shear(annotated, amount, seed, axis=axis)


CHANGES: Mapping[str, Change] = {
    "identity": lambda annotated, amount, unit, seed: annotated,
    "auto_contrast": _recolor(lambda image, _: pixel_operations.auto_contrast(image)),
    "box_cutout": lambda annotated, amount, unit, seed: box_cutout(annotated, amount, seed),
    "brightness": _recolor(pixel_operations.change_brightness),
    "color": _recolor(pixel_operations.change_color),
    "contrast": _recolor(pixel_operations.change_contrast),
    "cutout": lambda annotated, amount, unit, seed: cutout(annotated, amount * unit, seed),
    "equalize": _recolor(lambda image, _: pixel_operations.equalize(image)),
    "flip": lambda annotated, amount, unit, seed: box_moves.flip(annotated),
    "posterize": _recolor(pixel_operations.posterize),
    "rotate": lambda annotated, amount, unit, seed: box_moves.rotate(annotated, amount, seed),
    "sharpness": _recolor(pixel_operations.change_sharpness),
    "shear_x": _shear(axis=1),
    "shear_y": _shear(axis=0),
    "solarize": _recolor(pixel_operations.solarize),
    "solarize_add": _recolor(pixel_operations.solarize_add),
    "translate_x": _translate(axis=1),
    "translate_y": _translate(axis=0),
}


class Operation(NamedTuple):
    """A change of the whole image or of the inside of its objects' boxes."""

    name: str  # a key of CHANGES
    in_boxes: bool = False


class OperationSequence(NamedTuple):
    """k operations to apply one after another."""

    indices: Tensor  # [k] int32, into the list of operations
    amounts: Tensor  # [k] float32
    probabilities: Tensor  # [k] float32; of an operation in boxes, for each box by itself


def apply_sequence(
    annotated: AnnotatedImage,
    operations: Sequence[Operation],
    sequence: OperationSequence,
    seed: Tensor,
) -> AnnotatedImage:
    """Applies each operation of the sequence with its probability; sizes and types stay.

    Args:
        annotated: the image, its boxes and masks.
        operations: the ones that the sequence points to.
        sequence: what to apply.
        seed: [2].
    """
    unit = pixel_unit(annotated.image)
    num_steps = tf.size(sequence.indices)
    seeds = tf.random.split(seed, num_steps)
    in_boxes = tf.constant([operation.in_boxes for operation in operations])

    def apply_step(step: Tensor, *parts: Tensor) -> tuple[Tensor, ...]:
        now = _from_tensors(parts)
        coin_seed, change_seed = tf.unstack(tf.random.split(seeds[step], 2))
        index, probability = sequence.indices[step], sequence.probabilities[step]
        coin = tf.random.stateless_uniform([], coin_seed, alg="philox")
        is_applied = (coin < probability) | in_boxes[index]
        amount = sequence.amounts[step]
        branches = [
            partial(_apply_operation, now, operation, amount, probability, unit, change_seed)
            for operation in operations
        ]
        nothing = len(operations)
        changed = tf.switch_case(
            tf.where(is_applied, index, nothing), [*branches, lambda: _to_tensors(now)]
        )
        return step + 1, *(
            tf.ensure_shape(new, old.shape) for new, old in zip(changed, parts, strict=True)
        )

    _, *parts = tf.while_loop(
        lambda step, *_: step < num_steps, apply_step, (tf.constant(0), *_to_tensors(annotated))
    )
    return _from_tensors(parts)


def _apply_operation(
    annotated: AnnotatedImage,
    operation: Operation,
    amount: Tensor,
    probability: Tensor,
    unit: Tensor,
    seed: Tensor,
) -> list[Tensor]:
    change = CHANGES[operation.name]
    if not operation.in_boxes:
        return _to_tensors(change(annotated, amount, unit, seed))
    coin_seed, box_seed = tf.unstack(tf.random.split(seed, 2))
    coins = tf.random.stateless_uniform(tf.shape(annotated.boxes)[:1], coin_seed, alg="philox")
    chosen = tf.where((coins < probability) & is_object(annotated))[:, 0]

    def change_one(part: AnnotatedImage, row: Tensor) -> AnnotatedImage:
        return change(part, amount, unit, tf.random.fold_in(box_seed, row))

    return _to_tensors(box_moves.in_each_box(annotated, chosen, change_one))


def _to_tensors(annotated: AnnotatedImage) -> list[Tensor]:
    """Leaves out masks that are None: a loop carries tensors only."""
    return [part for part in annotated if part is not None]


def _from_tensors(parts: Sequence[Tensor]) -> AnnotatedImage:
    image, boxes, is_crowd, *masks = parts
    return AnnotatedImage(image, boxes, is_crowd, masks[0] if masks else None)


OPERATIONS = tuple(map(Operation, NAMES))


def apply_rand_augment(
    annotated: AnnotatedImage, seed: Tensor, *, num_ops: int, magnitude: float
) -> AnnotatedImage:
    """Applies `num_ops` operations, drawn uniformly with repetition; sizes and types stay.

    Args:
        annotated: the image, scaled but not padded, its boxes and masks.
        seed: [2] int, which determines all choices.
        num_ops: at least 1.
        magnitude: 0..10.
    """
    draws = draw_operations(seed, num_ops=num_ops, magnitude=magnitude)
    sequence = OperationSequence(draws.indices, draws.amounts, tf.ones([num_ops]))
    return apply_sequence(annotated, OPERATIONS, sequence, draws.seed)
