"""The heads of a two-stage detector, which see the pooled features of one region each.

Box heads: two fully connected layers (Lin et al., arXiv 1612.03144, section 4.2) or four
convolutions and one (Wu and He, arXiv 1803.08494, section 5.2). Mask head: He et al., arXiv
1703.06870, figure 4.
"""

import math
from typing import Any, NamedTuple

import keras

from tpudet.trainkit.backbones.batch_norm import MakeNorm
from tpudet.trainkit.backbones.layers import HE_FAN_OUT, Conv, ConvNorm, clone_initializer
from tpudet.trainkit.backbones.low_precision import add_bias, convolution_dtype
from tpudet.trainkit.keras_ops import ops
from tpudet.trainkit.types import Tensor


class BoxPredictions(NamedTuple):
    """The outputs of a box head for every region, before decoding."""

    class_logits: Tensor  # [B, K, C + 1] float32; channel 0 is background, channel k class k
    box_deltas: Tensor  # [B, K, C, 4] float32, weighted; [B, K, 1, 4] if all classes share them


class FullyConnected(keras.layers.Dense):
    """A `Dense` layer that adds its bias by `add_bias`, whose gradient sums in float32."""

    def __init__(self, units: int, *, name: str):
        super().__init__(units, use_bias=False, name=name)

    def build(self, input_shape: tuple[int | None, ...]) -> None:
        """Creates the variables for features [n, channels]."""
        super().build(input_shape)
        self.shift = self.add_weight(
            shape=(self.units,), initializer="zeros", autocast=False, name="bias"
        )

    def call(self, inputs: Tensor, training: bool | None = None) -> Tensor:
        """Maps [n, channels] to [n, units]."""
        return add_bias(super().call(inputs), self.shift)


class Upsample(keras.layers.Conv2DTranspose):
    """A 2x2 transposed convolution with stride 2, its bias as in `FullyConnected`.

    It is computed in the precision that `Conv` takes for its own.
    """

    def __init__(self, filters: int, *, name: str):
        initializer = clone_initializer(HE_FAN_OUT)
        super().__init__(
            filters, 2, strides=2, use_bias=False, kernel_initializer=initializer, name=name
        )

    def build(self, input_shape: tuple[int | None, ...]) -> None:
        """Creates the variables for features [n, h, w, channels]."""
        super().build(input_shape)
        self.shift = self.add_weight(
            shape=(self.filters,), initializer="zeros", autocast=False, name="bias"
        )

    def call(self, inputs: Tensor) -> Tensor:
        """Maps [n, h, w, channels] to [n, 2 * h, 2 * w, filters]."""
        dtype = convolution_dtype(inputs, depthwise=False)
        outputs = ops.conv_transpose(
            ops.cast(inputs, dtype), ops.cast(self.kernel, dtype), strides=2, padding="valid"
        )
        return add_bias(ops.cast(outputs, inputs.dtype), self.shift)


class ConvStack(keras.layers.Layer):
    """3x3 convolutions in sequence, each followed by a norm, if there is one, and a ReLU.

    Args:
        num_convs: number of convolutions; 0 leaves the features as they are.
        num_filters: channels of each.
        make_norm: makes each `BatchNorm`; None for a bias instead.
        name: name of the layer.
    """

    def __init__(
        self, *, num_convs: int, num_filters: int, make_norm: MakeNorm | None, name: str = "tower"
    ):
        super().__init__(name=name)
        self.num_filters = num_filters
        self.has_norms = make_norm is not None
        self.convs = [
            Conv(num_filters, 3, kernel_initializer=HE_FAN_OUT, name=f"conv{index}")
            if make_norm is None
            else ConvNorm(
                num_filters, 3, activation="relu", make_norm=make_norm, name=f"conv{index}"
            )
            for index in range(num_convs)
        ]

    def build(self, input_shape: tuple[int | None, ...]) -> None:
        """Creates the variables for features [n, h, w, channels]."""
        for conv in self.convs:
            conv.build(input_shape)
            input_shape = (*input_shape[:-1], self.num_filters)

    def compute_output_shape(self, input_shape: tuple[int | None, ...]) -> tuple[int | None, ...]:
        """Returns the shape of the outputs for features [n, h, w, channels]."""
        return (*input_shape[:-1], self.num_filters) if self.convs else input_shape

    def call(self, features: Tensor, training: bool = False) -> Tensor:
        """Maps [n, h, w, channels] to [n, h, w, num_filters]."""
        for conv in self.convs:
            if self.has_norms:
                features = conv(features, training=training)
            else:
                features = ops.relu(conv(features))
        return features


