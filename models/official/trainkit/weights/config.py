"""Configuration of the pretrained weights that a run starts from."""

from dataclasses import dataclass

from tpudet.trainkit.config.ranges import Share, check


@dataclass(frozen=True, kw_only=True)
class WeightsConfig:
    """Pretrained weights of TensorFlow, Keras, PyTorch, safetensors or an earlier run."""

    path: str  # of the file or the checkpoint, local or in a bucket
    prefix: str = ""  # of the names in the file, if the backbone's is not found automatically
    exclude: tuple[str, ...] = ()  # regular expressions on our variable paths: not loaded
    min_backbone_share: Share = 0.9  # of the backbone's numbers; loading less is an error

    __post_init__ = check
