"""From one record to the image and the targets that the network sees."""

from collections.abc import Callable, Sequence
from functools import partial

import tensorflow as tf

from tpudet.classification.data.augmentations import move_image
from tpudet.classification.data.config import DataConfig
from tpudet.classification.data.record import (
    CT_BIAS,
    MAX_SLICE_PIXELS,
    Example,
    Schema,
    parse_example,
)
from tpudet.classification.data.sample import Sample
from tpudet.trainkit.errors import UserError
from tpudet.trainkit.images.crops import Crop, center_crop, decode_crop, random_crop
from tpudet.trainkit.images.graph_limits import png_sizes
from tpudet.trainkit.images.seeds import fold_seed, record_seed
from tpudet.trainkit.records import RECORDS_PER_SHARD_LIMIT
from tpudet.trainkit.types import Tensor

_FLIP, _MOVE = -1, -2  # folded into a record's seed; augmentations count from 0


def evaluation_crop(size: Tensor, image_size: tuple[int, int], share: float) -> Crop:
    """Returns the central crop of an image that evaluation and export see.

    Args:
        size: [2] int32, height and width of the image.
        image_size: H and W of the network.
        share: side of the crop over that of the largest that fits, 0..1.
    """
    return center_crop(size, share, aspect=image_size[1] / image_size[0])


def decode_example(
    example: Example,
    data: DataConfig,
    choose: Callable[[Tensor], Crop],
    *,
    move: Callable[[Tensor], Tensor] | None = None,
) -> Tensor:
    """Decodes a crop of an image or, through the windows, of a CT slice, [H, W, 3] uint8.

    Args:
        example: a parsed record.
        data: image size and windows.
        choose: from the size of the image, [2] int32, to the crop.
        move: of the whole image, before the crop is taken.
    """
    if example.rescale is None:
        return decode_crop(example.encoded, choose, *data.image_size, move=move)
    return decode_windows(
        example.encoded,
        example.rescale,
        choose,
        *data.image_size,
        windows=data.windows,
        move=move,
    )


def check_windows(data: DataConfig, schema: Schema) -> Schema:
    """Raises UserError if CT slices have no windows, or if windows have no CT slices."""
    if (schema == "ct") != bool(data.windows):
        raise UserError(
            f"data.windows has {len(data.windows)} windows, and the records of {data.directory} "
            f"are {'CT slices, which need three' if schema == 'ct' else 'no CT slices'}"
        )
    return schema


def training_sample(
    epoch: Tensor,
    record: Tensor,
    serialized: Tensor,
    *,
    data: DataConfig,
    schema: Schema,
    seed: int,
    num_classes: int,
    is_multi_label: bool,
) -> Sample:
    """Decodes the crop of an image that is drawn from (seed, epoch, record).

    Args:
        epoch: [] int64.
        record: [] int64, its number.
        serialized: [] string.
        data: crop, flip and windows.
        schema: of the record.
        seed: of the run.
        num_classes: C.
        is_multi_label: whether an image may have several labels or none.
    """
    example = parse_example(serialized, schema)
    targets = build_targets(example, record, num_classes, may_lack=is_multi_label)
    stateless_seed = record_seed(seed, epoch, record)

    def choose(size: Tensor) -> Crop:
        center = evaluation_crop(size, data.image_size, data.center_crop)
        if data.random_crop is None:
            return center
        return random_crop(
            size,
            stateless_seed,
            area_range=data.random_crop.area_range,
            aspect_range=data.random_crop.aspect_range,
            otherwise=center,
        )

    image = decode_example(example, data, choose, move=_random_move(data, stateless_seed))
    if data.horizontal_flip:
        image = flip_at_random(image, stateless_seed)
    return Sample(image=image, targets=targets, seed=stateless_seed, record=record)


