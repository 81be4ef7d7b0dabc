"""The experiment file as frozen dataclasses: what each key means, its unit, and what is allowed.

Each fact stands once: the number of classes is the number of rows of the data set's classes.csv.
"""

from dataclasses import dataclass, field
from typing import Literal

# fmt: off
Metric = Literal[
    "AP", "AP50", "AP75", "APs", "APm", "APl",
    "ARmax1", "ARmax10", "ARmax100", "ARs", "ARm", "ARl",
]
# fmt: on


def _require(*rules: tuple[bool, str]) -> None:
    """Raises one ValueError with the texts of all rules that do not hold."""
    broken = [text for holds, text in rules if not holds]
    if broken:
        raise ValueError("; ".join(broken))


@dataclass(frozen=True, kw_only=True)
class BatchNormConfig:
    """Batch normalisation. Short runs want a momentum below 0.99: statistics must settle."""

    momentum: float = 0.997
    epsilon: float = 1e-4

    def __post_init__(self) -> None:
        _require(
            (0.0 <= self.momentum < 1.0, f"momentum must be in [0, 1), got {self.momentum}"),
            (self.epsilon > 0, f"epsilon must be above 0, got {self.epsilon}"),
        )


@dataclass(frozen=True, kw_only=True)
class ResNetConfig:
    """ResNet v1, stride on the 3x3 convolution."""

    kind: Literal["resnet"] = "resnet"
    depth: Literal[18, 34, 50, 101, 152, 200] = 50
    batch_norm: BatchNormConfig = field(default_factory=BatchNormConfig)


@dataclass(frozen=True, kw_only=True)
class EfficientNetConfig:
    """EfficientNet without its 1280-channel top."""

    kind: Literal["efficientnet"] = "efficientnet"
    variant: Literal["b0", "b1", "b2", "b3", "b4", "b5", "b6", "b7"] = "b0"
    drop_connect_rate: float = 0.2  # of the last block; falls linearly to 0 at the first
    batch_norm: BatchNormConfig = field(
        default_factory=lambda: BatchNormConfig(momentum=0.99, epsilon=1e-3)
    )

    def __post_init__(self) -> None:
        rate = self.drop_connect_rate
        _require((0.0 <= rate < 1.0, f"drop_connect_rate must be in [0, 1), got {rate}"))


@dataclass(frozen=True, kw_only=True)
class FPNConfig:
    """Feature pyramid network."""

    kind: Literal["fpn"] = "fpn"
    num_filters: int = 256

    def __post_init__(self) -> None:
        _require((self.num_filters > 0, f"num_filters must be above 0, got {self.num_filters}"))


@dataclass(frozen=True, kw_only=True)
class HeadConfig:
    """The two towers of convolutions, shared by all levels."""

    num_convs: int = 4
    num_filters: int = 256

    def __post_init__(self) -> None:
        _require(
            (self.num_convs >= 0, f"num_convs must be 0 or more, got {self.num_convs}"),
            (self.num_filters > 0, f"num_filters must be above 0, got {self.num_filters}"),
        )


@dataclass(frozen=True, kw_only=True)
class AnchorConfig:
    """Anchors of one location: num_scales times len(aspect_ratios)."""

    num_scales: int = 3
    aspect_ratios: tuple[float, ...] = (1.0, 2.0, 0.5)  # width / height
    size: float = 4.0  # side of the smallest square anchor, in strides of its level

    def __post_init__(self) -> None:
        ratios = self.aspect_ratios
        positive = bool(ratios) and min(ratios) > 0
        _require(
            (self.num_scales > 0, f"num_scales must be above 0, got {self.num_scales}"),
            (positive, f"aspect_ratios must be one or more numbers above 0, got {list(ratios)}"),
            (self.size > 0, f"size must be above 0, got {self.size}"),
        )


@dataclass(frozen=True, kw_only=True)
class MatchingConfig:
    """Which anchors stand for an object, by intersection over union."""

    match_threshold: float = 0.5
    unmatched_threshold: float = 0.5  # anchors between the two are ignored
    force_match: bool = True  # each object takes its best anchor, however small the overlap

    def __post_init__(self) -> None:
        low, high = self.unmatched_threshold, self.match_threshold
        text = f"0 <= unmatched_threshold <= match_threshold <= 1, got {low} and {high}"
        _require((0.0 <= low <= high <= 1.0, text))


@dataclass(frozen=True, kw_only=True)
class LossConfig:
    """Focal loss on classes, Huber loss on boxes."""

    focal_alpha: float = 0.25
    focal_gamma: float = 1.5
    huber_delta: float = 0.1
    box_weight: float = 50.0