class BoxHead(keras.layers.Layer):
    """Predicts the class of a region, and how its box must change to fit an object of each class.

    Args:
        num_classes: foreground classes C; the background channel is added.
        class_agnostic: whether all classes share four deltas, as in a cascade.
        num_convs: 3x3 convolutions before the fully connected layers.
        num_filters: channels of each.
        num_dense: fully connected layers, each followed by a ReLU; 1 or more.
        num_units: units of each.
        make_norm: makes each `BatchNorm` of the convolutions; None for a bias instead.
        name: name of the layer, the first part of its variables' paths.
    """

    def __init__(
        self,
        *,
        num_classes: int,
        class_agnostic: bool,
        num_convs: int,
        num_filters: int,
        num_dense: int,
        num_units: int,
        make_norm: MakeNorm | None,
        name: str = "box_head",
    ):
        super().__init__(name=name)
        self.class_agnostic = class_agnostic

        def predictor(units: int, deviation: float, name: str) -> keras.layers.Dense:
            # float32, because the gradient of a bias is a sum over all regions.
            initializer: Any = keras.initializers.RandomNormal(0.0, deviation)
            return keras.layers.Dense(
                units, kernel_initializer=initializer, dtype="float32", name=name
            )

        self.tower = ConvStack(num_convs=num_convs, num_filters=num_filters, make_norm=make_norm)
        self.dense = [FullyConnected(num_units, name=f"dense{i}") for i in range(num_dense)]
        self.class_predict = predictor(num_classes + 1, 0.01, "class_predict")
        num_sets = 1 if class_agnostic else num_classes
        self.box_predict = predictor(4 * num_sets, 0.001, "box_predict")

    def build(self, input_shape: tuple[int | None, ...]) -> None:
        """Creates the variables for pooled features [B, K, S, S, channels]."""
        self.tower.build((None, *input_shape[2:]))
        features: Any = self.tower.compute_output_shape((None, *input_shape[2:]))
        shape = (None, math.prod(features[1:]))
        for dense in self.dense:
            dense.build(shape)
            shape = (None, dense.units)
        self.class_predict.build(shape)
        self.box_predict.build(shape)

    def call(self, pooled: Tensor, training: bool = False) -> BoxPredictions:
        """Predicts for pooled features [B, K, S, S, channels]."""
        count = pooled.shape[1]
        features = self.tower(ops.reshape(pooled, (-1, *pooled.shape[2:])), training=training)
        features = ops.reshape(features, (-1, math.prod(features.shape[1:])))
        for dense in self.dense:
            features = ops.relu(dense(features))
        logits, deltas = self.class_predict(features), self.box_predict(features)
        return BoxPredictions(
            ops.reshape(logits, (-1, count, logits.shape[-1])),
            ops.reshape(deltas, (-1, count, deltas.shape[-1] // 4, 4)),
        )


class MaskHead(keras.layers.Layer):
    """Predicts the mask of a region's object, given its class.

    Every class has its own mask, as in the paper, but only that of the given class is computed.

    Args:
        num_classes: foreground classes C.
        num_convs: 3x3 convolutions before the doubling of the resolution.
        num_filters: channels of each, and of the doubling.
        make_norm: makes each `BatchNorm` of the convolutions; None for a bias instead.
        name: name of the layer, the first part of its variables' paths.
    """

    def __init__(
        self,
        *,
        num_classes: int,
        num_convs: int,
        num_filters: int,
        make_norm: MakeNorm | None,
        name: str = "mask_head",
    ):
        super().__init__(name=name)
        self.tower = ConvStack(num_convs=num_convs, num_filters=num_filters, make_norm=make_norm)
        self.upsample = Upsample(num_filters, name="upsample")
        self.mask_predict = Conv(
            num_classes,
            1,
            kernel_initializer=keras.initializers.RandomNormal(0.0, 0.001),
            name="mask_predict",
        )

    def build(self, input_shape: tuple[int | None, ...]) -> None:
        """Creates the variables for pooled features [B, K, S, S, channels]."""
        shape = (None, *input_shape[2:])
        self.tower.build(shape)
        self.upsample.build(self.tower.compute_output_shape(shape))
        self.mask_predict.build((None, None, None, self.upsample.filters))

    def call(self, pooled: Tensor, classes: Tensor, training: bool = False) -> Tensor:
        """Returns mask logits [B, K, M, M] float32, M = 2 * S.

        Args:
            pooled: features [B, K, S, S, channels].
            classes: [B, K] integer, 1..C; the mask of any other number means nothing.
            training: whether norms see the batch.
        """
        features = self.tower(ops.reshape(pooled, (-1, *pooled.shape[2:])), training=training)
        features = ops.relu(self.upsample(features))
        channel = ops.reshape(ops.maximum(ops.cast(classes, "int32") - 1, 0), (-1,))
        kernel = ops.convert_to_tensor(self.mask_predict.kernel)[0, 0]  # [channels, C]
        kernel = ops.cast(ops.take(ops.transpose(kernel), channel, axis=0), features.dtype)
        bias = ops.take(ops.convert_to_tensor(self.mask_predict.bias), channel)
        size = features.shape[1]
        flat = ops.reshape(features, (-1, size * size, features.shape[-1]))
        logits = ops.cast(ops.matmul(flat, kernel[..., None])[..., 0], "float32")
        logits = logits + ops.cast(bias, "float32")[:, None]
        return ops.reshape(logits, (-1, pooled.shape[1], size, size))
