"""Batch normalisation: TensorFlow's fused operation on CPUs, else with a hand-written gradient.

On a CPU the fused operation takes half the time of the hand-written gradient, and that a third of
differentiating `keras.layers.BatchNormalization` automatically.
"""

import math
from collections.abc import Callable
from typing import Any

import keras

from tpudet.trainkit.fused_norm import fused_batch_norm, is_fused, move_statistic
from tpudet.trainkit.keras_ops import ops
from tpudet.trainkit.types import Tensor


class BatchNorm(keras.layers.Layer):
    """Batch normalisation over all axes but the last (Ioffe and Szegedy, arXiv 1502.03167).

    As `keras.layers.BatchNormalization`: biased variance, and inference behaviour while the layer
    or its `gamma` is frozen. Statistics, scale and shift are float32 under any dtype policy.
    Deviation where it is not fused: the variance is the mean of the squares minus the square of the
    mean, in one pass. It is up to 1 % off if a channel's mean is 100 standard deviations from 0,
    and a third at 1000.

    Args:
        momentum: share of the moving statistics kept by an update, 0..1.
        epsilon: added to the variance.
        synchronized: whether statistics span all replicas of a `tf.distribute` strategy, which must
            hold equally many images. On JAX they always span the whole batch.
        zero_gamma: whether the scale is initialized to 0, as in the last layer of a residual block.
        frozen: whether statistics, scale and shift are constant even in training: building the
            layer makes it untrainable.
        name: name of the layer.
    """

    def __init__(
        self,
        *,
        momentum: float,
        epsilon: float,
        synchronized: bool = False,
        zero_gamma: bool = False,
        frozen: bool = False,
        name: str | None = None,
    ):
        super().__init__(name=name)
        self.momentum = momentum
        self.epsilon = epsilon
        self.synchronized = synchronized
        self.zero_gamma = zero_gamma
        self.frozen = frozen

    def build(self, input_shape: tuple[int | None, ...]) -> None:
        """Creates the variables for inputs [..., channels]."""

        def vector(name: str, initializer: str, trainable: bool) -> Any:
            return self.add_weight(
                shape=(input_shape[-1],),
                initializer=initializer,
                trainable=trainable,
                autocast=False,
                dtype="float32",
                name=name,
            )

        self.gamma = vector("gamma", "zeros" if self.zero_gamma else "ones", True)
        self.beta = vector("beta", "zeros", True)
        self.moving_mean = vector("moving_mean", "zeros", False)
        self.moving_variance = vector("moving_variance", "ones", False)
        if self.frozen:
            self.trainable = False

    def uses_batch_statistics(self, training: bool) -> bool:
        """Returns whether `call` would use batch statistics and update the moving ones."""
        return training and self.trainable and self.gamma.trainable

    def scale_and_shift(self) -> tuple[Tensor, Tensor]:
        """Returns the inference behaviour as `y = x * scale + shift`, each [channels] float32."""
        scale = self.gamma * ops.rsqrt(self.moving_variance + self.epsilon)
        return scale, self.beta - self.moving_mean * scale

    def call(self, inputs: Tensor, training: bool = False) -> Tensor:
        """Normalises [B, H, W, channels]."""
        if not self.uses_batch_statistics(training):
            scale, shift = self.scale_and_shift()
            return ops.cast(ops.cast(inputs, "float32") * scale + shift, inputs.dtype)
        if is_fused(inputs, synchronized=self.synchronized):
            outputs, mean, variance = fused_batch_norm(
                inputs,
                ops.convert_to_tensor(self.gamma),
                ops.convert_to_tensor(self.beta),
                epsilon=self.epsilon,
            )
            move_statistic(self.moving_mean, mean, momentum=self.momentum)
            move_statistic(self.moving_variance, variance, momentum=self.momentum)
            return outputs
        mean, variance = batch_moments(inputs, synchronized=self.synchronized)
        outputs = normalize_batch(
            inputs,
            self.gamma * 1.0,  # custom gradients take tensors only
            self.beta * 1.0,
            mean,
            variance,
            epsilon=self.epsilon,
            synchronized=self.synchronized,
        )
        for moving, value in ((self.moving_mean, mean), (self.moving_variance, variance)):
            moving.assign(moving * self.momentum + value * (1.0 - self.momentum))
        return outputs


# Makes a BatchNorm from a name and `zero_gamma`, with the network's other settings filled in.
MakeNorm = Callable[..., BatchNorm]


def _mean_over_replicas(values: Tensor) -> Tensor:
    if keras.backend.backend() != "tensorflow":
        return values  # under jit over a mesh, means already span the whole batch
    return ops.moments(values[None], axes=[0], synchronized=True)[0]


def _channel_means(values: Tensor) -> Tensor:
    # [B, H, W, C] -> [C]; width first is three times as fast on a CPU as all axes at once.
    return ops.mean(ops.mean(values, axis=-2), axis=(0, 1))


def batch_moments(inputs: Tensor, *, synchronized: bool) -> tuple[Tensor, Tensor]:
    """Returns mean and biased variance of each channel of [B, H, W, C], float32, without gradient.

    Compilers fuse both into one pass, and replicas exchange one message.
    """
    values = ops.stop_gradient(ops.cast(inputs, "float32"))
    moments = ops.stack([_channel_means(values), _channel_means(ops.square(values))])
    if synchronized:
        moments = _mean_over_replicas(moments)
    mean = moments[0]
    return mean, ops.maximum(moments[1] - ops.square(mean), 0.0)


def normalize_batch(
    inputs: Tensor,
    gamma: Tensor,
    beta: Tensor,
    mean: Tensor,
    variance: Tensor,
    *,
    epsilon: float,
    synchronized: bool,
) -> Tensor:
    """Returns `gamma * (inputs - mean) / sqrt(variance + epsilon) + beta`.

    Mean and variance must be those of `inputs`: the gradient of `inputs` includes their dependence
    on it (arXiv 1502.03167, section 3), and their own is 0. Gradients of gamma and beta are this
    replica's share.
    """

    def normalize(inputs: Tensor, gamma: Tensor, beta: Tensor, mean: Tensor, variance: Tensor):
        inverse = ops.rsqrt(variance + epsilon)
        scale = gamma * inverse
        values = ops.cast(inputs, "float32")
        outputs = ops.cast(values * scale + (beta - mean * scale), inputs.dtype)

        def gradient(*args: Tensor, upstream: Tensor = None):
            upstream = args[0] if upstream is None else upstream
            upstream = ops.cast(upstream, "float32")
            moments = ops.stack([_channel_means(upstream), _channel_means(upstream * values)])
            count = ops.cast(math.prod(ops.shape(inputs)[:-1]), "float32")
            beta_gradient = moments[0] * count
            gamma_gradient = (moments[1] - mean * moments[0]) * inverse * count
            if synchronized:
                moments = _mean_over_replicas(moments)
            slope = -scale * ops.square(inverse) * (moments[1] - mean * moments[0])
            shift = -scale * moments[0] - slope * mean
            inputs_gradient = upstream * scale + values * slope + shift
            return (
                ops.cast(inputs_gradient, inputs.dtype),
                gamma_gradient,
                beta_gradient,
                ops.zeros_like(mean),
                ops.zeros_like(variance),
            )

        return outputs, gradient

    return ops.custom_gradient(normalize)(inputs, gamma, beta, mean, variance)
