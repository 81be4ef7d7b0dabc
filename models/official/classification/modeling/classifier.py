"""A classifier: backbone, pooling, class layer; and its training and inference task."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import keras

from tpudet.classification.types import Batch, Predictions
from tpudet.trainkit.backbones.layers import ConvNorm
from tpudet.trainkit.backbones.pixels import normalize_pixels
from tpudet.trainkit.keras_ops import ops
from tpudet.trainkit.types import Tensor

# (logits [B, C], targets [B, C]) -> loss of each image [B]
ClassLoss = Callable[[Tensor, Tensor], Tensor]


class ClassifierHead(keras.layers.Layer):
    """Maps features [B, h, w, channels] to class logits [B, C], float32.

    The class layer starts from N(0, 0.01), as ResNet's of tensorflow/tpu does.

    Args:
        num_classes: C.
        top: makes the 1x1 convolution before the pooling from its name; None: there is none.
        dropout: share of the pooled features that training drops.
        seed: of the dropout.
    """

    def __init__(
        self,
        *,
        num_classes: int,
        top: Callable[..., ConvNorm] | None,
        dropout: float,
        seed: int,
    ):
        super().__init__(name="classifier")
        self.top = top(name="top") if top else None
        drop = partial(keras.layers.Dropout, seed=seed, dtype="float32", name="dropout")
        self.dropout = drop(dropout) if dropout else None
        initializer: Any = keras.initializers.RandomNormal(stddev=0.01, seed=seed)
        self.class_layer = keras.layers.Dense(
            num_classes, kernel_initializer=initializer, dtype="float32", name="class_predict"
        )

    def build(self, input_shape: tuple[int | None, ...]) -> None:
        """Creates the variables under classifier/top/... and classifier/class_predict/..."""
        channels = input_shape[-1]
        if self.top:
            self.top.build(input_shape)
            channels = self.top.filters
        self.class_layer.build((None, channels))

    def call(self, features: Tensor, training: bool = False) -> Tensor:
        """Returns the class logits."""
        if self.top:
            features = self.top(features, training=training)
        # In float32: the mean over a map loses small terms in bfloat16.
        pooled = ops.mean(ops.cast(features, "float32"), axis=(1, 2))
        if self.dropout:
            pooled = self.dropout(pooled, training=training)
        return self.class_layer(pooled)


class Classifier(keras.Model):
    """Predicts class logits. All variables are created in the constructor.

    Args:
        backbone: layer [B, H, W, 3] -> {level: features}, with `channels` by level.
        head: layer of the coarsest level's features -> logits.
        pixel_mean: mean of each colour, for pixels in 0..1.
        pixel_std: standard deviation of each colour.
    """

    def __init__(
        self,
        *,
        backbone: keras.layers.Layer,
        head: ClassifierHead,
        pixel_mean: Sequence[float],
        pixel_std: Sequence[float],
    ):
        super().__init__(name="model")
        self.backbone = backbone
        self.head = head
        self.level = max(backbone.channels)
        self.pixel_mean = tuple(pixel_mean)
        self.pixel_std = tuple(pixel_std)
        # Built here, outside the model's own name scope: paths begin with the part's name.
        backbone.build((None, None, None, 3))
        head.build((None, None, None, backbone.channels[self.level]))
        self.built = True

    def call(self, images: Tensor, training: bool = False) -> Tensor:
        """Returns the logits [B, C] of images [B, H, W, 3] uint8."""
        pixels = normalize_pixels(
            images,
            pixel_mean=self.pixel_mean,
            pixel_std=self.pixel_std,
            dtype=self.compute_dtype,
        )
        features = self.backbone(pixels, training=training)[self.level]
        return self.head(features, training=training)


class ClassifierTask:
    """A classifier with its loss and its predictions: a Task of `tpudet.trainkit.training`.

    Args:
        model: the network.
        class_loss: a loss of `modeling.losses` with its settings.
        to_probabilities: (logits [B, C]) -> probabilities [B, C].
        sum_over_replicas: adds up a scalar over all replicas; the identity if there is one.
    """

    class_layers = ("classifier/class_predict",)  # paths; their weights belong to the class list

    def __init__(
        self,
        *,
        model: Classifier,
        class_loss: ClassLoss,
        to_probabilities: Callable[[Tensor], Tensor],
        sum_over_replicas: Callable[[Tensor], Tensor],
    ):
        self.model = model
        self.class_loss = class_loss
        self.to_probabilities = to_probabilities
        self.sum_over_replicas = sum_over_replicas

    def losses(self, batch: Batch) -> dict[str, Tensor]:
        """Returns this replica's share of "loss_class", the mean over the images, and of "loss"."""
        logits = self.model(batch.images, training=True)
        losses = self.class_loss(logits, batch.targets)
        num_images = self.sum_over_replicas(ops.sum(ops.ones_like(losses)))
        loss = ops.sum(losses) / num_images
        return {"loss_class": loss, "loss": loss}

    def predict(self, batch: Batch) -> Predictions:
        """Returns the probability of each class for each image."""
        return Predictions(self.to_probabilities(self.model(batch.images, training=False)))
