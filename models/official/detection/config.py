"""The experiment file as frozen dataclasses: every key with its unit and its range.

The number of classes is not a key: it is the number of rows in the data set's classes.csv.
"""

import math
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Literal, get_args

from tpudet.detection.data.config import DataConfig
from tpudet.detection.modeling.config import RetinaNetConfig
from tpudet.detection.modeling.mask_rcnn_config import MaskRCNNConfig
from tpudet.detection.modeling.weights_settings import weights_settings
from tpudet.trainkit.config.decode import ConfigError, load_config
from tpudet.trainkit.config.ranges import Count, NaturalNumber, check
from tpudet.trainkit.files.storage import read_text
from tpudet.trainkit.training.config import TrainConfig, stop_at_rule
from tpudet.trainkit.weights.settings import Setting

_RENAMED_KEYS = """was written by an older version. Rename these keys in it:
  `eval` to `evaluation.schedule`, and in it `num_pictures` to `num_images`
  `evaluation` to `evaluation.rules`"""
_SMALL_CANVAS = 320 * 320  # pixels, of the configs that are made for CPUs
_FEW_EPOCHS = 10  # of a first look

# fmt: off
Metric = Literal[
    "AP", "AP50", "AP75", "APs", "APm", "APl",
    "ARmax1", "ARmax10", "ARmax100", "ARs", "ARm", "ARl",
    "mask_AP", "mask_AP50", "mask_AP75", "mask_APs", "mask_APm", "mask_APl",
    "mask_ARmax1", "mask_ARmax10", "mask_ARmax100", "mask_ARs", "mask_ARm", "mask_ARl",
]
# fmt: on
_METRICS: Mapping[str, Sequence[str]] = {  # by rules.kind
    "coco": get_args(Metric),
    "open_images": ("AP", "AP50", "mask_AP", "mask_AP50"),
}


@dataclass(frozen=True, kw_only=True)
class EvaluationScheduleConfig:
    """When the whole of data.eval_split is evaluated, and what is kept."""

    batch_size: Count = 8  # images
    every_steps: Count = 5000
    best_metric: Metric = "AP"  # best/ holds the checkpoint with the highest value
    num_images: NaturalNumber = 8  # images drawn per evaluation

    __post_init__ = check


@dataclass(frozen=True, kw_only=True)
class CocoRulesConfig:
    """COCO metrics: AP over IoU 0.5 to 0.95; crowds are regions to ignore."""

    kind: Literal["coco"] = "coco"


@dataclass(frozen=True, kw_only=True)
class OpenImagesRulesConfig:
    """Metrics of the Open Images Challenge: AP at IoU 0.5.

    A crowd is a group-of box; an object that lacks its mask is an ordinary one.
    """

    kind: Literal["open_images"] = "open_images"
    hierarchy: str = ""  # JSON; if given, objects and detections also count for ancestor classes
    image_labels: str = ""  # CSV of verified labels: ImageID,LabelName,Confidence (or Source)


ModelConfig = RetinaNetConfig | MaskRCNNConfig
RulesConfig = CocoRulesConfig | OpenImagesRulesConfig


@dataclass(frozen=True, kw_only=True)
class EvaluationConfig:
    """When a run is evaluated, and by which rules."""

    schedule: EvaluationScheduleConfig = field(default_factory=EvaluationScheduleConfig)
    rules: RulesConfig = field(default_factory=CocoRulesConfig)

    def __post_init__(self) -> None:
        metric, kind = self.schedule.best_metric, self.rules.kind
        known = _METRICS[kind]
        text = f"schedule.best_metric {metric} is not a metric of rules.kind {kind}: use one of "
        check(self, (metric in known, text + ", ".join(known)))


@dataclass(frozen=True, kw_only=True)
class ExperimentConfig:
    """One experiment."""

    model: ModelConfig = field(default_factory=RetinaNetConfig)
    data: DataConfig = field(default_factory=DataConfig)
    train: TrainConfig = field(default_factory=TrainConfig)
    evaluation: EvaluationConfig = field(default_factory=EvaluationConfig)

    def __post_init__(self) -> None:
        stride = self.model.stride
        bad = [side for side in self.data.canvas_size if side % stride]
        text = f"data.canvas_size must be multiples of {stride}, the model's stride, got {bad}"
        metric = self.evaluation.schedule.best_metric
        has_metric = self.model.predicts_masks or not metric.startswith("mask_")
        region_keys, movers = self.model.region_keys, self.data.moving_augmentations
        moved = f"{' and '.join(region_keys)} must know which part of the canvas is the image, but "
        moved += f"data.{' and data.'.join(movers)} can move it: remove one of the two"
        check(
            self,
            (not bad, text),
            (
                has_metric,
                f"evaluation.schedule.best_metric {metric} needs masks, which this model does not "
                f"predict: use {metric.removeprefix('mask_')}, or model.kind mask_rcnn with "
                "include_mask",
            ),
            stop_at_rule(self.train, get_args(Metric)),
            (not (region_keys and movers), moved),
        )

    @property
    def metrics(self) -> Sequence[str]:
        """The names of the metrics that an evaluation has."""
        known = _METRICS[self.evaluation.rules.kind]
        has_masks = self.model.predicts_masks
        return [name for name in known if has_masks or not name.startswith("mask_")]

    @property
    def measured(self) -> str:
        """The split and the rules of an evaluation, in words; files by name, as folders move."""
        rules = [os.path.basename(value) for value in asdict(self.evaluation.rules).values()]
        return f"{self.data.eval_split} by {' with '.join(filter(None, rules))}"

    @property
    def weights_settings(self) -> tuple[Setting, ...]:
        """The settings that give the weights their meaning: a run that resumes keeps them."""
        return weights_settings(self.model)


def load_experiment(path: str, overrides: Sequence[str] = ()) -> ExperimentConfig:
    """Reads the `config.yaml` of a model_dir.

    Args:
        path: the file.
        overrides: `KEY=VALUE` strings.

    Raises:
        ConfigError: lists every mistake, and for a file of an older version the keys that changed.
    """
    try:
        return load_config(ExperimentConfig, path, overrides=overrides)
    except ConfigError as error:
        if re.search(r"^eval:", read_text(path) or "", re.MULTILINE):
            raise ConfigError(f"{error}\n{path} {_RENAMED_KEYS}") from error
        raise


def advise_on_cpus(config: ExperimentConfig, *, num_images: int) -> str:
    """Returns advice on a run that takes hours on a CPU; empty where there is none.

    Args:
        config: with its total_steps.
        num_images: training images.
    """
    advice = []
    if math.prod(config.data.canvas_size) > _SMALL_CANVAS:
        smaller = "lite0_fpn_320, which starts from ImageNet weights, r18_fpn_320 or quickstart"
        if config.model.predicts_masks:
            smaller = "mask-lite0_fpn_320 or mask-quickstart"
        advice.append(f"On a CPU choose a smaller config: {smaller}.")
    if _FEW_EPOCHS * num_images < config.train.total_steps * config.train.batch_size:
        fewer = f"--set train.total_epochs={_FEW_EPOCHS}"
        advice.append(f"Fewer steps will do for a first look: {fewer}.")
    return " ".join(advice)