@dataclass(frozen=True, kw_only=True)
class PostprocessConfig:
    """From scores of anchors to a list of detections."""

    score_threshold: float = 0.05
    nms_iou_threshold: float = 0.5
    max_candidates: int = 5000  # best (anchor, class) pairs an image that enter suppression
    max_detections: int = 100

    def __post_init__(self) -> None:
        _require(
            (
                0.0 <= self.score_threshold < 1.0,
                f"score_threshold must be in [0, 1), got {self.score_threshold}",
            ),
            (
                0.0 < self.nms_iou_threshold <= 1.0,
                f"nms_iou_threshold must be in (0, 1], got {self.nms_iou_threshold}",
            ),
            (
                0 < self.max_detections <= self.max_candidates,
                "0 < max_detections <= max_candidates, "
                f"got {self.max_detections} and {self.max_candidates}",
            ),
        )


@dataclass(frozen=True, kw_only=True)
class RetinaNetConfig:
    """One-stage detector, arXiv:1708.02002."""

    kind: Literal["retinanet"] = "retinanet"
    min_level: int = 3  # level l has a stride of 2^l pixels
    max_level: int = 7
    backbone: ResNetConfig | EfficientNetConfig = field(default_factory=ResNetConfig)
    neck: FPNConfig = field(default_factory=FPNConfig)
    head: HeadConfig = field(default_factory=HeadConfig)
    batch_norm: BatchNormConfig = field(default_factory=BatchNormConfig)  # of neck and head
    anchors: AnchorConfig = field(default_factory=AnchorConfig)
    matching: MatchingConfig = field(default_factory=MatchingConfig)
    loss: LossConfig = field(default_factory=LossConfig)
    postprocess: PostprocessConfig = field(default_factory=PostprocessConfig)

    def __post_init__(self) -> None:
        low, high = self.min_level, self.max_level
        _require((2 <= low <= high <= 7, f"2 <= min_level <= max_level <= 7, got {low} and {high}"))


@dataclass(frozen=True, kw_only=True)
class DataConfig:
    """Where the TFRecords lie and how an image reaches the canvas."""

    directory: str = ""  # holds classes.csv and <split>_<part>-?????-of-?????.tfrecord
    train_split: str = "train"
    eval_split: str = "val"
    canvas_size: tuple[int, int] = (640, 640)  # height, width in pixels
    max_instances: int = 100  # boxes an image; the rest is left out and counted
    horizontal_flip: bool = True
    scale_range: tuple[float, float] = (1.0, 1.0)  # of the size that just fits the canvas

    def __post_init__(self) -> None:
        low, high = self.scale_range
        text = f"0.1 <= low <= high <= 2.0 for scale_range, got [{low}, {high}]"
        _require(
            (min(self.canvas_size) > 0, f"canvas_size must be above 0, got {self.canvas_size}"),
            (self.max_instances > 0, f"max_instances must be above 0, got {self.max_instances}"),
            (0.1 <= low <= high <= 2.0, text),
        )


@dataclass(frozen=True, kw_only=True)
class StepScheduleConfig:
    """A constant learning rate that drops at given steps."""

    kind: Literal["step"] = "step"
    peak: float = 0.08
    drop_steps: tuple[int, ...] = (15000, 20000)
    drop_rates: tuple[float, ...] = (0.008, 0.0008)  # the learning rate from each step on
    warmup_steps: int = 500
    warmup_start: float = 0.0067

    def __post_init__(self) -> None:
        steps, rates = self.drop_steps, self.drop_rates
        _require(
            (
                len(steps) == len(rates),
                f"drop_steps and drop_rates must be equally long, got {len(steps)}, {len(rates)}",
            ),
            (list(steps) == sorted(set(steps)), f"drop_steps must rise, got {list(steps)}"),
            (self.warmup_steps >= 0, f"warmup_steps must be 0 or more, got {self.warmup_steps}"),
        )


@dataclass(frozen=True, kw_only=True)
class CosineScheduleConfig:
    """Half a cosine from the peak to zero at train.total_steps."""

    kind: Literal["cosine"] = "cosine"
    peak: float = 0.08
    warmup_steps: int = 500
    warmup_start: float = 0.0067

    def __post_init__(self) -> None:
        steps = self.warmup_steps
        _require((steps >= 0, f"warmup_steps must be 0 or more, got {steps}"))


