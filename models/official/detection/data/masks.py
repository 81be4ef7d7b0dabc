"""Instance masks of a record: decoded onto the canvas, and packed to bits.

One mask per instance, because masks overlap: the pixels of a shirt are also the person's. A mask
takes a byte per pixel while its image is changed, and a bit per pixel while the image waits to be
mixed and in the batch: 51 KB per instance at 640 x 640, so 5 MB per image for 100 instances. No
smaller form keeps every pixel: crops of 112 x 112 to the box would take 157 KB, but lose the edges
of large objects, and regions that reach beyond the box would need a second convention.
"""

from collections.abc import Sequence

import numpy as np
import tensorflow as tf

from tpudet.detection.data.tfrecord import parse_example
from tpudet.trainkit.errors import UserError
from tpudet.trainkit.images.canvas import PlacedImage
from tpudet.trainkit.images.graph_limits import png_sizes
from tpudet.trainkit.records import read_records
from tpudet.trainkit.types import Tensor

_GATHER_BITS = sum(1 << (63 - 9 * k) for k in range(8)) - (1 << 64)  # as a signed number
# If 1 % of the images have masks, a search of this many misses them once in 20,000 times.
_RECORDS_SEARCHED = 1000
_SHARDS_SEARCHED = 100

# The eight bits of each byte, the highest first.
_BITS = np.unpackbits(np.arange(256, dtype=np.uint8)[:, None], axis=1)


def require_masks(shards: Sequence[str], *, needed_by: str) -> None:
    """Searches records of all shards for masks, because training without any would learn none.

    Args:
        shards: paths.
        needed_by: what needs masks, for the message.

    Raises:
        UserError: no record searched has any.
    """
    some = shards[:: -(-len(shards) // _SHARDS_SEARCHED)]
    count = -(-_RECORDS_SEARCHED // len(some))
    for shard in some:
        for _, text in read_records([shard]).take(count):
            if tf.size(parse_example(text, with_masks=True).masks) > 0:
                return
    raise UserError(
        f"{needed_by} needs masks, and none of the first {count} records of each of {len(some)} "
        f"shards, from {shards[0]} on, has an image/object/mask. Write the records with `tpudet "
        "make_tfrecords --include_masks`, or remove copy_paste from data.augmentations."
    )


def placed_masks(
    encoded: Tensor, count: Tensor, rows: Tensor, placed: PlacedImage, flip: Tensor
) -> Tensor:
    """Decodes masks of one record, resamples them to the nearest pixel, and mirrors them.

    Args:
        encoded: [n] string, PNG files of the image's size; or [0] if the record has none.
        count: [] int32, n, the number of instances in the record.
        rows: [m] integer, the instances whose masks are wanted; the others are not decoded.
        placed: where the image was placed.
        flip: [] bool, whether the image was mirrored.

    Returns:
        [m, h, w] uint8, 0 or 1, of the placed image's size; all 0 if the record has none.

    Raises:
        tf.errors.InvalidArgumentError: the number of masks or the size of one is wrong.
    """
    size = tf.cast(placed.original_size, tf.int32)
    height, width = tf.unstack(tf.shape(placed.image)[:2])
    lines = _nearest(height, placed.scale[0], placed.offset[0], size[0])
    columns = _nearest(width, placed.scale[1], placed.offset[1], size[1])
    columns = tf.where(flip, size[1] - 1 - columns, columns)

    def decode(png: Tensor) -> Tensor:
        mask = tf.io.decode_png(png, channels=1)[..., 0]
        sampled = tf.gather(tf.gather(mask, lines), columns, axis=1)
        return tf.cast(sampled > 0, tf.uint8)

    def decode_all() -> Tensor:
        wanted = tf.gather(encoded, rows)
        sizes = png_sizes(wanted)
        same = tf.reduce_all(sizes == size)
        wrong = ["heights, widths of masks, and of their image:", sizes, size]
        with tf.control_dependencies([tf.debugging.Assert(same, wrong)]):
            return tf.map_fn(
                decode, wanted, fn_output_signature=tf.TensorSpec([None, None], tf.uint8)
            )

    fitting = (tf.size(encoded) == 0) | (tf.size(encoded) == count)
    wrong = ["masks, objects:", tf.size(encoded), count]
    with tf.control_dependencies([tf.debugging.Assert(fitting, wrong)]):
        return tf.cond(
            tf.minimum(tf.size(encoded), tf.size(rows)) > 0,
            decode_all,
            lambda: tf.zeros([tf.size(rows), height, width], tf.uint8),
        )


def pad_masks(
    masks: Tensor | None,
    height: Tensor | int,
    width: Tensor | int,
    corner: Tensor | tuple[int, int] = (0, 0),
) -> Tensor:
    """Pads masks [n, h, w] with 0 to [n, height, width], their upper left corner at `corner`.

    None stays None.
    """
    if masks is None:
        return None
    before = tf.stack([0, corner[0], corner[1]])
    after = tf.stack([0, height, width]) - before - tf.shape(masks) * [0, 1, 1]
    return tf.pad(masks, tf.stack([before, after], axis=1))


def concat_masks(masks: Sequence[Tensor | None]) -> Tensor | None:
    """Concatenates the masks of several images of one size; None if they have none."""
    present = [part for part in masks if part is not None]
    return tf.concat(present, 0) if len(present) == len(masks) else None


def pack_masks(masks: Tensor) -> Tensor:
    """Packs masks [n, h, w] into bits, [n, h, w / 8 rounded up] uint8."""
    shape = tf.shape(masks)
    size = -(-shape[2] // 8)
    padded = pad_masks(masks, shape[1], size * 8)
    # Eight pixels are one number, in which byte k counts from the right; the product moves its bit
    # to place 63 - k, and no two terms meet, so nothing carries.
    eight = tf.bitcast(tf.reshape(padded, [-1, 8]), tf.int64)
    gathered = tf.bitwise.right_shift(eight * _GATHER_BITS, tf.constant(56, tf.int64))
    return tf.reshape(tf.cast(gathered & 255, tf.uint8), [shape[0], shape[1], size])


def unpack_masks(packed: Tensor, width: Tensor) -> Tensor:
    """Inverse of `pack_masks`: returns [n, h, width] uint8, 0 or 1."""
    shape = tf.shape(packed)
    bits = tf.gather(_BITS, tf.cast(packed, tf.int32))
    return tf.reshape(bits, [shape[0], shape[1], shape[2] * 8])[:, :, :width]


def _nearest(length: Tensor, scale: Tensor, offset: Tensor, original_length: Tensor) -> Tensor:
    """Returns the original pixel under the centre of each canvas pixel 0..length-1."""
    centres = (tf.range(tf.cast(length, tf.float32)) + 0.5 + offset) / scale
    return tf.clip_by_value(tf.cast(centres, tf.int32), 0, original_length - 1)
