"""The experiment file as frozen dataclasses: what each key means, its unit, and what is allowed.

Each fact stands once: the number of classes is the number of rows of the data set's classes.csv.
"""

from dataclasses import dataclass, field
from typing import Literal

from tpudet.detection.data.config import DataConfig
from tpudet.detection.modeling.config import RetinaNetConfig
from tpudet.trainkit.config.ranges import Count, NaturalNumber, check
from tpudet.trainkit.training.config import TrainConfig

# fmt: off
Metric = Literal[
    "AP", "AP50", "AP75", "APs", "APm", "APl",
    "ARmax1", "ARmax10", "ARmax100", "ARs", "ARm", "ARl",
]
# fmt: on


@dataclass(frozen=True, kw_only=True)
class EvalConfig:
    """Evaluation on the whole of data.eval_split."""

    batch_size: Count = 8
    every_steps: Count = 5000
    best_metric: Metric = "AP"  # the checkpoint with the highest is kept in best/
    num_pictures: NaturalNumber = 8  # images drawn at each evaluation

    __post_init__ = check


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
        check(self, (not bad, text), (kind == "coco" or metric in ("AP", "AP50"), only))
