"""Updates of variables in one TensorFlow op each, where Keras takes 10 to 40.

A step reads and writes the memory of a variable and of its slots once instead of four times, and
its graph, which is traced and optimised before the first step, has a tenth of the nodes. On JAX the
compiler does the same with Keras's own updates. Variables and slots are `tf.Variable`, also those
of a replica; the scalars are float32 tensors or numbers.
"""

from collections.abc import Sequence
from typing import Any

import tensorflow as tf


def update_momentum(
    variable: Any, slot: Any, gradient: Any, *, rate: Any, momentum: Any, nesterov: bool
) -> None:
    """Updates as `optimizers.Momentum` states it."""
    tf.raw_ops.ResourceApplyKerasMomentum(
        var=variable.handle,
        accum=slot.handle,
        lr=rate,
        grad=gradient,
        momentum=momentum,
        use_nesterov=nesterov,
    )


def update_adam(
    variable: Any,
    means: Any,
    squares: Any,
    gradient: Any,
    *,
    rate: Any,
    beta_1: Any,
    beta_2: Any,
    beta_powers: Sequence[Any],
    epsilon: Any,
) -> None:
    """Updates as `optimizers.Adam` states it; `beta_powers`: the betas to the power of the step."""
    tf.raw_ops.ResourceApplyAdam(
        var=variable.handle,
        m=means.handle,
        v=squares.handle,
        beta1_power=beta_powers[0],
        beta2_power=beta_powers[1],
        lr=rate,
        beta1=beta_1,
        beta2=beta_2,
        epsilon=epsilon,
        grad=gradient,
    )


def update_rmsprop(
    variable: Any,
    squares: Any,
    moved: Any,
    gradient: Any,
    *,
    rate: Any,
    rho: float,
    momentum: float,
    epsilon: float,
) -> None:
    """Updates as `optimizers.RMSprop` states it."""
    tf.raw_ops.ResourceApplyRMSProp(
        var=variable.handle,
        ms=squares.handle,
        mom=moved.handle,
        lr=rate,
        rho=rho,
        momentum=momentum,
        epsilon=epsilon,
        grad=gradient,
    )


def subtract_scaled(variable: Any, factor: Any, change: Any) -> None:
    """`variable -= factor * change`."""
    tf.raw_ops.ResourceApplyGradientDescent(var=variable.handle, alpha=factor, delta=change)
