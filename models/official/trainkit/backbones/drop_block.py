"""DropBlock (Ghiasi et al., arXiv 1810.12890): zeroes squares of feature maps in training."""

from typing import Any

import keras

from tpudet.trainkit.keras_ops import ops
from tpudet.trainkit.types import Tensor

STEP_COUNT = "calls"  # name of the variable that counts a schedule's steps


class DropBlock(keras.layers.Layer):
    """Zeroes squares of [B, H, W, C], drawn per channel, and scales up the rest, in training.

    Args:
        keep_prob: share of a map that is kept, above 0 and at most 1. Slightly more is kept,
            because squares overlap.
        size: side of a square in pixels of the map; clipped to the map's shorter side.
        schedule_steps: training calls over which the dropped share rises linearly from 0. Their
            count is a variable, so that a restored run continues; a step of several calls has to
            raise it by one. 0 means no ramp.
        seed: seed of the random generator, whose state is also a variable.
        name: name of the layer.
    """

    def __init__(
        self,
        *,
        keep_prob: float,
        size: int,
        schedule_steps: int,
        seed: int,
        name: str | None = None,
    ):
        super().__init__(name=name)
        self.keep_prob = keep_prob
        self.size = size
        self.schedule_steps = schedule_steps
        self.seed = seed

    def build(self, input_shape: tuple[int | None, ...]) -> None:
        """Creates the variables, for inputs of any shape."""
        self.seed_generator = keras.random.SeedGenerator(self.seed, name="seed")
        if self.schedule_steps:
            self.calls = self.add_weight(
                shape=(), initializer="zeros", dtype="int32", trainable=False, name=STEP_COUNT
            )

    def call(self, inputs: Tensor, training: bool = False) -> Tensor:
        """Drops squares of [B, H, W, C]; the identity outside training. H and W must be static."""
        if not training or self.keep_prob == 1.0:
            return inputs
        drop_rate: Any = 1.0 - self.keep_prob
        if self.schedule_steps:
            progress = ops.cast(self.calls, "float32") / self.schedule_steps
            drop_rate = drop_rate * ops.minimum(progress, 1.0)
            self.calls.assign(self.calls + 1)
        batch, height, width, channels = ops.shape(inputs)
        side = min(self.size, height, width)
        # Upper left corners of the squares that fit into the map.
        shape = (batch, height - side + 1, width - side + 1, channels)
        corners = keras.random.uniform(shape, dtype="float32", seed=self.seed_generator)
        return zero_squares(inputs, corners, side=side, drop_rate=drop_rate)


def zero_squares(
    inputs: Tensor, corners: Tensor, *, side: int, drop_rate: Tensor | float
) -> Tensor:
    """Zeroes the squares of [B, H, W, C] whose upper left corners drew low numbers.

    Args:
        inputs: [B, H, W, C].
        corners: [B, H - side + 1, W - side + 1, C], drawn uniformly from 0..1.
        side: side of a square, in pixels.
        drop_rate: share of the pixels that the squares would cover without overlaps, 0..1.

    Returns:
        [B, H, W, C]; kept values are divided by their share, which preserves the mean.
    """
    _, height, width, _ = inputs.shape
    share = height * width / (side**2 * (height - side + 1) * (width - side + 1))
    dropped = ops.cast(corners < drop_rate * share, inputs.dtype)
    around = (side - 1, side - 1)
    dropped = ops.max_pool(ops.pad(dropped, ((0, 0), around, around, (0, 0))), side, strides=1)
    kept = 1.0 - ops.cast(dropped, "float32")
    scaled = kept / ops.maximum(ops.mean(kept), 1e-6)  # a small map may lose every pixel
    return inputs * ops.cast(scaled, inputs.dtype)
