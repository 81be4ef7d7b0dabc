"""Convolutions, and convolution, batch normalisation and activation as one layer.

Outside training the normalisation is folded into the kernel, which saves a pass over the
activations.
"""

from typing import Any, Literal

import keras

from tpudet.trainkit.backbones.batch_norm import BatchNorm, MakeNorm
from tpudet.trainkit.backbones.low_precision import (
    add_bias,
    convolution_dtype,
    in_full_precision,
    runs_on_cpu,
    weigh,
)
from tpudet.trainkit.keras_ops import ops
from tpudet.trainkit.types import Tensor

ConvKind = Literal["full", "depthwise", "separable"]
Activation = Literal["linear", "relu", "relu6", "silu", "hard_silu"]
Gate = Literal["sigmoid", "hard_sigmoid"]

# Kaiming He et al., Delving Deep into Rectifiers (arXiv 1502.01852), section 2.2, with fan-out.
HE_FAN_OUT = keras.initializers.VarianceScaling(
    2.0, mode="fan_out", distribution="untruncated_normal"
)


def clone_initializer(initializer: keras.initializers.Initializer | str) -> Any:
    """Returns a copy: one Keras initializer draws the same numbers every time."""
    found: Any = keras.initializers.get(initializer)
    return found.clone()


def _convolve_groups(
    inputs: Tensor, kernel: Tensor, groups: int, strides: int, padding: str
) -> Tensor:
    """Returns `ops.conv(inputs, kernel)` for a kernel [h, w, channels / groups, filters].

    On CPUs each group is convolved separately: the gradient of a grouped convolution takes XLA and
    TensorFlow some 300 times as long (26 s for 32 groups of 4 channels, 4 x 80 x 80 pixels).
    """
    if groups == 1 or not runs_on_cpu():
        return ops.conv(inputs, kernel, strides=strides, padding=padding)
    parts = zip(ops.split(inputs, groups, axis=-1), ops.split(kernel, groups, axis=-1), strict=True)
    return ops.concatenate(
        [ops.conv(part, weights, strides=strides, padding=padding) for part, weights in parts],
        axis=-1,
    )


