"""The augmentations of an experiment's `data.augmentations`, as functions of a `Sample`."""

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial

import tensorflow as tf

from tpudet.classification.data.config import (
    AffineConfig,
    AugmentationConfig,
    CutmixConfig,
    MixupConfig,
)
from tpudet.classification.data.sample import Sample
from tpudet.trainkit.images import pixel_operations
from tpudet.trainkit.images.augmentation_config import ColorConfig, RandAugmentConfig
from tpudet.trainkit.images.mixed_stream import Augmentation, ImageAugmentation, MixingAugmentation
from tpudet.trainkit.images.moves import (
    draw_sign,
    pixel_unit,
    rotation_matrix,
    shear_matrix,
    shift_image,
    warp_layers,
)
from tpudet.trainkit.images.pixel_operations import FILL, jitter_colors
from tpudet.trainkit.images.rand_augment import NAMES, draw_operations
from tpudet.trainkit.types import Tensor


def build_augmentations(configs: Sequence[AugmentationConfig]) -> tuple[Augmentation, ...]:
    """Returns the augmentations in their order."""
    return tuple(map(_build, configs))


def _build(config: AugmentationConfig) -> Augmentation:
    match config:
        case ColorConfig():
            names = ("brightness", "contrast", "saturation", "hue")
            jitter = partial(jitter_colors, **{name: getattr(config, name) for name in names})
            return ImageAugmentation(lambda s, seed: s._replace(image=jitter(s.image, seed)))
        case AffineConfig():
            move = partial(
                move_image, rotation=config.rotation, shift=config.shift, scale=config.scale
            )
            return ImageAugmentation(lambda s, seed: s._replace(image=move(s.image, seed)))
        case RandAugmentConfig(num_ops=num_ops, magnitude=magnitude):
            change = partial(apply_rand_augment, num_ops=num_ops, magnitude=magnitude)
            return ImageAugmentation(lambda s, seed: s._replace(image=change(s.image, seed)))
        case MixupConfig(probability=probability, alpha=alpha):
            return MixingAugmentation(partial(mixup, alpha=alpha), 1, probability)
        case CutmixConfig(probability=probability, alpha=alpha):
            return MixingAugmentation(partial(cutmix, alpha=alpha), 1, probability)


def move_image(
    image: Tensor, seed: Tensor, *, rotation: float, shift: float, scale: float
) -> Tensor:
    """Turns, scales and shifts an image [h, w, c] about its centre; 0 where nothing is left.

    Args:
        image: uint8 or float32.
        seed: [2], which determines all choices.
        rotation: degrees; the angle is uniform in -x .. x.
        shift: 0..1 of height and width; uniform in -x .. x on each axis.
        scale: 0..1; the factor is uniform in 1 - x .. 1 + x.
    """
    draws = tf.random.stateless_uniform([4], seed, -1.0, 1.0, alg="philox")
    angle = draws[0] * rotation * math.pi / 180.0
    factor = 1.0 + scale * draws[1]
    height, width = tf.unstack(tf.cast(tf.shape(image)[:2], tf.float32))
    cosine, sine = tf.cos(angle) / factor, tf.sin(angle) / factor
    x, y = (width - 1.0) / 2.0, (height - 1.0) / 2.0  # of the centre
    to_x, to_y = x + shift * width * draws[2], y + shift * height * draws[3]
    # Point (u, v) of the new image is (a u + b v + c, d u + e v + f) of the old one.
    matrix = [
        *(cosine, sine, x - cosine * to_x - sine * to_y),
        *(-sine, cosine, y + sine * to_x - cosine * to_y),
        *(0.0, 0.0),
    ]
    moved = tf.raw_ops.ImageProjectiveTransformV3(
        images=image[None],
        transforms=tf.stack(matrix)[None],
        output_shape=tf.shape(image)[:2],
        fill_value=0.0,
        interpolation="BILINEAR",
        fill_mode="CONSTANT",
    )
    return moved[0]


# (image [h, w, 3] uint8, amount [] float32, seed [2]) -> image of the same size. The amount is in
# degrees for rotate, in pixels of COCO for translate, else as in `pixel_operations`.
Change = Callable[[Tensor, Tensor, Tensor], Tensor]


def _translate(axis: int) -> Change:
    def change(image: Tensor, amount: Tensor, seed: Tensor) -> Tensor:
        distance = tf.cast(tf.round(draw_sign(seed) * amount * pixel_unit(image)), tf.int32)
        down, right = (distance, 0) if axis == 0 else (0, distance)
        return shift_image(image, down, right, FILL)

    return change


