"""RandAugment (arXiv 1909.13719): operations drawn at random, all of one strength.

The fourteen operations of the paper. Here a magnitude of 0 leaves a picture as it is whichever is
drawn, auto-contrast and equalisation excepted, and 10 is the greatest strength: the scale of
torchvision's RandAugment, with AutoAugment's greatest strengths. (AutoAugment's own scale takes
colours away at level 0 and solarises least at level 10.)
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import NamedTuple

import tensorflow as tf

from tpudet.detection.data.augmentations import box_moves
from tpudet.detection.data.augmentations.pixels import box_cutout, cutout
from tpudet.detection.data.sample import Scene, is_object, pixel_unit
from tpudet.trainkit.images import pixel_operations
from tpudet.trainkit.types import Tensor

# (scene, amount [] float32, unit [] float32, seed [2]) -> scene. The amount is degrees of rotate;
# pixels, to be multiplied by the unit, of translate and of half a cutout's side; pixels a pixel of
# shear; share of the sides of box_cutout; bits of posterize; levels of solarize; a factor of
# brightness, color, contrast and sharpness. The others have none.
Change = Callable[[Scene, Tensor, Tensor, Tensor], Scene]


def _recolor(change: Callable[..., Tensor]) -> Change:
    return lambda scene, amount, unit, seed: scene._replace(picture=change(scene.picture, amount))


def _translate(axis: int) -> Change:
    return lambda scene, amount, unit, seed: box_moves.translate(
        scene, amount * unit, seed, axis=axis
    )


def _shear(axis: int) -> Change:
    return lambda scene, amount, unit, seed: box_moves.shear(scene, amount, seed, axis=axis)


CHANGES: Mapping[str, Change] = {
    "identity": lambda scene, amount, unit, seed: scene,
    "auto_contrast": _recolor(lambda picture, _: pixel_operations.auto_contrast(picture)),
    "box_cutout": lambda scene, amount, unit, seed: box_cutout(scene, amount, seed),
    "brightness": _recolor(pixel_operations.change_brightness),
    "color": _recolor(pixel_operations.change_color),
    "contrast": _recolor(pixel_operations.change_contrast),
    "cutout": lambda scene, amount, unit, seed: cutout(scene, amount * unit, seed),
    "equalize": _recolor(lambda picture, _: pixel_operations.equalize(picture)),
    "flip": lambda scene, amount, unit, seed: box_moves.flip(scene),
    "posterize": _recolor(pixel_operations.posterize),
    "rotate": lambda scene, amount, unit, seed: box_moves.rotate(scene, amount, seed),
    "sharpness": _recolor(pixel_operations.change_sharpness),
    "shear_x": _shear(axis=1),
    "shear_y": _shear(axis=0),
    "solarize": _recolor(pixel_operations.solarize),
    "solarize_add": _recolor(pixel_operations.solarize_add),
    "translate_x": _translate(axis=1),
    "translate_y": _translate(axis=0),
}


class Operation(NamedTuple):
    """A change of the picture, or of what lies within its boxes."""

    name: str  # a key of CHANGES
    in_boxes: bool = False  # those of objects


class Steps(NamedTuple):
    """k steps to be carried out one after another."""

    places: Tensor  # [k] int32, rows of the list of operations
    amounts: Tensor  # [k] float32
    probabilities: Tensor  # [k] float32; in boxes, of each box by itself


def carry_out(scene: Scene, operations: Sequence[Operation], steps: Steps, seed: Tensor) -> Scene:
    """Carries out each step with its probability.

    Args:
        scene: the picture, its boxes and masks.
        operations: those that the steps name.
        steps: see there.
        seed: [2].

    Returns:
        A scene of the same sizes and types.
    """
    unit = pixel_unit(scene.picture)
    num_steps = tf.size(steps.places)
    seeds = tf.random.split(seed, num_steps)
    in_boxes = tf.constant([operation.in_boxes for operation in operations])

    def one_step(step: Tensor, *parts: Tensor) -> tuple[Tensor, ...]:
        now = _scene_of(parts)
        coin_seed, change_seed = tf.unstack(tf.random.split(seeds[step], 2))
        place, probability = steps.places[step], steps.probabilities[step]
        coin = tf.random.stateless_uniform([], coin_seed, alg="philox")
        happens = (coin < probability) | in_boxes[place]
        branches = [
            partial(_changed, now, operation, steps.amounts[step], probability, unit, change_seed)
            for operation in operations
        ]
        nothing = len(operations)
        changed = tf.switch_case(
            tf.where(happens, place, nothing), [*branches, lambda: _parts_of(now)]
        )
        return step + 1, *(
            tf.ensure_shape(new, old.shape) for new, old in zip(changed, parts, strict=True)
        )

    _, *parts = tf.while_loop(
        lambda step, *_: step < num_steps, one_step, (tf.constant(0), *_parts_of(scene))
    )
    return _scene_of(parts)


def _changed(
    scene: Scene,
    operation: Operation,
    amount: Tensor,
    probability: Tensor,
    unit: Tensor,
    seed: Tensor,
) -> list[Tensor]:
    change = CHANGES[operation.name]
    if not operation.in_boxes:
        return _parts_of(change(scene, amount, unit, seed))
    coin_seed, box_seed = tf.unstack(tf.random.split(seed, 2))
    coins = tf.random.stateless_uniform(tf.shape(scene.boxes)[:1], coin_seed, alg="philox")
    chosen = tf.where((coins < probability) & is_object(scene))[:, 0]

    def change_one(part: Scene, row: Tensor) -> Scene:
        return change(part, amount, unit, tf.random.fold_in(box_seed, row))

    return _parts_of(box_moves.in_each_box(scene, chosen, change_one))


def _parts_of(scene: Scene) -> list[Tensor]:
    """Without masks where there are none: a loop carries tensors only."""
    return [part for part in scene if part is not None]


def _scene_of(parts: Sequence[Tensor]) -> Scene:
    picture, boxes, is_crowd, *masks = parts
    return Scene(picture, boxes, is_crowd, masks[0] if masks else None)


OPERATIONS = (
    Operation("identity"),
    Operation("auto_contrast"),
    Operation("equalize"),
    Operation("rotate"),
    Operation("solarize"),
    Operation("color"),
    Operation("posterize"),
    Operation("contrast"),
    Operation("brightness"),
    Operation("sharpness"),
    Operation("shear_x"),
    Operation("shear_y"),
    Operation("translate_x"),
    Operation("translate_y"),
)


def apply_rand_augment(scene: Scene, seed: Tensor, *, num_ops: int, magnitude: float) -> Scene:
    """Carries out `num_ops` operations, drawn with equal chances and with repetition.

    Args:
        scene: the picture, scaled but not padded, its boxes and masks.
        seed: [2] int, of which all choices are a function.
        num_ops: at least 1.
        magnitude: 0..10.

    Returns:
        A scene of the same sizes and types. A box that left the picture is 0.
    """
    choice_seed, sign_seed, change_seed = tf.unstack(tf.random.split(seed, 3))
    places = tf.random.stateless_uniform(
        [num_ops], choice_seed, maxval=len(OPERATIONS), dtype=tf.int32, alg="philox"
    )
    signs = tf.random.stateless_uniform(
        [num_ops], sign_seed, maxval=2, dtype=tf.int32, alg="philox"
    )
    amounts = tf.constant([amounts_of(operation.name, magnitude) for operation in OPERATIONS])
    steps = Steps(
        places=places,
        amounts=tf.gather_nd(amounts, tf.stack([places, signs], axis=1)),
        probabilities=tf.ones([num_ops]),
    )
    return carry_out(scene, OPERATIONS, steps, change_seed)


def amounts_of(name: str, magnitude: float) -> tuple[float, float]:
    """Returns the two amounts, equally likely, of an operation, see `scene_operations.Change`.

    Rotation by 30 degrees, shear by 0.3, translation by 250 pixels of 640, factors 1 - 0.9 and
    1 + 0.9, 8 - 4 bits and a threshold of 256 - 256, each times a tenth of the magnitude.
    """
    strength = magnitude / 10.0
    factors = (1.0 - 0.9 * strength, 1.0 + 0.9 * strength)
    amounts = {
        "rotate": (30.0 * strength,) * 2,
        "shear_x": (0.3 * strength,) * 2,
        "shear_y": (0.3 * strength,) * 2,
        "translate_x": (250.0 * strength,) * 2,
        "translate_y": (250.0 * strength,) * 2,
        "posterize": (8.0 - round(4 * strength),) * 2,
        "solarize": (float(round(256 * (1 - strength))),) * 2,
        "brightness": factors,
        "color": factors,
        "contrast": factors,
        "sharpness": factors,
    }
    return amounts.get(name, (0.0, 0.0))
