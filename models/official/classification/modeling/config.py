"""Configuration of the classifier: backbone, head and loss."""

from dataclasses import dataclass, field
from typing import Annotated, Literal

from tpudet.trainkit.backbones.config import BackboneConfig, Normalization, ResNetConfig
from tpudet.trainkit.config.ranges import NaturalNumber, NotNegative, Range, check


@dataclass(frozen=True, kw_only=True)
class SoftmaxLossConfig:
    """Every image is of one class: cross-entropy of the softmax."""

    kind: Literal["softmax"] = "softmax"
    label_smoothing: Annotated[float, Range("[0, 1)")] = 0.0  # spread evenly over all classes

    __post_init__ = check


@dataclass(frozen=True, kw_only=True)
class SigmoidLossConfig:
    """An image may be of several classes or of none: binary cross-entropy of each class."""

    kind: Literal["sigmoid"] = "sigmoid"
    class_weights: tuple[NotNegative, ...] = ()  # of the mean over classes; empty: all equal

    def __post_init__(self) -> None:
        some = not self.class_weights or any(self.class_weights)
        check(self, (some, f"class_weights must not all be 0, got {list(self.class_weights)}"))


@dataclass(frozen=True, kw_only=True)
class ClassifierConfig:
    """A backbone and a head on its mean features."""

    normalization: Normalization = "auto"  # auto: as the weights expect, else imagenet
    backbone: BackboneConfig = field(default_factory=ResNetConfig)
    # Filters of a 1x1 convolution before the pooling, with the backbone's kind of normalisation and
    # activation; 0: none. auto: that of the published EfficientNet, none after other backbones.
    top_filters: NaturalNumber | Literal["auto"] = "auto"
    dropout: Annotated[float, Range("[0, 1)")] = 0.0  # of the pooled features
    loss: SoftmaxLossConfig | SigmoidLossConfig = field(default_factory=SoftmaxLossConfig)

    __post_init__ = check
