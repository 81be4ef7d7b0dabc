"""The type of a tensor, for annotations."""

from typing import Any

# A tensor of any backend: TensorFlow, JAX or NumPy.
Tensor = Any
