"""Applies augmentations to a stream of images, including those that mix several images.

For mixing, the stream is cut into blocks of `BLOCK_SIZE` consecutive images of this process,
counted from the beginning of the run, and an image finds its partners in its own block. So a mixed
image is a function of (seed, position in the run), each image is decoded once however many it is
mixed into, and a restart reads from the beginning of a block.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol, TypeVar

import tensorflow as tf

from tpudet.trainkit.images.seeds import fold_seed
from tpudet.trainkit.records import unconverted
from tpudet.trainkit.types import Tensor

# More partners to choose from cost memory and delay: 20 MB of images at 640 x 640.
BLOCK_SIZE = 16


class SeededImage(Protocol):
    """The fields of a sample, a structure of tensors, that the stream itself uses."""

    @property
    def image(self) -> Tensor:
        """[h, w, 3] uint8, no larger than the canvas."""
        ...

    @property
    def seed(self) -> Tensor:
        """[2] int64, of the record in its epoch."""
        ...


Sample = TypeVar("Sample", bound=SeededImage)


class ImageAugmentation(NamedTuple):
    """Changes one image by itself."""

    apply: Callable[[Any, Tensor], Any]  # (sample, seed [2]) -> sample


class MixingAugmentation(NamedTuple):
    """Makes one image of several."""

    # ([the sample, its partners], seed [2]) -> the mixed sample, no larger than the canvas.
    apply: Callable[[Sequence[Any], Tensor], Any]
    num_partners: int
    probability: float  # 0..1, of being applied to an image


Augmentation = ImageAugmentation | MixingAugmentation


def surplus_records(augmentations: Sequence[Augmentation], start: int) -> int:
    """Returns how many records before `start` must be read to begin with a whole block.

    Args:
        augmentations: in their order.
        start: records of this process consumed since the beginning of the run.
    """
    mixes = any(isinstance(one, MixingAugmentation) for one in augmentations)
    return start % BLOCK_SIZE if mixes else 0


def augmented_stream(
    read: Callable[[int], tf.data.Dataset],
    augmentations: Sequence[Augmentation],
    *,
    start_record: int,
    process_count: int,
    prepare: Callable[..., Sample],
    pack: Callable[[Sample], Mapping[str, Tensor]],
    unpack: Callable[[Tensor, dict[str, Tensor]], Sample],
    finish: Callable[[Sample], Any],
    canvas_size: tuple[int, int],
    num_parallel_calls: int,
) -> tf.data.Dataset:
    """Applies the augmentations in their order: one pass, and one more per mixing augmentation.

    Args:
        read: returns the records of this process from a record number of the run on, as elements
            that `prepare` takes.
        augmentations: the seed of each is the sample's, folded with its index in this list.
        start_record: records consumed since the beginning of the run, by all processes together.
        process_count: processes that share the records, which take turns.
        prepare: makes a sample of a record.
        pack: returns all of a sample but its image by name, to wait in a block. There each tensor
            is padded with 0 at its end to the largest of the block.
        unpack: inverse of `pack`: makes a sample of an image and of one padded row of a block.
        finish: applied to each sample at the end.
        canvas_size: H and W.
        num_parallel_calls: images processed at once.

    Returns:
        Dataset of what `finish` returns.
    """
    surplus = surplus_records(augmentations, start_record // process_count)
    records = read(start_record - surplus * process_count)
    mixing = [k for k, one in enumerate(augmentations) if isinstance(one, MixingAugmentation)]
    ends = [*mixing, len(augmentations)]

    # Applies the augmentations begin..end-1, all of single images, then packs or finishes.
    def change_images(begin: int, end: int) -> Callable[[Sample], Any]:
        def change(sample: Sample) -> Any:
            for index in range(begin, end):
                one = augmentations[index]
                assert isinstance(one, ImageAugmentation)
                sample = one.apply(sample, fold_seed(sample.seed, index))
            return finish(sample) if end == len(augmentations) else _pack(sample, pack)

        return change

    stream = records.map(
        unconverted(lambda *record: change_images(0, ends[0])(prepare(*record))),
        num_parallel_calls=num_parallel_calls,
        deterministic=True,
    )
    for index, end in zip(mixing, ends[1:], strict=True):
        augmentation = augmentations[index]
        assert isinstance(augmentation, MixingAugmentation)
        mix = _block_mixer(augmentation, index, unpack)
        after = change_images(index + 1, end)
        stream = _mix_blocks(_blocks(stream, canvas_size), mix, after, num_parallel_calls)
    return stream.skip(surplus)


def _blocks(samples: tf.data.Dataset, canvas_size: tuple[int, int]) -> tf.data.Dataset:
    shapes = {name: spec.shape for name, spec in samples.element_spec.items()}
    shapes["image"] = [*canvas_size, 3]
    blocks = samples.padded_batch(BLOCK_SIZE, padded_shapes=shapes, drop_remainder=True)
    return blocks.prefetch(1)  # the next block is decoded while this one is mixed


def _mix_blocks(
    blocks: tf.data.Dataset,
    mix: Callable[[dict[str, Tensor], Tensor], Any],
    finish: Callable[[Any], Any],
    num_parallel_calls: int,
) -> tf.data.Dataset:
    def mix_block(block: dict[str, Tensor]) -> tf.data.Dataset:
        return tf.data.Dataset.range(BLOCK_SIZE).map(
            lambda row: finish(mix(block, row)),
            num_parallel_calls=num_parallel_calls,
            deterministic=True,
        )

    return blocks.flat_map(unconverted(mix_block))


def _block_mixer(
    augmentation: MixingAugmentation, index: int, unpack: Callable[[Tensor, dict], Any]
) -> Callable[[dict[str, Tensor], Tensor], Any]:
    """Returns a function of a block and a row [] int64 that mixes the row with its partners."""

    def mix(block: dict[str, Tensor], row: Tensor) -> Any:
        sample = _unpack(block, row, unpack)
        seed = fold_seed(sample.seed, index)
        draws = tf.random.stateless_uniform([BLOCK_SIZE], seed, alg="philox")

        def mixed() -> Any:
            # The other rows of the block, counted from this one, in a random order.
            steps = 1 + tf.argsort(draws[1:], stable=True)[: augmentation.num_partners]
            rows = (tf.cast(row, tf.int32) + steps) % BLOCK_SIZE
            partners = [_unpack(block, rows[k], unpack) for k in range(augmentation.num_partners)]
            return augmentation.apply([sample, *partners], fold_seed(seed, 1))

        return tf.cond(draws[0] < augmentation.probability, mixed, lambda: sample)

    return mix


def _pack(sample: Sample, pack: Callable[[Sample], Mapping[str, Tensor]]) -> dict[str, Tensor]:
    return {**pack(sample), "image": sample.image, "image_size": tf.shape(sample.image)[:2]}


def _unpack(block: dict[str, Tensor], row: Tensor, unpack: Callable[[Tensor, dict], Any]) -> Any:
    values = {name: column[row] for name, column in block.items()}
    height, width = tf.unstack(values.pop("image_size"))
    return unpack(values.pop("image")[:height, :width], values)