class Conv(keras.layers.Layer):
    """A convolution of [B, H, W, channels]: full, depthwise, or depthwise then 1x1 (separable).

    On CPUs low precision becomes float32, except full convolutions in bfloat16 on TensorFlow where
    the CPU has instructions for them.

    Args:
        filters: output channels; a depthwise convolution must have those of its input.
        kernel_size: side of the kernel, odd.
        strides: step of the kernel on both axes.
        groups: number of equal groups of channels that are convolved separately; for full
            convolutions only.
        kind: "full", "depthwise" (multiplier 1) or "separable".
        use_bias: whether a bias is added.
        explicit_padding: whether to pad `kernel_size // 2` on every side at any stride; otherwise
            "same" padding, which pads bottom and right first. They differ for strides above 1.
        float32_outputs: whether the bias is added in float32, which the outputs then have. For
            layers that predict: the gradient of a bias is a sum over all pixels.
        kernel_initializer: initializer of the kernels.
        bias_initializer: initializer of the bias.
        name: name of the layer.
    """

    def __init__(
        self,
        filters: int,
        kernel_size: int,
        *,
        strides: int = 1,
        groups: int = 1,
        kind: ConvKind = "full",
        use_bias: bool = True,
        explicit_padding: bool = False,
        float32_outputs: bool = False,
        kernel_initializer: keras.initializers.Initializer | str = "glorot_uniform",
        bias_initializer: keras.initializers.Initializer | str = "zeros",
        name: str | None = None,
    ):
        super().__init__(name=name)
        self.filters = filters
        self.kernel_size = kernel_size
        self.strides = strides
        self.groups = groups
        self.kind = kind
        self.use_bias = use_bias
        self.explicit_padding = explicit_padding and strides > 1
        self.float32_outputs = float32_outputs
        self.kernel_initializer = kernel_initializer
        self.bias_initializer = bias_initializer

    def build(self, input_shape: tuple[int | None, ...]) -> None:
        """Creates the variables for inputs [B, H, W, channels]."""
        channels: Any = input_shape[-1]
        self.channels = channels
        if self.kind == "depthwise" and channels != self.filters:
            raise ValueError(
                f"{self.path}: a depthwise convolution keeps the number of channels; it has "
                f"filters={self.filters} and its input has {channels} channels."
            )
        if self.groups > 1 and (channels % self.groups or self.filters % self.groups):
            raise ValueError(
                f"{self.path}: groups={self.groups} must divide both its filters={self.filters} "
                f"and the {channels} channels of its input."
            )

        def kernel(name: str, shape: tuple[int | None, ...]) -> Any:
            initializer = clone_initializer(self.kernel_initializer)
            return self.add_weight(shape=shape, initializer=initializer, autocast=False, name=name)

        if self.kind != "full":
            shape = (self.kernel_size, self.kernel_size, channels, 1)
            self.depthwise_kernel = kernel("depthwise_kernel", shape)
        if self.kind != "depthwise":
            side = self.kernel_size if self.kind == "full" else 1
            self.kernel = kernel("kernel", (side, side, channels // self.groups, self.filters))
        if self.use_bias:
            initializer = clone_initializer(self.bias_initializer)
            self.bias = self.add_weight(
                shape=(self.filters,), initializer=initializer, autocast=False, name="bias"
            )

    def convolve(
        self, inputs: Tensor, scale: Tensor | None = None, shift: Tensor | None = None
    ) -> Tensor:
        """Returns the convolution, times `scale` plus `shift` ([filters] each) where given.

        The scale is folded into the kernel and the shift into the bias, without a pass over the
        outputs.

        Raises:
            ValueError: the inputs have other channels than the kernel. If theirs are a multiple,
                backends would silently convolve them in groups.
        """
        if inputs.shape[-1] != self.channels:
            raise ValueError(
                f"{self.path} was built for {self.channels} channels; its input has "
                f"{inputs.shape[-1]}."
            )
        bias = self.bias if self.use_bias else None
        if scale is not None:
            bias = shift if bias is None else bias * scale + shift
        outputs, padding = inputs, "same"
        if self.explicit_padding:
            side = self.kernel_size // 2
            outputs, padding = (
                ops.pad(outputs, [[0, 0], [side, side], [side, side], [0, 0]]),
                "valid",
            )
        if self.kind != "full":
            outputs = ops.cast(outputs, convolution_dtype(inputs, depthwise=True))
            kernel = ops.convert_to_tensor(self.depthwise_kernel)
            if scale is not None and self.kind == "depthwise":
                kernel = kernel * ops.reshape(scale, (1, 1, -1, 1))
            kernel = ops.cast(kernel, outputs.dtype)
            outputs = ops.depthwise_conv(outputs, kernel, strides=self.strides, padding=padding)
        if self.kind != "depthwise":
            outputs = ops.cast(outputs, convolution_dtype(inputs, depthwise=False))
            kernel = ops.convert_to_tensor(self.kernel)
            kernel = ops.cast(kernel if scale is None else kernel * scale, outputs.dtype)
            strides = self.strides if self.kind == "full" else 1
            padding = padding if self.kind == "full" else "same"
            outputs = _convolve_groups(outputs, kernel, self.groups, strides, padding)
        if self.float32_outputs:
            outputs = ops.cast(outputs, "float32")
        if bias is not None:
            outputs = add_bias(outputs, bias)
        return outputs if self.float32_outputs else ops.cast(outputs, inputs.dtype)

    def call(self, inputs: Tensor) -> Tensor:
        """Convolves [B, H, W, channels] to [B, H / strides, W / strides, filters]."""
        return self.convolve(inputs)


def convolve_and_normalize(inputs: Tensor, conv: Conv, norm: BatchNorm, training: bool) -> Tensor:
    """Returns `norm(conv(inputs))`, with the norm folded into the kernel outside training.

    A function besides the layer `ConvNorm`, because detection heads share one convolution between
    levels that each have their own normalisation.
    """
    if norm.uses_batch_statistics(training):
        return norm(conv(inputs), training=True)
    scale, shift = norm.scale_and_shift()
    return conv.convolve(inputs, scale, shift)


def activate(inputs: Tensor, activation: Activation) -> Tensor:
    """Applies the activation of this name."""
    match activation:
        case "relu":
            return ops.relu(inputs)
        case "relu6":
            return ops.relu6(inputs)
        case "silu":
            return ops.silu(inputs)
        case "hard_silu":  # piecewise (arXiv 1905.02244, section 5.2)
            return ops.hard_silu(inputs)
        case "linear":
            return inputs


def squeeze_and_excite(
    inputs: Tensor,
    squeeze: Conv,
    excite: Conv,
    *,
    activation: Activation,
    gate: Gate = "sigmoid",
) -> Tensor:
    """Scales each channel of [B, H, W, C] by a gate in 0..1 (squeeze and excitation, 1709.01507).

    A function, so that the two 1x1 convolutions belong to their block like its others.
    """
    squeezed = activate(squeeze(ops.mean(inputs, axis=(1, 2), keepdims=True)), activation)
    open_gate = ops.sigmoid if gate == "sigmoid" else ops.hard_sigmoid
    return weigh(inputs, open_gate(in_full_precision(excite(squeezed))))


class ConvNorm(Conv):
    """Convolution without bias, batch normalisation and activation as one layer.

    Args:
        filters: output channels.
        kernel_size: side of the kernel, odd.
        activation: an `Activation`.
        make_norm: makes the `BatchNorm` with the network's settings.
        zero_gamma: as `BatchNorm.zero_gamma`.
        strides: as `Conv.strides`.
        groups: as `Conv.groups`.
        kind: as `Conv.kind`.
        explicit_padding: as `Conv.explicit_padding`.
        kernel_initializer: as `Conv.kernel_initializer`.
        name: name of the layer.
    """

    def __init__(
        self,
        filters: int,
        kernel_size: int,
        *,
        activation: Activation = "linear",
        make_norm: MakeNorm,
        zero_gamma: bool = False,
        strides: int = 1,
        groups: int = 1,
        kind: ConvKind = "full",
        explicit_padding: bool = False,
        kernel_initializer: keras.initializers.Initializer | str = HE_FAN_OUT,
        name: str | None = None,
    ):
        super().__init__(
            filters,
            kernel_size,
            strides=strides,
            groups=groups,
            kind=kind,
            use_bias=False,
            explicit_padding=explicit_padding,
            kernel_initializer=kernel_initializer,
            name=name,
        )
        self.activation: Activation = activation
        self.norm = make_norm(zero_gamma=zero_gamma, name="norm")

    def build(self, input_shape: tuple[int | None, ...]) -> None:
        """Creates the variables for inputs [B, H, W, channels]."""
        super().build(input_shape)
        self.norm.build((None, None, None, self.filters))

    def call(self, inputs: Tensor, training: bool = False) -> Tensor:
        """Maps [B, H, W, channels] to [B, H / strides, W / strides, filters]."""
        if self.norm.uses_batch_statistics(training):
            outputs = self.norm(self.convolve(inputs), training=True)
        else:
            outputs = self.convolve(inputs, *self.norm.scale_and_shift())
        return activate(outputs, self.activation)
