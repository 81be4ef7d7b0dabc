"""The head of RetinaNet (Lin et al., arXiv 1708.02002, section 4)."""

import math
from collections.abc import Mapping

import keras

from tpudet.detection.types import RawPredictions
from tpudet.trainkit.backbones.batch_norm import MakeNorm
from tpudet.trainkit.backbones.layers import Activation, Conv, activate, convolve_and_normalize
from tpudet.trainkit.keras_ops import ops
from tpudet.trainkit.types import Tensor

_PRIOR_PROBABILITY = 0.01  # of each class at each anchor before training; section 4.1


class Tower(keras.layers.Layer):
    """3x3 convolutions shared by all levels, each followed by a norm, if there are norms.

    Batch norms are each level's own; a group norm (Wu and He, arXiv 1803.08494) is shared as its
    convolution is, which then has no bias.

    Args:
        levels: levels of the pyramid.
        num_convs: number of convolutions in sequence.
        num_filters: channels of each.
        separable: whether they are depthwise and then 1x1.
        activation: activation after each convolution and its norm.
        make_norm: makes each `BatchNorm`; None for none.
        norm_groups: groups of group norms instead; None for none.
        norm_epsilon: of group norms.
        name: name of the layer.
    """

    def __init__(
        self,
        *,
        levels: range,
        num_convs: int,
        num_filters: int,
        separable: bool,
        activation: Activation,
        make_norm: MakeNorm | None,
        norm_groups: int | None,
        norm_epsilon: float,
        name: str,
    ):
        super().__init__(name=name)
        self.activation: Activation = activation
        indices = range(num_convs)
        self.convs = [
            Conv(
                num_filters,
                3,
                kind="separable" if separable else "full",
                use_bias=norm_groups is None,
                kernel_initializer=_kernel_initializer(separable, 0.01),
                name=f"conv{index}",
            )
            for index in indices
        ]
        self.norms = {
            level: [make_norm(name=f"norm{index}_level{level}") for index in indices]
            for level in levels
            if make_norm and norm_groups is None
        }
        self.group_norms = [
            keras.layers.GroupNormalization(norm_groups, epsilon=norm_epsilon, name=f"norm{index}")
            for index in indices
            if norm_groups is not None
        ]

    def build(self, input_shape: tuple[int | None, ...]) -> None:
        """Creates the variables for features [B, H, W, channels] of any level."""
        shape = input_shape
        for conv in self.convs:
            conv.build(shape)
            shape = (None, None, None, conv.filters)
        for norms in (*self.norms.values(), self.group_norms):
            for norm in norms:
                norm.build(shape)

    def call(self, features: Tensor, level: int, training: bool = False) -> Tensor:
        """Maps [B, H, W, channels] of this level to [B, H, W, num_filters]."""
        for index, conv in enumerate(self.convs):
            if self.norms:
                norm = self.norms[level][index]
                features = convolve_and_normalize(features, conv, norm, training)
            else:
                features = conv(features)
            if self.group_norms:
                features = self.group_norms[index](features)
            features = activate(features, self.activation)
        return features


class LevelScale(keras.layers.Layer):
    """Multiplies by one trained factor, as ATSS and FCOS do with the boxes of each level.

    Its name is not that of a kernel, so that weight decay leaves it alone.
    """

    def build(self, input_shape: tuple[int | None, ...]) -> None:
        """Creates the factor."""
        self.scale = self.add_weight(shape=(), initializer="ones", autocast=False, name="scale")

    def call(self, inputs: Tensor) -> Tensor:
        """Returns `inputs` of any shape, times the factor."""
        return inputs * ops.cast(self.scale, inputs.dtype)


