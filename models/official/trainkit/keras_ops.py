"""`keras.ops` without its type annotations, which add None to nearly every result."""

from typing import Any

import keras

ops: Any = keras.ops
