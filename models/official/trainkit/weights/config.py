"""Configuration of the pretrained weights that a run starts from."""

from dataclasses import dataclass
from typing import ClassVar

from tpudet.trainkit.config.ranges import Share, check
from tpudet.trainkit.weights.sources import unknown_name


@dataclass(frozen=True, kw_only=True)
class WeightsConfig:
    """Pretrained weights of TensorFlow, Keras, PyTorch, safetensors or an earlier run.

    `weights: NAME` is short for `weights: {name: NAME}`.
    """

    SHORT: ClassVar = ("name", "path")

    name: str = ""  # published weights, as `tpudet list_weights` lists them; or
    path: str = ""  # of the file or the checkpoint, local or in a bucket
    prefix: str = ""  # of the names in the file, if the backbone's is not found automatically
    exclude: tuple[str, ...] = ()  # regular expressions on our variable paths: not loaded
    min_backbone_share: Share = 0.9  # of the backbone's numbers; loading less is an error

    def __post_init__(self) -> None:
        text = f"give either name or path, got {self.name!r} and {self.path!r}"
        unknown = unknown_name(self.name) if self.name else ""
        check(self, (bool(self.name) != bool(self.path), text), (not unknown, unknown))
