"""The type of a tensor, for annotations."""

from typing import Any

# A tensor of whichever backend is at work: TensorFlow, JAX or NumPy.
Tensor = Any
