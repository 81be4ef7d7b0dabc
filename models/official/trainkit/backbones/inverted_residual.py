"""The block of MobileNets and EfficientNets (Sandler et al., arXiv 1801.04381)."""

from typing import Any

import keras

from tpudet.trainkit.backbones.layers import (
    HE_FAN_OUT,
    Activation,
    Conv,
    Gate,
    squeeze_and_excite,
)
from tpudet.trainkit.keras_ops import ops
from tpudet.trainkit.types import Tensor


def drop_connect(inputs: Tensor, drawn: Tensor, *, rate: float) -> Tensor:
    """Stochastic depth (Huang et al., arXiv 1603.09382): zeroes images of [B, H, W, C].

    Images that drew less than `rate` are zeroed, the rest divided by 1 - rate; expectations are
    preserved if the numbers `drawn` [B] are uniform in 0..1.
    """
    factors = ops.cast(drawn >= rate, "float32") / (1.0 - rate)
    return inputs * ops.cast(ops.reshape(factors, (-1, 1, 1, 1)), inputs.dtype)


class InvertedResidualBlock(keras.layers.Layer):
    """Expansion, depthwise convolution, squeeze and excitation, projection, identity.

    The identity is there where shapes allow it, the expansion where there is one.

    Args:
        kernel_size: of the depthwise convolution.
        strides: of the depthwise convolution.
        filters_in: channels of the input.
        filters_expanded: channels of the depthwise convolution.
        filters_out: channels of the output.
        activation: of expansion and depthwise convolution.
        squeezed: channels between squeeze and excitation; 0 for neither.
        squeeze_activation: between the two.
        gate: after them.
        drop_rate: probability that an image skips the block in training, if the block has an
            identity and is not frozen.
        conv_norm: makes a `ConvNorm` with the network's settings.
        name: name of the layer.
    """

    def __init__(
        self,
        *,
        kernel_size: int,
        strides: int,
        filters_in: int,
        filters_expanded: int,
        filters_out: int,
        activation: Activation,
        squeezed: int,
        squeeze_activation: Activation = "silu",
        gate: Gate = "sigmoid",
        drop_rate: float = 0.0,
        conv_norm: Any,
        name: str,
    ):
        super().__init__(name=name)
        self.filters_in = filters_in
        self.filters_expanded = filters_expanded
        self.squeezed = squeezed
        self.squeeze_activation: Activation = squeeze_activation
        self.gate: Gate = gate
        self.drop_rate = drop_rate
        self.has_identity = strides == 1 and filters_in == filters_out
        self.expand = None
        if filters_expanded != filters_in:
            self.expand = conv_norm(filters_expanded, 1, activation=activation, name="expand")
        self.depthwise = conv_norm(
            filters_expanded,
            kernel_size,
            strides=strides,
            kind="depthwise",
            activation=activation,
            name="depthwise",
        )
        if squeezed:
            self.squeeze = Conv(squeezed, 1, kernel_initializer=HE_FAN_OUT, name="squeeze")
            self.excite = Conv(filters_expanded, 1, kernel_initializer=HE_FAN_OUT, name="excite")
        self.project = conv_norm(filters_out, 1, name="project")

    def build(self, input_shape: tuple[int | None, ...]) -> None:
        """Creates the variables for inputs [B, H, W, filters_in]."""
        if self.expand:
            self.expand.build(input_shape)
        wide = (*input_shape[:-1], self.filters_expanded)
        self.depthwise.build(wide)
        if self.squeezed:
            self.squeeze.build(wide)
            self.excite.build((None, 1, 1, self.squeezed))
        self.project.build(wide)

    def call(self, inputs: Tensor, drawn: Tensor | None = None, training: bool = False) -> Tensor:
        """Maps [B, H, W, filters_in] to [B, H / strides, W / strides, filters_out].

        `drawn`, [B] in 0..1, decides which images skip the block; None means that none does.
        """
        outputs = inputs
        if self.expand:
            outputs = self.expand(outputs, training=training)
        outputs = self.depthwise(outputs, training=training)
        if self.squeezed:
            outputs = squeeze_and_excite(
                outputs,
                self.squeeze,
                self.excite,
                activation=self.squeeze_activation,
                gate=self.gate,
            )
        outputs = self.project(outputs, training=training)
        if not self.has_identity:
            return outputs
        if drawn is not None and self.drop_rate > 0 and self.trainable_variables:
            outputs = drop_connect(outputs, drawn, rate=self.drop_rate)
        return outputs + inputs
