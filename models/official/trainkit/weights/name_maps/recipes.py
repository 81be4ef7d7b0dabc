"""How the value of one of our variables is made from tensors of a file."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np


class Recipe(NamedTuple):
    """Tensors of a file by name, and what makes one of our variables of them."""

    names: tuple[str, ...]
    convert: Callable[..., np.ndarray]

    def behind(self, prefix: str) -> "Recipe":
        """The recipe of tensors whose names begin with a prefix."""
        return self._replace(names=tuple(prefix + name for name in self.names))


def unchanged(value: np.ndarray) -> np.ndarray:
    """Returns the tensor as it is: TensorFlow and Keras have our layouts."""
    return value


def as_is(name: str) -> Recipe:
    """The recipe of a tensor that is taken as it is."""
    return Recipe((name,), unchanged)


def from_torch_kernel(kernel: np.ndarray) -> np.ndarray:
    """[out, in, height, width] to [height, width, in, out]; grouped ones too."""
    return kernel.transpose(2, 3, 1, 0)


def from_torch_depthwise_kernel(kernel: np.ndarray) -> np.ndarray:
    """[channels, 1, height, width] to [height, width, channels, 1]."""
    return kernel.transpose(2, 3, 0, 1)


def mean_without_bias(moving_mean: np.ndarray, bias: np.ndarray) -> np.ndarray:
    """Takes the bias of the convolution before it, which ours lack, into a norm's mean.

    `(conv + bias - mean)` is `(conv - (mean - bias))`, whatever scale and shift follow.
    """
    return moving_mean - bias


def reversed_colours(kernel: np.ndarray) -> np.ndarray:
    """A first kernel [height, width, 3, out] for blue, green, red to one for red, green, blue."""
    return kernel[:, :, ::-1, :]
