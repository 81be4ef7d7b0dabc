"""Batch normalisation of TensorFlow on CPUs in one operation, which Keras does not offer.

Statistics, outputs and gradients are those of `backbones.batch_norm`, in half the time.
"""

import math
from typing import Any

import keras

from tpudet.trainkit.cpu import multiplies_bfloat16
from tpudet.trainkit.types import Tensor


def is_fused(inputs: Tensor, *, synchronized: bool) -> bool:
    """Returns whether `fused_batch_norm` is there for inputs of a layer in training.

    Not where statistics span several replicas, nor on JAX, whose compiler fuses by itself.

    Args:
        inputs: its precision and rank are looked at.
        synchronized: whether statistics span all replicas.
    """
    if keras.backend.backend() != "tensorflow" or len(inputs.shape) != 4:
        return False
    if not keras.distribution.list_devices()[0].startswith("cpu"):
        return False
    import tensorflow as tf

    replicas = tf.distribute.get_replica_context()
    if synchronized and replicas is not None and replicas.num_replicas_in_sync > 1:
        return False
    dtype = keras.backend.standardize_dtype(inputs.dtype)
    return dtype == "float32" or (dtype == "bfloat16" and multiplies_bfloat16())


def fused_batch_norm(
    inputs: Tensor, gamma: Tensor, beta: Tensor, *, epsilon: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Normalises [B, H, W, C] by its own statistics.

    Args:
        inputs: float32 or bfloat16.
        gamma: [C] float32.
        beta: [C] float32.
        epsilon: added to the variance.

    Returns:
        The outputs, in the precision of the inputs; mean and biased variance, [C] float32, without
        gradient.
    """
    import tensorflow as tf

    outputs, mean, variance, *_ = tf.raw_ops.FusedBatchNormV3(
        x=inputs, scale=gamma, offset=beta, mean=[], variance=[], epsilon=epsilon, is_training=True
    )
    # The variance comes divided by one less than the count. Where the shape is known nothing is
    # left of its four operations.
    sizes = inputs.shape[:-1]
    if None in sizes:
        count = tf.cast(math.prod(tf.unstack(tf.shape(inputs)[:-1])), tf.float32)
    else:
        count = float(math.prod(sizes))
    return outputs, mean, variance * ((count - 1) / count)


def move_statistic(moving: keras.Variable, value: Tensor, *, momentum: float) -> None:
    """`moving = momentum * moving + (1 - momentum) * value`, in three operations instead of seven.

    Args:
        moving: [C] float32.
        value: [C] float32, of this step.
        momentum: 0 to 1.
    """
    import tensorflow as tf

    variable: Any = moving.value
    if isinstance(variable, tf.Tensor):  # in a stateless scope, as of gradient checkpointing
        moving.assign(variable * momentum + value * (1.0 - momentum))
    else:
        change = variable - value
        tf.raw_ops.ResourceApplyGradientDescent(
            var=variable.handle, alpha=1.0 - momentum, delta=change
        )