@dataclass(frozen=True, kw_only=True)
class MomentumConfig:
    """Stochastic gradient descent; weight_decay is an L2 term in the loss."""

    kind: Literal["momentum"] = "momentum"
    momentum: float = 0.9
    nesterov: bool = False
    weight_decay: float = 1e-4


@dataclass(frozen=True, kw_only=True)
class AdamConfig:
    """Adam; weight_decay is an L2 term in the loss."""

    kind: Literal["adam"] = "adam"
    beta1: float = 0.9
    beta2: float = 0.999
    weight_decay: float = 0.0


@dataclass(frozen=True, kw_only=True)
class AdamWConfig:
    """Adam with weight decay apart from the gradient."""

    kind: Literal["adamw"] = "adamw"
    beta1: float = 0.9
    beta2: float = 0.999
    weight_decay: float = 0.05


@dataclass(frozen=True, kw_only=True)
class TrainConfig:
    """The run: how long, how fast, how often it is saved."""

    total_steps: int = 22500
    batch_size: int = 64  # over all devices together
    seed: int = 0
    iterations_per_loop: int = 100  # steps in one call of the compiled function
    log_every_steps: int = 100
    checkpoint_every_steps: int = 1000
    keep_checkpoints: int = 3
    optimizer: MomentumConfig | AdamConfig | AdamWConfig = field(default_factory=MomentumConfig)
    learning_rate: StepScheduleConfig | CosineScheduleConfig = field(
        default_factory=StepScheduleConfig
    )
    gradient_clip_norm: float | None = None  # of all gradients together
    ema_decay: float | None = None  # of the averaged weights that evaluation uses
    freeze: tuple[str, ...] = ()  # regular expressions, searched in variable paths
    precision: Literal["auto", "float32", "mixed_bfloat16", "mixed_float16"] = "auto"
    device: Literal["auto", "cpu", "gpu"] = "auto"

    def __post_init__(self) -> None:
        names = ("total_steps", "batch_size", "iterations_per_loop", "log_every_steps")
        names += ("checkpoint_every_steps", "keep_checkpoints")
        clip, ema = self.gradient_clip_norm, self.ema_decay
        _require(
            *(
                (getattr(self, n) > 0, f"{n} must be above 0, got {getattr(self, n)}")
                for n in names
            ),
            (clip is None or clip > 0, f"gradient_clip_norm must be above 0 or null, got {clip}"),
            (ema is None or 0 < ema < 1, f"ema_decay must be between 0 and 1 or null, got {ema}"),
        )


@dataclass(frozen=True, kw_only=True)
class EvalConfig:
    """Evaluation on the whole of data.eval_split."""

    batch_size: int = 8
    every_steps: int = 5000
    best_metric: Metric = "AP"  # the checkpoint with the highest is kept in best/
    num_pictures: int = 8  # images drawn at each evaluation

    def __post_init__(self) -> None:
        names = ("batch_size", "every_steps")
        _require(
            *((getattr(self, n) > 0, f"{n} must be above 0, got {getattr(self, n)}") for n in names)
        )


@dataclass(frozen=True, kw_only=True)
class CocoRulesConfig:
    """The rules of COCO: AP over IoU 0.5 to 0.95; crowds are regions to ignore."""

    kind: Literal["coco"] = "coco"


@dataclass(frozen=True, kw_only=True)
class OpenImagesRulesConfig:
    """The rules of the Open Images Challenge: AP at IoU 0.5; a crowd is a group-of box."""

    kind: Literal["open_images"] = "open_images"
    hierarchy: str = ""  # JSON; where named, objects and detections count for ancestors too
    image_labels: str = ""  # CSV of verified labels: ImageID,LabelName,Confidence (or Source)


@dataclass(frozen=True, kw_only=True)
class ExperimentConfig:
    """One experiment."""

    model: RetinaNetConfig = field(default_factory=RetinaNetConfig)
    data: DataConfig = field(default_factory=DataConfig)
    train: TrainConfig = field(default_factory=TrainConfig)
    eval: EvalConfig = field(default_factory=EvalConfig)
    evaluation: CocoRulesConfig | OpenImagesRulesConfig = field(default_factory=CocoRulesConfig)

    def __post_init__(self) -> None:
        metric, kind = self.eval.best_metric, self.evaluation.kind
        only = f"eval.best_metric {metric} is not known to evaluation.kind {kind}; AP and AP50 are"
        stride = 2**self.model.max_level
        bad = [side for side in self.data.canvas_size if side % stride]
        text = f"data.canvas_size must be multiples of {stride} (2^model.max_level), got {bad}"
        _require((not bad, text), (kind == "coco" or metric in ("AP", "AP50"), only))
