"""The augmentations of an experiment over a stream of pictures, mixing ones among them.

For mixing the stream is cut into blocks, and a picture finds its partners in its own block: the
`BLOCK_SIZE` consecutive pictures of this process's stream, counted from the beginning of the run.
So a mixed picture is a function of (seed, place in the run), each picture is decoded once however
many it is mixed into, and a restart reads from the beginning of a block on.
"""

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from tpudet.detection.data.masks import pack_masks, unpack_masks
from tpudet.detection.data.sample import (
    Augmentation,
    MixingAugmentation,
    PictureAugmentation,
    Sample,
    apply_to_picture,
)
from tpudet.trainkit.images.seeds import fold_seed
from tpudet.trainkit.types import Tensor

# Partners to choose from against memory and delay: 20 MB of pictures at 640 x 640.
BLOCK_SIZE = 16


def surplus_records(augmentations: Sequence[Augmentation], start: int) -> int:
    """Returns how many records before `start` must be read so that a block begins with the first.

    Args:
        augmentations: in their order.
        start: records of this process consumed since the beginning of the run.
    """
    is_mixed = any(isinstance(step, MixingAugmentation) for step in augmentations)
    return start % BLOCK_SIZE if is_mixed else 0


def augmented_stream(
    records: tf.data.Dataset,
    augmentations: Sequence[Augmentation],
    *,
    prepare: Callable[..., Sample],
    finish: Callable[[Sample], Any],
    canvas_size: tuple[int, int],
    num_parallel_calls: int,
) -> tf.data.Dataset:
    """Applies augmentations in their order, in one pass and one more for each mixing one.

    Args:
        records: what `prepare` takes; begins with a block where pictures are mixed.
        augmentations: see there. The seed of each is the sample's, folded with its place.
        prepare: makes a sample of a record.
        finish: applied to what comes out.
        canvas_size: H and W; no picture is larger.
        num_parallel_calls: pictures at once.

    Returns:
        Dataset of what `finish` returns, in the order of `records`.
    """
    mixing = [k for k, step in enumerate(augmentations) if isinstance(step, MixingAugmentation)]
    ends = [*mixing, len(augmentations)]

    def after(begin: int, end: int) -> Callable[[Sample], Any]:
        """Applies the steps begin..end-1, all of single pictures."""
        is_last = end == len(augmentations)

        def change(sample: Sample) -> Any:
            for place in range(begin, end):
                step = augmentations[place]
                assert isinstance(step, PictureAugmentation)
                sample = apply_to_picture(step, sample, _step_seed(sample, place))
            return finish(sample) if is_last else _pack(sample)

        return change

    first = after(0, ends[0])
    stream = records.map(
        lambda *record: first(prepare(*record)),
        num_parallel_calls=num_parallel_calls,
        deterministic=True,
    )
    for place, end in zip(mixing, ends[1:], strict=True):
        step = augmentations[place]
        assert isinstance(step, MixingAugmentation)
        blocks = _blocks(stream, canvas_size)
        stream = _mix_blocks(blocks, step, place, after(place + 1, end), num_parallel_calls)
    return stream


def _blocks(samples: tf.data.Dataset, canvas_size: tuple[int, int]) -> tf.data.Dataset:
    shapes = {name: spec.shape for name, spec in samples.element_spec.items()}
    shapes["image"] = [*canvas_size, 3]
    blocks = samples.padded_batch(BLOCK_SIZE, padded_shapes=shapes, drop_remainder=True)
    return blocks.prefetch(1)  # the next one is decoded while this one is mixed


def _mix_blocks(
    blocks: tf.data.Dataset,
    augmentation: MixingAugmentation,
    place: int,
    finish: Callable[[Sample], Any],
    num_parallel_calls: int,
) -> tf.data.Dataset:
    def mix_block(block: dict[str, Tensor]) -> tf.data.Dataset:
        return tf.data.Dataset.range(BLOCK_SIZE).map(
            lambda index: finish(_mix(block, index, augmentation, place)),
            num_parallel_calls=num_parallel_calls,
            deterministic=True,
        )

    return blocks.flat_map(mix_block)


def _mix(
    block: dict[str, Tensor], index: Tensor, augmentation: MixingAugmentation, place: int
) -> Sample:
    sample = _unpack(block, index)
    seed = _step_seed(sample, place)
    draws = tf.random.stateless_uniform([BLOCK_SIZE], seed, alg="philox")

    def mixed() -> Sample:
        # The other places of the block, counted from this one on, in a random order.
        steps = 1 + tf.argsort(draws[1:], stable=True)[: augmentation.num_partners]
        places = (tf.cast(index, tf.int32) + steps) % BLOCK_SIZE
        partners = [_unpack(block, places[number]) for number in range(augmentation.num_partners)]
        return augmentation.apply([sample, *partners], fold_seed(seed, 1))

    return tf.cond(draws[0] < augmentation.probability, mixed, lambda: sample)


def _step_seed(sample: Sample, place: int) -> Tensor:
    return fold_seed(sample.seed, place)


def _pack(sample: Sample) -> dict[str, Tensor]:
    """Returns a sample as an element of a dataset that is cut into padded blocks."""
    packed = {name: value for name, value in sample._asdict().items() if value is not None}
    if sample.masks is not None:
        packed["masks"] = pack_masks(sample.masks)
    size, count = tf.shape(sample.image)[:2], tf.shape(sample.boxes)[0]
    return {**packed, "size": size, "count": count}


def _unpack(block: dict[str, Tensor], index: Tensor) -> Sample:
    """Takes picture `index` out of a block, without its padding."""
    row = {name: column[index] for name, column in block.items()}
    (height, width), count = tf.unstack(row.pop("size")), row.pop("count")
    for name in ("boxes", "classes", "is_crowd"):
        row[name] = row[name][:count]
    row["image"] = row["image"][:height, :width]
    packed = row.pop("masks", None)
    masks = None if packed is None else unpack_masks(packed[:count, :height], width)
    return Sample(**row, masks=masks)