def decode_windows(
    encoded: Tensor,
    rescale: Tensor,
    choose: Callable[[Tensor], Crop],
    height: int,
    width: int,
    *,
    windows: Sequence[tuple[float, float]],
    move: Callable[[Tensor], Tensor] | None = None,
) -> Tensor:
    """Decodes a crop of a CT slice at a fixed size, [height, width, C] uint8, C windows.

    Resized in float32, then mapped from centre - width / 2 .. centre + width / 2 to 0..255.

    Args:
        encoded: [] string, the PNG of a record.
        rescale: [2] float32, slope and intercept.
        choose: from the size of the slice, [2] int32, to the crop.
        height: of the result, pixels.
        width: of the result, pixels.
        windows: centre and width of each, Hounsfield units.
        move: of the whole slice, [h, w, 1] float32, before the crop is taken; what it leaves empty
            must be 0, and becomes the lowest value.
    """
    size = png_sizes(tf.expand_dims(encoded, 0))[0]
    fits = tf.reduce_prod(tf.cast(size, tf.int64)) <= MAX_SLICE_PIXELS
    wrong = [f"A CT slice of more than {MAX_SLICE_PIXELS:,} pixels; height, width:", size]
    with tf.control_dependencies([tf.debugging.Assert(fits, wrong)]):
        values = tf.io.decode_png(encoded, channels=1, dtype=tf.uint16)
    values = tf.cast(values, tf.float32)
    if move is not None:
        values = _mirrored(move(_mirrored(values, rescale)), rescale)
    crop = choose(tf.shape(values)[:2])
    values = tf.slice(
        values, tf.concat([crop.begin, [0]], axis=0), tf.concat([crop.size, [1]], axis=0)
    )
    # Where the crop is larger, areas are averaged, so that nothing aliases.
    shrinks = tf.reduce_all(crop.size >= [height, width])
    resized = tf.cond(
        shrinks,
        lambda: tf.image.resize(values, [height, width], "area"),
        lambda: tf.image.resize(values, [height, width], "bilinear"),
    )
    units = (resized - CT_BIAS) * rescale[0] + rescale[1]
    lowest = tf.constant([center - size / 2.0 for center, size in windows])
    sizes = tf.constant([float(size) for _, size in windows])
    shares = tf.clip_by_value((units - lowest) / sizes, 0.0, 1.0)
    pixels = tf.cast(shares * 255.0 + 0.5, tf.uint8)
    return tf.ensure_shape(pixels, [height, width, len(windows)])


def _mirrored(values: Tensor, rescale: Tensor) -> Tensor:
    """Turns 16-bit values around where a negative slope makes 0 the highest; its own inverse."""
    return tf.where(rescale[0] < 0.0, 65535.0 - values, values)


def _random_move(data: DataConfig, seed: Tensor) -> Callable[[Tensor], Tensor] | None:
    """Returns `data.random_affine`, drawn from the seed [2] of a record in its epoch."""
    affine = data.random_affine
    if affine is None:
        return None
    return partial(
        move_image,
        seed=fold_seed(seed, _MOVE),
        rotation=affine.rotation,
        shift=affine.shift,
        scale=affine.scale,
    )


def flip_at_random(image: Tensor, seed: Tensor) -> Tensor:
    """Mirrors an image [h, w, 3] left to right with probability 0.5.

    `seed` [2] is that of the record in its epoch.
    """
    draw = tf.random.stateless_uniform([], fold_seed(seed, _FLIP), alg="philox")
    return tf.cond(draw < 0.5, lambda: tf.reverse(image, [1]), lambda: image)


def build_targets(example: Example, record: Tensor, num_classes: int, *, may_lack: bool) -> Tensor:
    """Returns 1 for each label, [C] float32; a wrong label ends the run and names the record.

    Args:
        example: its labels.
        record: [] int64, its number.
        num_classes: C.
        may_lack: whether there may be another number of labels than one.
    """
    labels = example.labels
    where = [
        "Labels, shard index, record in shard, image:",
        labels,
        record // RECORDS_PER_SHARD_LIMIT,
        record % RECORDS_PER_SHARD_LIMIT,
        example.image_id,
    ]
    known = tf.reduce_all((labels >= 1) & (labels <= num_classes))
    fault = f"A label of this record is not among the {num_classes} rows of the class list."
    checks = [tf.debugging.Assert(known, [fault, *where])]
    if not may_lack:
        fault = "This record has not exactly one label, as model.loss.kind softmax needs."
        checks.append(tf.debugging.Assert(tf.size(labels) == 1, [fault, *where]))
    with tf.control_dependencies(checks):
        places = tf.expand_dims(tf.cast(labels, tf.int32) - 1, axis=1)
    # Not a row for each label: a record of others may have a million.
    counts = tf.scatter_nd(places, tf.ones_like(labels, tf.float32), [num_classes])
    return tf.minimum(counts, 1.0)
