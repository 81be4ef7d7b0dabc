"""The backbone's features as they are."""

from collections.abc import Mapping

import keras

from detection.modeling.fpn import COARSEST_BACKBONE_LEVEL
from detection.types import Tensor


class IdentityNeck(keras.layers.Layer):
    """Passes levels of the backbone on; it has no variables.

    A head that all levels share needs as many channels on each. The backbones here have more on
    every coarser level, so in practice this is one level: `min_level` equal to `max_level`.

    Args:
        min_level: Finest level, 2 to 5.
        max_level: Coarsest level, `min_level` to 5.
        name: Name of the layer.

    Raises:
        ValueError: Levels that the backbone lacks; at `build`, levels of unlike channels.
    """

    def __init__(self, *, min_level: int, max_level: int, name: str = "neck"):
        super().__init__(name=name)
        if not 2 <= min_level <= max_level <= COARSEST_BACKBONE_LEVEL:
            raise ValueError(
                f"The identity neck has min_level={min_level} and max_level={max_level}; allowed "
                f"is 2 <= min_level <= max_level <= {COARSEST_BACKBONE_LEVEL}."
            )
        self.levels = range(min_level, max_level + 1)

    def build(self, input_shape: Mapping[int, tuple[int | None, ...]]) -> None:
        """Learns `num_filters` from {level: shape of the backbone's features}."""
        channels = {level: input_shape[level][-1] for level in self.levels}
        if len(set(channels.values())) > 1:
            raise ValueError(
                f"The identity neck keeps the backbone's channels, which differ: {channels} by "
                f"level, and the levels share one head. Set min_level equal to max_level, or "
                f"choose another neck."
            )
        self.num_filters = channels[self.levels[0]]

    def call(self, features: Mapping[int, Tensor], training: bool = False) -> dict[int, Tensor]:
        """Returns the features of the levels, untouched."""
        return {level: features[level] for level in self.levels}
