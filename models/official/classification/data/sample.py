"""A training image with its classes, on its way from the record to the batch."""

from typing import NamedTuple

from tpudet.trainkit.types import Tensor


class Sample(NamedTuple):
    """An image of the network's size and what it shows."""

    image: Tensor  # [H, W, 3] uint8
    targets: Tensor  # [C] float32, see `Batch`
    seed: Tensor  # [2] int64, of the record in its epoch
    record: Tensor  # [] int64, the record's number; of a mixed image, that of the first


def pack_sample(sample: Sample) -> dict[str, Tensor]:
    """Returns all of a sample but its image, for `augmented_stream`."""
    packed = sample._asdict()
    del packed["image"]
    return packed


def unpack_sample(image: Tensor, packed: dict[str, Tensor]) -> Sample:
    """Inverse of `pack_sample`."""
    return Sample(image=image, **packed)
