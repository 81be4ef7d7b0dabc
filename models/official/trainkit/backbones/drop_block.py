"""DropBlock (Ghiasi et al., arXiv 1810.12890): in training, squares of the maps are zeroed."""

from typing import Any

import keras

from tpudet.trainkit.backbones.batch_norm import Tensor

ops: Any = keras.ops  # annotated with None among its results


class DropBlock(keras.layers.Layer):
    """Zeroes squares of [B, H, W, C], each channel's own, and scales up what stays.

    Args:
        keep_prob: Share of a map that stays, above 0 and at most 1. A little more stays, because
            squares overlap.
        size: Side of a square in pixels of the map; no more than the shorter side of the map.
        schedule_steps: The share that goes rises linearly from 0 over so many calls in training;
            their number is a variable, so that a restored run continues. 0: all from the first.
        seed: Seed of the squares. The generator's state is a variable too.
        name: Name of the layer.
    """

    def __init__(
        self,
        *,
        keep_prob: float = 0.9,
        size: int = 7,
        schedule_steps: int = 0,
        seed: int = 0,
        name: str | None = None,
    ):
        super().__init__(name=name)
        self.keep_prob = keep_prob
        self.size = size
        self.schedule_steps = schedule_steps
        self.seed = seed

    def build(self, input_shape: tuple[int | None, ...]) -> None:
        """Creates the seed and the number of calls, for inputs of any shape."""
        self.seed_generator = keras.random.SeedGenerator(self.seed, name="seed")
        if self.schedule_steps:
            self.calls = self.add_weight(
                shape=(), initializer="zeros", dtype="int32", trainable=False, name="calls"
            )

    def call(self, inputs: Tensor, training: bool = False) -> Tensor:
        """Returns [B, H, W, C] again; outside training the inputs as they are. H, W are static."""
        if not training or self.keep_prob == 1.0:
            return inputs
        drop_rate: Any = 1.0 - self.keep_prob
        if self.schedule_steps:
            progress = ops.cast(self.calls, "float32") / self.schedule_steps
            drop_rate = drop_rate * ops.minimum(progress, 1.0)
            self.calls.assign(self.calls + 1)
        batch, height, width, channels = ops.shape(inputs)
        side = min(self.size, height, width)
        # The corners from which a square of this side is inside the map.
        shape = (batch, height - side + 1, width - side + 1, channels)
        corners = keras.random.uniform(shape, dtype="float32", seed=self.seed_generator)
        return zero_squares(inputs, corners, side=side, drop_rate=drop_rate)


def zero_squares(
    inputs: Tensor, corners: Tensor, *, side: int, drop_rate: Tensor | float
) -> Tensor:
    """Zeroes the squares of [B, H, W, C] whose top left corners drew low numbers.

    Args:
        inputs: [B, H, W, C].
        corners: [B, H - side + 1, W - side + 1, C], drawn uniformly from 0..1.
        side: Side of a square, in pixels.
        drop_rate: Share of the pixels that all squares together would have without overlaps, 0..1.

    Returns:
        [B, H, W, C]; what is left is divided by its share of all numbers, so that the mean stays.
    """
    _, height, width, _ = inputs.shape
    share = height * width / (side**2 * (height - side + 1) * (width - side + 1))
    dropped = ops.cast(corners < drop_rate * share, inputs.dtype)
    around = (side - 1, side - 1)
    dropped = ops.max_pool(ops.pad(dropped, ((0, 0), around, around, (0, 0))), side, strides=1)
    kept = 1.0 - ops.cast(dropped, "float32")
    scaled = kept / ops.maximum(ops.mean(kept), 1e-6)  # nothing may be left of a small map
    return inputs * ops.cast(scaled, inputs.dtype)
