"""The backbone's features as they are."""

from collections.abc import Mapping

import keras

from detection.types import Tensor


class IdentityNeck(keras.layers.Layer):
    """Passes one level of the backbone on; it has no variables.

    One, because all levels share a head, and backbones have more channels on every coarser level.

    Args:
        level: The backbone's level, 2 to 5.
        name: Name of the layer.
    """

    def __init__(self, *, level: int, name: str = "neck"):
        super().__init__(name=name)
        self.level = level

    def build(self, input_shape: Mapping[int, tuple[int | None, ...]]) -> None:
        """Learns `num_filters` from {level: shape of the backbone's features}."""
        self.num_filters = input_shape[self.level][-1]

    def call(self, features: Mapping[int, Tensor], training: bool = False) -> dict[int, Tensor]:
        """Returns the features of the level, untouched."""
        return {self.level: features[self.level]}