def _shear(axis: int) -> Change:
    def change(image: Tensor, amount: Tensor, seed: Tensor) -> Tensor:
        matrix = shear_matrix(draw_sign(seed) * amount, axis=axis)
        return warp_layers(image[None], matrix, FILL)[0]

    return change


def _rotate(image: Tensor, amount: Tensor, seed: Tensor) -> Tensor:
    matrix = rotation_matrix(tf.shape(image)[:2], draw_sign(seed) * amount)
    return warp_layers(image[None], matrix, FILL)[0]


CHANGES: Mapping[str, Change] = {
    "identity": lambda image, amount, seed: image,
    "auto_contrast": lambda image, amount, seed: pixel_operations.auto_contrast(image),
    "equalize": lambda image, amount, seed: pixel_operations.equalize(image),
    "rotate": _rotate,
    "solarize": lambda image, amount, seed: pixel_operations.solarize(image, amount),
    "color": lambda image, amount, seed: pixel_operations.change_color(image, amount),
    "posterize": lambda image, amount, seed: pixel_operations.posterize(image, amount),
    "contrast": lambda image, amount, seed: pixel_operations.change_contrast(image, amount),
    "brightness": lambda image, amount, seed: pixel_operations.change_brightness(image, amount),
    "sharpness": lambda image, amount, seed: pixel_operations.change_sharpness(image, amount),
    "shear_x": _shear(axis=1),
    "shear_y": _shear(axis=0),
    "translate_x": _translate(axis=1),
    "translate_y": _translate(axis=0),
}


def apply_rand_augment(image: Tensor, seed: Tensor, *, num_ops: int, magnitude: float) -> Tensor:
    """Applies `num_ops` operations, drawn uniformly with repetition, to an image [h, w, 3] uint8.

    Args:
        image: of any size, which stays.
        seed: [2] int, which determines all choices.
        num_ops: at least 1.
        magnitude: 0..10, see `trainkit.images.rand_augment`.
    """
    draws = draw_operations(seed, num_ops=num_ops, magnitude=magnitude)
    for step in range(num_ops):
        amount, own_seed = draws.amounts[step], tf.random.fold_in(draws.seed, step)
        branches = [partial(CHANGES[name], image, amount, own_seed) for name in NAMES]
        image = tf.ensure_shape(tf.switch_case(draws.indices[step], branches), image.shape)
    return image


def mixup(samples: Sequence[Sample], seed: Tensor, *, alpha: float) -> Sample:
    """Blends two images and their targets by a share from Beta(alpha, alpha) (arXiv 1710.09412)."""
    share = _draw_share(seed, alpha)
    first, second = samples
    images = [tf.cast(sample.image, tf.float32) for sample in samples]
    mixed = images[0] * share + images[1] * (1.0 - share)
    return first._replace(
        image=tf.cast(tf.round(mixed), tf.uint8),
        targets=first.targets * share + second.targets * (1.0 - share),
    )


def cutmix(samples: Sequence[Sample], seed: Tensor, *, alpha: float) -> Sample:
    """Pastes a rectangle of the second image at its place into the first (arXiv 1905.04899).

    Its sides are those of the image times the square root of a share drawn from Beta(alpha, alpha);
    what lies beyond the image is cut off, and the targets are mixed by the pixels that remain.
    """
    first, second = samples
    size = tf.shape(first.image)[:2]
    sides = tf.cast(size, tf.float32) * tf.sqrt(_draw_share(seed, alpha))
    centre = tf.random.stateless_uniform([2], seed, alg="philox") * tf.cast(size, tf.float32)
    begin = tf.clip_by_value(tf.cast(tf.round(centre - sides / 2.0), tf.int32), 0, size)
    end = tf.clip_by_value(tf.cast(tf.round(centre + sides / 2.0), tf.int32), 0, size)
    inside = [
        (tf.range(size[axis]) >= begin[axis]) & (tf.range(size[axis]) < end[axis])
        for axis in (0, 1)
    ]
    pasted = inside[0][:, None, None] & inside[1][None, :, None]
    share = tf.cast(tf.reduce_prod(end - begin), tf.float32) / tf.cast(
        tf.reduce_prod(size), tf.float32
    )
    return first._replace(
        image=tf.where(pasted, second.image, first.image),
        targets=first.targets * (1.0 - share) + second.targets * share,
    )


def _draw_share(seed: Tensor, alpha: float) -> Tensor:
    """Returns a number from Beta(alpha, alpha), [] float32."""
    gammas = tf.random.stateless_gamma([2], seed, tf.constant(alpha))
    # A tiny alpha may draw two zeros, which would give 0 / 0.
    return gammas[0] / tf.maximum(tf.reduce_sum(gammas), 1e-30)