class RetinaNetHead(keras.layers.Layer):
    """Predicts one logit per class and four box deltas for every anchor.

    Args:
        num_classes: foreground classes C; there is no background channel.
        anchors_per_location: scales times aspect ratios.
        min_level: finest level.
        max_level: coarsest level.
        num_convs: convolutions of each tower; 0 predicts from the features themselves.
        num_filters: channels of each tower.
        separable: whether all convolutions are depthwise and then 1x1.
        activation: activation after each convolution of the towers and its norm.
        make_norm: makes each `BatchNorm`; None for none.
        norm_groups: groups of group norms in their stead; None for none.
        norm_epsilon: of group norms.
        level_scales: whether each level has a `LevelScale` of its box deltas.
        centerness: whether the box tower predicts centerness too; see `ops.atss.centerness`.
        name: name of the layer, the first part of its variables' paths.
    """

    def __init__(
        self,
        *,
        num_classes: int,
        anchors_per_location: int,
        min_level: int,
        max_level: int,
        num_convs: int,
        num_filters: int,
        separable: bool,
        activation: Activation,
        make_norm: MakeNorm | None,
        norm_groups: int | None,
        norm_epsilon: float,
        level_scales: bool,
        centerness: bool,
        name: str = "head",
    ):
        super().__init__(name=name)
        self.num_classes = num_classes
        self.num_filters = num_filters
        self.levels = range(min_level, max_level + 1)

        def tower(name: str) -> Tower:
            return Tower(
                levels=self.levels,
                num_convs=num_convs,
                num_filters=num_filters,
                separable=separable,
                activation=activation,
                make_norm=make_norm,
                norm_groups=norm_groups,
                norm_epsilon=norm_epsilon,
                name=name,
            )

        def predictor(filters: int, bias: float, name: str) -> Conv:
            return Conv(
                filters * anchors_per_location,
                3,
                kind="separable" if separable else "full",
                float32_outputs=True,
                kernel_initializer=_kernel_initializer(separable, 1e-5),
                bias_initializer=keras.initializers.Constant(bias),
                name=name,
            )

        prior_logit = -math.log((1.0 - _PRIOR_PROBABILITY) / _PRIOR_PROBABILITY)
        self.class_tower = tower("class_tower")
        self.class_predict = predictor(num_classes, prior_logit, "class_predict")
        self.box_tower = tower("box_tower")
        self.box_predict = predictor(4, 0.0, "box_predict")
        self.centerness_predict = predictor(1, 0.0, "centerness_predict") if centerness else None
        self.box_scales = {
            level: LevelScale(dtype="float32", name=f"box_scale{level}")
            for level in self.levels
            if level_scales
        }

    def build(self, input_shape: tuple[int | None, ...]) -> None:
        """Creates the variables for pyramid features [B, H, W, channels]."""
        for tower, predict in (
            (self.class_tower, self.class_predict),
            (self.box_tower, self.box_predict),
        ):
            tower.build(input_shape)
            shape = (None, None, None, self.num_filters) if tower.convs else input_shape
            predict.build(shape)
        if self.centerness_predict:
            self.centerness_predict.build(shape)
        for scale in self.box_scales.values():
            scale.build((None, None, 4))

    def call(self, features: Mapping[int, Tensor], training: bool = False) -> RawPredictions:
        """Returns float32 predictions in the order of `anchors_for_canvas`."""
        class_logits, box_deltas, centerness = [], [], []
        for level in self.levels:
            tower = self.class_tower(features[level], level=level, training=training)
            class_logits.append(_per_anchor(self.class_predict(tower), self.num_classes))
            tower = self.box_tower(features[level], level=level, training=training)
            deltas = _per_anchor(self.box_predict(tower), 4)
            box_deltas.append(self.box_scales[level](deltas) if self.box_scales else deltas)
            if self.centerness_predict:
                centerness.append(_per_anchor(self.centerness_predict(tower), 1)[..., 0])
        return RawPredictions(
            ops.concatenate(class_logits, axis=1),
            ops.concatenate(box_deltas, axis=1),
            ops.concatenate(centerness, axis=1) if centerness else None,
        )


def _kernel_initializer(separable: bool, deviation: float) -> keras.initializers.Initializer | str:
    # Two small kernels in sequence would all but erase the signal in a separable convolution.
    return "glorot_uniform" if separable else keras.initializers.RandomNormal(0.0, deviation)


def _per_anchor(outputs: Tensor, depth: int) -> Tensor:
    # [B, H, W, anchors * depth] -> [B, H * W * anchors, depth]
    _, height, width, channels = outputs.shape
    return ops.reshape(outputs, (-1, height * width * channels // depth, depth))
